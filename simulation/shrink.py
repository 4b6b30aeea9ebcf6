"""From a failing plan to a small one: the faults that it takes, and no more.

Delta debugging (Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input): remove ever smaller runs of
faults as long as the same invariant still breaks. Leaving a fault out changes what comes after it, since all draw from
the same streams, so a smaller plan is another run and not a part of the old one; a plan that fails is kept, whichever
way it does so. Afterwards the faults that are left are made shorter, and the run ends right after the finding.
"""

from collections.abc import Callable
from dataclasses import replace

from simulation.plan import Fault, Plan
from simulation.scheduler import MILLISECOND
from simulation.world import Result, run_plan

__all__ = ["shrink"]

Progress = Callable[[int, int], object]
Run = Callable[[Plan], Result]


def shrink(
    failed: Result, *, runs_max: int = 200, run: Run = run_plan, progress: Progress | None = None
) -> Result:
    """The result of the smallest failing plan found with at most `runs_max` runs of `run`.

    `progress` is told the runs so far and the number of faults left.
    """
    assert failed.violation is not None, "only a failure can be shrunk"
    search = _Search(failed, runs_max, run, progress)
    search.remove_faults()
    search.shorten_faults()
    return search.best


class _Search:
    def __init__(self, failed: Result, runs_max: int, run: Run, progress: Progress | None) -> None:
        self.best = failed
        self._run = run
        self._runs_left = runs_max
        self._runs_max = runs_max
        self._progress = progress

    def _fails(self, faults: tuple[Fault, ...]) -> bool:
        """Whether the plan with these faults breaks the same invariant; it is the best one then."""
        if self._runs_left <= 0:
            return False
        self._runs_left -= 1
        result = self._run(replace(self.best.plan, faults=faults))
        assert self.best.violation is not None
        same = result.violation is not None and result.violation.invariant == self.best.violation.invariant
        if same:
            self.best = result
        if self._progress is not None:
            self._progress(self._runs_max - self._runs_left, len(self.best.plan.faults))
        return same

    def remove_faults(self) -> None:
        late = [fault for fault in self.best.plan.faults if fault.time_ns <= self.best.simulated_ns]
        if len(late) < len(self.best.plan.faults):
            self._fails(tuple(late))  # what comes after the finding has no part in it
        pieces = 2
        while (faults := self.best.plan.faults) and self._runs_left > 0:
            size = -(-len(faults) // pieces)
            for begin in range(0, len(faults), size):
                if self._fails(faults[:begin] + faults[begin + size :]):
                    pieces = max(2, pieces - 1)
                    break
            else:
                if size == 1:
                    break
                pieces = min(len(faults), 2 * pieces)

    def shorten_faults(self) -> None:
        for number in range(len(self.best.plan.faults)):
            while True:
                faults = self.best.plan.faults
                fault = faults[number]
                if fault.duration_ns < 2 * MILLISECOND:
                    break
                shorter = replace(fault, duration_ns=fault.duration_ns // 4)
                if not self._fails((*faults[:number], shorter, *faults[number + 1 :])):
                    break
