"""Plans whose faults come to one that is the last: a core is left alone while the rest is broken, or a crowd overloads.

The plan of a seed is drawn as ever; what lasts takes the place of the faults behind its beginning. Which seeds have it,
and what it does, has streams of its own.
"""

from dataclasses import replace
from typing import Final

from simulation.plans.plan import Fault, Plan
from simulation.randomness import stream
from simulation.scheduler import SECOND

_BEGIN_NS: Final = 5 * SECOND
"""The group has come together by then, and something has happened to it."""
_BEGIN_SHARE: Final = 1 / 3
"""A core begins in the first third of the time of faults."""
_OVERLOAD_NS_MAX: Final = 3 * SECOND


def with_core(plan: Plan) -> Plan:
    """Lets a core of the group be left alone from a moment on, and the rest be broken until all faults end."""
    random = stream(f"core {plan.seed}")
    begin_ns = _BEGIN_NS + random.randrange(max(1, int((plan.calm_ns - _BEGIN_NS) * _BEGIN_SHARE)))
    # Nothing that was drawn for later may touch the core: whatever fails in it from now on is a finding.
    lasting = Fault(begin_ns, "core", random.randrange(1 << 16), plan.calm_ns - begin_ns, random.random())
    return replace(plan, faults=(*_faults_before(plan, begin_ns), lasting))


def with_overload(plan: Plan) -> Plan:
    """Lets a crowd send more for a while than the group takes, whose limits are small; nothing else happens behind."""
    random = stream(f"overload {plan.seed}")
    begin_ns = _BEGIN_NS + random.randrange(3 * SECOND)
    duration_ns = random.randrange(SECOND, _OVERLOAD_NS_MAX)
    limits = replace(
        plan.limits,
        pending_messages=random.choice((8, 16, 32)),
        pending_bytes=1024 * 1024,
        held_pulls=random.choice((1, 4)),
    )
    lasting = Fault(begin_ns, "overload", 0, duration_ns, random.random())
    return replace(
        plan,
        flush="sync",  # else no disk holds anybody up
        actors=(*plan.actors, "crowd"),
        faults=(*_faults_before(plan, begin_ns), lasting),
        limits=limits,
    )


def _faults_before(plan: Plan, end_ns: int) -> list[Fault]:
    """Returns the faults that begin before a time, which end then at the latest."""
    return [
        replace(fault, duration_ns=min(fault.duration_ns, end_ns - fault.time_ns))
        for fault in plan.faults
        if fault.time_ns < end_ns
    ]
