"""Messages that are sent for later, many at once for one delay level, and some for a time of their own.

Brokers recognize a repeated send wherever the first one waits. What waits at a level comes in its order, so whatever
the log says of a level's progress tells that all before it has come: that is looked at with each announcement, and not
at the end of the run only.
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
from simulation.workload.context import Context, Invariant
from simulation.workload.retry import DELAY_LEVELS_S
from simulation.workload.sending import send_now_and_then

TOPIC: Final = "postponed"
_TOGETHER: Final = (1, 1, 1, 1, 4, 4, 12, 40)
_TIMED: Final = 0.5
"""The share of sends for a time of their own."""
_TIMED_TOGETHER: Final = (1, 4)
_TIMED_MS_MAX: Final = 6_000


class Postponed(Invariant):
    """Each message waits once, comes once, and is not passed over."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stored: dict[str, CommittedMessage] = {}
        """By unique key, what has begun to wait."""
        self._waiting: dict[str, CommittedMessage] = {}
        """Those of them that have not come."""

    def committed(self, message: CommittedMessage) -> None:
        """Follows what waits and what comes. Raises Violation."""
        record, key = message.record, message.property(b"UNIQ_KEY") or ""
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
    random = runtime.random

    def messages() -> list[Message]:
        if random.random() < _TIMED:
            delay_ms = random.randrange(_TIMED_MS_MAX)
            return [Message(TOPIC, random.randbytes(20), delay_ms=delay_ms)] * random.choice(_TIMED_TOGETHER)
        level = random.randrange(len(DELAY_LEVELS_S)) + 1
        count = random.choice(_TOGETHER)
        return [Message(TOPIC, random.randbytes(20), delay_level=level) for _ in range(count)]

    await send_now_and_then(context, runtime, "postponers", 1.0, messages)
