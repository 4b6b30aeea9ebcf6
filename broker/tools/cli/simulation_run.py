"""One simulated run, as the commands ``trivet simulate`` and its batches begin it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from broker.tools.cli.futures import Futures

if TYPE_CHECKING:
    from simulation.plans.plan import Plan
    from simulation.world.building import World
    from simulation.world.end_checks import JudgeHistory
    from simulation.world.running import Explore, Result

    Watch = Callable[[World], AbstractContextManager[object]]
    """Enters a block in which the world runs."""


def run_once(
    plan: Plan,
    *,
    keep_traces: bool,
    judge: JudgeHistory | None = None,
    explore: Explore | None = None,
    watch: Watch = nullcontext,
) -> Result:
    """Run the plan. Raises KeyboardInterrupt after Ctrl-C, if that is what Ctrl-C does in this process.

    It is raised between two events of the simulation. Within an event the code under test, or a client's task, might
    take it for an error of its own, and the run would end with a finding.
    """
    from simulation.world.building import World
    from simulation.world.running import run_world

    world = World(plan, keep_traces=keep_traces or judge is not None)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        with watch(world):
            return run_world(world, judge, explore)

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        world.interrupt()

    signal.signal(signal.SIGINT, interrupt)
    try:
        with watch(world):
            return run_world(world, judge, explore)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def judge_history(traces: Mapping[str, bytes]) -> str:
    """Judge the clients' operations, which the simulator itself may not do; returns what is wrong, "" for nothing."""
    try:
        from spark_analysis.checking.plain import check_traces
        from spark_analysis.checking.verdict import unsure_place
    except ImportError:
        return ""  # the extra "analysis" is not installed; `ClientJudge` has looked at every response already
    verdict = check_traces(traces)
    return "; ".join((*map(unsure_place, verdict.anomalies), *verdict.damage))


def run_and_time(
    plan: Plan,
    *,
    keep_traces: bool = False,
    futures: Futures | None = None,
    watch: Watch = nullcontext,
) -> tuple[Result, float]:
    """Run the plan, and judge its history; returns the result and the CPU seconds of the run, without its futures.

    Modules that only the first run of a process loads are loaded before, so that the seconds of all runs compare.
    """
    from simulation.world import running  # noqa: F401

    judge_history({})
    begin = time.process_time()
    explore = None if futures is None else futures.explore
    result = run_once(plan, keep_traces=keep_traces, judge=judge_history, explore=explore, watch=watch)
    if futures is not None:
        futures.ended(result)
    return result, time.process_time() - begin


def print_counts(counts: dict[str, int]) -> None:
    """Print each count on a line, in the order of the names."""
    for kind in sorted(counts):
        print(f"{counts[kind]:>8}  {kind}")
