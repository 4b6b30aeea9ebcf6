"""The faults of a run against real processes: kinds and rhythm, from which the simulator's swarm draws a schedule.

Real processes are not deterministic: the same seed tries the same things at the same times, and what comes of it
differs from run to run. Pure.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from simulation.plans.fault_times import Rhythm, draw_fault, draw_faults, draw_kinds
from simulation.plans.plan import Fault
from simulation.randomness import stream
from simulation.scheduler import MILLISECOND, SECOND

Picked = TypeVar("Picked")

FAULT_KINDS: Final = (
    *("kill", "kill all", "restart", "pause", "new disk", "isolate", "cut one way", "cut pair", "delay"),
    *("reset", "transfer", "replace", "name server"),
)
"""All kinds, in the order of docs/chaos.md."""

_SHARE: Final = 0.65
"""The share of kinds that a seed turns on: more than in the simulator, of which thousands of seeds are run."""
ALL_KINDS_S: Final = 240
"""A run of at least this many seconds gets faults of all kinds."""
TRIES_MIN: Final = 3
"""Each kind is tried at least this often in such a run: an operator's fault may find no moment for it."""
_TRIED_AGAIN_UNTIL: Final = 0.8
"""Faults that must wait for their moment begin within this share of a run, so that there is time for them."""
_RARITY: Final = {"kill all": 4.0, "new disk": 3.0, "replace": 4.0, "name server": 3.0}
"""Kinds after which a group needs time to recover, and how many times rarer they are than others."""


def draw_schedule(seed: int, seconds: float) -> tuple[Fault, ...]:
    """The faults of a seed in the order of time; all of them are over after `seconds`."""
    random = stream(f"chaos {seed}")
    end_ns = int(seconds * SECOND)
    rhythm = Rhythm(
        begin_ns=2 * SECOND,
        first_within_ns=max(end_ns // 2, 1),  # a short run has most of its kinds, too
        mean_gaps_s=(4, 8, 16),
        gap_ns_min=500 * MILLISECOND,
        durations_ns_max=(300 * MILLISECOND, SECOND, 3 * SECOND, 8 * SECOND),
    )
    faults: list[Fault] = []
    share = 1.0 if seconds >= ALL_KINDS_S else _SHARE
    for kind in draw_kinds(random, FAULT_KINDS, share) or ["kill"]:
        drawn = draw_faults(random, kind, rhythm, end_ns, rarity=_RARITY.get(kind, 1.0))
        faults += drawn
        if seconds >= ALL_KINDS_S:
            again = stream(f"chaos {seed}: {kind} again")  # its own, so that nothing else is drawn otherwise
            faults += [
                draw_fault(
                    again,
                    kind,
                    again.randrange(rhythm.begin_ns, int(_TRIED_AGAIN_UNTIL * end_ns)),
                    rhythm,
                    end_ns,
                )
                for _ in range(TRIES_MIN - len(drawn))
            ]
    faults.sort(key=lambda fault: fault.time_ns)
    return tuple(faults)


def delay_of(amount: float) -> float:
    """Returns the seconds that an amount means: mostly a few milliseconds, at least one, at most 0.4 s."""
    return float(max(0.001, 0.4 * amount**3))


def pick(target: int, among: Sequence[Picked]) -> Picked:
    """Returns the machine or node that a fault's target means; `among` must not be empty."""
    return among[target % len(among)]
