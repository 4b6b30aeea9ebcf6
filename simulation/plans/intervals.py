"""Intervals that are longer than a run, made so short that what they gate happens in it.

Each has a stream of its own, so that one more leaves the others of a seed as they are.
"""

from dataclasses import replace
from typing import Final

from simulation.plans.plan import Fault, Limits, Plan
from simulation.randomness import stream
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload import ACTORS

_SHORT_MS: Final[dict[str, tuple[int, ...]]] = {
    "unused_offsets_look_ms": (500, 2000),
    "writers_kept_ms": (3000, 8000),
    "delays_idle_ms": (500, 3000),
    "backup_lease_ms": (200, 1000),
}
_SHORT_SHARE: Final = 0.6
"""The probability with which each is short."""
_AWAY: Final = "consumer"
_AWAY_NS: Final = (4 * SECOND, 10 * SECOND)
"""Longer than two looks for offsets that nobody uses."""
_BEGIN_NS: Final = 6 * SECOND
"""Consumers have stored offsets by then."""


def with_short_intervals(plan: Plan, share: float) -> Plan:
    """Makes intervals short in a share of the plans; all else that is drawn stays as it was.

    Where offsets that nobody uses are soon forgotten, the consumers are away for a while, all at once.
    """
    if stream(f"short intervals {plan.seed}").random() >= share:
        return plan
    short: dict[str, int] = {}
    for name, values in _SHORT_MS.items():
        random = stream(f"short {name} {plan.seed}")
        if random.random() < _SHORT_SHARE:
            short[name] = random.choice(values)
    plan = replace(plan, limits=replace(plan.limits, **short))
    if plan.limits.unused_offsets_look_ms == Limits().unused_offsets_look_ms:
        return plan
    return replace(plan, faults=tuple(sorted((*plan.faults, _away(plan)), key=lambda fault: fault.time_ns)))


def _away(plan: Plan) -> Fault:
    """Draws a time in which all processes of the consumers' application are down."""
    random = stream(f"consumers away {plan.seed}")
    at_ns = random.randrange(_BEGIN_NS, max(_BEGIN_NS + MILLISECOND, plan.calm_ns - _AWAY_NS[0]))
    duration_ns = min(random.randrange(*_AWAY_NS), plan.calm_ns - at_ns)
    processes = [name for name in plan.actors for _ in range(ACTORS[name].processes(plan.producers))]
    return Fault(at_ns, "client kill", processes.index(_AWAY), duration_ns, 0.0)
