"""The clients of this node, and those of their requests that only the leader may handle.

Such a request is sent on to the leader as the frame that came, and waits here for the response, by client and opaque.
While no leader is known or reachable it is held, and goes on in a later turn. `request_states.py` says what may happen
to it then; `relayed_clients.py` is the leader's side.

Thousands of requests may wait when a leader is lost. All of them enter their next state at once, and what that asks for
is done for some of them in each turn.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Final

import structlog

from broker.node.client_calls import ClientCalls
from broker.node.held_requests import HeldRequests
from broker.node.ports import GroupView
from broker.node.relayed_clients import RelayedClients
from broker.node.request_states import (
    ASKED,
    DOUBT_NS,
    HELD_NS_MAX,
    ONCE,
    OVER,
    RequestEvent,
    State,
    WaitingRequest,
)
from broker.node.unhandled_forwards import NEWS
from broker.node.unsent_forwards import UnsentForwards
from broker.peers.protocol import ClientGone, Forward, NotDone, PeerProtocolError, Relay, encode_frame
from broker.remoting.codes import FLAG_ONE_WAY, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, encode_head, response
from broker.remoting.errors import FrameError
from broker.remoting.frame import whole_commands, whole_frames
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import OverloadedError
from broker.requests.processing import Handler
from broker.requests.responses import reply, reply_unknown
from broker.requests.shared_places import SharedPlaces
from broker.requests.work import work_of
from broker.statistics.events import EventKind, Events

log = structlog.get_logger("trivet.node")

FORWARDED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of forwarded requests that may wait for the link to take them."""

_UNDER_WAY_NS: Final = 100_000_000
"""A node that gives requests back does so in each turn until all are: the next is heard of within this time."""


_LOOKED_AT: Final = 5
"""In place of each held request that a turn would do, it looks at so many to find those to take back: some us each."""

_TAKEN_BACK_FROM: Final = frozenset({State.FORWARDED, State.RESUMED})


class _Client:
    """A connection to this node, the leader that last heard of it, and by opaque what it waits for."""

    __slots__ = ("connection", "ended", "known_to", "left", "number", "share", "waiting")

    def __init__(self, number: int, connection: Connection) -> None:
        self.number = number
        self.connection = connection
        self.share = connection.share
        self.known_to: str | None = None
        self.waiting: dict[int, WaitingRequest] = {}
        """Only what is FORWARDED or DOUBTED, or was until now."""
        self.left = -1
        """The place of its last request to leave a group that was told at once (`Forwarding.forward_copy`)."""
        self.ended: list[tuple[int, WaitingRequest]] = []
        """Requests that were waiting and are neither FORWARDED nor DOUBTED any more, each with its number: a heap, as
        turns go on with them in the order in which they came."""


class _TakingBack:
    """Requests of one client that turns take back: those that came until `number` and whose key is among `keys`."""

    __slots__ = ("key_of", "keys", "left", "number", "taken")

    def __init__(
        self,
        key_of: Callable[[WaitingRequest], str | None],
        taken: Callable[[WaitingRequest], None],
    ) -> None:
        self.key_of = key_of
        self.taken = taken
        self.keys: set[str] = set()
        self.number = -1
        self.left: deque[WaitingRequest] | None = None
        """The client's requests that no turn has looked at yet; None before the first turn."""

    def has(self, request: WaitingRequest) -> bool:
        return request.number <= self.number and self.key_of(request) in self.keys


class Forwarding:
    """The connections of a node's own clients, and the requests that wait for a leader."""

    def __init__(
        self,
        group: str,
        view: GroupView,
        time: Time,
        calls: ClientCalls,
        held: HeldRequests,
        relayed: RelayedClients,
        resume: Handler,
        events: Events,
    ) -> None:
        """`calls` learns which other node asks something of a client here; `resume` goes on with a request."""
        self._group = group
        self._view = view
        self._time = time
        self._calls = calls
        self._held = held
        self._relayed = relayed
        self._resume = resume
        self._events = events
        self.is_outside = False
        """This node is no member of its group (not yet, or not any more): nothing is forwarded or held."""
        self._by_number: dict[int, _Client] = {}
        self._by_connection: dict[Connection, _Client] = {}
        """The clients of `_by_number`, by their connections."""
        self._next_number = 0
        self.places = SharedPlaces(view.limits.forwarded_max)
        """The requests that wait for the leader's response; to be looked at only."""
        """Of the requests in `waiting` of all clients: each has its place as long as it is there."""
        self._unsent: dict[str, UnsentForwards] = {}
        """By node, what is for it."""
        self._doubted: dict[WaitingRequest, _Client] = {}
        """The requests that are DOUBTED; the first ends first, as all have equally long."""
        self._gave_back_ns: dict[str, int] = {}
        """By node, when it last told what became of a DOUBTED request."""
        self.ended: deque[_Client] = deque()
        """The clients of requests that were forwarded, and for which a later turn does what their state asks for: once
        for each. To be looked at only."""
        self.leaving: deque[_Client] = deque()
        """The clients that their leader is to forget, as this node is outside. To be looked at only."""
        self.taking_back: dict[Connection, _TakingBack] = {}
        """Clients of which turns take requests back, the next one first. To be looked at only."""
        self._doubt_ends = time.add_deadline(self._end_doubts)
        self._doubts_begun = 0
        """The number of requests that have become DOUBTED since this node started."""
        self._doubts_first = False
        """A leader was lost to which requests had begun to go on while others waited: these go on when none is DOUBTED,
        as it may give back what came before them. False while none is: nothing else lets them go on."""
        self._last_number = 0
        """The number of the request that came last."""
        self._resumed: tuple[RemotingCommand, int] | None = None
        """The request that goes on here just now, and its number. It may find that this node leads no more, or is
        handing over, and then waits again among those of its client as the one that it was."""
        self._may_go_on = True
        """Something has changed since a request was held for want of a leader: what is held may find one now."""

    def __len__(self) -> int:
        return len(self._by_connection)

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._by_connection

    def owes_answer(self, connection: Connection) -> bool:
        """Tells whether a client waits for the response to something that may be done only once (`ONCE`)."""
        client = self._by_connection.get(connection)
        return client is not None and any(request.command.code in ONCE for request in client.waiting.values())

    # ------------------------------------------------------------------ clients come and go

    def client_connected(self, connection: Connection) -> None:
        """Takes in a connection that may forward; its number is never given to another."""
        client = _Client(self._next_number, connection)
        self._by_number[client.number] = self._by_connection[connection] = client
        self._next_number += 1

    def client_disconnected(self, connection: Connection) -> None:
        """Forgets what a client waited for, and has the leader forget it."""
        client = self._by_connection.pop(connection)
        del self._by_number[client.number]
        # Each ends by its table: one that is DOUBTED, or goes on in a later turn, has more to be undone than its place.
        for request in list(client.waiting.values()):
            self._happens(client, request, RequestEvent.CLIENT_GONE)
        assert not client.waiting, (
            f"{len(client.waiting)} requests of a client that is gone keep their places"
        )
        for request in self._held.of(connection):
            self._held.take(request).happens(RequestEvent.CLIENT_GONE)
        self.taking_back.pop(connection, None)
        if client.known_to is not None:
            self._send_gone(client.known_to, client)

    # ------------------------------------------------------------------ a request that this node does not handle

    @property
    def is_leader_reachable(self) -> bool:
        """Tells whether another node leads, as far as this one knows, and the links both ways are up: without the
        leader's own link its responses would be lost.
        """
        leader, view = self._view.leader, self._view
        return leader is not None and leader != view.node_id and leader in view.links and view.hears(leader)

    def forward(self, connection: Connection, command: RemotingCommand) -> None:
        """Hands a request to the leader, or holds it until there is one."""
        self._ask(connection, command, self.place_of(command))

    def place_of(self, command: RemotingCommand) -> int:
        """Returns the place of a request among those of its client: that which it had if it goes on, else behind all
        that have come."""
        resumed = self._resumed
        return resumed[1] if resumed is not None and resumed[0] is command else self._new_number()

    def forward_late(self, connection: Connection, command: RemotingCommand, place: int) -> None:
        """Forwards a request that has waited here for something else than a leader. It keeps its place among those of
        its client that are held: they may have waited with it, or have come since."""
        if command.code == RequestCode.HEART_BEAT and self._is_out_of_date(connection, command, place):
            return
        if not self.goes_behind(connection, command, place):
            self._ask(connection, command, place)

    def _is_out_of_date(self, connection: Connection, command: RemotingCommand, place: int) -> bool:
        """Answers a heartbeat that would go on although its client has left a group since.

        The next leader would hear of it behind that, and believe it. This node knows what is so by now, and tells every
        new leader.
        """
        client = self._by_connection.get(connection)
        if client is None or place >= client.left:
            return False
        reply(connection, command, ResponseCode.SUCCESS)
        return True

    def hold_late(self, connection: Connection, command: RemotingCommand) -> None:
        """Holds a request that has waited here for something else than a leader, even if there is a leader: thousands
        may have waited with it, so they go on over several turns, before what their clients ask from now on. One that
        was forwarded to the leader of an earlier term is given back by a turn.
        """
        if self.is_outside:
            self.refuse_outside(connection, command)
        elif isinstance(connection, RelayedConnection) and not self._is_asked(connection):
            self._relayed.give_back_later(connection, command)
        elif isinstance(connection, RelayedConnection) or connection in self._by_connection:
            self._hold_for_leader(connection, command, self._new_number())

    def _is_asked(self, relayed: RelayedConnection) -> bool:
        """Tells whether this node leads the term to whose leader a client's requests are forwarded."""
        return (self._view.leader, self._view.term) == (self._view.node_id, relayed.term)

    def _new_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def _ask(self, connection: Connection, command: RemotingCommand, number: int) -> None:
        if self.is_outside:
            self.refuse_outside(connection, command)
        elif isinstance(connection, RelayedConnection):
            if self._is_asked(connection):
                # For this term, in which this node may yet serve.
                self._hold_for_leader(connection, command, number)
            else:
                self._relayed.give_back(connection, command, connection.term)
        elif (client := self._by_connection.get(connection)) is None:
            return  # it has disconnected meanwhile
        elif self.is_leader_reachable:
            self._forward(client, command, number)
        else:
            self._hold_for_leader(connection, command, number)

    def _hold_for_leader(self, connection: Connection, command: RemotingCommand, number: int) -> None:
        """Holds a request. No held request goes on before something has changed (`leader_may_be_asked`)."""
        self._may_go_on = False
        self._hold(connection, command, number)

    def _hold(self, connection: Connection, command: RemotingCommand, number: int) -> None:
        try:
            self._held.hold(connection, command, self._time.now_ns, number)
        except OverloadedError as error:
            reply(connection, command, ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]no leader: {error}")

    def _forward(self, client: _Client, command: RemotingCommand, number: int) -> None:
        connection, leader = client.connection, self._view.leader
        assert leader is not None, "it is reachable"
        if command.opaque in client.waiting and not command.is_one_way:
            # A response names its request by the opaque alone: with two of them nobody could say whose it is.
            reply(
                connection,
                command,
                ResponseCode.SYSTEM_BUSY,
                f"opaque {command.opaque} is that of a request which is not answered yet; nothing was done",
            )
            return
        try:
            is_sent = self.places.has_room(client.share) and self._send(leader, client, command)
        except ValueError as error:  # with every field written out it has become longer than a frame may be
            reply(connection, command, ResponseCode.MESSAGE_ILLEGAL, str(error))
            return
        if not is_sent:
            reply(
                connection,
                command,
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]too many requests wait for the leader",
            )
            return
        if not command.is_one_way:
            client.waiting[command.opaque] = WaitingRequest(
                connection, command, self._time.now_ns, State.FORWARDED, number, leader, self._view.term
            )
            self.places.take(client.share)
        # Also behind a request that wants no response: whoever has heard of a client has to hear that it is gone.
        client.known_to = leader

    def forward_copy(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the leader, too, if it is another node, and expects no response: this node answers the client.

        Where there is no room for it the leader is not told: heartbeats come again, and who has left falls silent.

        While this node still holds what the client has said of itself before, the copy is held behind that, whoever
        leads: when that goes on it says what is not so any more, here, too, and the last word counts. A heartbeat that
        waits for its leader does not go on behind the copy of an unregistration (`_is_out_of_date`).
        """
        leader, place = self._view.leader, self.place_of(command)
        client = self._by_connection.get(connection)
        if self._has_news_before(connection, client, place):
            self._hold(connection, _one_way(command), place)
        elif client is not None:
            if command.code == RequestCode.UNREGISTER_CLIENT:
                client.left = place
            if leader is not None and leader != self._view.node_id:
                client.known_to = leader
                self._send(leader, client, _one_way(command))

    def _has_news_before(self, connection: Connection, client: _Client | None, place: int) -> bool:
        """Tells whether what a client has said of itself before that place is yet to go on from here."""
        waiting = self._held.of(connection)
        if client is not None:
            waiting += [request for _, request in client.ended]
        return any(request.number < place and request.command.code in NEWS for request in waiting)

    def pass_response_on(self, asking: str, connection: Connection, answer: RemotingCommand) -> None:
        """Sends a client's response to the node that has asked that client. One that is too long becomes a refusal.

        Where there is no room for it, it is dropped, as if the client had not answered.
        """
        client = self._by_connection[connection]
        try:
            self._send(asking, client, answer)
        except ValueError as error:
            self._send(asking, client, response(answer, ResponseCode.SYSTEM_ERROR, str(error)))

    def _send(self, node: str, client: _Client, command: RemotingCommand) -> bool:
        """Sends what is of a client to another node. Returns False, and sends nothing, where too much that is of the
        client's address waits for the link already.

        Raises `ValueError` for what is longer than a frame may be.
        """
        link = self._view.links.get(node)
        if link is None:
            return True  # it is lost, as all that is on the way there
        unsent = self._unsent.get(node)
        if unsent is None:
            unsent = self._unsent[node] = UnsentForwards(FORWARDED_BYTES_MAX)
        if not unsent.has_room(link, client.share, len(command.body)):
            return False
        frame = b"".join((encode_head(command, len(command.body)), command.body))
        link.send(*encode_frame(Forward(client.number, client.connection.host, self._view.term, frame)))
        unsent.queued(client.share, len(frame))
        return True

    def _send_gone(self, node: str, client: _Client) -> None:
        link = self._view.links.get(node)
        if link is not None:
            link.send(*encode_frame(ClientGone(client.number)))

    # ------------------------------------------------------------------ what happens to a request that waits

    def relayed(self, source: str, frame: Relay) -> None:
        """Takes what another node has for a client: a response, or a request of its own.

        Raises `PeerProtocolError` for bytes that cannot be read.
        """
        client = self._by_number.get(frame.connection)
        # It has disconnected, of which that node is being told (`ClientGone`).
        if client is None:
            return
        connection = client.connection
        body = bytes(frame.body)
        try:
            commands = whole_commands(body)
        except FrameError as error:
            raise PeerProtocolError(f"a relayed answer cannot be read: {error}") from error
        wanted: list[bytes] = []
        for command, command_bytes in zip(commands, whole_frames(body), strict=True):
            if command.is_response:
                request = client.waiting.get(command.opaque)
                if request is None or request.leader != source or request.state not in ASKED:
                    continue  # answered otherwise meanwhile, or another node was asked anew: a client gets one response
                self._note_if_doubted(source, request)
                self._happens(client, request, RequestEvent.RESPONSE)
            elif not command.is_one_way:
                self._calls.relayed(connection, command.opaque, source)
            wanted.append(command_bytes)
        if not wanted:
            return
        # Its requests have long not been read any more. What comes beyond this is not for those that the leader has had
        # already (`UNREAD_BYTES_MAX`).
        if connection.leaves_much_unread():
            if not connection.aborted:
                self._events.warn(
                    EventKind.CONNECTION_CLOSED,
                    "leaves responses unread",
                    self._time.now_ns,
                    source=connection.address,
                    client=connection.name,
                )
                connection.abort()
            return
        # The bytes that came: they were read only to see whose they are.
        connection.send(*wanted)

    def hear_not_done(self, source: str, frame: NotDone) -> None:
        """Asks the next leader: the node that was asked has not done the request, and no longer leads that term."""
        client = self._by_number.get(frame.connection)
        request = None if client is None else client.waiting.get(frame.opaque)
        # Nodes may have given back the same opaque of an earlier term: only the one that was asked last counts.
        if (
            client is not None
            and request is not None
            and (request.leader, request.term) == (source, frame.term)
            and request.state in ASKED
        ):
            self._note_if_doubted(source, request)
            self._happens(client, request, RequestEvent.NOT_DONE)

    def leader_changed(self) -> None:
        """Goes through all waiting requests: a node that was asked as leader of another term will not do them."""
        today, links = (self._view.leader, self._view.term), self._view.links

        def event_of(request: WaitingRequest) -> RequestEvent:
            if (request.leader, request.term) == today:
                return RequestEvent.LEADER_BACK
            # The replica hears of a lost link before this module does, and its role may change because of that.
            return RequestEvent.LEADER_CHANGED if request.leader in links else RequestEvent.LINK_LOST

        # Asked before the requests change their states: what enters `_doubted` or `ended` by this is not among the
        # others.
        before, others_wait = self._doubts_begun, bool(self._held or self.ended or self._doubted)
        self._happens_to_all([(client, request, event_of(request)) for client, request in self.all_asked()])
        if others_wait and self._doubts_begun > before:
            self._doubts_first = True
        self._plan_end_of_doubts()

    def link_lost(self, node: str) -> None:
        """Ends the wait for responses of `node`: nothing more can be heard from it."""
        lost = [
            (*waiting, RequestEvent.LINK_LOST) for waiting in self.all_asked() if waiting[1].leader == node
        ]
        self._happens_to_all(lost)
        self._gave_back_ns.pop(node, None)

    def _note_if_doubted(self, node: str, request: WaitingRequest) -> None:
        """Notes when a former leader last said what became of a doubted request: so it is still telling of them all."""
        if request.state is State.DOUBTED:
            self._gave_back_ns[node] = self._time.now_ns

    def _end_doubts(self) -> None:
        now_ns = self._time.now_ns
        over: list[tuple[_Client, WaitingRequest, RequestEvent]] = []
        for request, client in list(self._doubted.items()):
            if request.until_ns > now_ns:
                break
            is_under_way = now_ns - self._gave_back_ns.get(request.leader, -NEVER) < _UNDER_WAY_NS
            if is_under_way and now_ns + DOUBT_NS <= request.since_ns + HELD_NS_MAX:
                # It may be thousands, and this one is among them yet. It is the last now, as none ends later.
                request.until_ns = now_ns + DOUBT_NS
                del self._doubted[request]
                self._doubted[request] = client
            else:
                over.append((client, request, RequestEvent.TIME_OVER))
        self._happens_to_all(over)
        self._plan_end_of_doubts()

    def _plan_end_of_doubts(self) -> None:
        first = next(iter(self._doubted), None)
        assert first is not None or not self._doubts_first, (
            "requests are held until an end of doubts that is past"
        )
        self._doubt_ends.due_ns = NEVER if first is None else first.until_ns

    def take_back(
        self,
        connection: Connection,
        key: str,
        key_of: Callable[[WaitingRequest], str | None],
        taken: Callable[[WaitingRequest], None],
    ) -> None:
        """Has turns remove those requests of a client, forwarded or held until now, of which `key_of` returns `key`.
        Each is given to `taken`, whose caller answers it.

        Only for requests that may be repeated: the leader may have done them already. Until one is removed the response
        of the leader that was asked goes to the client; no leader is asked any more. `key_of` and `taken` are the same
        ones each time.
        """
        client = self._by_connection.get(connection)
        if (client is None or not client.waiting) and not self._held.has_any_of(connection):
            return
        back = self.taking_back.get(connection)
        if back is None:
            back = self.taking_back[connection] = _TakingBack(key_of, taken)
        # Turns go over its requests anew, for the new key, too; what comes from here on they leave alone.
        back.keys.add(key)
        back.number = self._last_number
        back.left = None

    def take_some_back(self) -> None:
        """Takes back some of the requests; to be called in each turn while there may be any."""
        left = _LOOKED_AT * self._view.limits.held_at_once
        while left > 0 and self.taking_back:
            connection, back = next(iter(self.taking_back.items()))
            client = self._by_connection.get(connection)
            # Looked up in the turn that begins with it, and not with each key that is added: a client may have
            # thousands.
            if back.left is None:
                asked = [] if client is None else client.waiting.values()
                back.left = deque([*asked, *self._held.of(connection)])
            while left > 0 and back.left:
                left -= 1
                request = back.left.popleft()
                if request.state is State.HELD and back.has(request):
                    self._held.take(request).happens(RequestEvent.ANSWERED_HERE)
                    back.taken(request)
                elif request.state in _TAKEN_BACK_FROM and back.has(request):
                    assert client is not None, "it has asked"
                    self._happens(client, request, RequestEvent.ANSWERED_HERE)
                    back.taken(request)
            del self.taking_back[connection]
            if back.left:
                self.taking_back[connection] = back  # behind others

    def _is_taken_back(self, request: WaitingRequest) -> bool:
        """Takes back a request that would go on, if it is to be."""
        back = self.taking_back.get(request.connection)
        if back is None or not back.has(request):
            return False
        request.happens(RequestEvent.ANSWERED_HERE)
        back.taken(request)
        return True

    def _happens(self, client: _Client, request: WaitingRequest, event: RequestEvent) -> None:
        """Takes a request that was forwarded to its next state, and does what that state asks for."""
        if not self._enters(client, request, event):
            return
        if client.ended and event is RequestEvent.NOT_DONE:
            self._goes_on_later(client, request)  # in its place among them
        else:
            self._carry_out(client, request, event)

    def _happens_to_all(self, events: Iterable[tuple[_Client, WaitingRequest, RequestEvent]]) -> None:
        """Takes requests that were forwarded to their next states, and has turns do what these ask for."""
        for client, request, event in events:
            if self._enters(client, request, event):
                self._goes_on_later(client, request)

    def _goes_on_later(self, client: _Client, request: WaitingRequest) -> None:
        heappush(client.ended, (request.number, request))
        self.ended.append(client)

    def _enters(self, client: _Client, request: WaitingRequest, event: RequestEvent) -> bool:
        """Takes a request to its next state. Returns True if it does not wait for the leader that it was forwarded to
        any more.
        """
        before = request.state
        state = request.happens(event)
        if state is State.DOUBTED:
            if before is not State.DOUBTED:  # the time runs from the first change of leaders on
                request.until_ns = self._time.now_ns + DOUBT_NS
                self._doubted[request] = client
                self._doubts_begun += 1
            return False
        if before is State.DOUBTED:
            del self._doubted[request]
            # With the last doubt nobody is left who could give back what came before those that wait.
            self._doubts_first &= bool(self._doubted)
        return state is not State.FORWARDED

    def _carry_out(self, client: _Client, request: WaitingRequest, event: RequestEvent | None = None) -> None:
        """Ends a request's wait for this leader: answers it, refuses it, asks again or drops it, as its state says.

        `event` is what ended it; None if it had ended earlier.
        """
        opaque, state, now_ns = request.command.opaque, request.state, self._time.now_ns
        assert client.waiting[opaque] is request, "an opaque waits once"
        # Its place and its opaque are free before it goes on: it may be forwarded again.
        del client.waiting[opaque]
        self.places.free(client.share)
        connection = client.connection
        if state is State.UNKNOWN:
            reply_unknown(connection, request.command)
        elif state is State.REFUSED:
            self.refuse_outside(connection, request.command)
        elif state is State.RESUMED:
            asked = request.leader, request.term
            if self._is_taken_back(request):
                return
            code, place = request.command.code, request.number
            if code == RequestCode.HEART_BEAT and self._is_out_of_date(connection, request.command, place):
                return
            if event is RequestEvent.NOT_DONE and (self._view.leader, self._view.term) == asked:
                # Asked now, it would be the same one again.
                self._hold_for_leader(connection, request.as_of(now_ns), request.number)
            elif self._doubts_first or self._held.has_any_before(request.number, connection):
                self._hold(connection, request.as_of(now_ns), request.number)  # in its place among them
            else:
                self._go_on(request)
        else:
            # The response is on its way to the client, is the caller's to give, or has nobody to go to.
            assert state in {State.ANSWERED, State.TAKEN_BACK, State.FORGOTTEN}, state

    def all_asked(self) -> list[tuple[_Client, WaitingRequest]]:
        """Returns the requests that are `ASKED`, with their clients."""
        clients = self._by_number.values()
        return [
            (client, request)
            for client in clients
            for request in client.waiting.values()
            if request.state in ASKED
        ]

    def go_on(self) -> None:
        """Does what the new states of some requests ask for; to be called in each turn while there are any.

        Raises what handlers raise.
        """
        left = self._view.limits.held_at_once
        while left > 0 and self.leaving:
            client = self.leaving.popleft()
            left -= 1
            # This node may have come back in since, or the client may have gone.
            if self.is_outside and client.number in self._by_number and client.known_to is not None:
                self._send_gone(client.known_to, client)
                client.known_to = None
        is_done_here = self._view.serving
        while left > 0 and self.ended:
            client = self.ended.popleft()
            _, request = heappop(client.ended)
            if request.state in OVER:
                left -= 1
                continue
            # To send a request on costs little, however long it takes whoever does it.
            left -= work_of(request.command) if is_done_here else 1
            self._carry_out(client, request)

    # ------------------------------------------------------------------ what is held

    def leader_may_be_asked(self) -> None:
        """To be called when something has changed: held requests go on from the next turn on if there is a leader."""
        self._may_go_on = True

    @property
    def _finds_leader(self) -> bool:
        """True if held requests can go on: a leader is there to do them, or this node is outside and refuses them."""
        if self.is_outside:
            return True
        if not self._may_go_on:
            return False
        # While it hands over, raft takes no proposals: what went on would be held again.
        return not self._view.hands_over if self._view.serving else self.is_leader_reachable

    @property
    def is_releasing(self) -> bool:
        """True while held requests go on: a turn is wanted at once."""
        if not self._held or self.ended or not self._finds_leader:
            return False
        # Some of those that a lost leader is yet to tell are asked of the next one, in places before these.
        return self.is_outside or not (self._doubts_first or self._view.has_untold)

    def goes_behind(self, connection: Connection, command: RemotingCommand, place: int | None = None) -> bool:
        """Puts a request behind those of its client that go on just now and came before it, if there are any; else
        returns False. One that has come now, without a place, came behind all.

        The first of those that are held goes on in its place: so a client that asks and asks does not wait here for
        ever.
        """
        number = self._new_number() if place is None else place
        # Turns go on with these before all that are held, or hold them in their places.
        if self.ended and (client := self._by_connection.get(connection)) is not None and client.ended:
            self._hold(connection, command, number)
            return True
        # So are those that have waited at this node while it led, once they are told that it does not any more.
        if place is None and self._view.has_untold and not self.is_outside:
            self._hold(connection, command, number)
            return True
        if not (self._finds_leader and self._held.has_any_before(number, connection)):
            return False
        first = self._held.take_first_of(connection) if self.is_releasing else None
        self._hold(connection, command, number)
        if first is not None:
            self._release(first)
        return True

    def turn_held(self) -> None:
        """Goes on with some of the held requests, or refuses some that have been held for as long as clients wait.

        Raises what handlers raise.
        """
        if self._view.serving:
            self._may_go_on = True  # a transfer may have come to nothing, and this node leads on
        left = self._view.limits.held_at_once
        while left > 0 and self.is_releasing:
            request = self._held.take_next()
            left -= work_of(request.command)
            self._release(request)
        if self.is_releasing or (self.ended and self._finds_leader):
            return  # it takes some turns, in which nobody's time is over
        while left > 0 and (expired := self._held.take_expired(self._time.now_ns)) is not None:
            left -= 1
            expired.happens(RequestEvent.TIME_OVER)
            reply(
                expired.connection,
                expired.command,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"group {self._group} has no leader that serves; nothing was stored, try again",
            )

    def _release(self, request: WaitingRequest) -> None:
        if self.is_outside:
            request.happens(RequestEvent.OUTSIDE)
            self.refuse_outside(request.connection, request.command)
        elif not self._is_taken_back(request):
            request.happens(RequestEvent.LEADER_FOUND)
            self._go_on(request)

    def _go_on(self, request: WaitingRequest) -> None:
        """Does what a RESUMED request asks for here, or asks the leader; holds it where there is none."""
        connection, command = request.connection, request.as_of(self._time.now_ns)
        if self._view.serving:
            self.handle_in_place(connection, command, request.number)
        else:
            self._ask(connection, command, request.number)

    def handle_in_place(self, connection: Connection, command: RemotingCommand, place: int) -> None:
        """Handles a request that has waited here. If its handler forwards it, or has it wait again, it keeps its place
        among those of its client."""
        assert self._resumed is None, f"request {self._resumed[1]} goes on, and {place} in it"
        self._resumed = command, place
        try:
            self._resume(connection, command)
        finally:
            self._resumed = None

    # ------------------------------------------------------------------ a node outside of its group

    def refuse_outside(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers that this node is no member of its group."""
        reply(
            connection,
            command,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{self._view.node_id} is no member of group {self._group}; nothing was done, ask another node",
        )

    def look_at_membership(self) -> None:
        """Finds out whether this node is outside of its group, now that members or role may have changed.

        A node that is outside refuses what it holds, and all that comes; clients look for the others. It tells the
        leader that it has no clients here any more: whom the leader asked through this node could not answer. Requests
        under way there are refused, but for those that are done once: the leader still answers these.
        """
        # A leader that is removed serves until that is committed (dissertation 4.2.2).
        outside = not self._view.is_member and not self._view.serving
        if outside == self.is_outside:
            return
        self.is_outside = outside
        log.info("outside of the group" if outside else "member of the group", node=self._view.node_id)
        if not outside:
            return
        self.leaving.extend(self._by_number.values())
        self._happens_to_all([(*waiting, RequestEvent.OUTSIDE) for waiting in self.all_asked()])


def _one_way(command: RemotingCommand) -> RemotingCommand:
    """Returns a copy of a request that takes no place here, and that the leader does not answer."""
    return RemotingCommand(
        command.code,
        command.flag | FLAG_ONE_WAY,
        command.language,
        command.opaque,
        command.version,
        command.remark,
        command.header,
        command.body,
        command.serialization,
    )
