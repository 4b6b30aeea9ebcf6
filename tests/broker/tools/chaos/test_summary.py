"""What a run says of itself: kills and gaps, and what makes its verdict thin."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.settings.tables import StorageSettings
from broker.tools.chaos.kills import Gaps
from broker.tools.chaos.run import ChaosRun
from simulation.plans.plan import Fault
from simulation.scheduler import SECOND


def run_of(*schedule: Fault, kills: int = 0) -> ChaosRun:
    return ChaosRun(
        Path("nowhere"),
        1,
        schedule,
        60.0,
        kills=kills,
        nodes=3,
        storage=StorageSettings(),
        tell=lambda _: None,
    )


@pytest.mark.parametrize(
    ("acknowledged", "unknown", "is_thin"), [(400, 100, False), (399, 100, True), (0, 1, True)]
)
def test_a_verdict_beside_much_that_is_unknown_is_thin(
    acknowledged: int, unknown: int, is_thin: bool
) -> None:
    run = run_of()
    run.summary.acknowledged, run.summary.unknown = acknowledged, unknown
    assert any("a thin verdict" in warning for warning in run._warnings()) is is_thin


def test_kinds_that_were_drawn_and_never_possible_are_named() -> None:
    run = run_of(*(Fault(SECOND, kind, 0, SECOND, 0.5) for kind in ("kill", "new disk", "replace")))
    run.summary.fired = {"kill": 3}
    assert run._warnings() == ["drawn, and never possible: new disk, replace"]
    assert run_of(kills=3)._warnings() == []


def test_gaps_are_told_as_a_distribution() -> None:
    gaps = Gaps(kills={"leader": 100, "follower": 2}, leader_ms=[float(ms) for ms in range(1, 101)])
    assert gaps.rows() == [
        ("kills", "100 of leader, 2 of follower"),
        ("ms from a kill of the leader to an acknowledgement", "median 50, p90 90, p99 99, longest 100"),
    ]
