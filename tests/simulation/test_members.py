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


def test_a_node_that_still_asks_is_started_again_with_a_voter_that_came_meanwhile() -> None:
    """Seed 9860431: with its first list it would wait for ever."""
    plan = replace(draw_swarm_plan(1, seconds=30), faults=(), actors=("administrator",), flush="sync")
    world = World(plan)
    host, members = world.brokers[1], world.members
    told: list[list[str]] = []

    def look() -> None:
        host.kill()
        members.give_new_disk(host)
        host.start()
        for voters in (("n0", "n1", "n2"), ("n0", "n1", "n2", "n3"), ("n0", "n1", "n2", "n3")):
            world.model.voters = voters
            told.append([one.name for one in members.tell_new_disks()])
        assert host.process is not None
        told.append([*host.process.replica.raft.configuration.voters])
        world.model.voters = ("n0", "n1", "n2")

    world.scheduler.at(8 * SECOND, look)
    run_world(world)
    assert told == [[], ["n1"], [], ["n0", "n1", "n2", "n3"]]
