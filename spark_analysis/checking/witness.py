"""Witnesses: an order of everything that happened, for whoever does not believe that a history holds."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from spark_analysis.checking.models import MODELS
from spark_analysis.checking.queues.witness import Step, queue_steps
from spark_analysis.checking.registers import Access, calls_of
from spark_analysis.checking.small import accesses_by_register, operations_by_queue
from spark_analysis.checking.verdict import LINEARIZABLE


def witness_of(rows: Iterable[Mapping[str, Any]], *, sparse: bool) -> tuple[Step, ...] | None:
    """The steps of a history that the log model has found linearizable (rows of schema.OPERATIONS): of all its queues
    and of its consumer groups' positions, in one order that keeps to real time.

    None if a search for it takes too long. Operations that failed, and those of unknown outcome that need not have
    happened, are in no step.
    """
    operations = list(rows)
    queues, _ = operations_by_queue(operations)
    steps = queue_steps(queues, sparse=sparse)
    if steps is None:
        return None
    for key, accesses in accesses_by_register(operations).items():
        found = _register_steps(key, accesses)
        if found is None:
            return None
        steps.append(found)
    return tuple(heapq.merge(*steps, key=lambda step: step.moment_ns))


def _register_steps(key: str, accesses: Sequence[Access]) -> list[Step] | None:
    result = MODELS["register"].decide(calls_of(accesses))
    if result.verdict != LINEARIZABLE:
        return None
    by_op = {one.op: one for one in accesses}
    moments = in_time((by_op[op].invoke_ns, op) for op in result.prefix)
    return [
        Step(
            op,
            "commit_offset" if by_op[op].is_write else "fetch_offset",
            *(key, by_op[op].value, None, moment),
        )
        for moment, op in moments
    ]


def in_time(order: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """A moment for each operation of an order, (invoke_ns, op) each: the latest beginning of those up to it."""
    moment: int | None = None
    for invoke_ns, op in order:
        moment = invoke_ns if moment is None else max(moment, invoke_ns)
        yield moment, op
