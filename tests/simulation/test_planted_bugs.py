"""The simulator finds known mistakes: docs/planted-mistakes.md has the table of all, and the tests hunt where it says.

`python -m tests.simulation.planted_table` makes the table's rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from simulation.judges.replicated_state import SAME
from simulation.judges.waits import MOVES
from tests.simulation.aimed_plans import AIMED, AIMED_SEEDS, hunt_aimed
from tests.simulation.planted_bugs import PLANTED, hunt

_SEEDS = 4
"""What drawn plans show within so many seeds needs no plan that is aimed at it."""
_UNSEEN = {"truncation not flushed"}
"""docs/planted-mistakes.md says why no seed shows it."""


@dataclass(frozen=True, slots=True)
class _Row:
    history: str
    drawn: str
    aimed: str
    found_as: tuple[str, ...]


def _rows() -> dict[str, _Row]:
    """The table by the mistakes' names."""
    text = (
        Path("docs/planted-mistakes.md")
        .read_text()
        .partition("| mistake | history |")[2]
        .partition("\n\n")[0]
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    return {
        name: _Row(history, drawn, aimed, tuple(found_as.split("; ")))
        for name, history, drawn, aimed, found_as in rows
    }


_ROWS = _rows()


def _first(seeds: str) -> int:
    """Where a hunt begins: with the seed that found the mistake when the row was made.

    The others are whole runs that find nothing. Seeds come to mean other runs as the code changes: then another does.
    """
    return int(seeds) - 1


def test_every_mistake_has_a_row_and_is_run() -> None:
    assert _ROWS.keys() == PLANTED.keys() - _UNSEEN
    assert {name: row.history for name, row in _ROWS.items()} == {
        name: PLANTED[name].history for name in _ROWS
    }
    assert {name for name, row in _ROWS.items() if row.aimed} == AIMED.keys()
    rare = {name for name, row in _ROWS.items() if not row.drawn.isdecimal() or int(row.drawn) > _SEEDS}
    assert rare <= AIMED.keys(), "what drawn plans rarely show needs a plan that is aimed at it"


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("name", sorted(_ROWS.keys() - AIMED.keys()))
def test_a_planted_mistake_is_found(name: str) -> None:
    first = _first(_ROWS[name].drawn)
    result = hunt(PLANTED[name], (*range(first, _SEEDS), *range(first)))
    assert result is not None, f"{name!r} was not found within {_SEEDS} seeds"
    assert result.violation is not None
    allowed = (
        *_ROWS[name].found_as,
        "a node fails",
        "state machine safety",
        SAME,
        "dispatch after commit",
        "queue agrees with log",
        "decided as it should be",
        "committed once",
        MOVES,
    )
    assert result.violation.invariant in allowed, str(result.violation)


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("name", AIMED)
def test_a_mistake_of_a_rare_situation_is_found_where_that_is_made(name: str) -> None:
    result = hunt_aimed(name, _first(_ROWS[name].aimed))
    assert result is not None, f"{name!r} was not found within {AIMED_SEEDS} seeds"
    assert result.violation is not None
    aim = AIMED[name]
    allowed = (
        aim.found_as,
        *aim.or_as,
        "stored offsets are linearizable",
        "the end of a queue is linearizable",
        MOVES,
    )
    found = result.violation.invariant
    assert found in (*allowed, "state machine safety", SAME, "log matching", "election safety"), str(
        result.violation
    )
