"""Faults of one kind that overlap on a machine or link: each lasts as long as it was made for, whatever else ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from simulation.faults.injection import inject
from simulation.machines.broker_host import BrokerHost
from simulation.machines.network import Link
from simulation.plans.plan import Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import MILLISECOND, SECOND
from simulation.world.building import World


def _link(host: BrokerHost) -> Link:
    return host.surroundings.network.link("ns0", host.name)


_IS_HIT: dict[str, Callable[[BrokerHost], bool]] = {
    "loss": lambda host: _link(host).loss > 0,
    "delay": lambda host: _link(host).slowed_by is not None,
    "messages": lambda host: bool(host.frame_faults),
    "retention": lambda host: host.disk.usage().free_bytes < host.disk.usage().total_bytes // 2,
    "full disk": lambda host: host.disk.usage().free_bytes == 0,
    "slow disk": lambda host: host.disk_delay_ns > 20 * MILLISECOND,
}
_LONGER_S = {"retention": 3}
"""Nodes look at their disks every second: the pressure lasts for three looks more than was drawn."""


@pytest.mark.parametrize("kind", _IS_HIT)
@pytest.mark.parametrize("times_s", [((1, 13), (2, 6)), ((1, 5), (2, 13))])
def test_all_is_well_when_the_last_fault_has_ended(kind: str, times_s: tuple[tuple[int, int], ...]) -> None:
    world = World(replace(draw_swarm_plan(1), faults=()))
    host = world.stage.members.in_service()[0]
    for begin_s, end_s in times_s:
        fault = Fault(begin_s * SECOND, kind, 0, (end_s - begin_s) * SECOND, 0.7)
        world.scheduler.at(fault.time_ns, inject, world.stage, fault)
    hit: list[bool] = []
    for _ in range(20):
        hit.append(_IS_HIT[kind](host))
        world.scheduler.run_until(world.scheduler.now_ns + SECOND)
    end_s = 13 + _LONGER_S.get(kind, 0)
    assert hit == [1 <= at_s < end_s for at_s in range(20)]
