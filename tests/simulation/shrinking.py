"""What shrinking makes of plans with fourteen kinds of fault and more: the table of docs/simulation.md.

    python -m tests.simulation.shrinking [--seconds CPU] [NAME ...]

puts each mistake into the real code, runs swarm plans of so many kinds until one finds it, and shrinks that with at
most so many seconds of CPU time.
"""

from __future__ import annotations

import argparse
import time
from itertools import count
from typing import Final

import pytest

from simulation.findings.shrink import Progress, shrink
from simulation.plans.plan import Plan
from simulation.world.running import Result
from tests.simulation.planted_bugs import PLANTED, plan_of, run_planted

KINDS_MIN: Final = 14
FEW: Final = 3
"""So few faults a person can think through."""
MISTAKES: Final = {
    "double vote": ("elections", 21),
    "membership change before commit": ("members", 26),
    "failed flush passed over": ("disks", 14),
    "transaction: only operation messages decide": ("transactions", 2),
    "order: locks forgotten with their leader": ("locks", 7),
    "read index without a round": ("reads", 64),
    "names: wiped until the next registration": ("name servers", 2),
    "offset rewind after failover": ("offsets", 2),
    "torn tail accepted": ("starts", 43),
    "send repeated by the broker": ("sends", 12),
}
"""Mistakes of different parts: the part, and the seed that found it last, from which on plans are tried."""
_RUNS_MAX: Final = 10_000
"""The CPU time is what ends the search."""


def kinds_of(plan: Plan) -> int:
    """Counts the kinds of fault of a plan."""
    return len({fault.kind for fault in plan.faults})


def found_in_many_kinds(name: str) -> Result:
    """The finding of the first seed with plenty of kinds that has one; call it with the mistake in the code."""
    _, first = MISTAKES.get(name, ("", 0))
    for seed in count(first):
        plan = plan_of(PLANTED[name], seed)
        if kinds_of(plan) >= KINDS_MIN:
            result = run_planted(plan)
            if result.violation is not None:
                return result
    raise AssertionError("seeds have no end")


def shrunk_row(name: str, cpu_s_max: float) -> str:
    """Shrinks a finding of the mistake; returns the table's row."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name].patch(patch)
        failed = found_in_many_kinds(name)
        begin_s = time.process_time()
        few_after_s: float | None = None

        def spent_s() -> float:
            return time.process_time() - begin_s

        def look(progress: Progress) -> None:
            nonlocal few_after_s
            if few_after_s is None and len(progress.best.plan.faults) <= FEW:
                few_after_s = spent_s()

        shrunk = shrink(failed, runs_max=_RUNS_MAX, may_go_on=lambda: spent_s() < cpu_s_max, progress=look)
        cpu_s = spent_s()
    assert failed.violation is not None
    before, after = failed.plan, shrunk.result.plan
    kinds = ", ".join(dict.fromkeys(fault.kind for fault in after.faults)) or "none"
    cells = (
        name,
        MISTAKES.get(name, ("", 0))[0],
        failed.violation.invariant,
        f"{before.seed}",
        f"{len(before.faults)} of {kinds_of(before)}",
        f"{len(after.faults)} ({kinds})",
        f"{len(before.actors)} to {len(after.actors)}",
        "no" if few_after_s is None else f"{few_after_s:.0f}",
        f"{cpu_s:.0f}",
        f"{shrunk.runs}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Shrinks findings of the named mistakes, or of ten, and prints the table's rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for name in options.names or MISTAKES:
        print(shrunk_row(name, options.seconds), flush=True)


if __name__ == "__main__":
    main()
