"""Messages for a time of their own: TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS (`TimerMessageStore` of 5.x).

Such a message waits in the timer queue, with the time at which it is due in TIMER_OUT_MS, and the leader appends it
again, to its true topic, in the millisecond in which the group's time (broker/replica/group_clock.py) gets there. The
order by time is an index over that queue which every replica keeps (log/queues/timer_index.py); the replicated state
says what is done (`TimerProgress`).

Each is delivered exactly once, whatever happens to leaders, as with delay levels (delays.py): the leader first writes
which units of the queue it is about to deliver (`DeliverTimed`) and then the deliveries, without anything in between,
so that the next leader counts in the log how many came into it, and says so before it delivers anything.

One step, "all units before `limit` up to this time and offset", says what a batch does: the batch holds, in order, the
first of all units that were committed then and not done, and those have offsets below `limit`. What is stored later is
beyond the limit, whatever its time: a next leader whose time is a little behind needs no care. A message is never early
by the group's time, and no machine's wall clock moves it. One that is damaged here keeps those waiting that are due
later, until the group has repaired it: what is done is a beginning of what waits, without holes.

Retention keeps what waits: a file of the log that holds a unit which is not done is not deleted for its age. Only a
disk that is nearly full takes it, which is logged.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from broker.delayed.deliveries import (
    count_delivered,
    delivery_of,
    number,
    tell_of_damage,
)
from broker.delayed.rounds import Rounds
from broker.node.listeners import Listeners
from broker.node.ports import Appends
from broker.remoting.codes import ResponseCode
from broker.replica.proposals import NewMessage
from broker.requests.deadline import Time
from broker.requests.errors import OverloadedError, RequestError
from broker.requests.processing import Route
from broker.state.commands import DeliverTimed, SettleTimed
from broker.state.topic_rules import TIMER_TOPIC
from broker.state.waiting_messages import addressed_properties, without_address
from broker.statistics.events import Events
from broker.statistics.stats import Stats
from log.dispatching.dispatch import Arrival
from log.errors import DamagedLogError, DiskFullError, EntryTooLargeError
from log.formats.properties import (
    TIMER_CANCELS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    with_property,
)
from log.queues.timer_index import Step, Steps, TimerIndex, add_step

CLOCK_CHECK_NS: Final = 1_000_000_000
"""The group's time approaches the leader's wall clock while something waits; so it is looked at so often."""

IDLE_NS: Final = 10_000_000_000
"""After so long without a delivery the last batch is settled."""

TIMERS: Final = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)
"""Each says when a message is to be delivered; the first of them that a message has counts."""


def due_ms_of(properties: Mapping[bytes, bytes], group_ms: int, delay_ms_max: int) -> int | None:
    """The time at which a message is to be delivered (ms since 1970); None for at once, as where it is past.

    Raises `RequestError` 13 for text that is no number and for a time that is further away than allowed. Of several
    properties the first of `TIMERS` counts; a message that has waited (TIMER_OUT_MS) does not wait again.
    """
    if TIMER_OUT_MS in properties:
        return None
    if TIMER_DELAY_SEC in properties:
        name, unit_ms, begin_ms = TIMER_DELAY_SEC, 1000, group_ms
    elif TIMER_DELAY_MS in properties:
        name, unit_ms, begin_ms = TIMER_DELAY_MS, 1, group_ms
    elif TIMER_DELIVER_MS in properties:
        name, unit_ms, begin_ms = TIMER_DELIVER_MS, 1, 0
    else:
        return None
    # `TimerMessageStore` takes a time that is past for a message like others, and refuses one too far ahead.
    value = properties[name]
    told = number(value)
    if told is None:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, {name.decode()} is {value[:40].decode('utf-8', 'replace')!r}, no number",
        )
    due_ms = begin_ms + unit_ms * told
    if due_ms - group_ms > delay_ms_max:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {delay_ms_max}ms",
        )
    if TIMER_CANCELS in properties:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer message illegal, a message that waits cannot be cancelled (TIMER_DEL_UNIQKEY)",
        )
    return due_ms if due_ms > group_ms else None


def set_timer(message: NewMessage, due_ms: int) -> None:
    """Makes a message wait until `due_ms`: it goes to the timer queue, with its address in properties."""
    properties = with_property(without_address(message.properties), TIMER_OUT_MS, b"%d" % due_ms)
    message.properties = addressed_properties(properties, message.topic, message.queue_id)
    message.topic, message.queue_id = TIMER_TOPIC, 0


class TimerService:
    """Delivers the messages that are due while this node serves, and keeps the index up to date on every node.

    While `_leads` is false, the other fields of a leader are as at first: no steps, nothing under way or unsettled.
    """

    def __init__(
        self, leadership: Appends, stats: Stats, time: Time, listeners: Listeners, events: Events
    ) -> None:
        self._leadership = leadership
        self._stats = stats
        self._time = time
        self._events = events
        self._leads = False
        """This node serves and has taken over."""
        self._steps: Steps = ()
        """All that is done; the batch under way counts as done."""
        self._under_way: DeliverTimed | None = None
        """The announcement that is not committed yet."""
        self._unsettled = False
        """A batch broke off: the log must say what is done before anything else is announced."""
        listeners.role_changes.append(self._role_changed)
        listeners.arrivals.append(self._arrived)
        self._rounds = Rounds("timers", self._look, IDLE_NS, leadership, time, events, due_ns=0)

    def routes(self) -> Iterable[Route]:
        """None: no request asks for it."""
        return ()

    @property
    def _index(self) -> TimerIndex:
        return self._leadership.store.timers

    # ------------------------------------------------------------------ when

    def _arrived(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            # A follower delivers nothing: it takes new ones into its index as many at a time as make a run.
            if arrival.topic == TIMER_TOPIC and (self._leads or self._index.behind >= self._index.run_units):
                self._rounds.look_now()

    def _role_changed(self) -> None:
        serving = self._leadership.serving
        if serving and not self._leads:
            self._begin()
        elif not serving:
            self._leads = False
            self._steps = ()
            self._under_way = None
            self._unsettled = False

    def _begin(self) -> None:
        """Takes over from the last leader, whose last announcement may have come into the log in part."""
        progress = self._leadership.metadata.timers
        batch, queue, done = progress.batch, self._index.queue, 0
        if batch is not None:
            assert queue is not None, "messages were announced from a queue that does not exist"
            try:
                done = count_delivered(self._leadership, queue, batch.offsets, batch.index, without_address)
            except DamagedLogError as error:
                tell_of_damage(self._events, "timers", error, self._time.now_ns)
                self._rounds.put_off()
                return
        self._leads = True
        self._steps = progress.steps
        if batch is not None and queue is not None:
            step: Step | None = None
            if done == len(batch.offsets):
                step = Step(*batch.step)
            else:
                # Of those that retention took nothing need be said: they are found, and dropped, again.
                for offset in reversed(batch.offsets[:done]):
                    unit = queue.unit(offset)
                    if unit is not None:
                        step = Step(unit[2], offset, batch.step[2])
                        break
            self._settle_later(step)
        self._rounds.look_now()

    def _settle_later(self, step: Step | None) -> None:
        """Notes that the log is to say what is done, up to `step` if something of the batch is."""
        self._unsettled = True
        if step is not None:
            self._steps = add_step(self._steps, step)

    def _look(self) -> None:
        """Brings the index up to date, delivers what is due, and finds out when the next message will be.

        Raises as `Leadership.propose_command`, and DiskError.
        """
        progress = self._leadership.metadata.timers
        if not self._index.catch_up(progress.floor, progress.steps):
            self._rounds.look_now()  # the rest in further turns: others wait, too
            return
        if not self._leads:
            if self._leadership.serving:
                self._begin()
            return
        try:
            self._settle()
            if self._under_way is None and self._deliver_due():
                self._rounds.look_now()  # the rest in further turns
        except DamagedLogError as error:
            tell_of_damage(self._events, "timers", error, self._time.now_ns)
            self._rounds.put_off()

    # ------------------------------------------------------------------ deliveries

    def _settle(self) -> None:
        """Says what is done, if that is owed. Raises as `Leadership.propose_command`."""
        if self._unsettled:
            self._leadership.propose_command(SettleTimed(self._steps))
            self._unsettled = False

    def _settle_when_idle(self) -> None:
        """When no further batch follows soon, commits that the last one is done, so that retention knows; otherwise the
        next batch says so.
        """
        if self._leadership.metadata.timers.batch is not None and self._rounds.is_idle():
            self._rounds.idle_from_now()
            self._unsettled = True
            self._settle()

    def _deliver_due(self) -> bool:
        """Delivers or drops a batch. Returns False when nothing is due; then `_rounds` knows when to look again."""
        group_ms = self._time.group_ms
        due = self._index.due(self._steps, group_ms, self._leadership.limits.deliveries_max)
        if not due:
            self._settle_when_idle()
            next_ms = self._index.next_due_ms(self._steps)
            if next_ms is not None:
                wait_ns = (next_ms - group_ms) * 1_000_000
                self._rounds.look_at(self._time.now_ns + min(wait_ns, CLOCK_CHECK_NS))
            return False
        queue = self._index.queue
        assert queue is not None, "the index holds units of the queue"
        # Units whose message is gone or cannot be delivered count as done with the step; only the others are announced.
        found: list[tuple[Step, NewMessage]] = []
        size = 0
        # Of a queue that retention emptied, the index may not know units that an earlier leader's had.
        limit = max((self._index.end, *(step.limit for step in self._steps[-1:])))
        step = Step(0, 0, 0)
        for due_ms, offset in due:
            unit = queue.unit(offset)
            if unit is not None:
                size += unit[1]
                if size > self._leadership.limits.delivery_bytes_max and size > unit[1]:
                    break
            delivery = None
            if unit is not None:
                try:
                    delivery = delivery_of(self._leadership, queue, offset, unit, without_address)
                except DamagedLogError:
                    # It is the first that is due: nothing can go before it.
                    if step.limit == 0:
                        raise
                    break  # those before it need not wait for its repair
            step = Step(due_ms, offset, limit)
            if delivery is not None:
                found.append((step, delivery))
        if found:
            self._deliver(step, found)
        else:
            self._settle_later(step)
            self._settle()
        return True

    def _deliver(self, step: Step, found: list[tuple[Step, NewMessage]]) -> None:
        """Announces the deliveries that were found, each with what is done after it, and appends them right behind.

        `step` is what is done after all of them. Raises as `Leadership.check_may_append` with nothing appended, and
        `OverloadedError` and `DiskFullError` with a part.
        """
        leadership = self._leadership
        # The next leader counts the deliveries of the last announcement only.
        assert self._under_way is None, f"a batch is under way: {self._under_way}"
        assert not self._unsettled, f"a batch broke off behind {self._steps}, and nothing says so"
        # Room for all is asked for first, as with delay levels.
        leadership.check_may_append(1 + len(found))
        index = leadership.store.log.last_index + 1
        # The floor may lie behind what is found here: a nearly full disk has each node delete its head by itself, so an
        # earlier leader may have passed a message that this node still has, and delivers.
        floor = self._index.first_pending(leadership.metadata.timers.floor, self._steps)
        announcement = DeliverTimed(tuple(own.offset for own, _ in found), step, floor, index)
        leadership.propose_command(announcement, lambda _: self._committed(announcement))
        assert leadership.store.log.last_index == index, "the announcement is the entry that it names"
        self._under_way = announcement
        delivered: Step | None = None
        own = step
        try:
            for own, delivery in found:
                # The first entry of an idle group may announce more than the limit of what waits for a majority.
                leadership.check_may_append()
                leadership.append_message(delivery, None)
                delivered = own
        except EntryTooLargeError:
            self._settle_later(own)  # it can never be delivered: it is dropped
            self._settle()
        except (OverloadedError, DiskFullError):
            self._settle_later(delivered)
            raise
        else:
            self._steps = add_step(self._steps, step)
            self._stats.timed_delivered.add(self._time.now_ns // 1_000_000_000, len(found))

    def _committed(self, announcement: DeliverTimed) -> None:
        if self._under_way is announcement:
            self._under_way = None
            self._rounds.committed()
