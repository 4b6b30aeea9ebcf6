"""How long the simulator takes to find mistakes that nothing was made to find: CPU seconds, by the way plans are drawn.

    python -m tests.simulation.detection [--seconds CPU] [--only drawn|dense|forked|aimed] [NAME ...]

prints rows of the table in docs/planted-mistakes.md. A hunt begins at seed 0 and ends with the first finding, or when
the seeds so far have taken the CPU seconds. Forked are dense plans with other futures (broker/tools/cli/futures.py),
aimed ones those of aimed_plans.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest

from broker.tools.cli.futures import Futures
from simulation.plans.plan import Plan
from simulation.plans.seeds import dense_seed, plan_of_seed
from simulation.world.running import Result
from tests.simulation.aimed_plans import AIMED, AIMED_UNAIDED, aimed_plan
from tests.simulation.planted_bugs import PLANTED, UNAIDED, plan_of, run_planted
from tests.simulation.planting import Planted

PlanOf = Callable[[str, int], Plan]


def dense_plan_of(bug: Planted, number: int) -> Plan:
    """The plan of the dense seed of that number, in the flush mode and with the actor that the mistake needs."""
    seed = dense_seed(number)
    plan = plan_of_seed(seed, seconds=40)
    if bug.flush is not None and plan.flush != bug.flush:
        plan = replace(plan, flush=bug.flush)
    # What such an actor is promised is about the log of one group.
    if bug.actor is not None and bug.actor not in plan.actors and plan.groups == 1:
        plan = replace(plan, actors=(*plan.actors, bug.actor))
    return plan


_MISTAKES: Final = PLANTED | UNAIDED
WAYS: Final[dict[str, PlanOf]] = {
    "drawn": lambda name, seed: plan_of(_MISTAKES[name], seed),
    "dense": lambda name, number: dense_plan_of(_MISTAKES[name], number),
    "forked": lambda name, number: dense_plan_of(_MISTAKES[name], number),
    "aimed": aimed_plan,
}
_FUTURES: Final = {"forked": 4}
"""Other futures of each run, at most, by the way."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """The end of a hunt."""

    found_as: str
    """The invariant; "" if the time was over."""
    seed: int
    """The seed of the last run."""
    runs: int
    cpu_s: float

    def cell(self) -> str:
        """Returns the table's cell."""
        if not self.found_as:
            return f"not in {self.cpu_s:.0f} ({self.runs} runs)"
        return f"{self.cpu_s:.0f} (seed {self.seed})"


def hunt_for(name: str, way: str, cpu_s_max: float) -> Hunt:
    """Runs plan after plan with the mistake in the code."""
    number = runs = 0
    cpu_s = 0.0
    seen: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        _MISTAKES[name].patch(patch)
        while True:
            plan = WAYS[way](name, number)
            number += 1
            futures = Futures(seen, _FUTURES.get(way, 0), _found_as)
            begin = time.process_time()
            result = run_planted(plan, futures.explore)
            futures.ended(result)
            ends = [*futures.outcomes, _found_as(result, time.process_time() - begin)]
            cpu_s += sum(end_cpu_s for _, end_cpu_s in ends)
            runs += len(ends)
            found = [found_as for found_as, _ in ends if found_as]
            if found or cpu_s >= cpu_s_max:
                return Hunt(found[0] if found else "", plan.seed, runs, cpu_s)


def _found_as(result: Result, cpu_s: float) -> tuple[str, float]:
    return "" if result.violation is None else result.violation.invariant, cpu_s


def main() -> None:
    """Hunts the named mistakes, or all, and prints the table's rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", choices=sorted(WAYS))
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or list(UNAIDED):
        ways = [way for way in WAYS if way != "aimed" or name in AIMED | AIMED_UNAIDED]
        hunts = [hunt_for(name, way, options.seconds) for way in ([options.only] if options.only else ways)]
        found_as = "; ".join(dict.fromkeys(hunt.found_as for hunt in hunts if hunt.found_as))
        cells = (name, _MISTAKES[name].part or "", *(hunt.cell() for hunt in hunts), found_as)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
