"""The kinds of faults that a seed has, and the times at which each of them happens, as they are drawn.

`draw_swarm_plan` (simulation/plans/swarm.py) draws them, and adds what depends on the group and on the load.

Each seed turns on a random subset of the kinds, each with a rate of its own (swarm testing: kinds that hide each other
do not always meet).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from simulation.plans.plan import Fault
from simulation.randomness import Random
from simulation.scheduler import MILLISECOND, SECOND


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The frequency of the faults of a kind, and their length."""

    begin_ns: int
    """No fault comes before."""
    first_within_ns: int
    """The first one comes at most so long after `begin_ns`, or a mean gap after it if that is shorter."""
    mean_gaps_s: Sequence[int]
    """The time from one fault of a kind to the next, on average: each kind of a seed has one of these."""
    gap_ns_min: int
    durations_ns_max: Sequence[int]
    """The longest time that a fault may last: each fault has one of these."""


def draw_kinds(random: Random, kinds: Sequence[str], share: float) -> list[str]:
    """Draws the kinds that a seed turns on, each with the probability `share`."""
    return [kind for kind in kinds if random.random() < share]


def draw_faults(
    random: Random, kind: str, rhythm: Rhythm, end_ns: int, *, rarity: float = 1.0
) -> list[Fault]:
    """Draws the faults of one kind, at a rate of their own; all are over at `end_ns`.

    `rarity` multiplies the mean gap.
    """
    faults = []
    mean_gap_ns = int(random.choice(rhythm.mean_gaps_s) * rarity * SECOND)
    # Gaps are exponential, so that some faults come close to each other; a least gap lets each of them take effect.
    at = rhythm.begin_ns + random.randrange(min(mean_gap_ns, rhythm.first_within_ns))
    while at < end_ns:
        faults.append(draw_fault(random, kind, at, rhythm, end_ns))
        at += int(random.expovariate(1 / mean_gap_ns)) + rhythm.gap_ns_min
    return faults


def draw_fault(random: Random, kind: str, at: int, rhythm: Rhythm, end_ns: int) -> Fault:
    """Draws a fault that comes at `at` and is over at `end_ns`."""
    duration_ns_max = random.choice(rhythm.durations_ns_max)
    duration_ns = min(random.randrange(MILLISECOND, duration_ns_max), end_ns - at)
    return Fault(at, kind, random.randrange(1 << 16), duration_ns, random.random())
