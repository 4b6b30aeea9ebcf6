"""Clients of other nodes, as the leader sees them: each a connection whose bytes go back through the client's own node.

A request is forwarded to the leader of one term, and nobody else acts on it, however late it comes: a node that leads
another term, or none, says that it has done nothing (`NotDone`), and the client's own node asks the next leader.
`forwarding.py` is that node's side, `request_states.py` has the rules for both. Beyond what a turn handles requests
wait (`unhandled_forwards.py`).
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from broker.node.held_requests import HeldRequests
from broker.node.listeners import Listeners
from broker.node.ports import GroupView
from broker.node.request_states import RequestEvent
from broker.node.unhandled_forwards import UnhandledForwards, is_news, work_of
from broker.peers.protocol import ClientGone, Forward, NotDone, PeerProtocolError, Relay, encode_frame
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import FrameError
from broker.remoting.frame import whole_commands
from broker.requests.connection import Buffer, Connection, Outgoing, RelayedConnection
from broker.requests.errors import OverloadedError
from broker.requests.processing import Handler
from broker.requests.responses import refuse

RELAYED_BYTES_MAX: Final = 8 * 1024 * 1024
"""The bytes that may wait for the link to a node; beyond them pulls of its clients are refused."""


class RelayObserver(Protocol):
    """Watches the requests of other nodes' clients; it changes nothing."""

    def comes(self, source: str, frame: Forward) -> None:
        """A frame has come from a client of `source`."""

    def is_handled(self, client: RelayedConnection, command: RemotingCommand) -> None:
        """A request of a client is handled now."""


class RelayedClients:
    """Clients of other nodes, by (node, number), from the first request forwarded until they or that node are gone."""

    def __init__(
        self,
        view: GroupView,
        outgoing: Outgoing,
        listeners: Listeners,
        held: HeldRequests,
        received: Handler,
    ) -> None:
        """`held` are the requests that wait for a leader, some of them of clients here; `received` takes commands."""
        self._view = view
        self._outgoing = outgoing
        self._listeners = listeners
        self._held = held
        self._received = received
        self.observer: RelayObserver | None = None
        self._connections: dict[tuple[str, int], RelayedConnection] = {}
        self._link_epochs: dict[str, int] = {}
        """The number of times that a link with each peer broke."""
        self._bytes_this_turn: dict[str, int] = {}
        """By node, what was relayed to its clients since the last turn: the link does not count it as unsent yet."""
        self._unhandled = UnhandledForwards(view.limits.unhandled_max)
        self._work_left = self._work_a_turn = view.limits.relayed_work_a_turn
        """The work that may still be done until the end of the next turn."""
        self._broken: dict[str, PeerProtocolError] = {}
        """By node, what is wrong with a request that had to wait: the node hears of it with its next one."""
        self.places = self._unhandled.requests.places
        """The places of requests that wait for a turn; to be looked at only."""
        self.news_places = self._unhandled.news.places
        """Those of what is told of clients, and waits likewise."""
        self.waiting = self._unhandled.by_share
        """Not empty while requests wait for a turn, which is wanted at once then."""
        self.given_back: deque[tuple[RelayedConnection, NotDone]] = deque()
        """Requests that were held here, or have come behind those: a later turn gives them back, which is wanted at
        once, too. Both are to be looked at only."""
        self.forgotten: deque[RelayedConnection] = deque()
        """Clients that are unknown here by now, of whom the rest of this node hears in the next turns; likewise. They
        come by thousands, with a role or a link that is lost."""

    def forwarded(self, source: str, frame: Forward) -> None:
        """Takes a request of a client of `source`, or such a client's response to what it was asked.

        Raises `PeerProtocolError` for a request that cannot be read.
        """
        if self.observer is not None:
            self.observer.comes(source, frame)
        if self._broken and (error := self._broken.pop(source, None)) is not None:
            raise error
        key = (source, frame.connection)
        relayed = self._connections.get(key)
        if relayed is None:
            relayed = self._connections[key] = self._new(source, frame)
        # None overtakes those that wait: the requests of a client stay in their order.
        if self._work_left > 0 and not self.waiting:
            self._handle(relayed, frame)
        elif not self._unhandled.add_request(relayed, frame, self._unhandled.requests):
            commands = _commands(frame)
            if all(map(is_news, commands)) and self._unhandled.add_request(
                relayed, frame, self._unhandled.news
            ):
                return
            for command in commands:
                if not command.is_one_way and not command.is_response:
                    refuse(
                        relayed, command, OverloadedError("too many requests of other nodes' clients wait")
                    )

    def go_on(self) -> None:
        """Gives back, tells of clients that are gone, and handles what has waited, as much as a turn may."""
        while self._work_left > 0 and self.given_back:
            self._work_left -= 1
            self._to_node_of(*self.given_back.popleft())
        while self._work_left > 0 and self.forgotten:
            self._work_left -= 1
            self._listeners.disconnected(self.forgotten.popleft())
        while self._work_left > 0 and self.waiting:
            relayed, frame = self._unhandled.take()
            if isinstance(frame, ClientGone):
                self._gone(relayed.node, frame)
                continue
            # This is no call of its link, which would be closed for it: the node hears of that with its next request
            # (`_broken`).
            try:
                self._handle(relayed, frame)
            except PeerProtocolError as error:
                self._broken[relayed.node] = error

    def _handle(self, relayed: RelayedConnection, frame: Forward) -> None:
        self._work_left -= work_of(frame) if frame.term == self._view.term else 1  # else it is given back
        # It may have been forgotten while this waited, with its link or with the role.
        is_known = self._connections.get((relayed.node, relayed.number)) is relayed
        for command in _commands(frame):
            if command.is_response:
                # A response may come at any time: it is for whoever has asked, not for the leader of a term.
                if is_known:
                    self._received(relayed, command)
            elif is_known and frame.term == self._view.term:
                relayed.term = frame.term
                if self.observer is not None:
                    self.observer.is_handled(relayed, command)
                self._received(relayed, command)
            else:
                self.give_back(relayed, command, frame.term)

    def gives_back_late(self, connection: Connection, command: RemotingCommand) -> bool:
        """Gives back a request of an earlier term that has waited here, and returns True; returns False for any other.

        This node may lead again by now, but the other node may have told its client that the outcome is unknown.
        """
        if not isinstance(connection, RelayedConnection) or connection.term == self._view.term:
            return False
        self.give_back(connection, command, connection.term)
        return True

    def give_back(self, connection: RelayedConnection, command: RemotingCommand, term: int) -> None:
        """Tells the node that has forwarded a request to the leader of that term that nothing of it is done here: it
        asks the next leader."""
        if command.is_one_way:
            return
        not_done = NotDone(connection.number, command.opaque, term)
        # Behind those that turns give back, so that its node gets them in order.
        if self.given_back:
            self.given_back.append((connection, not_done))
        else:
            self._to_node_of(connection, not_done)

    def give_back_later(self, connection: RelayedConnection, command: RemotingCommand) -> None:
        """Has a turn give back a request of an earlier term, in which it has begun to wait here."""
        if not command.is_one_way:
            not_done = NotDone(connection.number, command.opaque, connection.term)
            self.given_back.append((connection, not_done))

    def client_gone(self, source: str, frame: ClientGone) -> None:
        """Forgets a client of `source` that has disconnected there, behind all that it has asked before."""
        relayed = self._connections.get((source, frame.connection))
        if relayed is None:
            return
        if self._work_left > 0 and not self.waiting:
            self._gone(source, frame)
        else:
            self._unhandled.add_gone(relayed, frame)

    def _gone(self, source: str, frame: ClientGone) -> None:
        self._work_left -= work_of(frame)
        relayed = self._connections.pop((source, frame.connection), None)
        if relayed is not None:
            self._listeners.disconnected(relayed)
            if self._held.has_any_of(relayed):
                self._give_back_of(lambda holder: holder is relayed)

    def link_lost(self, node: str) -> None:
        """Forgets the clients of a node whose connection broke, either way; what is for them goes nowhere.

        What they have asked and is not handled is as if it was lost on the way.
        """
        self._unhandled.drop(node)
        self._broken.pop(node, None)
        lost = [key for key in self._connections if key[0] == node]
        self.forgotten.extend([self._connections.pop(key) for key in lost])
        # What is still to be said to these clients goes nowhere from here on (`_to_node_of`).
        self._link_epochs[node] = self._link_epochs.get(node, 0) + 1
        self._give_back_forgotten()

    def leader_changed(self) -> None:
        """Forgets all clients unless this node leads: the others tell the new leader, what is known here is old."""
        if self._view.leader == self._view.node_id:
            return
        self.forgotten.extend(self._connections.values())
        self._connections.clear()
        self._give_back_forgotten()

    def turn_ended(self) -> None:
        """Begins to count anew: from now on the links know what was relayed."""
        self._bytes_this_turn.clear()
        self._work_left = self._work_a_turn

    def _new(self, source: str, frame: Forward) -> RelayedConnection:
        def deliver(buffers: tuple[Buffer, ...]) -> None:
            data = b"".join(buffers)
            self._bytes_this_turn[source] = self._bytes_this_turn.get(source, 0) + len(data)
            self._to_node_of(relayed, Relay(relayed.number, data))

        def is_link_full() -> bool:
            link = self._view.links.get(source)
            unsent = 0 if link is None else link.unsent_bytes
            return unsent + self._bytes_this_turn.get(source, 0) > RELAYED_BYTES_MAX

        relayed = RelayedConnection(
            self._outgoing, source, frame.connection, frame.host, deliver, is_link_full
        )
        relayed.epoch = self._link_epochs.get(source, 0)
        return relayed

    def _to_node_of(self, connection: RelayedConnection, frame: Relay | NotDone) -> None:
        if self._link_epochs.get(connection.node, 0) != connection.epoch:
            # The replica may have started again and numbered its clients anew: the response to a request that came over
            # an earlier link would be taken for the response to another client's.
            return
        link = self._view.links.get(connection.node)
        if link is not None:
            link.send(*encode_frame(frame))

    def _give_back_forgotten(self) -> None:
        """Gives back what is held for clients that are forgotten.

        Kept, it would be done once this node leads again, when its client may long have been answered by another.
        """
        if not self._held:
            return
        known = frozenset(self._connections.values())
        self._give_back_of(lambda holder: isinstance(holder, RelayedConnection) and holder not in known)

    def _give_back_of(self, is_gone: Callable[[Connection], bool]) -> None:
        for request in self._held.take_of(is_gone):
            request.happens(RequestEvent.CLIENT_UNKNOWN)
            connection, command = request.connection, request.command
            assert isinstance(connection, RelayedConnection), "other nodes' clients alone are unknown here"
            self.give_back_later(connection, command)


def _commands(frame: Forward) -> list[RemotingCommand]:
    """Returns the commands in a forwarded frame. Raises `PeerProtocolError` for bytes that are none."""
    try:
        return whole_commands(bytes(frame.body))
    except FrameError as error:
        raise PeerProtocolError(f"a forwarded request cannot be read: {error}") from error
