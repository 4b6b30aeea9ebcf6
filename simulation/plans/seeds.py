"""The plan of a seed, as `trivet simulate` runs it: two in five seeds are dense, the others swarms."""

from __future__ import annotations

from typing import Final

from simulation.plans.dense import draw_dense_plan
from simulation.plans.draw import draw_plan
from simulation.plans.plan import Plan

_OUT_OF: Final = 5
_DENSE: Final = (1, 3)
"""The seeds whose number leaves one of these when it is divided by `_OUT_OF`."""
_NODES: Final = 3


def plan_of_seed(seed: int, *, seconds: int = 60, nodes: int | None = None) -> Plan:
    """Draws the plan of a seed; `seconds` is the whole run. `nodes` None: as drawn, of a swarm three."""
    if seed % _OUT_OF not in _DENSE:
        return draw_plan(seed, seconds=seconds, nodes=nodes or _NODES)
    number = seed // _OUT_OF * len(_DENSE) + _DENSE.index(seed % _OUT_OF)
    return draw_dense_plan(seed, number, seconds=seconds, nodes=nodes)


def dense_seed(number: int) -> int:
    """Returns the dense seed of that number, counted from 0."""
    return number // len(_DENSE) * _OUT_OF + _DENSE[number % len(_DENSE)]
