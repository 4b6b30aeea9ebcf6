"""Marks: runs say which states of the protocol they reached, and a batch that never reached one fails by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.tools.cli import simulation_batch
from broker.tools.cli.simulation_batch import Batch, _Outcome
from simulation.judges.marks import MARKS
from simulation.plans.draw import draw_plan
from simulation.plans.plan import Fault, Limits, Shape
from simulation.scheduler import SECOND
from simulation.world.running import run_plan


def _outcome(seed: int, marks: dict[str, int]) -> _Outcome:
    return _Outcome(seed, "", "", "", 40.0, 1.0, False, {}, {}, marks)


def test_a_batch_that_never_reached_a_state_fails_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(simulation_batch, "_ALL_MARKS_FROM", 2)
    half = len(MARKS) // 2
    outcomes = [_outcome(0, dict.fromkeys(MARKS[:half], 1)), _outcome(1, dict.fromkeys(MARKS[half:-1], 1))]
    batch = Batch(range(3), 40, None, 1, tmp_path, outcomes)
    batch._print_totals(1.0)
    assert f"never reached, and so not checked: {MARKS[-1]}\n" in capsys.readouterr().out
    assert batch._never_reached() == [MARKS[-1]]
    outcomes.append(_outcome(2, {MARKS[-1]: 1}))
    assert batch._never_reached() == []


def test_a_small_batch_need_not_reach_everything(tmp_path: Path) -> None:
    assert Batch(range(1), 40, None, 1, tmp_path, [_outcome(0, {})])._never_reached() == []


def test_a_run_says_what_it_reached() -> None:
    faults = (
        *(Fault(at * SECOND // 2, "membership", 0, 0, 0.2) for at in range(8, 40)),
        *(Fault(at * SECOND, "transfer in a change", 0, 0, 0.2) for at in range(5, 19, 3)),
        Fault(19 * SECOND, "new disk", 1, 0, 0.5),
    )
    plan = replace(
        draw_plan(3, seconds=40),
        flush="sync",
        faults=tuple(sorted(faults, key=lambda fault: fault.time_ns)),
        actors=("producer", "consumer", "administrator", "operator"),
        data_file_bytes=16 * 1024,
        limits=replace(Limits(), hour_ms=1000, reserved_hours=3, snapshot_entries=20),
        shape=Shape(spares=2, fewest_voters=2, most_learners=2),
    )
    marks = run_plan(plan).marks
    assert set(marks) <= set(MARKS)
    assert set(marks) >= {
        "a leader elected while a change of members is uncommitted",
        "a log that begins anew",
        "a start without term or vote",
        "a head deleted for its age",
        "a snapshot written while it runs",
        "two voters",
    }
