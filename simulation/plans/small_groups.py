"""Faults that want a group of three, of which operators leave two: there one voter more or less decides."""

from dataclasses import replace
from typing import Final

from simulation.plans.plan import Fault, Plan

_WITH_ASYNC_FLUSH: Final = "unheard promotion"
_KINDS: Final = frozenset({"change over a slow disk", "recovery that lasts", _WITH_ASYNC_FLUSH})
_NODES: Final = 3
_FEWEST_VOTERS: Final = 2


def with_small_groups(plan: Plan) -> Plan:
    """Has operators go down to two voters where a plan of three nodes has such faults, and leaves these out of plans of
    more nodes, or of another flush; all else that is drawn stays as it was.
    """

    def can_be(fault: Fault) -> bool:
        if fault.kind == _WITH_ASYNC_FLUSH and plan.flush != "async":
            return False
        return fault.kind not in _KINDS or plan.nodes == _NODES

    faults = tuple(fault for fault in plan.faults if can_be(fault))
    if _KINDS.isdisjoint(fault.kind for fault in faults):
        return replace(plan, faults=faults)
    return replace(plan, faults=faults, shape=replace(plan.shape, fewest_voters=_FEWEST_VOTERS))
