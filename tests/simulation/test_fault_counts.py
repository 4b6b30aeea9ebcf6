"""A fault is counted when it meets something, so that a report shows which were exercised and not which were armed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.faults.injection import _INJECTORS
from simulation.plans.plan import CHOREOGRAPHIES, FAULT_KINDS, LASTING, LATER_KINDS, Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_world

_CALM_S = 12
_LONG_NS = 3 * SECOND
_LEADER = 1
"""An odd target; the leader has connections, and somebody waits for it all the time."""


def counts(faults: Iterable[Fault]) -> dict[str, int]:
    """Returns the counts of a small world to which only these faults happen."""
    plan = replace(
        draw_swarm_plan(1, seconds=30),
        flush="sync",
        actors=("producer", "consumer"),
        faults=tuple(faults),
        calm_ns=_CALM_S * SECOND,
        end_ns=(_CALM_S + 20) * SECOND,
    )
    world = World(plan)
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    return result.fault_counts


_LASTING = {
    "delay": 0.5,
    "cut one way": 0.1,
    "isolate": 0.5,
    "partition": 0.5,
    "clog": 0.1,
    "slow disk": 0.5,
    "messages": 0.9,
}
"""Kinds of faults that last, with an amount of each."""


def _target(kind: str) -> int:
    side = 0b1  # of a partition: the first broker, against all others
    return side if kind == "partition" else _LEADER


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "amount"), _LASTING.items())
def test_what_lasts_counts_once_when_it_meets_something(kind: str, amount: float) -> None:
    faults = [
        Fault(6 * SECOND, kind, _target(kind), _LONG_NS, amount),
        Fault(10 * SECOND, kind, _target(kind), SECOND, amount),
    ]
    assert counts(faults)[kind] == 2


def test_what_is_over_in_the_instant_in_which_it_begins_does_not_count() -> None:
    faults = [Fault(6 * SECOND, kind, _target(kind), 0, amount) for kind, amount in _LASTING.items()]
    assert not counts(faults).keys() & _LASTING.keys()


@pytest.mark.slow
def test_each_segment_that_is_lost_counts() -> None:
    assert counts([Fault(6 * SECOND, "loss", _LEADER, _LONG_NS, 0.9)])["loss"] > 2
    assert "loss" not in counts([Fault(6 * SECOND, "loss", _LEADER, _LONG_NS, 0.0)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["name server", "client kill", "client pause", "kill", "power"])
def test_who_is_down_cannot_be_killed_again(kind: str) -> None:
    first, second = Fault(6 * SECOND, kind, 0, _LONG_NS, 0.5), Fault(7 * SECOND, kind, 0, SECOND, 0.5)
    assert counts([first, second])[kind] == 1


def test_where_nothing_runs_power_takes_nothing_and_no_connection_breaks() -> None:
    outage = Fault(6 * SECOND, "power of all", 0, _LONG_NS, 0.5)
    again = Fault(7 * SECOND, "power of all", 0, SECOND, 0.5)
    reset = Fault(7 * SECOND, "reset", 0, 0, 0.7)
    assert counts([outage, again, reset]) | {"lost page": 0, "torn page": 0} == {
        "power of all": 1,
        "lost page": 0,
        "torn page": 0,
    }


def test_each_kind_is_told_of_and_can_be_done() -> None:
    assert list(_INJECTORS) == [*FAULT_KINDS, *CHOREOGRAPHIES, *LATER_KINDS, *LASTING]
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    table = page.partition("\n## Faults\n")[2].partition("\n## ")[0]
    told = [kind for row in re.findall(r"^\| ([a-z ,]+) \|", table, re.MULTILINE) for kind in row.split(", ")]
    assert set(told) - {"kind"} == {*FAULT_KINDS, *CHOREOGRAPHIES, *LATER_KINDS, *LASTING}
