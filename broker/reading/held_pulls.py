"""Pulls that wait: for messages in their queue, or until it is sure where the queue ends.

A held pull wakes when a message is committed in its queue and meets the checks again that it has passed when it came.

Most Java consumers send no subscription with a pull: what counts is their consumer group's, from heartbeats. But their
client looks at the tags of what comes once more, by the subscription that it had when it sent the pull, drops what does
not fit, and goes on behind it (`PullAPIWrapper.processPullResult`, `DefaultMQPushConsumerImpl.pullMessage`, in 4.9 and
5.x alike). So a pull that has waited while its consumer subscribed to something else can be given nothing: neither what
is wanted now nor what is not. It is answered with PULL_NOT_FOUND and its own offset, at which the client pulls again,
with its new subscription. RocketMQ holds it: `PullRequestHoldService` looks at what comes with the old filter, and when
the pull is woken or its time is over it is run again with the consumer group's new subscription, so that its client
drops what it is given.
"""

import enum
import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from broker.access.control import AccessControl
from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import FilterChange
from broker.node.listeners import Listeners
from broker.node.ports import Proposals, Requests
from broker.node.request_states import WaitingRequest
from broker.offsets.resets import OffsetResets
from broker.reading.pull_checks import rests_on_heartbeats
from broker.reading.pull_responses import PullSteps
from broker.reading.queue_reads import PullResult
from broker.reading.subscriptions import Filter, SqlFilter
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.requests.budget import waiting_bytes
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import RequestError
from broker.requests.in_turn import InTurn
from broker.requests.late_requests import SUSPEND_MS_MAX, done_late
from broker.requests.responses import reply
from broker.requests.shared_places import SharedPlaces
from broker.settings.live import LiveSettings
from broker.statistics.stats import Stats
from log.dispatching.dispatch import Arrival

SHORT_POLL_MS: Final = 1_000
"""A pull waits so long where long polling is off: answered at once, it would come again at once, for ever."""

_SUBSCRIPTION_CHANGED: Final = "SUBSCRIPTION_CHANGED"

CONDITIONS_LENGTH_MAX: Final = 2_000_000
"""Characters of the SQL92 conditions of all pulls that are held: one message may wake them all, which takes 0.15 s
in all."""

HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""The memory of all pulls that are held, each some 1 KiB for RocketMQ's clients: anybody could send pulls as long as
frames may be."""

_BYTES_OF_ONE_MORE: Final = 64 * 1024
"""A pull that is handed on is copied, and counts as one more for each so many bytes of it."""

_CHARACTERS_OF_ONE_MORE: Final = 500
"""A pull judges messages by its condition, and counts as one more for each so many characters of it."""

_OF_ONE_ADDRESS: Final = 10
"""Pulls of one address in one queue that a turn goes through before those of another address."""

_TOLD: Final = 5
"""For each pull that a turn may go through it decides about so many (`_tell_some`), which takes some 0.5 us each."""

_NO_PLACES: Final[Mapping[str, "_Waiting"]] = {}


class Fate(enum.IntEnum):
    """What is to become of a held pull. A greater value replaces a smaller one."""

    WAITS = 0
    """It stays held, and reads when there may be a message for it."""
    ENDS = 1
    """It is answered, whether there is a message or not."""
    ANEW = 2
    """Its subscription has changed: its client is told to pull anew."""
    GONE = 3
    """Its client has disconnected."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """The pulls of one address that wait in one queue; each is in one of two tables."""

    key: tuple[str, int]
    share: str
    rest: "OrderedDict[HeldPull, None]" = field(default_factory=OrderedDict)
    """Pulls that wait for something to happen."""
    stirred: "OrderedDict[HeldPull, None]" = field(default_factory=OrderedDict)
    """Pulls for which something has happened: turns go through them, the first one first."""
    has_turn: bool = False
    """True while the place is among those that take turns."""


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits: for messages in its queue, or to be sure of the queue's end."""

    connection: Connection
    command: RemotingCommand
    header: PullMessageHeader
    filter: Filter
    subscribed: tuple[str, str] | None
    """The subscription of its consumer group, as type and expression, if it rests on that."""
    access: AccessControl | None
    """The rules by which it was let in."""
    since_ns: int
    share: str = field(init=False)
    size: int = field(init=False)
    """The memory that it takes, roughly."""
    asked_offset: int = field(init=False)
    """The offset of the client, while the header's moves on past messages that it does not want."""
    condition_length: int = field(init=False)
    rests_on: str | None = field(init=False)
    """The consumer group whose subscription that is."""
    deadline_ns: int = NEVER
    fate: Fate = Fate.WAITS
    number: int = field(init=False)
    place: _Waiting = field(init=False)
    """Set while it is in the tables. Who came there later has a higher number."""
    done: bool = False
    """The pull has left the tables; its place in the heap of deadlines stays until it comes up."""

    def __post_init__(self) -> None:
        self.share = self.connection.share
        self.size = waiting_bytes(self.command)
        self.asked_offset = self.header.queue_offset
        self.condition_length = self.filter.length if isinstance(self.filter, SqlFilter) else 0
        self.rests_on = None if self.subscribed is None else self.header.consumer_group


@dataclass(slots=True, eq=False)
class _Changes:
    """The changes in one consumer group, of which some pulls that were held at that time are yet to be told."""

    topics: set[str] = field(default_factory=set)
    """The topics that the consumer group filters otherwise."""
    connections: set[Connection] = field(default_factory=set)
    """The members that subscribe otherwise, whatever the consumer group does."""
    queues: set[tuple[str, int]] = field(default_factory=set)
    """The queues in which members are to go elsewhere."""
    number: int = 0
    """The pull that came last before the newest of the changes."""

    def fate_of(self, held: HeldPull) -> Fate:
        """Returns what the changes make of a pull of the consumer group."""
        header = held.header
        if held.rests_on is not None and (header.topic in self.topics or held.connection in self.connections):
            return Fate.ANEW
        return Fate.ENDS if (header.topic, header.queue_id) in self.queues else Fate.WAITS


class HeldPulls:
    """The pulls that wait on one node, which is the leader, or was until now.

    A pull that waits for messages is in three tables: by queue, by connection and in the heap of deadlines. One that
    waits for a read barrier is in none of them. When the leadership ends the tables are emptied: some of the pulls that
    were in them are handed on in each turn.

    One message, heartbeat or broken connection may be for tens of thousands of pulls. So they are only stirred, and
    some meet their `Fate` in each turn; addresses take turns. Until then they stay in the tables. Each turn tells some
    of them of their fate, too: until all of them know, `_fate_of` says what has happened to one.
    """

    def __init__(
        self,
        leadership: Proposals,
        requests: Requests,
        registry: ClientRegistry[Connection],
        resets: OffsetResets,
        steps: PullSteps,
        stats: Stats,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._checks, self._reads, self._responses = steps
        self._stats = stats
        self._settings = settings
        self._time = time
        self._by_queue: dict[tuple[str, int], dict[str, _Waiting]] = {}
        """By topic and queue id, then by share."""
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._by_group: dict[str, dict[HeldPull, None]] = {}
        self._changes: dict[str, _Changes] = {}
        """By consumer group."""
        self._gone: set[Connection] = set()
        self._untold: OrderedDict[str | Connection, Iterator[HeldPull] | None] = OrderedDict()
        """The consumer groups and connections some of whose pulls are yet to be told, with those; None for all."""
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        """A heap of (when its time is over in ns, number, pull); some may be done."""
        self._stirred: InTurn[_Waiting] = InTurn()
        self._taken_back: InTurn[WaitingRequest] = InTurn()
        """Pulls that waited for another leader, and whose clients are to pull anew."""
        self.leaving: OrderedDict[Connection, deque[HeldPull]] = OrderedDict()
        """The pulls of leaderships that are over, by connection, in the order in which they came; none is empty. They
        keep their places until they are handed on. To be looked at only."""
        self._places = SharedPlaces(settings.current.limits.max_held_pulls)
        self._conditions = SharedPlaces(CONDITIONS_LENGTH_MAX)
        self._bytes = SharedPlaces(HELD_BYTES_MAX)
        """The bytes that the pulls in the tables, and those that are leaving, take, by `Connection.share`."""
        stats.pulls_held = lambda: self._places.taken
        self._sequence = 0
        self._deadline = time.add_deadline(self._time_over)
        self._leave_at = time.add_deadline(self._hand_some_on)
        self._meet_at = time.add_deadline(self._meet_some)
        listeners.arrivals.append(self._wake)
        listeners.role_changes.append(self._role_changed)
        listeners.disconnects.append(self._disconnected)
        resets.on_order(self._ordered)
        registry.on_filter_change(self._filter_changed)

    # ------------------------------------------------------------------ begin to wait

    def has_room(self, connection: Connection, wanted: Filter) -> bool:
        """Tells whether one more may be held (`limits.max_held_pulls`), however long it is."""
        share = connection.share
        return (
            self._places.has_room(share)
            and (not isinstance(wanted, SqlFilter) or self._conditions.has_room(share, wanted.length))
            and self._bytes.has_room(share)
        )

    def hold(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, wanted: Filter
    ) -> None:
        """Holds a pull until a message comes or its time is over."""
        # While it waits nothing is said of the queue's end, and so no barrier is needed; when its time is over there is
        # one.
        self._stats.gets_missed += 1
        held = self._pull(connection, command, header, wanted)
        long_polling = self._settings.current.broker.long_polling
        suspend_ms = min(header.suspend_timeout_ms, SUSPEND_MS_MAX if long_polling else SHORT_POLL_MS)
        held.deadline_ns = held.since_ns + suspend_ms * 1_000_000
        key, share = (header.topic, header.queue_id), held.share
        in_queue = self._by_queue.setdefault(key, {})
        place = in_queue.get(share)
        if place is None:
            place = in_queue[share] = _Waiting(key, share)
        held.place = place
        place.rest[held] = None
        self._by_connection.setdefault(connection, {})[held] = None
        self._by_group.setdefault(header.consumer_group, {})[held] = None
        self._places.take(held.share)
        if held.condition_length:
            self._conditions.take(held.share, held.condition_length)
        self._bytes.take(held.share, held.size)
        held.number = self._sequence = self._sequence + 1
        heapq.heappush(self._deadlines, (held.deadline_ns, self._sequence, held))
        self._deadline.due_ns = min(self._deadline.due_ns, held.deadline_ns)

    def respond_behind_barrier(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, wanted: Filter
    ) -> None:
        """Answers a pull once it is sure that no other leader has taken messages since it came."""
        self._read_behind_barrier(self._pull(connection, command, header, wanted))

    def _pull(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, wanted: Filter
    ) -> HeldPull:
        return HeldPull(
            connection,
            command,
            header,
            wanted,
            self._checks.subscribed(header),
            self._requests.access,
            self._time.now_ns,
        )

    def waiting(self) -> Iterator[HeldPull]:
        """Yields the pulls that wait, queue by queue. To be looked at only."""
        for in_queue in self._by_queue.values():
            for place in in_queue.values():
                yield from place.stirred
                yield from place.rest

    # ------------------------------------------------------------------ wake

    def _wake(self, arrivals: Iterable[Arrival]) -> None:
        """Has pulls of queues in which messages are committed now read again (`_answer_or_wait_on` decides)."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for arrival in arrivals:
            for place in by_queue.get((arrival.topic, arrival.queue_id), _NO_PLACES).values():
                self._stir(place)
        if self._stirred:
            self._meet_some()

    def _stir(self, place: _Waiting) -> None:
        """Has the pulls of a place read again, behind those that are to do so already."""
        if place.stirred:
            place.stirred.update(place.rest)
            place.rest.clear()
        else:
            # The tables change places: no step for each of what may be tens of thousands.
            place.stirred, place.rest = place.rest, place.stirred
        if not place.has_turn:
            self._take_turn(place)

    def _take_turn(self, place: _Waiting) -> None:
        place.has_turn = True
        self._stirred.add(place.share, place)
        self._meet_at.due_ns = self._time.now_ns

    def _meet_some(self) -> None:
        """Does with up to `held_at_once` pulls what is to become of them: they are answered, wait on, or go.

        If some are left the next turn is wanted at once, and goes on.
        """
        left = self._leadership.limits.held_at_once
        if self._untold:
            self._tell_some(_TOLD * left)
        while left > 0 and self._stirred:
            place = self._stirred.take()
            some = min(left, _OF_ONE_ADDRESS)
            left -= some
            while some > 0 and place.stirred:
                held, _ = place.stirred.popitem(last=False)
                # It rests again before it meets its fate: there it stays unless something ends it, and there
                # `_take_out` finds it.
                place.rest[held] = None
                some -= 1 + held.condition_length // _CHARACTERS_OF_ONE_MORE
                self._meet(held)
            left += some  # what is left of it, or what a long condition took beyond it
            place.has_turn = bool(place.stirred)
            if place.has_turn:
                self._stirred.add(place.share, place)
        while left > 0 and self._taken_back:
            left -= 1
            request = self._taken_back.take()
            header = request.pull
            assert header is not None, "nothing but pulls is taken back"
            # A pull that waits for a leader has the offset with which it came (`done_late` reads it anew).
            result = self._pull_anew(header, header.queue_offset)
            self._responses.respond_after_wait(request.connection, request.command, header, result)
        is_more = self._untold or self._stirred or self._taken_back
        self._meet_at.due_ns = self._time.now_ns if is_more else NEVER

    def _meet(self, held: HeldPull) -> None:
        if self._untold:
            held.fate = self._fate_of(held)
        if held.fate is Fate.WAITS:
            self._answer_or_wait_on(held)
            return
        self._take_out(held)
        if held.fate is Fate.ENDS:
            self._read_behind_barrier(held)
        elif held.fate is Fate.ANEW:
            self._have_pulled_anew(held)

    def _look_over(self, whose: str | Connection) -> None:
        """Has turns decide what is to become of the pulls of a consumer group, or of a connection (`_tell_some`)."""
        self._untold[whose] = None
        self._meet_at.due_ns = self._time.now_ns

    def _tell_some(self, left: int) -> None:
        """Decides for up to `left` pulls of changed consumer groups, or of lost connections, what is to become of them
        (`Fate`); `_meet_some` does it. Consumer groups take turns."""
        while left > 0 and self._untold:
            whose, pulls = self._untold.popitem(last=False)
            if pulls is None:
                table = (
                    self._by_group.get(whose) if isinstance(whose, str) else self._by_connection.get(whose)
                )
                # Those that are there now: they go while this is under way, and those that come know of the change.
                pulls = iter([*(table or ())])
            some = [*islice(pulls, left)]
            if len(some) == left:
                self._untold[whose] = pulls
            left -= len(some)
            for held in some:
                fate = Fate.WAITS if held.done else self._fate_of(held)
                if held.fate < fate:
                    held.fate = fate
                    place = held.place
                    # It is stirred, unless it is that already: `rest` has None for each of its pulls.
                    if place.rest.pop(held, held) is None:
                        place.stirred[held] = None
                        if not place.has_turn:
                            self._take_turn(place)
        # All know what has happened to them. Those that leave are asked about it when they are handed on.
        if not self._untold and not self.leaving:
            self._changes.clear()
            self._gone.clear()

    def _fate_of(self, held: HeldPull) -> Fate:
        """Returns what is to become of a pull by all that has changed, whether it was told of that yet or not."""
        if held.connection in self._gone:
            return Fate.GONE
        changes = self._changes.get(held.header.consumer_group)
        # It came behind the last of the changes, and was checked by what holds since.
        if changes is None or held.number > changes.number:
            return held.fate
        return max(held.fate, changes.fate_of(held))

    def _answer_or_wait_on(self, held: HeldPull) -> None:
        """Answers a pull if there is a message for it, or has it wait on behind what there is."""
        result = self._read_again(held)
        if result is None:
            self._take_out(held)
        elif result.code == ResponseCode.PULL_RETRY_IMMEDIATELY and result.next_offset >= result.max_offset:
            # Nothing for this consumer among the new: go on waiting behind them.
            held.header.queue_offset = result.next_offset
        elif result.code != ResponseCode.PULL_NOT_FOUND or result.status == _SUBSCRIPTION_CHANGED:
            self._take_out(held)
            self._responses.respond_after_wait(held.connection, held.command, held.header, result)

    def _read_again(self, held: HeldPull) -> PullResult | None:
        """Reads for a pull that has waited. If it may not be answered so any more, refuses it and returns None.

        If its consumer group subscribes to something else now, its client has to pull anew: see the head of this
        module.
        """
        requests, header, checks = self._requests, held.header, self._checks
        try:
            # The rules were read anew since it came: waiting must not keep for a client what it has lost.
            if requests.access is not None and requests.access is not held.access:
                requests.access.check_again(held.connection.host, held.command)
                held.access = requests.access
            checks.check_broker()
            checks.check(header)
            if rests_on_heartbeats(header):
                # The filter stays as long as the subscription does: to read a condition takes milliseconds.
                checks.check_subscription(header)
                if held.subscribed != checks.subscribed(header):
                    return self._pull_anew(header, held.asked_offset)
        except RequestError as error:
            reply(held.connection, held.command, error.code, error.remark)
            return None
        return self._reads.read(header, held.filter)

    def is_outdated(self, held: HeldPull) -> bool:
        """Tells whether the consumer group of a pull subscribes to something else since it came."""
        return self._checks.subscribed(held.header) not in (held.subscribed, None)

    def _pull_anew(self, header: PullMessageHeader, offset: int) -> PullResult:
        """The response to a pull of a subscription that is no more; `offset` is where its client is."""
        queue = self._leadership.store.queues.get(header.topic, header.queue_id)
        return PullResult(ResponseCode.PULL_NOT_FOUND, _SUBSCRIPTION_CHANGED, offset, queue)

    def _have_pulled_anew(self, held: HeldPull) -> None:
        """Answers a pull that its client is to pull anew."""
        result = self._pull_anew(held.header, held.asked_offset)
        self._responses.respond_after_wait(held.connection, held.command, held.header, result)

    def _time_over(self) -> None:
        """Ends some of the pulls whose time is over; what is left is due in the next turn."""
        left = self._leadership.limits.held_at_once
        while left > 0 and self._deadline.due_ns <= self._time.now_ns:
            left -= 1
            held = self._deadlines[0][2]
            if held.done:
                self._forget_done()
            else:
                held.fate = max(held.fate, Fate.ENDS)
                self._meet(held)

    def _forget_done(self) -> None:
        """Drops up to two deadlines of finished pulls, from the front: each pull adds one, so that they stay few. Not
        more, as tens of thousands of pulls may have finished."""
        deadlines = self._deadlines
        for _ in range(2):
            if not deadlines or not deadlines[0][2].done:
                break
            heapq.heappop(deadlines)
        self._deadline.due_ns = deadlines[0][0] if deadlines else NEVER

    def _ordered(self, keys: Iterable[tuple[str, str, int]]) -> None:
        """Consumer groups are to go elsewhere: those of their members that wait are told."""
        for group, topic, queue_id in keys:
            changes = self._changes_in(group)
            if changes is not None:
                changes.queues.add((topic, queue_id))

    def _changes_in(self, group: str) -> _Changes | None:
        """Returns where to note what changes now in a consumer group; None if it has no pull here."""
        if group not in self._by_group and not self.leaving:
            return None
        changes = self._changes.setdefault(group, _Changes())
        changes.number = self._sequence
        self._look_over(group)
        return changes

    def _read_behind_barrier(self, held: HeldPull) -> None:
        """Reads once the read index says that what is applied here is as new as this call."""

        def respond() -> None:
            result = self._read_again(held)
            if result is not None:
                self._responses.respond_after_wait(held.connection, held.command, held.header, result)

        self._leadership.read_barrier(respond, lambda: self._hand_on(held), held.connection.share)

    def _hand_on(self, held: HeldPull) -> None:
        """Asks the next leader, which may hold it for what is left of its time; not for a subscription that is no more:
        that leader may have heard of the new one.
        """
        if self.is_outdated(held):
            self._have_pulled_anew(held)
            return
        command = done_late(held.command, held.header, self._time.now_ns - held.since_ns)
        # Behind all others of its client: each pull names its offset, so that their order does not matter.
        self._requests.forward_late(held.connection, command, self._requests.place_of(command))

    # ------------------------------------------------------------------ wait no more

    def _filter_changed(self, change: FilterChange[Connection]) -> None:
        """Pulls that rest on what heartbeats said are sent anew: of the consumer group, and of who has changed its
        mind.

        A client may do so for itself alone: the members of a consumer group change one after the other, and the first
        one's heartbeat changes the consumer group's subscription. What this node's clients wait for elsewhere is ended
        here: another leader might be asked by then, who has heard of the new subscription before the old pull.
        """
        group, connection = change.group, change.connection
        changes = self._changes_in(group)
        if changes is not None:
            # Those of all members, in the topics that the consumer group filters otherwise now; and those of the
            # sender, whose own subscription may change before or after its consumer group's.
            changes.topics |= change.topics
            if connection is not None:
                changes.connections.add(connection)
        if connection is not None:
            self._requests.take_back(connection, group, _group_it_rests_on, self._taken)

    def _taken(self, request: WaitingRequest) -> None:
        self._taken_back.add(request.connection.share, request)
        self._meet_at.due_ns = self._time.now_ns

    def _role_changed(self) -> None:
        """A node that no longer serves hands its own clients' pulls on, in turns; other nodes do so for theirs.

        Those that are left when it leads again go on as well: they have missed what was committed meanwhile.
        """
        if self._leadership.serving:
            return
        # As many steps as there are connections. The places of the pulls are freed when they are handed on, and
        # of their fates `_changes` and `_gone` tell until then.
        for connection, waiting in self._by_connection.items():
            self.leaving.setdefault(connection, deque()).extend(waiting)
        self._by_queue.clear()
        self._by_connection.clear()
        self._by_group.clear()
        self._deadlines.clear()
        self._stirred = InTurn()
        self._untold.clear()
        self._deadline.due_ns = NEVER
        self._hand_over()

    def _hand_over(self) -> None:
        """Has the next turn hand on some of the pulls that are leaving, wanted at once, if there are any."""
        self._leave_at.due_ns = self._time.now_ns if self.leaving else NEVER
        if not self.leaving and not self._untold:
            self._changes.clear()
            self._gone.clear()

    def _hand_some_on(self) -> None:
        """Asks the next leader for some of the pulls that are leaving; the next turn, wanted at once, goes on."""
        left = self._leadership.limits.held_at_once
        while self.leaving and left > 0:
            connection, waiting = next(iter(self.leaving.items()))
            held = waiting.popleft()
            if not waiting:
                del self.leaving[connection]
            left -= 1 + held.size // _BYTES_OF_ONE_MORE
            self._leave_places(held)
            if self._fate_of(held) is Fate.ANEW:
                self._have_pulled_anew(held)
            # Another node's clients are that node's: it asks the new leader itself.
            elif not isinstance(connection, RelayedConnection):
                self._hand_on(held)
        self._hand_over()

    def _disconnected(self, connection: Connection) -> None:
        """Has turns drop a client's pulls; those that are leaving come behind those of all other clients."""
        if connection in self._by_connection:
            self._gone.add(connection)
            self._look_over(connection)
        if connection in self.leaving:
            self.leaving.move_to_end(connection)

    def _take_out(self, held: HeldPull) -> None:
        """Takes a pull out of the tables."""
        assert not held.done, "a pull ends once"
        held.done = True
        self._leave_places(held)
        place = held.place
        del (place.stirred if held in place.stirred else place.rest)[held]
        if not (place.rest or place.stirred):
            in_queue = self._by_queue[place.key]
            del in_queue[place.share]
            if not in_queue:
                del self._by_queue[place.key]
        others = self._by_connection[held.connection]
        del others[held]
        if not others:
            del self._by_connection[held.connection]
        members = self._by_group[held.header.consumer_group]
        del members[held]
        if not members:
            del self._by_group[held.header.consumer_group]
        count = self._places.taken
        assert (count == 0) == (not self._by_connection and not self.leaving), "the tables agree"
        assert count or not (self._conditions.taken or self._bytes.taken), "of pulls that are held"
        # It may be the first of the heap: then the timer is to wait for the next one.
        if held.deadline_ns <= self._deadline.due_ns:
            self._forget_done()

    def _leave_places(self, held: HeldPull) -> None:
        self._places.free(held.share)
        if held.condition_length:
            self._conditions.free(held.share, held.condition_length)
        self._bytes.free(held.share, held.size)


def _group_it_rests_on(request: WaitingRequest) -> str | None:
    """Returns the consumer group of a request that is a pull without a subscription of its own, else None."""
    header = request.pull
    return header.consumer_group if header is not None and rests_on_heartbeats(header) else None
