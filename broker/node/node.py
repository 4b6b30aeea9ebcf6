"""A broker node as clients see it: requests in, responses out, on a leader, a follower or a node that knows no leader.

Any node takes any request. What only the leader may do is forwarded to it over the peer link, as the frame that the
client sent; the leader answers through the same way, with the client's own opaque, so that a client with an old route
does not notice. While there is no leader that serves, such requests are held for a moment instead
of failing: most elections are over before a client's patience.

`request_states.py` says what may happen to a request that waits for a leader; `forwarding.py` is the side of the
client's node, `relayed_clients.py` that of the leader.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

import structlog

from broker.access.control import SEES_ALL, AccessControl, Sight
from broker.access.needs import is_judged
from broker.access.refusal import RefusedError
from broker.node.client_calls import ClientCalls
from broker.node.client_registry import ClientRegistry
from broker.node.forwarding import Forwarding
from broker.node.held_requests import HeldRequests
from broker.node.listeners import Listeners
from broker.node.long_requests import LongRequests
from broker.node.relayed_clients import RelayedClients
from broker.node.request_states import ONCE, WaitingRequest
from broker.peers.protocol import (
    BrokenPeerError,
    ClientGone,
    EntriesLent,
    EntriesWanted,
    Forward,
    Frame,
    NotAMember,
    NotDone,
    PeerProtocolError,
    RaftFrame,
    Relay,
)
from broker.remoting.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.replica.read_barriers import WEIGHT_A_TURN
from broker.replica.replica import Replica
from broker.replica.slowness import STALLED_NS
from broker.requests.budget import Budget
from broker.requests.connection import Connection, Outgoing, RelayedConnection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import BatchUnderWayError, NotServingError, OverloadedError, RequestError
from broker.requests.in_turn import InTurn
from broker.requests.processing import HandledOn, Handler, Processor
from broker.requests.responses import refuse, reply
from broker.requests.shared_places import SharedPlaces
from broker.settings.live import LiveSettings
from broker.settings.tables import Settings
from broker.state.commands import Command, DeleteTopic, PutTopic, Several
from broker.statistics.events import EventKind, Events
from broker.statistics.stats import Stats
from log.errors import DamagedLogError, DiskError, DiskFullError

log = structlog.get_logger("trivet.node")

AnyPart = TypeVar("AnyPart")

_OVER: Final = object()
"""The value of an iterator of steps that has no more."""

_TERMS_AHEAD_MAX: Final = 1 << 32
"""A term so far ahead cannot be this group's: with an election a second it is a hundred years away. Whoever could set
any term would bring the group to the last one that there can be, behind which nobody leads."""

_READ_WEIGHT: Final = 64
"""The weight of each read that `_READ_WEIGHTS` does not name: it looks through a table or an index."""

_READ_WEIGHTS: Final[dict[int, int]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: 1,
    RequestCode.GET_MAX_OFFSET: 1,
    RequestCode.GET_MIN_OFFSET: 1,
    RequestCode.VIEW_MESSAGE_BY_ID: 1,
    RequestCode.END_TRANSACTION: 1,
    RequestCode.GET_TOPIC_CONFIG: 1,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: 1,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: 8,
    RequestCode.QUERY_MESSAGE: 128,
    **dict.fromkeys(
        (
            RequestCode.GET_ALL_TOPIC_CONFIG,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            RequestCode.GET_ALL_CONSUMER_OFFSET,
            RequestCode.GET_TOPIC_STATS_INFO,
            RequestCode.GET_CONSUME_STATS,
            RequestCode.GET_BROKER_CONSUME_STATS,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            RequestCode.GET_ALL_PRODUCER_INFO,
            RequestCode.QUERY_TOPICS_BY_CONSUMER,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            RequestCode.QUERY_CORRECTION_OFFSET,
            RequestCode.QUERY_CONSUME_QUEUE,
            RequestCode.CLONE_GROUP_OFFSET,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        ),
        WEIGHT_A_TURN,
    ),
}
"""The weight of a read behind a read barrier, by request code, in units of 15 us (broker/replica/read_barriers.py).

A request that is handled in steps does the first of them behind the barrier. Nobody knows before how long that takes,
so it has the weight of a whole turn: each turn lets one pass.
"""

_ABOUT_THE_NODE: Final = frozenset(
    {RequestCode.TRIVET_NODE_STATUS, RequestCode.GET_BROKER_CONFIG, RequestCode.GET_BROKER_RUNTIME_INFO}
)
"""Requests that a node answers although it is no member of its group."""


class WaitingPlaces(NamedTuple):
    """The places of requests that wait at a node, by what they wait for."""

    leader: SharedPlaces
    answer: SharedPlaces
    """The leader's."""
    turn: SharedPlaces
    news: SharedPlaces
    """Of what other nodes tell of their clients, unasked, and no turn has heard yet."""


class Node:
    """The processors, and everything between a client's frame and the processor that answers it."""

    def __init__(
        self,
        replica: Replica,
        outgoing: Outgoing,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
        stats: Stats,
        events: Events,
    ) -> None:
        """`listeners` observe the replica: the node is the first of them, and the last (`start`)."""
        self._parts: dict[type, object] = {}
        self.replica = replica
        self.group = settings.current.node.group
        lineage = settings.current.raft.lineage
        self.identity = f"{self.group}#{lineage}" if lineage else self.group
        """The group's name among its nodes: restored, it is another group than before."""
        self.outgoing = outgoing
        self.settings = settings
        self.time = time
        self.stats = stats
        self.events = events
        self.registry: ClientRegistry[Connection] = ClientRegistry()
        self.calls = ClientCalls(int(replica.node_id[1:]), time)
        self._due_ns = NEVER
        """The time at which the next turn is due at the latest, as the last one has found."""
        self._late_from_ns = NEVER
        """If nothing calls this node until then, it has stood still; told once a turn."""
        self._goes_on = False
        """The result of the last turn."""
        self.registration_version = 0
        """Rises whenever the name servers must be told something new."""
        self.permission_changes = 0
        """The number of changes of what the broker itself permits its clients while this node runs."""
        self._permitted = _permitted(settings.current)
        settings.on_change(self._settings_changed)
        self.access: AccessControl | None = None
        """Decides what clients of this node may do; None lets them do everything."""
        self._routes: dict[int, tuple[Handler, HandledOn]] = {}
        self._leaving: list[InTurn[tuple[Connection, RemotingCommand]]] = []
        """What parts of this node are handling anew, some requests a turn."""
        self._behind_barrier = Budget("a round of messages that confirms this leader")
        self._held = HeldRequests(replica.limits.held_requests_max)
        self._relayed = self.add(RelayedClients(replica, outgoing, listeners, self._held, self.received))
        self._forwarding = Forwarding(
            self.group,
            replica,
            time,
            self.calls,
            self._held,
            self._relayed,
            self.handle_admitted,
            events,
        )
        self.long_requests = LongRequests(
            replica.leadership, self.handle_in_steps, self._forwarding, self.is_connected
        )
        self.waiting_places = WaitingPlaces(
            self._held.places, self._forwarding.places, self._relayed.places, self._relayed.news_places
        )
        # Processors ask a node to forward (`Requests` in ports.py); `Forwarding` does it, without one more call.
        self.forward = self._forwarding.forward
        self.place_of = self._forwarding.place_of
        self.forward_late = self._forwarding.forward_late
        self.hold_late = self._forwarding.hold_late
        self.forward_copy = self._forwarding.forward_copy
        self.take_back = self._forwarding.take_back
        self.listeners = listeners
        listeners.role_changes.append(self._role_changed)
        listeners.commands.append(self._command_applied)

    def start(self, processors: Iterable[Processor]) -> None:
        """Registers the processors; called once, before anything else and after all other listeners are there."""
        for processor in processors:
            self.add(processor)
            for route in processor.routes():
                assert route.code not in self._routes, f"two handlers for request {route.code}"
                assert is_judged(route.code), f"nothing says who may make request {route.code}"
                self._routes[route.code] = (route.handler, route.handled_on)
        self.listeners.disconnects.append(self.calls.disconnected)
        # Behind all others: what was held goes on only when every processor knows of the new role.
        self.listeners.role_changes.append(self._leader_may_be_asked)
        self._forwarding.look_at_membership()

    def add(self, part: AnyPart) -> AnyPart:
        """Keeps a part, the only one of its class, for whoever asks for it (`part`), and returns it."""
        assert type(part) not in self._parts, f"two parts of the class {type(part).__name__}"
        self._parts[type(part)] = part
        return part

    def part(self, kind: type[AnyPart]) -> AnyPart:
        """Returns the part of that class: a processor, or what processors share. Raises KeyError if it has none."""
        part = self._parts[kind]
        assert isinstance(part, kind), "it is kept by its class"
        return part

    def _settings_changed(self, settings: Settings) -> None:
        """Other settings are in force; name servers are told of topics as these allow."""
        permitted = _permitted(settings)
        self.permission_changes += permitted != self._permitted
        self._permitted = permitted
        self.registration_version += 1

    @property
    def is_outside(self) -> bool:
        """True while this node is no member of its group (not yet, or not any more) and answers only for itself."""
        return self._forwarding.is_outside

    @property
    def client_count(self) -> int:
        """Clients connected to this node."""
        return len(self._forwarding)

    @property
    def held_count(self) -> int:
        """Requests that wait for a leader."""
        return len(self._held)

    @property
    def first_held(self) -> WaitingRequest | None:
        """The request that waits for a leader and whose time is over first; None if none waits."""
        return next(iter(self._held.waiting), None)

    @property
    def asked(self) -> list[WaitingRequest]:
        """The requests of this node's clients that a leader was asked, and of which it may say what became of them."""
        return [request for _, request in self._forwarding.all_asked()]

    @property
    def owes_answers(self) -> bool:
        """True while somebody waits for what this node has appended as the leader, is doing in steps (only a part of a
        batch may be in the log), or begins anew with in its next turns."""
        return self.replica.leadership.owes_answers or self.long_requests.has_more or any(self._leaving)

    def stops_behind(self, leaving: InTurn[tuple[Connection, RemotingCommand]]) -> None:
        """Has an orderly stop, whenever it comes, wait until `leaving` is empty: requests that turns handle anew."""
        self._leaving.append(leaving)

    @property
    def owes_nodes(self) -> bool:
        """True while other nodes are yet to hear what became of requests of their clients that this one has not
        handled."""
        return bool(self._relayed.given_back or self._relayed.waiting)

    def owed_answers(self, connections: Iterable[Connection]) -> "set[Connection]":
        """Returns those who wait for the leader's response to what is done once, such as a send."""
        owed = {connection for connection in connections if self._forwarding.owes_answer(connection)}
        for request in self._held.waiting:
            if request.command.code in ONCE and not request.command.is_one_way:
                owed.add(request.connection)
        return owed

    # ------------------------------------------------------------------ clients

    @property
    def can_prove_clients(self) -> bool:
        """True where clients can show whose they are: where there are accounts."""
        return self.access is not None

    @property
    def has_strangers(self) -> bool:
        """True where clients that have shown no account are limited: where there are accounts."""
        return self.access is not None

    def client_connected(self, connection: Connection) -> None:
        """Takes in a client (or another server) that has connected."""
        self._forwarding.client_connected(connection)

    def client_disconnected(self, connection: Connection) -> None:
        """Forgets what a client waited for, and ends its registrations: its socket is closed."""
        self._forwarding.client_disconnected(connection)
        self.listeners.disconnected(connection)

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        """Takes one command from a client. `begin` has set the time."""
        if command.flag & FLAG_RESPONSE:
            asking = self.calls.answered(connection, command)
            if asking is not None and connection in self._forwarding:
                self._forwarding.pass_response_on(asking, connection, command)
            return
        # Judged once, as it came: what goes on later may lack what its signature covers (`handle_admitted`).
        if self.access is not None and not self._is_allowed(self.access, connection, command):
            return
        # Mostly nothing waits, and what is empty is not asked.
        some_wait = self._held.waiting or self._forwarding.ended or self.replica.has_untold
        if not some_wait or not self._goes_behind_held(connection, command):
            self.handle_admitted(connection, command)

    def _goes_behind_held(self, connection: Connection, command: RemotingCommand) -> bool:
        """Keeps the order of a client's requests that wait for a leader; what any node does need not wait."""
        route = self._routes.get(command.code)
        if route is None or route[1] is HandledOn.ANY:
            return False
        return self._forwarding.goes_behind(connection, command)

    def handle_admitted(self, connection: Connection, command: RemotingCommand) -> None:
        """Handles a request that its client may make: one that has just come, or that goes on after it has waited.

        A pull that has waited may have lost the offset that it brought (`done_late`), and with that its signature.
        """
        route = self._routes.get(command.code)
        if route is None:
            reply(
                connection,
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
            return
        handler, place = route
        if self._forwarding.is_outside and command.code not in _ABOUT_THE_NODE:
            self._forwarding.refuse_outside(connection, command)
        elif place is HandledOn.ANY:
            # A follower leaves what is committed for later, in larger pieces: a response is to contain it.
            self.replica.committed.catch_up()
            self._handle(connection, command, handler)
        elif self.replica.leadership.serving:
            if place is HandledOn.LEADER_READ:
                self.handle_after_barrier(connection, command, handler)
            else:
                self._handle(connection, command, handler)
        else:
            self._forwarding.forward(connection, command)

    def _is_allowed(self, access: AccessControl, connection: Connection, command: RemotingCommand) -> bool:
        """Tells whether a request may go on; answers it if not. A request that a peer forwards was allowed there."""
        if isinstance(connection, RelayedConnection):
            return True
        try:
            access.check(connection.host, command, connection.greeting, is_encrypted=connection.is_encrypted)
        except RefusedError as refused:
            self.events.warn(
                EventKind.REQUEST_REFUSED,
                refused.reason.value,
                self.time.now_ns,
                source=connection.address,
                code=command.code,
                remark=refused.remark,
            )
            reply(connection, command, refused.code, refused.remark)
        except RemotingError as error:
            reply(connection, command, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:
            # As in `_handle`: what nobody foresaw hurts this request only, and what cannot be judged is refused.
            if self._admits(EventKind.REQUEST_NOT_JUDGED, error, connection):
                log.exception("request not judged", code=command.code, client=connection.name)
            reply(connection, command, ResponseCode.NO_PERMISSION, f"{type(error).__name__}: {error}")
        else:
            connection.is_proven = True
            return True
        return False

    def sight(self, connection: Connection, command: RemotingCommand) -> Sight:
        """Returns what the client of a request may see, wherever it is connected. Raises `RequestError` where its
        account is not known here.
        """
        return SEES_ALL if self.access is None else self.access.sight(connection.host, command)

    def _admits(self, event: EventKind, error: Exception, connection: Connection) -> bool:
        kind, source = type(error).__name__, connection.address
        return self.events.admits(event, kind, self.time.now_ns, source=source)

    def begin(self, now_ns: int, wall_ms: int) -> None:
        """Sets the time for the calls that follow: whatever brings something from outside calls this first.

        `wall_ms` is this machine's wall clock, which nobody else sees: what follows has the group's time.
        """
        if now_ns > self._late_from_ns:
            self.replica.slow.woke(now_ns - self._due_ns, now_ns)
            self._late_from_ns = NEVER
        self.time.now_ns = self.replica.time.now_ns = now_ns
        self.time.group_ms = self.replica.time.group_ms = self.replica.clock.read(now_ns, wall_ms)

    def _handle(
        self, connection: Connection, command: RemotingCommand, handler: Handler, *, is_let_in: bool = False
    ) -> None:
        """Has a request handled, and answers for what the handler raises. One that was let in has its place already,
        and is not refused for want of one.
        """
        try:
            # A handler that has more to do than one turn should take returns its steps; each yields None.
            steps = handler(connection, command)
            if steps is not None:
                if not is_let_in:
                    steps = self.long_requests.counted(connection, command, steps)
                if next(steps, _OVER) is not _OVER:
                    self.long_requests.go_on_later(connection, command, steps)
        # Before `OverloadedError`, of which it is one: the batch ends soon, and nobody need ask again for that.
        except BatchUnderWayError:
            self.long_requests.wait_behind_batch(connection, command)
        except RequestError as error:
            reply(connection, command, error.code, error.remark)
        except RemotingError as error:
            reply(connection, command, ResponseCode.SYSTEM_ERROR, str(error))
        except NotServingError:
            # Nothing of it was done (errors.py): the next leader may do it.
            self._forwarding.forward(connection, command)
        # A full disk is a `DiskError`, too, and one that a node goes on with: it stands before those.
        except (OverloadedError, DiskFullError) as error:
            refuse(connection, command, error)
        except DamagedLogError as error:
            # Nothing was done: it comes to the same message again when the group has repaired it.
            reply(connection, command, ResponseCode.SYSTEM_BUSY, f"[DAMAGED]{error}")
        except (AssertionError, DiskError):
            raise  # a broken invariant or a failing disk: this node must not go on
        except Exception as error:
            # What a client can send and a handler did not foresee hurts this request only. Code 1 says that its
            # outcome is unknown, which is true wherever the handler was interrupted.
            if self._admits(EventKind.REQUEST_FAILED, error, connection):
                log.exception("request failed", code=command.code, client=connection.name)
            reply(connection, command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def is_connected(self, connection: Connection) -> bool:
        """Tells whether a client is still connected, here or, as far as this node knows, at another node."""
        return connection in self._forwarding or isinstance(connection, RelayedConnection)

    def handle_late(self, connection: Connection, command: RemotingCommand) -> None:
        """Handles a request that was let in and has waited here, for its topic or what becomes of another attempt.

        One that was asked of an earlier leader is given back.
        """
        if not self._relayed.gives_back_late(connection, command):
            self.handle_admitted(connection, command)

    def _handle_confirmed(self, connection: Connection, command: RemotingCommand, handler: Handler) -> None:
        """Handles a request that has waited here for a majority, and for its turn behind that."""
        if not self._relayed.gives_back_late(connection, command):
            self._handle(connection, command, handler)

    def handle_in_steps(
        self, connection: Connection, command: RemotingCommand, steps: Iterator[None]
    ) -> None:
        """Does the first step of a request that was let in before, and one more in each turn."""
        self._handle(connection, command, lambda _connection, _command: steps, is_let_in=True)

    def handle_after_barrier(
        self, connection: Connection, command: RemotingCommand, handler: Handler
    ) -> None:
        """Handles a request when what is applied here is as new as the call. Raises `NotServingError` unless this node
        leads.
        """

        def end(go_on: Callable[[], None]) -> None:
            self._behind_barrier.free(connection, command)
            go_on()

        try:
            self._behind_barrier.take(connection, command)
        except OverloadedError as error:
            refuse(connection, command, error)
            return
        # If the leadership is lost meanwhile, the next leader is asked: nothing was read, so nothing is repeated.
        place = self._forwarding.place_of(command)
        try:
            self.replica.leadership.read_barrier(
                lambda: end(lambda: self._handle_confirmed(connection, command, handler)),
                lambda: end(lambda: self._forwarding.forward_late(connection, command, place)),
                connection.share,
                _READ_WEIGHTS.get(command.code, _READ_WEIGHT),
            )
        except NotServingError:
            self._behind_barrier.free(connection, command)
            raise

    # ------------------------------------------------------------------ peers

    def peer_received(self, source: str, frame: Frame) -> bool:
        """Takes a frame from another node of the group; `begin` has set the time. Returns False when it wants no turn.

        Raises `PeerProtocolError` for a frame that this peer may not send.
        """
        if isinstance(frame, RaftFrame):
            # The handshake has proved who speaks on this link. Raft believes the names in a message, so that whoever
            # put another node's there would vote in its place.
            message = frame.message
            if message.source != source or message.target != self.replica.node_id:
                raise PeerProtocolError(f"a message from {message.source} on the link of {source}")
            if message.term > self.replica.raft.term + _TERMS_AHEAD_MAX:
                raise BrokenPeerError(f"term {message.term}, this node is in term {self.replica.term}")
            return self.replica.from_peers.received(frame, self.time.now_ns, self.time.group_ms)
        if isinstance(frame, Forward):
            self._relayed.forwarded(source, frame)
        elif isinstance(frame, NotDone):
            self._forwarding.hear_not_done(source, frame)
        elif isinstance(frame, Relay):
            self._forwarding.relayed(source, frame)
        elif isinstance(frame, ClientGone):
            self._relayed.client_gone(source, frame)
        elif isinstance(frame, NotAMember):
            self.replica.members.dismissed(frame.index)
        elif isinstance(frame, EntriesWanted):
            self.replica.repairs.lend(source, frame, self.time.now_ns)
        elif isinstance(frame, EntriesLent):
            self.replica.repairs.lent(source, frame, self.time.now_ns)
        return True

    def peer_lost(self, node: str) -> None:
        """A connection with `node` broke, either way: forgets its clients here, and what it was to answer."""
        # First: of what follows, such as a change of roles, nothing goes to clients that are known by numbers of
        # before.
        self._relayed.link_lost(node)
        replica = self.replica
        replica.peer_disconnected(node, self.time.now_ns)
        if node in replica.links:
            # Only the link that the peer had dialled broke: this node still reaches it on its own.
            replica.peer_connected(node, self.time.now_ns)
        self._forwarding.link_lost(node)

    def peer_connected(self, node: str) -> None:
        """The link to `node`, or that from it, is up: sends it what waits for a leader, if it leads and both are."""
        self.replica.peer_connected(node, self.time.now_ns)
        self._leader_may_be_asked()

    # ------------------------------------------------------------------ what the replica tells

    def _role_changed(self) -> None:
        """Has name servers hear of the new role, and answers or asks anew what a lost leader was asked.

        The first of all listeners: what processors do when roles change rests on who is a client here.
        """
        self.registration_version += 1
        if not self.replica.serving:
            self.long_requests.leadership_lost()
        self._forwarding.look_at_membership()
        self._forwarding.leader_changed()
        self._relayed.leader_changed()

    def _leader_may_be_asked(self) -> None:
        """Tells a leader that can be reached, if it is another node, of this node's clients; then lets held requests
        go on."""
        # A node that is outside must not count on clients whose requests are refused here.
        if not self._forwarding.is_outside and self._forwarding.is_leader_reachable:
            for listener in self.listeners.leaders_reachable:
                listener()
        self._forwarding.leader_may_be_asked()

    def _command_applied(self, command: Command) -> None:
        """Counts changes of topics, which are part of what name servers know."""
        commands = command.commands if isinstance(command, Several) else (command,)
        if any(isinstance(single, PutTopic | DeleteTopic) for single in commands):
            self.registration_version += 1

    # ------------------------------------------------------------------ time and turns

    def turn(self, now_ns: int, wall_ms: int, send: Callable[[], None]) -> bool:
        """Does everything that has become possible. Returns True if more is left, and the next turn wanted at once.

        `send` writes out what is queued so far; it is called where others wait for that while this node has more to do.
        """
        self.begin(now_ns, wall_ms)
        replica = self.replica
        group_ms = self.time.group_ms
        # First Raft's own deadlines: who leads decides what becomes of all that waits.
        replica.tick(now_ns, group_ms)
        forwarding = self._forwarding
        if forwarding.taking_back:
            forwarding.take_some_back()
        if self.time.earliest_ns <= now_ns:
            self.time.run_due()
        # What is held waits until none of these is left (`Forwarding.is_releasing`).
        if forwarding.ended or forwarding.leaving:
            forwarding.go_on()
        if self._held.waiting:
            forwarding.turn_held()
        long = self.long_requests
        if long.has_more:
            long.step()
        relayed = self._relayed
        if relayed.waiting or relayed.given_back or relayed.forgotten:
            relayed.go_on()
        # Behind all that may propose, so that its entries leave in this turn.
        goes_on = replica.turn(now_ns, group_ms, send)
        self.stats.put_times.turn_ended(
            replica.leadership.serving, replica.store.log.last_index, replica.applied.index, now_ns
        )
        relayed.turn_ended()
        self._goes_on = (
            goes_on
            or long.has_more
            or bool(relayed.waiting or relayed.given_back or relayed.forgotten)
            or bool(forwarding.ended or forwarding.leaving or forwarding.taking_back)
            or (bool(self._held.waiting) and forwarding.is_releasing)
        )
        return self._goes_on

    def turn_took(self, took_ns: int, now_ns: int) -> None:
        """The turn that began at `now_ns` took so long, until what it sends was written and its jobs had begun."""
        self.stats.timings.turn.observe(took_ns)
        self.replica.slow.turned(took_ns, now_ns)

    def expect_turn(self, jobs_due_ns: int) -> int:
        """Returns when the next turn is due at the latest, if nothing happens before; jobs want one at `jobs_due_ns`.

        To be asked right behind a turn. The result is never in the past: a deadline that has passed counts as due now,
        and is not reported as a stall. A node that is called much later than it says here was held up
        (`Slowness.woke`).
        """
        now_ns = self.time.now_ns
        due_ns = min(jobs_due_ns, self.replica.deadline_ns(), self.time.earliest_ns)
        if (first := self.first_held) is not None:
            due_ns = min(due_ns, first.until_ns)
        if self._goes_on or due_ns < now_ns:
            due_ns = now_ns
        self._due_ns, self._late_from_ns = due_ns, due_ns + STALLED_NS
        return due_ns


def _permitted(settings: Settings) -> tuple[str, bool]:
    return settings.broker.permission, settings.broker.auto_create_topics
