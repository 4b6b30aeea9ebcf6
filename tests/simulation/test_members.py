"""The operator's knowledge of the group."""

from __future__ import annotations

from dataclasses import replace

from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_world


def test_a_group_with_a_member_that_was_never_set_up_is_not_settled() -> None:
    """Seed 9000053: a node got a new disk meanwhile, and waited for the answer of one that was nowhere."""
    plan = replace(draw_swarm_plan(1, seconds=30), faults=(), actors=("administrator",), flush="sync")
    world = World(plan)
    settled: list[bool] = []

    def look() -> None:
        settled.append(world.members.is_settled())
        learners, world.model.learners = world.model.learners, ("n3",)
        settled.append(world.members.is_settled())
        world.model.learners = learners

    world.scheduler.at(8 * SECOND, look)
    assert run_world(world).violation is None
    assert settled == [True, False]
