"""Clients of other nodes, as the leader sees them: each a connection whose bytes go back through the client's own node.

A request is forwarded to the leader of one term, and nobody else acts on it, however late it comes: a node that leads
another term, or none, says that it has done nothing (`NotDone`), and the client's own node asks the next leader.
`forwarding.py` is that node's side, `request_states.py` has the rules for both.
"""

from collections.abc import Callable
from typing import Final

from broker.node.held_requests import HeldRequests
from broker.node.listeners import Listeners
from broker.node.request_states import Event
from broker.peers.protocol import ClientGone, Forward, NotDone, PeerProtocolError, Relay, encode_frame
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import FrameError
from broker.remoting.frame import whole_commands
from broker.replica.replica import Replica
from broker.requests.connection import Buffer, Connection, Outgoing, RelayedConnection
from broker.requests.processing import Handler

RELAYED_BYTES_MAX: Final = 8 * 1024 * 1024
"""When more than this waits for the link to a node, pulls of its clients are refused."""


class RelayedClients:
    """Clients of other nodes, by (node, number), from the first request forwarded until they or that node are gone."""

    def __init__(
        self,
        replica: Replica,
        outgoing: Outgoing,
        listeners: Listeners,
        held: HeldRequests,
        received: Handler,
    ) -> None:
        """`held` are the requests that wait for a leader, some of them of clients here; `received` takes commands."""
        self._replica = replica
        self._outgoing = outgoing
        self._listeners = listeners
        self._held = held
        self._received = received
        self._connections: dict[tuple[str, int], RelayedConnection] = {}
        self._link_epochs: dict[str, int] = {}
        """The number of times that a link with each peer broke."""
        self._bytes_this_turn: dict[str, int] = {}
        """By node, what was relayed to its clients since the last turn: the link does not count it as unsent yet."""

    def forwarded(self, source: str, frame: Forward) -> None:
        """Takes a request of a client of `source`, or such a client's response to what it was asked.

        Raises `PeerProtocolError` for a request that cannot be read.
        """
        key = (source, frame.connection)
        relayed = self._connections.get(key)
        if relayed is None:
            relayed = self._connections[key] = self._new(source, frame)
        relayed.term = frame.term
        try:
            commands = whole_commands(bytes(frame.body))
        except FrameError as error:
            raise PeerProtocolError(f"a forwarded request cannot be read: {error}") from error
        for command in commands:
            if frame.term == self._replica.term or command.is_response:
                self._received(relayed, command)
            else:
                self.give_back(relayed, command)

    def give_back(self, connection: RelayedConnection, command: RemotingCommand) -> None:
        """Tells the node that has forwarded a request that nothing of it is done here: it asks the next leader."""
        if not command.is_one_way:
            self._to_node_of(connection, NotDone(connection.number, command.opaque, connection.term))

    def client_gone(self, source: str, frame: ClientGone) -> None:
        """Forgets a client of `source` that has disconnected there."""
        relayed = self._connections.pop((source, frame.connection), None)
        if relayed is not None:
            self._listeners.disconnected(relayed)
            if self._held.has_any_of(relayed):
                self._give_back_of(lambda holder: holder is relayed)

    def link_lost(self, node: str) -> None:
        """Forgets the clients of a node whose connection broke, either way; what is for them goes nowhere."""
        for key in [key for key in self._connections if key[0] == node]:
            self._listeners.disconnected(self._connections.pop(key))
        self._link_epochs[node] = self._link_epochs.get(node, 0) + 1
        self._give_back_forgotten()

    def leader_changed(self) -> None:
        """Forgets all clients unless this node leads: the others tell the new leader, what is known here is old."""
        if self._replica.leader == self._replica.node_id:
            return
        forgotten, self._connections = self._connections, {}
        for connection in forgotten.values():
            self._listeners.disconnected(connection)
        self._give_back_forgotten()

    def turn_ended(self) -> None:
        """Begins to count anew: from now on the links know what was relayed."""
        self._bytes_this_turn.clear()

    def _new(self, source: str, frame: Forward) -> RelayedConnection:
        def deliver(buffers: tuple[Buffer, ...]) -> None:
            data = b"".join(buffers)
            self._bytes_this_turn[source] = self._bytes_this_turn.get(source, 0) + len(data)
            self._to_node_of(relayed, Relay(relayed.number, data))

        def is_link_full() -> bool:
            link = self._replica.links.get(source)
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
        link = self._replica.links.get(connection.node)
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
            assert isinstance(request.connection, RelayedConnection)
            request.happens(Event.CLIENT_UNKNOWN)
            self.give_back(request.connection, request.command)
