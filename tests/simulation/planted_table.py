"""Hunts planted mistakes in drawn and aimed plans, and prints the rows of the table in docs/planted-mistakes.md.

python -m tests.simulation.planted_table [NAME ...]
"""

from __future__ import annotations

import sys

from simulation.world.running import Result
from tests.simulation.aimed_plans import AIMED, AIMED_SEEDS, hunt_aimed
from tests.simulation.planted_bugs import PLANTED, hunt

_SEEDS_MAX = 60


def main() -> None:
    """Hunts the named mistakes, or all, and prints the table's rows."""
    for name in sys.argv[1:] or list(PLANTED):
        drawn = hunt(PLANTED[name], range(_SEEDS_MAX))
        aimed = hunt_aimed(name) if name in AIMED else None
        result = drawn or aimed
        cells = (
            name,
            PLANTED[name].history,
            _seeds(drawn, _SEEDS_MAX),
            _seeds(aimed, AIMED_SEEDS) if name in AIMED else "",
            result.violation.invariant if result is not None and result.violation is not None else "",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


def _seeds(result: Result | None, seeds_max: int) -> str:
    return f"not in {seeds_max}" if result is None else str(result.plan.seed + 1)


if __name__ == "__main__":
    main()
