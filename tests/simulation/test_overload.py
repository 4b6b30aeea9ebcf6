"""More is asked than a group takes: what waits stays within limits, and it serves again when the load falls."""

from __future__ import annotations

import pytest

from simulation.judges.availability import Availability
from simulation.plans.plan import Limits
from simulation.plans.seeds import plan_of_seed
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_world
from tests.simulation.aimed_plans import aimed_plan
from tests.simulation.planted_bugs import PLANTED, run_planted

_ONLY_HERE = ("overload: proposals without a limit", "overload: pulls without a limit")


def test_seeds_that_end_in_7_are_overloaded_and_then_left_alone() -> None:
    for seed in (7, 17, 127):
        plan = plan_of_seed(seed, seconds=40)
        overload = plan.faults[-1]
        assert overload.kind == "overload"
        assert overload.time_ns + overload.duration_ns + 3 * SECOND < plan.calm_ns
        assert all(fault.time_ns + fault.duration_ns <= overload.time_ns for fault in plan.faults[:-1])
        assert plan.limits.pending_messages < Limits().pending_messages
        assert "crowd" in plan.actors


@pytest.mark.slow
def test_a_group_is_asked_for_more_than_it_takes_and_serves_again() -> None:
    world = World(aimed_plan("overload: bytes are not given back", 0))
    most = 0

    def look() -> None:
        nonlocal most
        for host in world.brokers:
            if host.process is not None and host.process.node.replica.serving:
                raft = host.process.node.replica.raft
                most = max(most, raft.log_terms.last_index - raft.commit_index)
        world.scheduler.after(SECOND // 100, look)

    world.scheduler.at(SECOND, look)
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    assert most >= world.plan.limits.pending_messages, "the limit was never reached"
    assert result.work_counts["message of a crowd acknowledged"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", _ONLY_HERE)
def test_nothing_else_sees_a_limit_that_does_not_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Availability, "start", lambda self: None)
    PLANTED[name].patch(monkeypatch)
    result = run_planted(aimed_plan(name, 0))
    assert result.violation is None, str(result.violation)
