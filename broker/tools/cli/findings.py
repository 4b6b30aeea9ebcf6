"""Findings of ``trivet simulate``: the plan is kept in a file and shrunk, and the report is printed.

The plan as it was found is on disk before shrinking begins, and the smallest one so far after each run that made it
smaller: whatever ends the command, nothing that was found is lost.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from broker.tools.cli.progress import Progress
from broker.tools.cli.simulation_run import run_once

if TYPE_CHECKING:
    from simulation.findings.shrink import Progress as Shrinking
    from simulation.plans.plan import Plan
    from simulation.world.end_checks import JudgeHistory
    from simulation.world.running import Result


@dataclass(frozen=True, slots=True)
class ShrinkBudget:
    """The most that shrinking may cost: runs, and `cpu_s` of CPU time, 0 for no bound."""

    runs: int
    cpu_s: float


def keep_plan(plan: Plan, directory: Path, mark: str = "") -> Path:
    """Write the plan to ``seed-N{mark}.json`` in `directory`, whole or not at all; returns the path."""
    from simulation.plans.plan import encode_plan

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed-{plan.seed}{mark}.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(encode_plan(plan))
    return unfinished.replace(path)


def replay_command(path: Path) -> str:
    """The shell command that runs the plan at `path` again."""
    return f"trivet simulate --replay {shlex.quote(str(path))}"


def report_finding(result: Result, path: Path, *, shrunk: bool) -> None:
    """Print the report of a finding whose plan is at `path`."""
    from simulation.findings.report import describe_finding

    print(describe_finding(result, replay_command(path)), flush=True)
    if not shrunk:
        print(f"smaller: {replay_command(path)} --shrink", flush=True)


def shrink_finding(failed: Result, directory: Path, budget: ShrinkBudget, judge: JudgeHistory) -> None:
    """Shrink a finding within the budget, keep the small plan in `directory`, and print its report."""
    from simulation.findings.report import describe_size
    from simulation.findings.shrink import run_until, shrink

    assert failed.violation is not None
    # The checker of client histories costs as much as the run; it is asked only if the finding is its own.
    judged = partial(run_until, judge_history=judge)
    run = judged if failed.violation.invariant == "linearizability" else run_until
    begin_s = _cpu_s()
    display = Progress(10.0)
    smallest = failed.plan
    path = keep_plan(smallest, directory, "-shrunk")

    def tell(progress: Shrinking) -> None:
        nonlocal smallest
        if progress.best.plan != smallest:
            smallest = progress.best.plan
            keep_plan(smallest, directory, "-shrunk")
        state = f"{progress.runs} of {progress.runs_max} runs, at {progress.what}: {describe_size(progress.best.plan)}"
        display.show(state)

    limit = f", at most {budget.cpu_s:g} CPU s" if budget.cpu_s else ""
    print(f"shrinking: at most {budget.runs} runs{limit}; Ctrl-C keeps the smallest so far", flush=True)
    with _remembered_interrupt() as interrupted:

        def may_go_on() -> bool:
            in_time = not budget.cpu_s or _cpu_s() - begin_s < budget.cpu_s
            return in_time and not interrupted()

        shrunk = shrink(failed, runs_max=budget.runs, may_go_on=may_go_on, run=run, progress=tell)
        stopped_by = "interrupted" if interrupted() else "the CPU time is used up"
    display.clear()
    small = shrunk.result
    if not small.traces:
        small = run_once(small.plan, keep_traces=True)  # the same run, with what clients saw
    why = {"minimal": "nothing more can be left out", "runs": "no runs are left", "stopped": stopped_by}
    runs = f"{shrunk.runs} run{'' if shrunk.runs == 1 else 's'}"
    print(f"shrunk by {runs} in {_cpu_s() - begin_s:.0f} CPU s ({why[shrunk.end]})")
    print(f"    from {describe_size(failed.plan)}")
    print(f"      to {describe_size(small.plan)}\n")
    report_finding(small, path, shrunk=True)


def _cpu_s() -> float:
    """The CPU seconds of this process and of its children that have ended; unlike time, these do not depend on how busy
    the machine is."""
    return sum(os.times()[:4])


@contextlib.contextmanager
def _remembered_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after the first Ctrl-C, which does nothing else while the block runs.

    Within a run the code under test might take it for an error of its own, and runs take a second or two. The next
    Ctrl-C ends the command at once.
    """
    interrupted = False

    def remember(number: int, frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, before)
        os.write(2, b"\ninterrupted: this run is the last; Ctrl-C again ends at once\n")

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)
