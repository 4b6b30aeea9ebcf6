"""Other futures of a run: the faults that a fork puts in the place of those that were still to come."""

from dataclasses import replace
from typing import Final

from simulation.plans.fault_times import Rhythm, draw_fault
from simulation.plans.plan import LASTING, Fault, Fork, Plan
from simulation.plans.swarm import NEEDS_SYNC
from simulation.randomness import stream
from simulation.scheduler import MILLISECOND, SECOND

_MEAN_GAPS_S: Final = (0.3, 1.0)
_RHYTHM: Final = Rhythm(
    begin_ns=0,
    first_within_ns=SECOND,
    mean_gaps_s=(1,),
    gap_ns_min=10 * MILLISECOND,
    durations_ns_max=(100 * MILLISECOND, SECOND, 3 * SECOND),
)


def with_future(plan: Plan, fork: Fork) -> Plan:
    """Returns the plan with a fork, and behind it faults of the kinds that the plan has, close to each other.

    What lasts (`LASTING`) stays.
    """
    random = stream(f"future {fork.event} {fork.seed}")
    past = [fault for fault in plan.faults if fault.time_ns <= fork.time_ns]
    lasting = [fault for fault in plan.faults if fault.kind in LASTING and fault.time_ns > fork.time_ns]
    kinds = dict.fromkeys(
        (fault.kind, fault.group)
        for fault in plan.faults
        if fault.kind not in LASTING and not (plan.flush == "async" and fault.kind in NEEDS_SYNC)
    )
    # The past stays as it is, draw by draw, and so the run comes to the fork as before. What lasts is the end of all
    # others in any future, as a core that is left alone must be.
    future: list[Fault] = []
    end_ns = min((fault.time_ns for fault in lasting), default=plan.calm_ns)
    is_lasting = any(fault.kind in LASTING for fault in past)
    gap_ns = int(random.uniform(*_MEAN_GAPS_S) * SECOND)
    at = fork.time_ns + 1 + int(random.expovariate(1 / gap_ns))
    while kinds and not is_lasting and at < end_ns:
        kind, group = random.choice(tuple(kinds))
        future.append(replace(draw_fault(random, kind, at, _RHYTHM, end_ns), group=group))
        at += int(random.expovariate(1 / gap_ns)) + _RHYTHM.gap_ns_min
    return replace(plan, faults=(*past, *future, *lasting), forks=(*plan.forks, fork))
