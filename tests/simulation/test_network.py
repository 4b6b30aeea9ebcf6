"""Cuts of links: each lasts as long as it was made for, whatever else ends, and all kinds of hosts are hit."""

from dataclasses import replace
from random import Random

import pytest

from simulation.faults.injection import inject
from simulation.machines.network import Endpoint, Network
from simulation.plans.plan import Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import MILLISECOND, SECOND, Scheduler
from simulation.world.building import World


def test_a_link_is_whole_when_the_last_of_its_cuts_has_ended() -> None:
    scheduler = Scheduler()
    network = Network(scheduler, lambda _: Random(1), lambda kind: None)
    arrived: list[int] = []

    def accepted(endpoint: Endpoint) -> None:
        endpoint.on_data = lambda data: arrived.append(scheduler.now_ns)

    network.listen("b:1", "b", accepted)
    opened: list[Endpoint] = []

    def connected(endpoint: Endpoint | None, reason: str) -> None:
        assert endpoint is not None, reason
        opened.append(endpoint)

    network.connect("a", "a", "b:1", connected)
    scheduler.run_until(SECOND)
    for begin_s, end_s in ((1, 5), (2, 3)):
        scheduler.at(begin_s * SECOND, network.set_cut, "a", "b", True)
        scheduler.at(end_s * SECOND, network.set_cut, "a", "b", False)
    scheduler.at(4 * SECOND, lambda: opened[0].send([b"x"]))
    scheduler.run_until(10 * SECOND)
    assert len(arrived) == 1
    assert 5 * SECOND < arrived[0] < 5 * SECOND + 100 * MILLISECOND


@pytest.mark.parametrize("kind", ["cut one way", "clog"])
def test_one_direction_of_any_link_of_a_broker_is_hit(kind: str) -> None:
    world = World(replace(draw_swarm_plan(1), faults=()))
    random = Random(2)
    brokers = [host.name for host in world.brokers]
    hit: dict[tuple[bool, bool], int] = {}
    for _ in range(300):
        fault = Fault(0, kind, random.randrange(1 << 16), SECOND, random.random())
        inject(world.stage, fault)
        cut = [
            (source, target)
            for source in world.stage.host_names
            for target in world.stage.host_names
            if source != target and world.network.link(source, target).cut
        ]
        assert len(cut) == 1
        ends = (cut[0][0] in brokers, cut[0][1] in brokers)
        hit[ends] = hit.get(ends, 0) + 1
        world.network.heal(*cut[0])
    assert set(hit) == {(True, True), (True, False), (False, True)}
    assert hit[True, True] > 100, "most of what can go wrong goes wrong between brokers"
    assert min(hit.values()) > 20


def test_what_was_healed_already_may_end_once_more() -> None:
    network = Network(Scheduler(), lambda _: Random(1), lambda kind: None)
    for _ in range(2):
        network.set_cut("a", "b", True)
        network.set_clogged("a", "b", True)
    network.link("a", "b").loss = 0.5
    network.heal("a", "b")
    link = network.link("a", "b")
    assert (link.cut, link.clogged, link.loss) == (0, 0, 0.0)
    network.set_cut("a", "b", False)
    network.set_cut("a", "b", True)
    assert link.cut == 1
