"""Mistakes that nothing was made to find: docs/planted-mistakes.md says what finds them, and dense seeds do as it says.

`python -m tests.simulation.detection` makes the table's rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulation.judges.replicated_state import SAME
from simulation.judges.waits import MOVES
from simulation.plans.seeds import dense_seed
from tests.simulation.aimed_plans import AIMED_UNAIDED, hunt_aimed
from tests.simulation.detection import dense_plan_of
from tests.simulation.planted_bugs import PLANTED, UNAIDED, run_planted

_SEEDS = 6
"""Seeds come to mean other runs as the code changes: then another one of so many finds the mistake."""

_AIMED = {
    "a reset is not noted before it begins": 1,
    "a new disk takes its vote for unused": 0,
    "a store that was stopped in order once counts as stopped in order": 1,
}
"""What no dense seed is known to find, or one of hundreds, and the seed of the plans aimed at it that does."""


@dataclass(frozen=True, slots=True)
class _Row:
    part: str
    seed: int | None
    """The dense seed that finds it."""
    found_as: tuple[str, ...]


def _rows() -> dict[str, _Row]:
    text = (
        Path("docs/planted-mistakes.md").read_text().partition("| mistake | part |")[2].partition("\n\n")[0]
    )
    rows = {}
    for line in text.splitlines()[2:]:
        name, part, _, dense, found_as = [cell.strip() for cell in line.split("|")[1:-1]]
        seed = re.fullmatch(r"\d+ \(seed (\d+)\)", dense)
        rows[name] = _Row(part, None if seed is None else int(seed[1]), tuple(found_as.split("; ")))
    return rows


_ROWS = _rows()


def test_every_mistake_has_a_row() -> None:
    assert {name: row.part for name, row in _ROWS.items()} == {
        name: mistake.part for name, mistake in UNAIDED.items()
    }


@pytest.mark.parametrize("name", [*PLANTED, *UNAIDED])
def test_it_still_fits_the_code(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        (PLANTED | UNAIDED)[name].patch(patch)


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("name", [name for name, row in _ROWS.items() if row.seed is not None])
def test_a_dense_seed_finds_it(name: str) -> None:
    row, bug = _ROWS[name], UNAIDED[name]
    numbers = range(200)
    first = next(number for number in numbers if dense_seed(number) == row.seed)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        bug.patch(patch)
        for number in (*range(first, first + _SEEDS), *range(first)):
            result = run_planted(dense_plan_of(bug, number))
            if result.violation is not None:
                found.append(result.violation.invariant)
                break
    assert found, f"{name!r} was not found"
    allowed = (*row.found_as, "a node fails", "liveness", "state machine safety", SAME, "durability", MOVES)
    assert found[0] in allowed, found


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("name", _AIMED)
def test_a_plan_that_is_aimed_at_it_finds_it(name: str) -> None:
    result, aim = hunt_aimed(name, _AIMED[name]), AIMED_UNAIDED[name]
    assert result is not None, f"{name!r} was not found"
    assert result.violation is not None
    assert result.violation.invariant in (aim.found_as, *aim.or_as), str(result.violation)
