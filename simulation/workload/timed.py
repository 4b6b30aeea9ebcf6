"""Messages for a time of their own.

Wall clocks of the brokers differ by up to an hour and jump by as much; what counts is the time that the group agrees on
(broker/replica/group_clock.py). So what is early or late is judged by that time, as the deliverer stamped it on the
message, and by the true one: a delay is over when so much time has passed, but for what clocks may go wrong.
"""

from collections.abc import Iterator
from typing import Final

from broker.client.message import Message
from broker.client.transport.runtime import Runtime
from broker.replica.replica import Replica
from broker.state.topic_rules import TIMER_TOPIC
from broker.trace import TraceWriter
from simulation.journal import TIME_MADE, Violation
from simulation.judges.group_model import CommittedMessage
from simulation.judges.group_time import BELIEVED_NS
from simulation.machines.broker_host import BrokerHost
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload.context import Context, Invariant
from simulation.workload.sending import send_now_and_then

TOPIC: Final = "appointments"

_LANES: Final = 2
_TOGETHER: Final = (1, 1, 1, 4)
_CLOCK_ERROR: Final = 0.07
"""The rate of a host's monotonic clock is wrong by five percent at most, and the group's time slews by one. Two leaders
may each be wrong the other way.
"""
_ELECTED_AFTER_NS: Final = 10 * SECOND
"""The time after the last fault by which there is a leader that delivers."""
_LATE_MS: Final = 2_000
"""A message may be missing at the end for so long after its time."""


class Timers(Invariant):
    """Each message that waits is delivered once, and not before its time by the clock of its deliverer."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._waiting: dict[tuple[str, str], list[CommittedMessage]] = {}
        """(key, due time) -> messages in the timer queue, delivered or not; repeated sends may store one twice."""
        self._delivered: dict[tuple[str, str], int] = {}
        """(key, due time) -> the number of these that came, in their order."""
        self.number = 0
        self.wanted: dict[str, tuple[int, int, int]] = {}
        """Key -> when the message was made (true time, ns), for how long it is to wait (ns), `times_made` then."""

    def times_made(self) -> int:
        """Returns how often a first leader has made the group's time from wall clocks.

        No delay survives that whole: all who knew the time were down or far away, and wall clocks may be wrong.
        """
        return self.context.journal.work_counts.get(TIME_MADE, 0)

    def committed(self, message: CommittedMessage) -> None:
        """Notes what begins to wait, and judges what is delivered. Raises Violation."""
        record = message.record
        name = (message.property(b"KEYS") or "", message.property(b"TIMER_OUT_MS") or "")
        if record.topic == TIMER_TOPIC and message.property(b"REAL_TOPIC") == TOPIC:
            self._waiting.setdefault(name, []).append(message)
        elif record.topic == TOPIC and name[1]:
            if record.store_timestamp < int(name[1]):
                raise Violation(
                    "nothing is early", "group", f"{name[0]}, due {name[1]}, at {record.store_timestamp}"
                )
            asked_ns, delay_ns, times_made = self.wanted[name[0]]
            waited_ns = message.time_ns - asked_ns
            # Times are whole milliseconds: a message that is made late in one may be there at the beginning of another.
            least_ns = delay_ns * (1 - _CLOCK_ERROR) - MILLISECOND - self._stood_still_ns(asked_ns)
            if times_made == self.times_made() and waited_ns < least_ns:
                raise Violation(
                    "no delay is cut short",
                    "group",
                    f"{name[0]}: there {waited_ns / 1e9:.3f} s after it was made, not {delay_ns / 1e9:.3f} s",
                )
            delivered = self._delivered[name] = self._delivered.get(name, 0) + 1
            if delivered > len(self._waiting.get(name, ())):
                raise Violation("timed messages come once", "group", f"{name[0]}, due {name[1]}, once more")
            self.context.journal.did("timed message delivered")

    def _stood_still_ns(self, asked_ns: int) -> int:
        """Returns by how much a message that was asked for at `asked_ns` may come early as machines were suspended.

        The time that a leader stamps on messages stands still with it, and what has passed meanwhile is believed only
        some time later (`BELIEVED_NS`). Whoever leads next has gone on meanwhile, and finds the message due so much
        earlier (docs/operations.md, the group's time).
        """
        since_ns = asked_ns - BELIEVED_NS
        return sum(for_ns for ended_ns, for_ns in self.context.journal.suspensions if ended_ns > since_ns)

    def waiting(self) -> Iterator[CommittedMessage]:
        """Yields those that have not come."""
        for name, waiting in self._waiting.items():
            yield from waiting[self._delivered.get(name, 0) :]

    def check_node(self, host: BrokerHost, replica: Replica) -> None:
        """Checks that nothing is forgotten: what is not delivered is not due by the leader's clock, and in its index.

        What retention took while it waited never comes, and may have been delivered before. Raises Violation.
        """
        if not replica.serving:
            return
        progress, timers = replica.metadata.timers, replica.store.timers
        while not timers.catch_up(progress.floor, progress.steps):
            pass
        # All that is not done, however far in the future: a unit that the index has lost would never be due.
        known = dict.fromkeys(offset for _, offset in timers.due(progress.steps, 1 << 62, 1 << 20))
        model, now_ns = self.context.model, self.context.scheduler.now_ns
        for (name, due), waiting in self._waiting.items():
            kept = [message for message in waiting if not model.may_be_gone(message)]
            for message in kept[self._delivered.get((name, due), 0) :]:
                offset = message.record.queue_offset
                since_ns = max(message.time_ns, self.context.calm_ns + _ELECTED_AFTER_NS)
                _, delay_ns, times_made = self.wanted[name]
                is_late = (
                    times_made == self.times_made()
                    and now_ns - since_ns > delay_ns * (1 + _CLOCK_ERROR) + _LATE_MS * MILLISECOND
                )
                if is_late or int(due) < replica.time.group_ms - _LATE_MS or offset not in known:
                    raise Violation(
                        "timed messages come",
                        host.name,
                        f"{name}, due {due}, unit {offset}: not there at {replica.time.group_ms}, "
                        f"waiting: {offset in known}",
                    )


async def schedule(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends messages for later, from several lanes."""
    invariant = context.invariant(Timers)
    random = runtime.random

    def appointments() -> list[Message]:
        # Some soon, some while the leader may change; several of the very same time, as they are stored in one turn.
        delay_ms = random.choice((5, 400, random.randrange(1_000), random.randrange(4_000)))
        return [appointment(delay_ms) for _ in range(random.choice(_TOGETHER))]

    def appointment(delay_ms: int) -> Message:
        invariant.number += 1
        body = random.randbytes(random.choice((10, 700)))
        key = f"appointment{invariant.number}"
        invariant.wanted[key] = (
            context.scheduler.now_ns,
            delay_ms * MILLISECOND,
            invariant.times_made(),
        )
        return Message(TOPIC, body, keys=[key], delay_ms=delay_ms)

    await send_now_and_then(context, runtime, "schedulers", 0.6, appointments, lanes=_LANES)
