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

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from broker.access.control import AccessControl
from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import FilterChange
from broker.node.listeners import Listeners
from broker.node.ports import Proposals, Requests
from broker.offsets.resets import OffsetResets
from broker.reading.pull_checks import PullChecks, rests_on_heartbeats
from broker.reading.pull_responses import PullResponses
from broker.reading.queue_reads import PullResult, QueueReads
from broker.reading.subscriptions import Filter, SqlFilter
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PullMessageHeader
from broker.requests.budget import waiting_bytes
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import RequestError
from broker.requests.late_requests import SUSPEND_MS_MAX, done_late
from broker.requests.responses import reply
from broker.requests.shared_places import SharedPlaces
from broker.settings.live import LiveSettings
from broker.statistics.stats import Stats
from log.dispatch import Arrival

SHORT_POLL_MS: Final = 1_000
"""A pull waits so long where long polling is off: answered at once, it would come again at once, for ever."""

_SUBSCRIPTION_CHANGED: Final = "SUBSCRIPTION_CHANGED"

CONDITIONS_LENGTH_MAX: Final = 2_000_000
"""Characters of the SQL92 conditions of all pulls that are held: one message may wake them all in one turn, and that
takes up to 0.15 s then."""

HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""The memory of all pulls that are held, each some 1 KiB for RocketMQ's clients: anybody could send pulls as long as
frames may be."""

_BYTES_OF_ONE_MORE: Final = 64 * 1024
"""A pull that is handed on is copied, and counts as one more for each so many bytes of it."""

_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class HeldPull:
    """A pull that waits: for messages in its queue, or to be sure of the queue's end."""

    __slots__ = (
        "access",
        "asked_offset",
        "command",
        "condition_length",
        "connection",
        "deadline_ns",
        "done",
        "filter",
        "header",
        "share",
        "since_ns",
        "size",
        "subscribed",
    )

    def __init__(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageHeader,
        wanted: Filter,
        subscribed: tuple[str, str] | None,
        access: AccessControl | None,
        since_ns: int,
    ) -> None:
        self.connection = connection
        self.share = connection.share
        self.command = command
        self.size = waiting_bytes(command)
        """The memory that it takes, roughly."""
        self.header = header
        self.asked_offset = header.queue_offset
        """The offset of the client, while the header's moves on past messages that it does not want."""
        self.filter = wanted
        self.condition_length = wanted.length if isinstance(wanted, SqlFilter) else 0
        self.subscribed = subscribed
        """The subscription of its consumer group, as type and expression, if it rests on that."""
        self.access = access
        """The rules by which it was let in."""
        self.since_ns = since_ns
        self.deadline_ns = NEVER
        self.done = False
        """The pull has left the tables; its place in the heap of deadlines stays until it comes up."""


class HeldPulls:
    """The pulls that wait on one node, which is the leader, or was until now.

    A pull that waits for messages is in three tables: by queue, by connection (of a node that dies thousands end in
    one turn) and in the heap of deadlines. One that waits for a read barrier is in none of them. When the leadership
    ends the tables are emptied: some of the pulls that were in them are handed on in each turn.
    """

    def __init__(
        self,
        leadership: Proposals,
        requests: Requests,
        registry: ClientRegistry[Connection],
        resets: OffsetResets,
        checks: PullChecks,
        reads: QueueReads,
        responses: PullResponses,
        stats: Stats,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._checks = checks
        self._reads = reads
        self._responses = responses
        self._stats = stats
        self._settings = settings
        self._time = time
        self._by_queue: dict[tuple[str, int], dict[HeldPull, None]] = {}
        """By topic and queue id."""
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._deadlines: list[tuple[int, int, HeldPull]] = []
        """A heap of (when its time is over in ns, number, pull); its first is not done."""
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
        self._stats.gets_missed += 1
        held = self._pull(connection, command, header, wanted)
        long_polling = self._settings.current.broker.long_polling
        suspend_ms = min(header.suspend_timeout_ms, SUSPEND_MS_MAX if long_polling else SHORT_POLL_MS)
        held.deadline_ns = held.since_ns + suspend_ms * 1_000_000
        self._by_queue.setdefault((header.topic, header.queue_id), {})[held] = None
        self._by_connection.setdefault(connection, {})[held] = None
        self._places.take(held.share)
        if held.condition_length:
            self._conditions.take(held.share, held.condition_length)
        self._bytes.take(held.share, held.size)
        self._sequence += 1
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

    # ------------------------------------------------------------------ wake

    def _wake(self, arrivals: Iterable[Arrival]) -> None:
        """Answers pulls of queues in which messages are committed now, if these are for them."""
        by_queue = self._by_queue
        if not by_queue:
            return
        for arrival in arrivals:
            waiting = by_queue.pop((arrival.topic, arrival.queue_id), None)
            if waiting is None:
                continue
            still: dict[HeldPull, None] = {}
            for held in waiting:
                # A response of this very loop may have ended another pull of the queue.
                if held.done:
                    continue
                result = self._read_again(held)
                if result is None:
                    self._finish(held)
                elif (
                    result.code == ResponseCode.PULL_RETRY_IMMEDIATELY
                    and result.next_offset >= result.max_offset
                ):
                    # Nothing for this consumer among the new: go on waiting behind them.
                    held.header.queue_offset = result.next_offset
                    still[held] = None
                elif result.code == ResponseCode.PULL_NOT_FOUND and result.status != _SUBSCRIPTION_CHANGED:
                    still[held] = None
                else:
                    self._finish(held)
                    self._responses.respond_after_wait(held.connection, held.command, held.header, result)
            if still:
                by_queue[arrival.topic, arrival.queue_id] = still

    def _read_again(self, held: HeldPull) -> PullResult | None:
        """Reads for a pull that has waited. If it may not be answered so any more, refuses it and returns None.

        If its consumer group subscribes to something else now, its client has to pull anew: see the head of this
        module.
        """
        requests, header, checks = self._requests, held.header, self._checks
        try:
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

    def _pull_anew(self, header: PullMessageHeader, offset: int) -> PullResult:
        """The response to a pull of a subscription that is no more; `offset` is where its client is."""
        queue = self._leadership.store.queues.get(header.topic, header.queue_id)
        return PullResult(ResponseCode.PULL_NOT_FOUND, _SUBSCRIPTION_CHANGED, offset, queue)

    def _time_over(self) -> None:
        while self._deadline.due_ns <= self._time.now_ns:
            held = self._deadlines[0][2]
            self._take_out(held)
            self._read_behind_barrier(held)

    def _ordered(self, keys: Iterable[tuple[str, str, int]]) -> None:
        """Consumer groups are to go elsewhere: those of their members that wait are told at once."""
        for group, topic, queue_id in keys:
            for held in list(self._by_queue.get((topic, queue_id), ())):
                if held.header.consumer_group == group:
                    self._take_out(held)
                    self._read_behind_barrier(held)

    def _read_behind_barrier(self, held: HeldPull) -> None:
        """Reads once the read index says that what is applied here is as new as this call."""

        def respond() -> None:
            result = self._read_again(held)
            if result is not None:
                self._responses.respond_after_wait(held.connection, held.command, held.header, result)

        self._leadership.read_barrier(respond, lambda: self._hand_on(held), held.connection.share)

    def _hand_on(self, held: HeldPull) -> None:
        """Asks the next leader, which may hold it for what is left of its time."""
        self._requests.forward_late(
            held.connection, done_late(held.command, self._time.now_ns - held.since_ns)
        )

    # ------------------------------------------------------------------ wait no more

    def _filter_changed(self, change: FilterChange[Connection]) -> None:
        """Pulls that rest on what heartbeats said are sent anew: of the consumer group, and of who has changed its
        mind.

        A client may do so for itself alone: the members of a consumer group change one after the other, and the first
        one's heartbeat changes the consumer group's subscription. What this node's clients wait for elsewhere is ended
        here: another leader might be asked by then, who has heard of the new subscription before the old pull.
        """
        # First those of all members, in the topics that the group filters otherwise now.
        ended = [
            held
            for (topic, _), waiting in (self._by_queue.items() if change.topics else ())
            if topic in change.topics
            for held in waiting
            if held.header.consumer_group == change.group and held.subscribed is not None
        ]
        # Then those of the sender, whose own subscription may change before or after its group's.
        connection = change.connection
        if connection is not None:
            ended += [
                held
                for held in self._by_connection.get(connection, ())
                if held.header.consumer_group == change.group
                and held.subscribed is not None
                and held.header.topic not in change.topics
            ]
        for held in ended:
            self._take_out(held)
        if connection is not None:
            ended += self._take_out_leaving(connection, change.group)
        for held in ended:
            result = self._pull_anew(held.header, held.asked_offset)
            self._responses.respond_after_wait(held.connection, held.command, held.header, result)
        if connection is not None:
            for command in self._requests.take_back(
                connection, lambda pull: _rests_on_heartbeats_of(pull, change.group)
            ):
                header = command.decode_fields(PullMessageHeader)
                result = self._pull_anew(header, header.queue_offset)
                self._responses.respond_after_wait(connection, command, header, result)

    def _take_out_leaving(self, connection: Connection, group: str) -> list[HeldPull]:
        """Takes out those of a connection's pulls that are leaving and rest on heartbeats of the consumer group."""
        ended: list[HeldPull] = []
        stay: deque[HeldPull] = deque()
        for held in self.leaving.get(connection, ()):
            is_ended = held.header.consumer_group == group and held.subscribed is not None
            (ended if is_ended else stay).append(held)
        for held in ended:
            self._leave_places(held)
        if stay:
            self.leaving[connection] = stay
        else:
            self.leaving.pop(connection, None)
        return ended

    def _role_changed(self) -> None:
        """A node that no longer serves hands its own clients' pulls on, in turns; other nodes do so for theirs.

        Those that are left when it leads again go on as well: they have missed what was committed meanwhile.
        """
        if self._leadership.serving or not self._by_connection:
            return
        for connection, waiting in self._by_connection.items():
            self.leaving.setdefault(connection, deque()).extend(waiting)
        self._by_queue.clear()
        self._by_connection.clear()
        self._deadlines.clear()
        self._deadline.due_ns = NEVER
        self._leave_at.due_ns = self._time.now_ns

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
            if not isinstance(connection, RelayedConnection):
                self._hand_on(held)
        self._leave_at.due_ns = self._time.now_ns if self.leaving else NEVER

    def _disconnected(self, connection: Connection) -> None:
        for held in list(self._by_connection.get(connection, ())):
            self._take_out(held)
        for held in self.leaving.pop(connection, ()):
            self._leave_places(held)

    def _take_out(self, held: HeldPull) -> None:
        self._finish(held)
        key = (held.header.topic, held.header.queue_id)
        waiting = self._by_queue[key]
        del waiting[held]
        if not waiting:
            del self._by_queue[key]

    def _finish(self, held: HeldPull) -> None:
        """Takes a pull out of all tables but `_by_queue`, which the caller is looking at."""
        assert not held.done, "a pull ends once"
        held.done = True
        self._leave_places(held)
        others = self._by_connection[held.connection]
        del others[held]
        if not others:
            del self._by_connection[held.connection]
        count = self._places.taken
        assert (count == 0) == (not self._by_connection and not self.leaving), "the tables agree"
        assert count or not (self._conditions.taken or self._bytes.taken), "of pulls that are held"
        if held.deadline_ns <= self._deadline.due_ns:
            deadlines = self._deadlines
            while deadlines and deadlines[0][2].done:
                heapq.heappop(deadlines)
            self._deadline.due_ns = deadlines[0][0] if deadlines else NEVER

    def _leave_places(self, held: HeldPull) -> None:
        self._places.give_back(held.share)
        if held.condition_length:
            self._conditions.give_back(held.share, held.condition_length)
        self._bytes.give_back(held.share, held.size)


def _rests_on_heartbeats_of(command: RemotingCommand, group: str) -> bool:
    """Tells whether a request is a pull of the consumer group that brought no subscription of its own."""
    if command.code not in _PULLS:
        return False
    header = command.decode_fields(PullMessageHeader)
    return header.consumer_group == group and rests_on_heartbeats(header)
