"""Delayed messages: kept in the schedule topic, one queue a level, until they are due (behaviour.md 6, storage.md 1.3).

A delayed message is stored under SCHEDULE_TOPIC_XXXX with its true topic and queue in properties, and the leader
appends it again, to that topic and queue, when its time has come. Both are ordinary entries of the log. What must hold
across failovers is that each is delivered once, though the entry of a delivery and the progress of its level are two
entries and a leader may die between them.

So a leader first writes what it is about to deliver (`DeliverDelayed`: level, first offset, count) and then, without
anything in between, the deliveries themselves. The log keeps the order and has no gaps: whoever leads next finds, in
the entries right after that command and of its term, exactly how many of them came into the log, and says so
(`SettleDelayed`) before it delivers anything. A full disk in the middle is settled by the leader itself.

When a message is due the wall clock of whoever leads says: its store time and its delay make its time. A leader whose
clock is behind the one that stored it sees a store time to come, and how long the message has waited the clocks do not
tell. Then it waits for its delay from when this leader first sees that, by a clock that nobody sets, and no longer:
what stands behind it in its level is stored by right clocks, maybe, and would wait for the wrong one's hours, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from broker.delayed.deliveries import (
    count_delivered,
    deliver,
    deliverable,
)
from broker.node.listeners import Listeners
from broker.node.ports import Appends
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_body, encode_integer_keyed
from broker.replica.proposals import NewMessage
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time
from broker.requests.errors import ReplicaError, RequestError
from broker.requests.processing import Place, Route
from broker.requests.responses import reply
from broker.state.commands import DeliverDelayed, SettleDelayed
from broker.state.metadata import DelayProgress
from broker.state.topic_rules import SCHEDULE_TOPIC
from broker.state.waiting_messages import Destination, addressed_properties
from log.dispatch import Arrival
from log.errors import DiskFullError, EntryTooLargeError
from log.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC, with_property, without_properties
from log.record import Record

log = structlog.get_logger("trivet.delays")

_DIGITS_MAX: Final = 18

BATCH_MAX: Final = 256
BATCH_BYTES_MAX: Final = 1 << 20
"""Deliveries announced by one command, and how long their records are together, but for the first. A level has one
batch under way at a time, so that many messages that are due at once do not fill the log's window and keep clients
waiting.
"""

RETRY_NS: Final = 100_000_000
"""When to try again what could not be appended."""
CLOCK_CHECK_NS: Final = 10_000_000_000
"""The wall clock may be set while something is pending; so it is looked at so often."""
IDLE_NS: Final = 60_000_000_000
"""After so much time without deliveries the log is told that the last batches are done; retention waits for that."""


def delay_level(properties: Mapping[bytes, bytes], level_max: int) -> int:
    """The level that a message asks for, at most `level_max`; 0 for none.

    Raises `RequestError` 13 for what is no number: without a delay the message would come too early.
    """
    value = properties.get(DELAY)
    if value is None:
        return 0
    digits = value.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > _DIGITS_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the delay level (DELAY) is {value[:40].decode('utf-8', 'replace')!r}, no number",
        )
    return max(0, min(int(value), level_max))


def schedule(message: NewMessage, level: int) -> None:
    """Has a message wait at a delay level: it goes to the level's queue, and says itself where it belongs."""
    properties = with_property(delivered_properties(message.properties), DELAY, b"%d" % level)
    message.properties = addressed_properties(properties, message.topic, message.queue_id)
    message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1


def delivered_properties(properties: bytes) -> bytes:
    """The properties of a message that has waited."""
    return without_properties(properties, DELAY, REAL_TOPIC, REAL_QUEUE_ID)


class DelayService:
    """Delivers what is due while this node serves; GET_ALL_DELAY_OFFSET 45."""

    def __init__(self, appends: Appends, delay_ms: Sequence[int], time: Time, listeners: Listeners) -> None:
        """`delay_ms` has the delay of each level."""
        self._appends = appends
        self._time = time
        self._delay_ns = [delay * 1_000_000 for delay in delay_ms]
        self._next: dict[int, int] = {}
        """level -> the offset that is delivered next, deliveries under way counted; empty while another node leads."""
        self._under_way: dict[int, DeliverDelayed] = {}
        """level -> the announcement that is not committed yet."""
        self._unsettled: dict[int, int] = {}
        """level -> where a batch broke off: nothing else of the level may be announced before that is in the log."""
        self._patience: dict[int, tuple[int, int]] = {}
        """level -> (offset, time): what is before that offset and stored at a time to come is due then (ns)."""
        self._idle_from_ns = 0
        self._blocked_until_ns = 0
        listeners.role_changes.append(self._role_changed)
        listeners.arrivals.append(self._arrived)
        self._deadline = time.add_deadline(self._run)

    def routes(self) -> Iterable[Route]:
        """As the other tables of the group."""
        return (Route(RequestCode.GET_ALL_DELAY_OFFSET, self.all_offsets, Place.LEADER_READ),)

    def all_offsets(self, connection: Connection, command: RemotingCommand) -> None:
        """The progress of each level, as the reference's delayOffset.json (storage.md 6)."""
        table = encode_integer_keyed({level: self._next.get(level, 0) for level in self._next})
        body = encode_body({"offsetTable": table})
        reply(connection, command, ResponseCode.SUCCESS, body=body)

    # ------------------------------------------------------------------ when

    def _arrived(self, arrivals: Iterable[Arrival]) -> None:
        if self._next and any(arrival.topic == SCHEDULE_TOPIC for arrival in arrivals):
            self._deadline.due_ns = min(self._deadline.due_ns, self._time.now_ns)

    def _role_changed(self) -> None:
        if not self._appends.serving:
            self._next.clear()
            self._under_way.clear()
            self._unsettled.clear()
            self._patience.clear()
            self._deadline.due_ns = NEVER
        elif not self._next:
            self._begin()

    def _begin(self) -> None:
        """Takes over from the last leader: what it announced last may have come into the log in part."""
        delays = self._appends.metadata.delays
        for level in range(1, len(self._delay_ns) + 1):
            progress = delays.get(level, DelayProgress())
            offset = progress.offset
            if progress.count:
                offset += self._count_delivered(level, progress)
                self._unsettled[level] = offset
            self._next[level] = offset
        self._deadline.due_ns = self._time.now_ns

    def _run(self) -> None:
        """Delivers a batch of each level that is due, and finds out when to look again."""
        now_ns = self._time.now_ns
        if now_ns < self._blocked_until_ns:
            self._deadline.due_ns = self._blocked_until_ns
            return
        self._deadline.due_ns = NEVER
        try:
            for level in self._next:
                self._settle(level)
                due_ns = self._deliver_due(level)
                if due_ns:
                    self._deadline.due_ns = min(self._deadline.due_ns, due_ns)
            self._settle_when_idle()
        except (ReplicaError, DiskFullError) as error:
            log.info("deliveries wait", reason=str(error))
            self._deadline.due_ns = self._blocked_until_ns = now_ns + RETRY_NS

    # ------------------------------------------------------------------ deliveries

    def _settle(self, level: int) -> None:
        offset = self._unsettled.get(level)
        if offset is not None:
            self._propose(SettleDelayed(level, offset))
            del self._unsettled[level]

    def _settle_when_idle(self) -> None:
        """Says of the levels' last batches that they are done; the next batch of each would have said so."""
        now_ns = self._time.now_ns
        delays = self._appends.metadata.delays
        open_levels = [level for level, progress in delays.items() if progress.count and level in self._next]
        if not open_levels or self._under_way:
            return
        if now_ns >= self._idle_from_ns + IDLE_NS:
            for level in open_levels:
                self._propose(SettleDelayed(level, self._next[level]))
            self._idle_from_ns = now_ns
        else:
            self._deadline.due_ns = min(self._deadline.due_ns, self._idle_from_ns + IDLE_NS)

    def _deliver_due(self, level: int) -> int:
        """Delivers or drops one batch: when to look again (ns), or 0 if something else will say so.

        What is dropped, be it all that waits for a topic that is gone, takes no more of a turn than what is delivered.
        """
        if level in self._under_way:
            return 0
        appends, now_ns = self._appends, self._time.now_ns
        queue = appends.store.queues.get(SCHEDULE_TOPIC, level - 1)
        offset = self._next[level]
        if queue is None or offset >= queue.max_offset:
            return 0
        if offset < queue.min_offset:
            # Retention took messages that nobody delivered: the node was stopped for longer than the log is kept.
            self._skip(level, queue.min_offset)
            return now_ns
        records: list[tuple[Record, Destination]] = []
        wall_ms = self._time.wall_ms
        begin, batch_bytes = offset, 0
        for at, (physical_offset, size, due_ms) in enumerate(queue.units(offset, BATCH_MAX), offset):
            if due_ms > wall_ms:
                due_ns = self._due_ns(level, at, queue.max_offset, due_ms - wall_ms)
                if due_ns > now_ns:
                    if not records and begin == offset:
                        return min(due_ns, now_ns + CLOCK_CHECK_NS)
                    break
            batch_bytes += size
            if at > offset and batch_bytes > BATCH_BYTES_MAX:
                break
            found = deliverable(appends, physical_offset, size)
            if found is not None:
                records.append(found)
            elif records:
                break
            else:
                begin = at + 1
        if begin > offset:
            self._skip(level, begin)
        if records:
            self._deliver(level, begin, records)
            return 0
        return now_ns

    def _due_ns(self, level: int, offset: int, end: int, ahead_ms: int) -> int:
        """When to deliver a message that is not due for `ahead_ms` by the wall clock, of a queue up to `end`."""
        now_ns = self._time.now_ns
        ahead_ns, delay_ns = ahead_ms * 1_000_000, self._delay_ns[level - 1]
        if ahead_ns <= delay_ns:
            return now_ns + ahead_ns
        known_end, until_ns = self._patience.get(level, (0, 0))
        if offset >= known_end:
            until_ns = now_ns + delay_ns
            self._patience[level] = (end, until_ns)
        return until_ns

    def _deliver(self, level: int, offset: int, records: list[tuple[Record, Destination]]) -> None:
        appends = self._appends
        appends.check_may_append(1 + len(records))
        announcement = DeliverDelayed(level, offset, len(records), appends.store.log.last_index + 1)
        appends.propose_command(announcement, lambda _: self._committed(announcement))
        self._under_way[level] = announcement
        done = 0
        try:
            for record, target in records:
                deliver(appends, record, target, delivered_properties(record.properties))
                done += 1
        except EntryTooLargeError:
            self._unsettled[level] = self._next[level] = (
                offset + done + 1
            )  # it can never be delivered: drop it
            self._settle(level)
        except DiskFullError:
            self._unsettled[level] = self._next[level] = offset + done
            raise
        else:
            self._next[level] = offset + done

    def _committed(self, announcement: DeliverDelayed) -> None:
        if self._under_way.get(announcement.level) is announcement:
            del self._under_way[announcement.level]
            self._deadline.due_ns = self._idle_from_ns = self._time.now_ns

    def _skip(self, level: int, offset: int) -> None:
        self._propose(SettleDelayed(level, offset))
        self._next[level] = offset

    def _propose(self, command: SettleDelayed) -> None:
        self._appends.propose_command(command)

    # ------------------------------------------------------------------ taking over

    def _count_delivered(self, level: int, progress: DelayProgress) -> int:
        queue = self._appends.store.queues.get(SCHEDULE_TOPIC, level - 1)
        assert queue is not None, "messages were announced from a queue that does not exist"
        offsets = range(progress.offset, progress.offset + progress.count)
        return count_delivered(self._appends, queue, offsets, progress.index, delivered_properties)
