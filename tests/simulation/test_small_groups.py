"""Faults that want a group of three, of which operators leave two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.plans.plan import Fault, Plan, Shape
from simulation.plans.small_groups import with_small_groups
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND


def _plan(*kinds: str) -> Plan:
    """A group of three with sync flush, and a fault of each kind."""
    faults = tuple(Fault(number * SECOND, kind, 0, SECOND, 0.5) for number, kind in enumerate(kinds))
    return replace(draw_swarm_plan(1), flush="sync", faults=faults, shape=Shape(spares=2, fewest_voters=3))


def test_where_they_are_operators_go_down_to_two_voters() -> None:
    for kind in ("recovery that lasts", "change over a slow disk"):
        plan = _plan("kill", kind)
        assert with_small_groups(plan) == replace(plan, shape=Shape(spares=2, fewest_voters=2))


@pytest.mark.parametrize("nodes", [3, 5])
def test_other_plans_stay_as_they_are(nodes: int) -> None:
    plan = replace(_plan("kill", "new disk"), nodes=nodes)
    assert with_small_groups(plan) == plan


def test_larger_groups_do_without_them() -> None:
    plan = replace(_plan("kill", "recovery that lasts", "change over a slow disk"), nodes=5)
    assert with_small_groups(plan) == replace(plan, faults=plan.faults[:1])


def test_what_power_takes_takes_async_flush() -> None:
    plan = _plan("kill", "unheard promotion")
    assert with_small_groups(plan) == replace(plan, faults=plan.faults[:1])
    lossy = replace(plan, flush="async")
    assert with_small_groups(lossy) == replace(lossy, shape=Shape(spares=2, fewest_voters=2))
