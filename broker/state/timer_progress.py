"""The progress of timed messages: replicated, so that the next leader goes on exactly there.

All that a `DeliverTimed` announces is known to be delivered when the next command of its kind is committed; a leader
that takes over in between counts in the log (broker/delayed/timers.py).
"""

from dataclasses import dataclass
from typing import Any

from broker.state.commands import DeliverTimed, SettleTimed
from log.queues.timer_index import Step, Steps, add_step


@dataclass(frozen=True, slots=True)
class TimerProgress:
    """All units before `floor` are done, and those of which `steps` tell (log/queues/timer_index.py).

    `batch` is the last announcement, if nothing was settled since: of its units those are done, too, whose entries
    follow the announcement's in its term.
    """

    floor: int = 0
    steps: Steps = ()
    batch: DeliverTimed | None = None

    def announced(self, command: DeliverTimed) -> "TimerProgress":
        """The progress after one more announcement: all that was announced before it is done."""
        steps = self.steps if self.batch is None else add_step(self.steps, Step(*self.batch.step))
        return TimerProgress(command.floor, steps, command)

    def settled(self, command: SettleTimed) -> "TimerProgress":
        """The progress after a settlement, which leaves nothing of a batch open."""
        return TimerProgress(self.floor, tuple(Step(*step) for step in command.steps))

    def to_fields(self) -> list[Any]:
        """The form in a snapshot."""
        batch = self.batch
        return [
            self.floor,
            [list(step) for step in self.steps],
            None if batch is None else [list(batch.offsets), list(batch.step), batch.floor, batch.index],
        ]

    @classmethod
    def from_fields(cls, fields: list[Any] | None) -> "TimerProgress":
        """The progress of which `to_fields` gave the form; the beginning for a snapshot of before there were timers."""
        if fields is None:
            return cls()
        floor, steps, batch = fields
        return cls(
            floor,
            tuple(Step(*step) for step in steps),
            None
            if batch is None
            else DeliverTimed(tuple(batch[0]), (batch[1][0], batch[1][1], batch[1][2]), batch[2], batch[3]),
        )
