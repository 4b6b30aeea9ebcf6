"""The notes of a run: a transcript for people, counts of faults and work, and the first thing that does not hold.

Machines, faults, actors and judges all write here, and only here: whoever finds a mistake need not know who runs the
world.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.trace import TraceWriter
from simulation.scheduler import SECOND, Scheduler

_TRANSCRIPT_LINES: Final = 400


MARKED: Final = "*"
"""Before the name of a host: its role, term or leader changed, or its log has become shorter."""
TIME_MADE: Final = "group time made"
"""Work that is counted when a first leader makes the group's time from wall clocks (broker/replica/group_clock.py)."""


class Violation(Exception):  # noqa: N818 - what is found, not an error of this program
    """An invariant does not hold. `invariant` names it, `node` the host concerned."""

    def __init__(self, invariant: str, node: str, detail: str) -> None:
        super().__init__(f"{invariant} ({node}): {detail}")
        self.invariant = invariant
        self.node = node
        self.detail = detail


class Journal:
    """The notes of one run. The first finding ends it: what follows a broken invariant says little."""

    def __init__(self, scheduler: Scheduler, driver: TraceWriter) -> None:
        """Faults are recorded with `driver`, too."""
        self._scheduler = scheduler
        self._driver = driver
        self.transcript: deque[str] = deque(maxlen=_TRANSCRIPT_LINES)
        self.fault_counts: dict[str, int] = {}
        """The number of times that each kind of fault took effect."""
        self.work_counts: dict[str, int] = {}
        """The number of things that actors have done, by kind: an actor that never gets anywhere checks nothing."""
        self.marks: dict[str, int] = {}
        """The number of times that the group has come to a state of the protocol (simulation/judges/marks.py)."""
        self.mark_reached: Callable[[str, str], object] = lambda before, mark: None
        """Called for each state that is reached, with the last other one that was reached before it."""
        self._marks_before = ("", "")
        self.suspensions: list[tuple[int, int]] = []
        """The suspensions of machines: when each ended, and for how long the monotonic clock had stood still."""
        self.finding: Violation | None = None
        self.acting = ""
        """The broker whose code runs: what is logged now is its log."""

    def note(self, host: str, text: str, *, mark: str = " ") -> None:
        """Adds a line to the transcript; `MARKED` lines catch the reader's eye."""
        self.transcript.append(f"{self._scheduler.now_ns / SECOND:11.6f} {mark}{host:<8} {text}")

    def fired(self, kind: str) -> None:
        """Counts a fault that takes effect."""
        self.fault_counts[kind] = self.fault_counts.get(kind, 0) + 1

    def did(self, work: str, times: int = 1) -> None:
        """Counts something that an actor has done and an invariant depends on."""
        self.work_counts[work] = self.work_counts.get(work, 0) + times

    def reached(self, mark: str) -> None:
        """Counts a state of the protocol."""
        self.marks[mark] = self.marks.get(mark, 0) + 1
        if mark != self._marks_before[1]:
            self._marks_before = self._marks_before[1], mark
        self.mark_reached(self._marks_before[0], mark)

    def record_fault(self, kind: str, target: str, detail: str) -> None:
        """Notes a fault in transcript and trace."""
        self.note(target, f"FAULT {kind} {detail}".rstrip())
        self._driver.fault(self._scheduler.now_ns, kind, (target,), detail)

    def stood_still(self, duration_ns: int) -> None:
        """A machine that was suspended goes on."""
        self.suspensions.append((self._scheduler.now_ns, duration_ns))

    def operated(self, kind: str, node: str, detail: str) -> None:
        """Counts and notes an operator's request that was granted."""
        self.fired(kind)
        self.record_fault(kind, node, detail)

    def found(self, violation: Violation) -> None:
        """Keeps the first violation, and ends the run after the present event."""
        if self.finding is None:
            self.finding = violation
            self.note(violation.node, f"VIOLATION {violation}")
            self._scheduler.stopped = True
