"""A queue that is built again holds the units of its topic's present life, whatever its nodes have seen before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.plans.plan import Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.running import run_plan
from tests.simulation.planted_bugs import UNAIDED


@pytest.mark.slow
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_queue_that_had_another_life_is_built_again_as_it_is_now(
    monkeypatch: pytest.MonkeyPatch, *, is_planted: bool
) -> None:
    """Files of the queue and checkpoints are damaged in turn; snapshots have the deletions, which so come no more."""
    if is_planted:
        UNAIDED["a queue's new life is taken for a replay"].patch(monkeypatch)
    plan = draw_swarm_plan(2, seconds=40, groups=1)
    amounts = (0.65, 0.21, 0.21, 0.21)
    faults = [Fault(at * SECOND, "bit rot", 2 * at, SECOND, amounts[at % 4]) for at in range(6, 19)]
    result = run_plan(
        replace(
            plan,
            flush="sync",
            faults=tuple(faults),
            actors=("producer", "consumer", "administrator", "operator", "tenant"),
            data_file_bytes=64 * 1024,
            limits=replace(plan.limits, snapshot_entries=20),
        )
    )
    if is_planted:
        assert result.violation is not None
        assert "made again, flats/" in result.violation.detail
    else:
        assert result.violation is None, str(result.violation)
        assert result.fault_counts["bit rot"] > 5
