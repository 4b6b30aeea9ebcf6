"""Delayed messages: kept in the schedule topic, one queue a level, until they are due (`ScheduleMessageService`).

A delayed message (`SendProcessor._decide_hidden` says which) is stored under SCHEDULE_TOPIC_XXXX with its true topic
and queue in properties, and the leader appends it again, to that topic and queue, when its time has come. Both are
ordinary entries of the log. Across failovers each must be delivered once, though the entry of a delivery and the
progress of its level are two entries and a leader may die between them.

So a leader first writes what it is about to deliver (`DeliverDelayed`: level, first offset, count) and then, without
anything in between, the deliveries themselves. The log keeps the order and has no gaps: the next leader finds, in the
entries right after that command and of its term, exactly how many of them came into the log, and says so
(`SettleDelayed`) before it delivers anything. A full disk in the middle is settled by the leader itself.

A message is due when its store time and its delay have passed by the group's time (broker/replica/group_clock.py).
When all nodes were down that is made anew from wall clocks, and may be behind the store time: nothing tells then how
long the message has waited. It waits for its delay from the moment in which the leader first sees that, by a clock that
nobody sets, and no longer: messages behind it in its level may have been stored by right clocks, and would wait for the
wrong one's hours, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker.delayed.deliveries import (
    count_delivered,
    delivery_of,
    number,
    tell_of_damage,
)
from broker.delayed.rounds import RETRY_NS, Rounds
from broker.node.listeners import Listeners
from broker.node.ports import Appends
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_integer_keyed
from broker.replica.proposals import NewMessage
from broker.requests.connection import Connection
from broker.requests.deadline import MS, Time
from broker.requests.errors import OverloadedError, RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply_json
from broker.state.commands import DeliverDelayed, SettleDelayed
from broker.state.metadata import DelayProgress
from broker.state.topic_rules import SCHEDULE_TOPIC
from broker.state.waiting_messages import addressed_properties
from broker.statistics.events import Events
from log.dispatching.dispatch import Arrival
from log.errors import DamagedLogError, DiskFullError, EntryTooLargeError
from log.formats.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC, with_property, without_properties

CLOCK_CHECK_NS: Final = 10_000_000_000
"""The group's time approaches the leader's wall clock while something is pending; so it is looked at so often."""


def delay_level(properties: Mapping[bytes, bytes], level_max: int) -> int:
    """The level that a message asks for, at most `level_max`; 0 for none.

    Raises `RequestError` 13 for text that is no number: without a delay the message would come too early.
    """
    value = properties.get(DELAY)
    if value is None:
        return 0
    level = number(value)
    if level is None:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the delay level (DELAY) is {value[:40].decode('utf-8', 'replace')!r}, no number",
        )
    return max(0, min(level, level_max))


def schedule(message: NewMessage, level: int) -> None:
    """Makes a message wait at a delay level: it goes to the level's queue, with its address in properties."""
    properties = with_property(delivered_properties(message.properties), DELAY, b"%d" % level)
    message.properties = addressed_properties(properties, message.topic, message.queue_id)
    message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1


def delivered_properties(properties: bytes) -> bytes:
    """The properties of a message that has waited."""
    return without_properties(properties, DELAY, REAL_TOPIC, REAL_QUEUE_ID)


class DelayService:
    """Delivers the messages that are due while this node serves; answers GET_ALL_DELAY_OFFSET 45.

    While this node serves every level is in `_next`, or in `_untaken` until it is known how much of its last batch was
    delivered; otherwise both are empty. A level of `_next` may have a batch that is announced (`_under_way`) until that
    is committed, and one that has broken off (`_unsettled`) until the log says where. It announces nothing else before:
    the next leader counts the deliveries of the last announcement only.
    """

    def __init__(
        self, leadership: Appends, delay_ms: Sequence[int], time: Time, listeners: Listeners, events: Events
    ) -> None:
        """`delay_ms` has the delay of each level."""
        self._leadership = leadership
        self._time = time
        self._events = events
        self._delay_ns = [delay * 1_000_000 for delay in delay_ms]
        self._next: dict[int, int] = {}
        """By level, the offset that is delivered next; those under way count as delivered."""
        self._untaken: list[int] = []
        """The levels that are still to be taken over from the last leader."""
        self._under_way: dict[int, DeliverDelayed] = {}
        """By level, the announcement that is not committed yet."""
        self._unsettled: dict[int, int] = {}
        """By level, the offset at which a batch broke off."""
        self._patience: dict[int, tuple[int, int]] = {}
        """By level, (offset, time in ns): messages before that offset whose store time is to come are due then."""
        listeners.role_changes.append(self._role_changed)
        listeners.arrivals.append(self._arrived)
        idle_ns = leadership.limits.delays_idle_ms * MS
        self._rounds = Rounds("delay levels", self._deliver_levels, idle_ns, leadership, time, events)

    def routes(self) -> Iterable[Route]:
        """The progress is read from the leader, as the other tables of the group."""
        return (Route(RequestCode.GET_ALL_DELAY_OFFSET, self.all_offsets, HandledOn.LEADER_READ),)

    def all_offsets(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers with the progress of each level that is taken over, in the form of RocketMQ's delayOffset.json."""
        reply_json(connection, command, {"offsetTable": encode_integer_keyed(self._next)})

    # ------------------------------------------------------------------ when

    def _arrived(self, arrivals: Iterable[Arrival]) -> None:
        if self._next:
            for arrival in arrivals:  # a loop, as this is asked in every turn with messages
                if arrival.topic == SCHEDULE_TOPIC:
                    self._rounds.look_now()

    def _role_changed(self) -> None:
        if not self._leadership.serving:
            for by_level in (self._next, self._under_way, self._unsettled, self._patience):
                by_level.clear()
            self._untaken.clear()
            self._rounds.look_no_more()
        elif not self._next and not self._untaken:
            self._untaken.extend(range(1, len(self._delay_ns) + 1))
            self._take_over()
            self._rounds.look_now()

    def _take_over(self) -> None:
        """Takes over from the last leader, whose last announcements may have come into the log in part.

        A level waits where that cannot be told as yet, for an entry is damaged, and keeps no other from going on.
        """
        delays = self._leadership.metadata.delays
        damaged: list[int] = []
        for level in self._untaken:
            progress = delays.get(level, DelayProgress())
            offset = progress.offset
            if progress.count:
                try:
                    offset += self._count_delivered(level, progress)
                except DamagedLogError as error:
                    tell_of_damage(self._events, f"level {level}", error, self._time.now_ns)
                    damaged.append(level)
                    continue
                self._unsettled[level] = offset
            self._next[level] = offset
        self._untaken = damaged
        assert len(self._next) + len(damaged) == len(self._delay_ns), (
            f"levels {[*self._next]} and {damaged} only"
        )

    def _deliver_levels(self) -> None:
        """Delivers a batch of each level that is due, and finds out when to look again.

        Raises as `Leadership.propose_command`: where the log refuses what one level has, the others wait, too.
        """
        now_ns = self._time.now_ns
        if self._untaken:
            self._take_over()
            if self._untaken:
                self._rounds.look_at(now_ns + RETRY_NS)
        for level in self._next:
            self._settle(level)
            try:
                due_ns = self._deliver_due(level)
            except DamagedLogError as error:
                tell_of_damage(self._events, f"level {level}", error, now_ns)
                due_ns = now_ns + RETRY_NS
            if due_ns:
                self._rounds.look_at(due_ns)
        self._settle_when_idle()

    # ------------------------------------------------------------------ deliveries

    def _settle(self, level: int) -> None:
        """Says where the level's last batch broke off, if it did. Raises as `Leadership.propose_command`."""
        offset = self._unsettled.get(level)
        if offset is not None:
            self._leadership.propose_command(SettleDelayed(level, offset))
            del self._unsettled[level]

    def _settle_when_idle(self) -> None:
        """When no further batch of a level follows soon, commits that its last one is done; otherwise the next batch
        says so.
        """
        delays = self._leadership.metadata.delays
        open_levels = [level for level, progress in delays.items() if progress.count and level in self._next]
        if open_levels and not self._under_way and self._rounds.is_idle():
            for level in open_levels:
                self._leadership.propose_command(SettleDelayed(level, self._next[level]))
            self._rounds.idle_from_now()

    def _deliver_due(self, level: int) -> int:
        """Delivers or drops one batch. Returns when to look again (ns), or 0 if something else will say so.

        To drop, even all that waits for a topic that is gone, takes no more of a turn than to deliver.
        """
        if level in self._under_way:
            return 0
        now_ns, group_ms = self._time.now_ns, self._time.group_ms
        queue = self._leadership.store.queues.get(SCHEDULE_TOPIC, level - 1)
        offset = self._next[level]
        if queue is None or offset >= queue.max_offset:
            return 0
        if offset < queue.min_offset:
            # Retention took messages that nobody delivered: the node was stopped for longer than the log is kept.
            self._skip(level, queue.min_offset)
            return now_ns
        # What is dropped at the beginning is skipped (`begin`). A message to drop further on ends the batch: an
        # announcement names offsets without a gap.
        deliveries: list[NewMessage] = []
        limits = self._leadership.limits
        begin, batch_bytes = offset, 0
        for at, unit in enumerate(queue.units(offset, limits.deliveries_max), offset):
            _, size, due_ms = unit
            if due_ms > group_ms:
                due_ns = self._due_ns(level, at, queue.max_offset, due_ms - group_ms)
                if due_ns > now_ns:
                    if not deliveries and begin == offset:
                        return min(due_ns, now_ns + CLOCK_CHECK_NS)
                    break
            batch_bytes += size
            # The first one goes whatever its size, or it would never.
            if at > offset and batch_bytes > limits.delivery_bytes_max:
                break
            try:
                delivery = delivery_of(self._leadership, queue, at, unit, delivered_properties)
            except DamagedLogError:
                if at == offset:
                    raise
                break  # those before it need not wait for its repair
            if delivery is not None:
                deliveries.append(delivery)
            elif deliveries:
                break
            else:
                begin = at + 1
        if begin > offset:
            self._skip(level, begin)
        if deliveries:
            self._deliver(level, begin, deliveries)
            return 0
        return now_ns

    def _due_ns(self, level: int, offset: int, end: int, ahead_ms: int) -> int:
        """Returns when to deliver the level's message at `offset` (monotonic ns), which is due in `ahead_ms` by the
        group's time. The level's queue ends at `end`.
        """
        now_ns = self._time.now_ns
        ahead_ns, delay_ns = ahead_ms * 1_000_000, self._delay_ns[level - 1]
        if ahead_ns <= delay_ns:
            return now_ns + ahead_ns
        # Stored at a time to come: all that is in the queue by now is due together, its delay from now.
        known_end, until_ns = self._patience.get(level, (0, 0))
        if offset >= known_end:
            until_ns = now_ns + delay_ns
            self._patience[level] = (end, until_ns)
        return until_ns

    def _deliver(self, level: int, offset: int, deliveries: list[NewMessage]) -> None:
        """Announces the deliveries of the messages from `offset` on, and appends them right behind.

        Raises as `Leadership.check_may_append` with nothing appended, `OverloadedError`, `DiskFullError` with a part.
        """
        leadership = self._leadership
        assert level not in self._under_way, f"level {level} has a batch under way: {self._under_way[level]}"
        assert level not in self._unsettled, (
            f"level {level} broke off at {self._unsettled[level]}, and nothing says so"
        )
        # Room for all is asked for first: a batch that breaks off costs an entry which says where.
        leadership.check_may_append(1 + len(deliveries))
        index = leadership.store.log.last_index + 1
        announcement = DeliverDelayed(level, offset, len(deliveries), index)
        leadership.propose_command(announcement, lambda _: self._committed(announcement))
        assert leadership.store.log.last_index == index, "the announcement is the entry that it names"
        self._under_way[level] = announcement
        done = 0
        try:
            for delivery in deliveries:
                # The first entry of an idle group may announce more than the limit of what waits for a majority.
                leadership.check_may_append()
                leadership.append_message(delivery, None)
                done += 1
        except EntryTooLargeError:
            # It can never be delivered: it is dropped.
            self._unsettled[level] = self._next[level] = offset + done + 1
            self._settle(level)
        except (OverloadedError, DiskFullError):
            self._unsettled[level] = self._next[level] = offset + done
            raise
        else:
            self._next[level] = offset + done

    def _committed(self, announcement: DeliverDelayed) -> None:
        if self._under_way.get(announcement.level) is announcement:
            del self._under_way[announcement.level]
            self._rounds.committed()

    def _skip(self, level: int, offset: int) -> None:
        """Drops all before `offset`."""
        self._leadership.propose_command(SettleDelayed(level, offset))
        self._next[level] = offset

    # ------------------------------------------------------------------ taking over

    def _count_delivered(self, level: int, progress: DelayProgress) -> int:
        queue = self._leadership.store.queues.get(SCHEDULE_TOPIC, level - 1)
        assert queue is not None, "messages were announced from a queue that does not exist"
        offsets = range(progress.offset, progress.offset + progress.count)
        return count_delivered(self._leadership, queue, offsets, progress.index, delivered_properties)
