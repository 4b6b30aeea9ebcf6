"""In a plan that keeps its streams apart, what is left out changes no draw of what stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from simulation.plans.plan import Fault, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.randomness import Random
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_plan

_FAULTS = tuple(
    Fault(at * SECOND, kind, at, SECOND, 0.5)
    for at, kind in ((5, "kill"), (6, "power"), (7, "loss"), (8, "flush failure"))
)
PLAN = replace(
    draw_swarm_plan(3, seconds=30, groups=1),
    actors=("producer", "consumer", "auditor"),
    faults=_FAULTS,
    chance=0,
)


def _streams(plan: Plan) -> dict[str, Random]:
    """What the machines and links of a world draw from, by name."""
    world = World(plan)

    def links() -> Iterator[tuple[str, Random]]:
        for source in ("n0", "n1", "n2", "producer0"):
            for target in ("n0", "n1", "ns0"):
                yield f"link {source} {target}", world.network.link(source, target).random

    brokers = {host.name: host.random for host in world.brokers}
    disks = {f"disk {host.name}": host.disk_random for host in world.brokers}
    return {**brokers, **disks, **dict(links())}


def _draws(streams: dict[str, Random]) -> dict[str, float]:
    return {name: random.random() for name, random in streams.items()}


def test_no_link_draws_what_another_one_drew() -> None:
    one, other = _streams(PLAN), _streams(PLAN)
    for _ in range(10):
        one["link n0 n1"].random()
    drawn, drawn_after = _draws(other), _draws(one)
    assert [name for name in drawn if drawn[name] != drawn_after[name]] == ["link n0 n1"]
    assert len(set(drawn.values())) == len(drawn)


def test_an_actor_or_a_fault_that_is_left_out_changes_no_other_stream() -> None:
    whole = _draws(_streams(PLAN))
    assert _draws(_streams(replace(PLAN, actors=("producer",)))) == whole
    assert _draws(_streams(replace(PLAN, faults=()))) == whole


def test_machines_draw_from_a_fault_on_what_it_fixes_whatever_came_before() -> None:
    def draws_behind(faults: tuple[Fault, ...]) -> list[float]:
        world = World(PLAN)
        for fault in faults:
            world.draw_for(fault)
            for host in world.brokers:
                host.disk_random.random()
        return [random.random() for host in world.brokers for random in (host.disk_random, host.fault_random)]

    assert draws_behind(_FAULTS) == draws_behind(_FAULTS[-1:])
    assert draws_behind(_FAULTS) != draws_behind(_FAULTS[:-1])


@pytest.mark.slow
def test_another_number_is_another_run_of_the_same_world() -> None:
    runs = [run_plan(replace(PLAN, chance=chance, faults=())) for chance in (0, 0, 1, None)]
    assert all(result.violation is None for result in runs)
    digests = [result.trace_digest for result in runs]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
