"""Liveness while faults go on: a core that is left alone serves, and what only the judge of that sees is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.settings.tables import RaftSettings, Settings
from simulation.faults.cores import KINDS
from simulation.journal import Violation
from simulation.judges.availability import LINKED, Availability, bounds_of
from simulation.judges.steps import Steps
from simulation.plans.plan import Fault
from simulation.plans.seeds import plan_of_seed
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_world
from tests.simulation import stand_ins
from tests.simulation.aimed_plans import aimed_plan
from tests.simulation.planted_bugs import PLANTED, run_planted

_ONLY_HERE = {
    "liveness: leads on without a majority": 1,
    "liveness: all voters must vote": 0,
    "liveness: commit waits for all": 0,
    "liveness: who lags holds up proposals": 0,
}
"""Mistakes that nothing else finds, with a seed of their aims that this judge finds them by."""


@pytest.mark.slow
@pytest.mark.parametrize("name", _ONLY_HERE)
def test_nothing_else_sees_what_costs_a_core_its_availability(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all is mended the group recovers, and has lost nothing."""
    monkeypatch.setattr(Availability, "start", lambda self: None)
    PLANTED[name].patch(monkeypatch)
    result = run_planted(aimed_plan(name, _ONLY_HERE[name]))
    assert result.violation is None, str(result.violation)


@pytest.mark.slow
def test_a_core_is_seen_to_lose_its_leader_to_who_asks_nobody_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at what such a candidate was promised: that would find it at once."""
    monkeypatch.setattr(Steps, "stands", lambda *_: None)
    name = "liveness: no PreVote"
    PLANTED[name].patch(monkeypatch)
    result = run_planted(aimed_plan(name, 0))
    assert result.violation is not None
    assert result.violation.invariant == "a core keeps its leader"


@pytest.mark.slow
def test_a_seed_with_a_core_is_judged_for_most_of_its_time() -> None:
    """The group serves, whatever the others do."""
    plan = plan_of_seed(4, seconds=40)
    core = plan.faults[-1]
    assert core.kind == "core"
    assert core.time_ns + core.duration_ns == plan.calm_ns
    assert all(fault.time_ns + fault.duration_ns <= core.time_ns for fault in plan.faults[:-1])
    world = World(plan)
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    assert result.fault_counts["core"] == 1
    assert sum(group.availability.stood_ns for group in world.groups) > 15 * SECOND


def _machine(name: str, incarnation: int = 1) -> Any:
    """A whole machine without links."""
    return stand_ins.host(name, incarnation=incarnation, process=stand_ins.process())


@pytest.mark.parametrize("is_other_process", [False, True])
def test_links_are_owed_anew_by_who_is_a_voter_again_or_another_process(is_other_process: bool) -> None:
    """Seed 9101003: a learner had been a voter once, and its peer had just started when it was promoted."""
    whole = stand_ins.link()
    nothing = stand_ins.stand_in(link=lambda *_: whole)
    availability = Availability(nothing, nothing, nothing, nothing, nothing)
    availability._bounds = bounds = bounds_of(Settings())
    one, other, third = (_machine(f"n{number}") for number in range(3))
    late_ns = bounds.links_ns + SECOND
    availability._look_at_machines([one, other], 0)
    if is_other_process:
        other = _machine("n1", 2)
    else:
        availability._look_at_machines([one, third], SECOND)
    availability._look_at_machines([one, other], late_ns)
    availability._look_at_machines([one, other], late_ns + bounds.links_ns)
    with pytest.raises(Violation, match=LINKED):
        availability._look_at_machines([one, other], 2 * late_ns)


def test_the_bounds_follow_from_the_settings() -> None:
    usual = bounds_of(Settings())
    patient = bounds_of(Settings(raft=RaftSettings(election_timeout_max_ms=12_000)))
    assert abs(patient.leader_ns - usual.leader_ns - 2 * 10 * SECOND * 100 // 95) <= 1
    assert patient.client_ns - usual.client_ns == patient.leader_ns - usual.leader_ns
    assert patient.links_ns == usual.links_ns


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_plan_says_how_the_nodes_outside_are_broken(number: int) -> None:
    plan = aimed_plan("liveness: all voters must vote", 0)
    fault = Fault(4 * SECOND, "core", 1, plan.calm_ns - 4 * SECOND, (number + 0.5) / len(KINDS))
    world = World(replace(plan, faults=(fault,)))
    world.scheduler.at(5 * SECOND, world.interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_world(world)
    (line,) = [line for line in world.journal.transcript if "FAULT core" in line]
    assert line.endswith(f" {KINDS[number]}"), line
