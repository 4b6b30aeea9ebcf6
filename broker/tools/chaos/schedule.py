"""What a seed means: the faults of a run, drawn before anything starts.

As in the simulator each seed turns on a random subset of the kinds, each with a rate of its own (swarm testing: kinds
that hide each other do not always meet). Real processes are not deterministic: the same seed tries the same things at
the same times, and what comes of it differs from run to run. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

__all__ = ["FAULT_KINDS", "Fault", "delay_of", "draw_schedule", "pick"]

FAULT_KINDS: Final = (
    "kill",
    "kill all",
    "restart",
    "pause",
    "new disk",
    "isolate",
    "cut one way",
    "cut pair",
    "delay",
    "reset",
    "transfer",
    "replace",
    "name server",
)
"""All kinds, in the order of docs/simulation.md."""

_SHARE: Final = 0.65
"""Of the kinds that a seed turns on."""
_FIRST_S: Final = 2.0
_MEAN_GAPS_S: Final = (4.0, 8.0, 16.0)
_RARE: Final = {"kill all": 4.0, "new disk": 3.0, "replace": 4.0, "name server": 3.0}
"""Kinds after which a group needs a while, by how much rarer they are."""
_LONGEST_S: Final = (0.3, 1.0, 3.0, 8.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something to be done `at_s` seconds after the start, and undone `duration_s` later.

    `target` picks a node, or several, out of those that there are then; `amount` in 0..1 is what the kind makes of it.
    """

    at_s: float
    kind: str
    target: int
    duration_s: float
    amount: float


def draw_schedule(seed: int, seconds: float) -> tuple[Fault, ...]:
    """The faults of a seed in the order of time; all of them are over after `seconds`."""
    random = Random(f"chaos {seed}")
    enabled = [kind for kind in FAULT_KINDS if random.random() < _SHARE] or ["kill"]
    faults: list[Fault] = []
    for kind in enabled:
        mean_gap_s = random.choice(_MEAN_GAPS_S) * _RARE.get(kind, 1.0)
        at_s = _FIRST_S + random.random() * min(mean_gap_s, seconds / 2)
        while at_s < seconds:
            duration_s = min(random.uniform(0.01, random.choice(_LONGEST_S)), seconds - at_s)
            faults.append(Fault(at_s, kind, random.randrange(1 << 16), duration_s, random.random()))
            at_s += 0.5 + random.expovariate(1 / mean_gap_s)
    faults.sort(key=lambda fault: fault.at_s)
    return tuple(faults)


def delay_of(amount: float) -> float:
    """What a delay's amount means: mostly a few milliseconds, at most 0.4 s."""
    return float(0.4 * amount**3)


def pick(target: int, nodes: Sequence[str]) -> str:
    """The node that a fault's target means among these, of which there must be one."""
    return nodes[target % len(nodes)]
