"""Room and descriptors that run out: runs come to refusals, nodes end by name and start again, connections wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.plans.plan import Fault, Limits, Plan
from simulation.plans.room import with_founder, with_little_room
from simulation.plans.seeds import plan_of_seed
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_plan, run_world
from tests.simulation.aimed_plans import AIMED

_LEADER = 1


def _plan(*faults: Fault, limits: Limits, actors: tuple[str, ...] = ()) -> Plan:
    return replace(
        draw_swarm_plan(3, seconds=40, groups=1),
        flush="sync",
        faults=faults,
        think_ms=200,
        limits=limits,
        actors=("producer", "consumer", "auditor", "administrator", "operator", *actors),
    )


def test_what_is_small_is_drawn_apart() -> None:
    """One that is left out of the list leaves the others of a seed as they are; most are small where any is."""
    plan = draw_swarm_plan(1, seconds=40)
    usual, small = (
        Limits(),
        [with_little_room(replace(plan, seed=seed), share=1).limits for seed in range(100)],
    )
    for name in ("log_mappings", "forwarded", "queues_per_command"):
        assert 45 < sum(getattr(limits, name) < getattr(usual, name) for limits in small) < 75
    assert with_little_room(plan, share=0) == plan
    founders = [plan_of_seed(seed, seconds=40) for seed in range(300)]
    assert 20 < sum("founder" in plan.actors for plan in founders) < 50
    assert all("founder" not in plan.actors or plan.limits.topics < usual.topics for plan in founders)
    assert with_founder(replace(plan, groups=2)).groups == 2


@pytest.mark.slow
def test_requests_find_no_room_and_are_told() -> None:
    limits = replace(Limits(), held_requests=1, forwarded=8, unhandled=1)
    faults = [
        Fault(at * SECOND // 2, kind, _LEADER, SECOND, 0.5)
        for at, kind in zip(range(8, 38), ("transfer", "kill", "depose") * 10, strict=True)
    ]
    # A turn of this seed handles one of the requests that come from other nodes.
    result = run_plan(
        replace(_plan(*faults, limits=limits, actors=("inquirer", "reporter", "puller")), seed=0)
    )
    assert result.violation is None, str(result.violation)
    assert set(result.marks) >= {
        "too many requests wait for a leader",
        "too many requests wait for the leader's answer",
        "too many requests wait for a turn",
    }


@pytest.mark.slow
def test_a_founder_finds_no_room_and_others_do_behind_it() -> None:
    result = run_plan(
        _plan(limits=AIMED["room: topics under way take none"].settings["limits"], actors=("founder",))
    )
    assert result.violation is None, str(result.violation)
    assert set(result.marks) >= {
        "no room for a topic",
        "no room for a consumer group",
        "no room for an offset",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("amount", "whose"), [(0.2, "process"), (0.8, "machine")])
def test_a_node_without_descriptors_ends_by_name_and_starts_again(amount: float, whose: str) -> None:
    limits = replace(Limits(), log_mappings=2, queue_mappings=2, queue_units=4, snapshot_entries=20)
    faults = [Fault(at * SECOND, "no descriptors", _LEADER, 2 * SECOND, amount) for at in range(5, 18, 3)]
    result = run_plan(_plan(*faults, limits=limits))
    assert result.violation is None, str(result.violation)
    assert result.fault_counts["no descriptors"] == len(faults)
    text = "\n".join(result.transcript)
    assert f"FAULT no descriptors of the {whose}" in text
    assert "too many open files" in text
    assert ("cannot start: " in text) == (whose == "machine"), "another process has its own"


def test_connections_wait_until_there_is_a_descriptor() -> None:
    plan = replace(_plan(limits=Limits()), calm_ns=5 * SECOND, end_ns=6 * SECOND)
    world = World(plan)
    host = world.brokers[0]
    waiting: list[int] = []
    wanted: list[None] = []

    def look() -> None:
        waiting.append(len(host.backlog))

    def connect() -> None:
        client = world.clients[0]
        world.network.connect(client.name, "10.0.2.1", host.address, lambda *_: None)

    world.scheduler.after(
        2 * SECOND, lambda: host.use_up_descriptors(lambda: wanted.append(None), of_process=False)
    )
    world.scheduler.after(2 * SECOND + 1, connect)
    world.scheduler.after(2 * SECOND + SECOND // 10, look)
    world.scheduler.after(2 * SECOND + SECOND // 5, host.free_descriptors)
    world.scheduler.after(2 * SECOND + SECOND // 4, look)
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    assert wanted
    assert waiting[0] >= 1
    assert waiting[1] == 0
