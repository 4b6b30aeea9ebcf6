"""Little room: bounds of what a node maps, does at once, lets wait or remembers, each small more often than not.

Each has a stream of its own, so that one more leaves the others of a seed as they are.
"""

from dataclasses import replace
from typing import Final

from simulation.plans.plan import Plan
from simulation.randomness import stream

_SMALL: Final[dict[str, tuple[int, ...]]] = {
    "log_mappings": (2, 3),
    "queue_mappings": (2, 3, 8),
    "index_mappings": (2, 3),
    "dispatch_files": (1, 2),
    "dispatch_keys": (1, 3, 20),
    "held_requests": (1, 2, 8),
    "forwarded": (1, 2, 8),
    "unhandled": (1, 2, 8),
    "queues_per_command": (1, 2),
    "transactions_at_once": (1, 2),
    "operations_waiting": (1, 3),
}
_SMALL_SHARE: Final = 0.6
"""The probability with which each is small."""
_FOUNDER: Final = "founder"
_FOUNDER_SHARE: Final = 0.15
_TOPICS: Final = (50, 52)
_GROUPS: Final = (28, 32)
_STORED_OFFSETS: Final = (130, 150)
"""More than all other actors need together; a founder makes more than what is left."""


def with_little_room(plan: Plan, share: float) -> Plan:
    """Makes bounds small in a share of the plans; all else that is drawn stays as it was."""
    if stream(f"little room {plan.seed}").random() >= share:
        return plan
    small: dict[str, int] = {}
    for name, values in _SMALL.items():
        random = stream(f"small {name} {plan.seed}")
        if random.random() < _SMALL_SHARE:
            small[name] = random.choice(values)
    return replace(plan, limits=replace(plan.limits, **small))


def with_founder(plan: Plan) -> Plan:
    """Adds, to a share of the plans of one group, a founder and room for little of what it makes."""
    random = stream(f"founder {plan.seed}")
    if plan.groups > 1 or random.random() >= _FOUNDER_SHARE:
        return plan
    limits = replace(
        plan.limits,
        topics=random.choice(_TOPICS),
        groups=random.choice(_GROUPS),
        stored_offsets=random.choice(_STORED_OFFSETS),
    )
    return replace(plan, actors=(*plan.actors, _FOUNDER), limits=limits)
