"""Mistakes known from the history of Raft, DLedger and brokers, each put into the real code by a patch.

The patches stand by subject in the modules beside this one. `PLANTED` maps a name to the patch. `hunt` looks for the
first seed that finds it; `planted_table` fills the table of docs/planted-mistakes.md with what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import pytest

from simulation.plans.plan import Plan
from simulation.plans.swarm import draw_swarm_plan, faults_of_actor
from simulation.world.building import World
from simulation.world.running import Explore, Result, run_world
from tests.simulation.planting import PLANTED, UNAIDED, Planted

__all__ = ["PLANTED", "UNAIDED", "hunt", "plan_of", "run_planted", "run_with"]

_SUBJECTS = """
elections replication disks answers transactions timers orders reads resets retries requests one_way offsets
name_servers settings backups groups recoveries heads former_leaders trackers portions liveness overload places tester
blind waits unseen unread promises snapshots fourth fifth sixth seventh majorities room
"""
assert not PLANTED | UNAIDED, (
    "their order is that of the subjects: nobody imports one of these modules before"
)
for _subject in _SUBJECTS.split():
    import_module(f"tests.simulation.planted_{_subject}")

_MISFITS = ("TypeError:", "AttributeError:", "NameError:", "ImportError:")
"""Errors of a patch whose function, or what it uses, has changed."""


def plan_of(bug: Planted, seed: int) -> Plan:
    """The seed's plan, in the flush mode that the mistake needs."""
    plan = draw_swarm_plan(seed, seconds=40, groups=bug.groups)
    if bug.flush is not None and plan.flush != bug.flush:
        plan = replace(plan, flush=bug.flush)
    if bug.actor is not None and bug.actor not in plan.actors:
        faults = [*plan.faults, *faults_of_actor(seed, bug.actor, plan.calm_ns)]
        faults.sort(key=lambda fault: fault.time_ns)
        plan = replace(plan, actors=(*plan.actors, bug.actor), faults=tuple(faults))
    return plan


def run_with(bug: Planted, seed: int) -> Result:
    """Runs a seed with the mistake in the code."""
    with pytest.MonkeyPatch.context() as patch:
        bug.patch(patch)
        return run_planted(plan_of(bug, seed))


def run_planted(plan: Plan, explore: Explore | None = None) -> Result:
    """Runs a plan while a mistake is in the code; `explore` as `run_world` takes it.

    Raises AssertionError if the run failed because the patch does not fit the code that it patches: no mistake was
    planted then, and the failure would be taken for its finding.
    """
    result = run_world(World(plan), None, explore)
    if result.violation is not None:
        failure = result.violation.detail.rstrip().rpartition("\n")[2]
        assert not failure.startswith(_MISFITS), f"the patch does not fit: {failure}"
    return result


def hunt(bug: Planted, seeds: Sequence[int]) -> Result | None:
    """The first seed's result that finds the mistake."""
    for seed in seeds:
        result = run_with(bug, seed)
        if result.violation is not None:
            return result
    return None
