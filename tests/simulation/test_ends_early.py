"""Runs that end as soon as all is well again, and those that do not although they may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from simulation.journal import Violation
from simulation.plans.plan import Plan
from simulation.plans.seeds import dense_seed, plan_of_seed
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world import end_checks, running
from simulation.world.building import World
from simulation.world.running import run_plan, run_world


def _plan() -> Plan:
    plan = draw_swarm_plan(3, seconds=30)
    faults = tuple(fault for fault in plan.faults if fault.kind in ("kill", "depose", "power"))
    return replace(plan, actors=("producer", "consumer"), faults=faults, flush="sync", ends_early=True)


def test_most_dense_plans_end_early_and_half_of_the_others_that_may() -> None:
    dense = [plan_of_seed(dense_seed(number), seconds=40) for number in range(200)]
    early = [plan for plan in dense if plan.ends_early]
    assert 130 <= len(early) <= 170
    assert {plan.calm_ns // SECOND for plan in early} == {30}
    assert {plan.calm_ns // SECOND for plan in dense if not plan.ends_early} == {20}
    others = [plan_of_seed(seed, seconds=40) for seed in range(200) if seed % 5 not in (1, 3)]
    assert 25 <= sum(plan.ends_early for plan in others) <= 60
    assert not any(plan.ends_early for plan in others if plan.idle_ns or plan.seed % 10 in (4, 7))


def test_a_run_ends_when_all_is_well_and_is_the_same_until_then() -> None:
    plan = _plan()
    early, whole = World(plan, keep_traces=True), World(replace(plan, ends_early=False), keep_traces=True)
    result = run_world(early)
    assert result.violation is None, str(result.violation)
    assert plan.calm_ns + 9 * SECOND <= result.simulated_ns < plan.end_ns
    assert run_world(whole).simulated_ns >= plan.end_ns
    stopped_ns = plan.calm_ns + 3 * SECOND
    before = [line for line in early.journal.transcript if float(line.split()[0]) < stopped_ns / SECOND]
    assert before
    assert before == list(whole.journal.transcript)[: len(before)]


def test_nothing_ends_early_while_nothing_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the load stop: a group that does not serve is found when its time is over."""
    plan = replace(_plan(), faults=())
    world = World(plan)

    def goes_dark() -> None:
        for host in world.brokers:
            host.kill()
            monkeypatch.setattr(host, "start", lambda: None)

    world.scheduler.at(plan.calm_ns - 1, goes_dark)
    result = run_world(world)
    assert result.violation is not None
    assert result.violation.invariant == "liveness"
    assert result.simulated_ns == plan.calm_ns + 12 * SECOND


@dataclass(slots=True)
class Amiss:
    """Something that does not hold before a certain time, for whatever looks at it in the end."""

    look: str
    """The look of `end_checks` that finds it."""
    holds_from_ns: int

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """That look finds this alone from now on."""

        def unread(world: World) -> Iterator[str]:
            if world.scheduler.now_ns < self.holds_from_ns:
                yield "a planted thing"

        def check(world: World) -> None:
            for problem in unread(world):
                raise Violation("liveness", "world", problem)

        for module in (end_checks, running):
            if hasattr(module, self.look):
                patch.setattr(module, self.look, unread if self.look == "_unread" else check)


_LOOKS = pytest.mark.parametrize("look", ["_unread", "check_nodes", "check_actors"])


@_LOOKS
def test_what_does_not_hold_has_its_time_and_is_found(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan()
    Amiss(look, 2 * plan.end_ns).patch(monkeypatch)
    result = run_plan(plan)
    assert result.violation is not None
    assert result.violation.detail == "a planted thing"
    assert result.simulated_ns >= plan.end_ns


@_LOOKS
def test_what_comes_to_hold_later_ends_the_run_then(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _plan()
    amiss = Amiss(look, plan.calm_ns + 12 * SECOND)
    amiss.patch(monkeypatch)
    result = run_plan(plan)
    assert result.violation is None
    assert amiss.holds_from_ns <= result.simulated_ns <= amiss.holds_from_ns + SECOND
