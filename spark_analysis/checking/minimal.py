"""The smallest part of a history that is still wrong: operations whose answers contradict each other.

An answer is taken away by making the operation one of unknown outcome, or by leaving it out if it only reads. Whatever
was possible before is still possible then. So a part of the answers that is wrong proves that the whole is.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Final

from spark_analysis.checking.proofs import REGISTERS
from spark_analysis.checking.register_names import queue_and_group
from spark_analysis.checking.small import check_rows
from spark_analysis.checking.verdict import REGISTER_ANOMALIES, Verdict
from spark_analysis.importing import schema
from spark_analysis.importing.calls import READS, Call

MOST_ROWS: Final = 2_000
"""The most operations of a queue that are looked through where the proof of a finding is no contradiction by itself."""


def minimal(ops: Sequence[int], is_violated: Callable[[Set[int]], bool]) -> tuple[int, ...]:
    """Returns a part of ``ops`` that is still wrong, and no longer so without any one of its operations.

    ``is_violated`` says whether a part is wrong; ``ops`` as a whole must be. Leaves out whole runs of operations first
    (delta debugging).
    """
    kept = list(ops)
    size = max(1, len(kept) // 2)
    while True:
        place, is_smaller = 0, False
        while place < len(kept):
            fewer = kept[:place] + kept[place + size :]
            if is_violated(set(fewer)):
                # The place does not advance: the next operations have moved there.
                kept, is_smaller = fewer, True
            else:
                place += size
        if size == 1 and not is_smaller:
            return tuple(sorted(kept))
        size = max(1, size // 2)


def with_answers(calls: Sequence[Call], kept: Set[int]) -> list[Call]:
    """The calls of a sequential model with the answers of ``kept`` alone."""
    return [
        one if one.op in kept else replace(one, result=None, complete_ns=None)
        for one in calls
        if one.op in kept or one.function not in READS
    ]


def minimal_calls(calls: Sequence[Call], is_violated: Callable[[Sequence[Call]], bool]) -> tuple[int, ...]:
    """:func:`minimal` for a history of a sequential model that is violated."""
    answered = [one for one in sorted(calls, key=lambda one: one.invoke_ns) if one.complete_ns is not None]
    return minimal([one.op for one in answered], lambda kept: is_violated(with_answers(calls, kept)))


def minimal_rows(
    rows: Sequence[Mapping[str, Any]], verdict: Verdict, *, sparse: bool
) -> tuple[int, ...] | None:
    """:func:`minimal` for a history of the log model that is violated: of the finding with the shortest proof.

    None if findings are about the order of one client's operations, or about replicas, where nothing can be left out;
    and if the proof alone is no contradiction, and the queue (the topic, where queues contradict each other) has more
    than :data:`MOST_ROWS` operations.
    """
    for one in sorted(verdict.anomalies, key=lambda one: len(one.proof)):
        if one.kind not in _MONOTONE:
            continue
        queue = queue_and_group(one.key)[0] if one.kind in REGISTER_ANOMALIES else one.key
        topic = f"{queue.rpartition('/')[0]}/"
        smallest = _minimal_of(
            [row for row in rows if row["key"] in (queue, topic)], [row["op"] for row in one.proof], sparse
        )
        if smallest is None and any(row["key"] == topic for row in rows):
            # Queues may want the same append that left its queue to the broker: then it takes the answers of several.
            together = [row for row in rows if row["key"] is not None and row["key"].startswith(topic)]
            smallest = _minimal_of(together, [], sparse)
        if smallest is not None:
            return smallest
    return None


def _minimal_of(
    rows: Sequence[Mapping[str, Any]], proof: Sequence[int], sparse: bool
) -> tuple[int, ...] | None:
    """:func:`minimal` of the proof if that is wrong by itself, else of all rows; None if these are not, or too many."""

    def is_violated(kept: Set[int]) -> bool:
        found = check_rows("", _rows_with_answers(rows, kept), sparse=sparse)
        return any(kind in _MONOTONE for kind in found.counts)

    # Mostly the proof contradicts itself: then the rest of the queue need not be looked at.
    if proof and is_violated(set(proof)):
        return minimal(proof, is_violated)
    ops = [row["op"] for row in sorted(rows, key=lambda row: row["invoke_ns"])]
    return minimal(ops, is_violated) if len(ops) <= MOST_ROWS and is_violated(set(ops)) else None


_CHANGES: Final = ("append", REGISTERS[0])
_MONOTONE: Final = frozenset(
    (
        *("duplicate-offset", "inconsistent-offset", "append-order", "stale-read", "stale-tail"),
        *("premature-read", "torn-read", "torn-append", "aborted-read", "duplicate-value", "phantom-value"),
        *("unexplained-value", "unexplained-offset", "backward-head", "stale-offset", "phantom-offset"),
    )
)
"""Findings that no further answer takes back."""


def _rows_with_answers(rows: Sequence[Mapping[str, Any]], kept: Set[int]) -> list[dict[str, Any]]:
    return [
        dict(row) if row["op"] in kept else {**row, **schema.unanswered("append")}
        for row in rows
        if row["op"] in kept or (row["function"] in _CHANGES and row["outcome"] != "fail")
    ]
