"""Plans whose faults come to a state that stays: a core of the group is left alone while the rest is broken for good.

The plan of a seed is drawn as ever; what lasts takes the place of the faults behind its beginning. Which seeds have it,
and what it does, has streams of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulation.plans.plan import Fault, Plan
from simulation.randomness import stream
from simulation.scheduler import SECOND

_BEGIN_NS: Final = 5 * SECOND
"""The group has come together by then, and something has happened to it."""
_BEGIN_SHARE: Final = 1 / 3
"""It begins in the first third of the time of faults."""


def with_core(plan: Plan) -> Plan:
    """Lets a core of the group be left alone from a moment on, and the rest be broken until all faults end."""
    random = stream(f"core {plan.seed}")
    begin_ns = _BEGIN_NS + random.randrange(max(1, int((plan.calm_ns - _BEGIN_NS) * _BEGIN_SHARE)))
    faults = [
        replace(fault, duration_ns=min(fault.duration_ns, begin_ns - fault.time_ns))
        for fault in plan.faults
        if fault.time_ns < begin_ns
    ]
    lasting = Fault(begin_ns, "core", random.randrange(1 << 16), plan.calm_ns - begin_ns, random.random())
    return replace(plan, faults=(*faults, lasting))
