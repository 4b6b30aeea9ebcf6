"""Messages that are sent for later, many at once for one delay level, and some for a time of their own.

Brokers recognize a repeated send wherever the first one waits. What waits at a level comes in its order, so whatever
the log says of a level's progress tells that all before it has come: that is looked at with each announcement, and not
at the end of the run only.

In half of the runs some rounds are crowds: up to 40 for one millisecond of the group's time. Together they are more
than a batch may hold, or than may wait for a majority where that is little, or than a disk has room for: their delivery
breaks off in the middle, and goes on. When all faults are over some crowds are for times of the next ten minutes: they
wait to the end, so that the order in which all that waits is kept can be looked at.
"""

from collections.abc import Iterable
from typing import Final

from broker.client.message import Message
from broker.client.transport.runtime import Runtime
from broker.state.commands import Command, DeliverDelayed, SettleDelayed, Several
from broker.state.topic_rules import SCHEDULE_TOPIC, TIMER_TOPIC
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.randomness import stream
from simulation.workload.context import Context, Invariant
from simulation.workload.retry import DELAY_LEVELS_S
from simulation.workload.sending import send_now_and_then

TOPIC: Final = "postponed"
_TOGETHER: Final = (1, 1, 1, 1, 4, 4, 12, 40)
_TIMED: Final = 0.5
"""The share of sends for a time of their own."""
_TIMED_TOGETHER: Final = (1, 4)
_TIMED_MS_MAX: Final = 6_000
_CROWDS_SHARE: Final = 0.5
"""The share of the runs with crowds."""
_CROWD: Final = 0.3
"""The share of the rounds that are one there."""
_CROWDED: Final = (12, 40, 40)
_CROWD_AFTER_MS: Final = (1_500, 6_000)
"""All of a crowd are stored by then, if nothing holds them up."""
_FAR: Final = 0.3
_FAR_AFTER_MS: Final = (60_000, 600_000)
"""The run is over by then."""


class Postponed(Invariant):
    """Each message waits once, comes once, and is not passed over."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stored: dict[str, CommittedMessage] = {}
        """By unique key, what has begun to wait."""
        self._waiting: dict[str, CommittedMessage] = {}
        """Those of them that have not come."""
        self.group_ms = 0
        """The group's time, as the message has it that was stored last."""

    def committed(self, message: CommittedMessage) -> None:
        """Follows what waits and what comes. Raises Violation."""
        record, key = message.record, message.property(b"UNIQ_KEY") or ""
        self.group_ms = max(self.group_ms, record.store_timestamp)
        if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and message.property(b"REAL_TOPIC") == TOPIC:
            if key in self._stored:
                raise Violation("stored once", "group", f"{key} waits in {record.topic} for the second time")
            self._stored[key] = self._waiting[key] = message
        elif record.topic == TOPIC and key in self._stored:
            if self._waiting.pop(key, None) is None:
                raise Violation("what waits comes once", "group", f"{key} in {TOPIC}/{record.queue_id}")
            self.context.journal.did("postponed message delivered")

    def applied(self, command: Command, now_ns: int) -> None:
        """Checks that a level goes on behind what has come, or is gone. Raises Violation."""
        for single in command.commands if isinstance(command, Several) else (command,):
            if isinstance(single, DeliverDelayed | SettleDelayed):
                for key, message in self._waiting.items():
                    record = message.record
                    if (
                        record.topic == SCHEDULE_TOPIC
                        and record.queue_id + 1 == single.level
                        and record.queue_offset < single.offset
                        and not self.context.model.may_be_gone(message)
                    ):
                        detail = f"level {single.level} is at {single.offset}, and {key} at {record.queue_offset} waits"
                        raise Violation("nothing that waits is passed over", "group", detail)

    def waiting(self) -> Iterable[CommittedMessage]:
        """Returns what has not come."""
        return self._waiting.values()


async def postpone(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Sends messages for later."""
    invariant, random = context.invariant(Postponed), runtime.random
    crowds = stream(f"{context.seed} crowds of one time")
    has_crowds = crowds.random() < _CROWDS_SHARE

    def messages() -> list[Message]:
        if has_crowds and crowds.random() < _CROWD:
            # Clients' clocks and the group's differ by up to an hour: what is due soon the group's alone can tell.
            now_ms, count = invariant.group_ms, crowds.choice(_CROWDED)
            if context.is_calm() and crowds.random() < _FAR:
                dues_ms = [now_ms + crowds.randrange(*_FAR_AFTER_MS) for _ in range(count)]
            else:
                dues_ms = [now_ms + crowds.randrange(*_CROWD_AFTER_MS)] * count
                context.journal.did("crowd of one time")
            return [Message(TOPIC, b"of a crowd", deliver_at_ms=due_ms) for due_ms in dues_ms]
        if random.random() < _TIMED:
            delay_ms = random.randrange(_TIMED_MS_MAX)
            return [Message(TOPIC, random.randbytes(20), delay_ms=delay_ms)] * random.choice(_TIMED_TOGETHER)
        level = random.randrange(len(DELAY_LEVELS_S)) + 1
        count = random.choice(_TOGETHER)
        return [Message(TOPIC, random.randbytes(20), delay_level=level) for _ in range(count)]

    await send_now_and_then(context, runtime, "postponers", 1.0, messages)
