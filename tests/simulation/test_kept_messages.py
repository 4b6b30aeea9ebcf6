"""Messages that retention may have taken are excused, and no others: those that every node keeps are checked as ever.

A disk under pressure from the first second on deletes the log's head through most of a run. Each case puts a mistake
into the code that does something wrong to kept messages, too; an invariant that looked away for the whole run once
retention had been at work, as they all did, passed it over.
"""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from broker.reading.queue_reads import PullResult, QueueReads
from broker.remoting.codes import ResponseCode
from broker.transactions.checks import TransactionChecks
from log.queues.timer_index import Steps, TimerIndex
from simulation.plans.plan import Fault, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.workload.order import TOPIC as ORDERS
from simulation.workload.pick import TOPIC as OFFERS
from simulation.world.running import run_plan
from tests.simulation.planting import Patch

_SEEDS = 3


def _plan_under_pressure(seed: int, *actors: str) -> Plan:
    plan = draw_swarm_plan(seed, seconds=40)
    pressure = Fault(SECOND, "retention", 0, 14 * SECOND, 0.0)
    return replace(
        plan,
        faults=(pressure,),
        actors=("producer", "administrator", *actors),
        data_file_bytes=16 * 1024,
        producers=1,
        think_ms=300,
    )


def _messages_left_out(patch: pytest.MonkeyPatch) -> None:
    original = QueueReads._scan

    def scan(self: QueueReads, queue: Any, header: Any, wanted: Any) -> Any:
        if header.topic in (ORDERS, OFFERS) and header.queue_offset % 7 == 3:
            behind = header.queue_offset + 1
            if behind == queue.max_offset:  # nothing is left to be read: the consumer goes on behind it
                return PullResult(ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE", behind, queue)
            header = msgspec.structs.replace(header, queue_offset=behind)
        return original(self, queue, header, wanted)

    patch.setattr(QueueReads, "_scan", scan)


def _timed_messages_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = TimerIndex.due

    def due(self: TimerIndex, steps: Steps, until_ms: int, count: int) -> list[tuple[int, int]]:
        return [(time, offset) for time, offset in original(self, steps, until_ms, count) if offset % 5 != 3]

    patch.setattr(TimerIndex, "due", due)


def _half_messages_taken_for_deleted(patch: pytest.MonkeyPatch) -> None:
    original = TransactionChecks._half

    def half(self: TransactionChecks, half_offset: int) -> Any:
        return original(self, half_offset) if half_offset % 5 != 3 else None

    patch.setattr(TransactionChecks, "_half", half)


@pytest.mark.slow
def test_a_log_that_loses_its_head_all_the_time_breaks_nothing() -> None:
    result = run_plan(_plan_under_pressure(0, "clerk", "picker", "scheduler", "transactor"))
    assert result.violation is None, str(result.violation)
    assert result.fault_counts["retention"] > 3


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize(
    ("mistake", "actor", "invariant"),
    [
        (_messages_left_out, "clerk", "order without gaps or steps back"),
        (_messages_left_out, "picker", "all that is wanted"),
        (_timed_messages_forgotten, "scheduler", "timed messages come"),
        (_half_messages_taken_for_deleted, "transactor", "decided as it should be"),
    ],
)
def test_kept_messages_are_checked_after_retention(mistake: Patch, actor: str, invariant: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        results = (run_plan(_plan_under_pressure(seed, actor)) for seed in range(_SEEDS))
        violation = next((result.violation for result in results if result.violation is not None), None)
    assert violation is not None, f"not found within {_SEEDS} seeds"
    assert violation.invariant == invariant, str(violation)
