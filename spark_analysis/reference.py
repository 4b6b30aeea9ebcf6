"""The log checker in plain Python, for one queue at a time: the statement of the rules that Spark applies at
scale.

It exists to be read next to docs/checker.md and to be compared: with a brute-force search on small histories,
and with :mod:`spark_analysis.log_model` on many. Clarity before speed; O(n log n) all the same.

The model: a queue is a growing list of values. ``append`` of k values is k single appends at consecutive
offsets, with nothing between them, each taking effect somewhere inside the operation's interval (a reader may
see the first values of a batch before the last: that is what RocketMQ promises). An append of unknown outcome
may have taken effect for any number of its first values, at any time after its invocation. ``read`` at an
offset returns values from there on, or nothing if the list ends there or before; ``tail`` returns the list's
length. ``poll`` is a read whose place the reader does not name: what it returns is a fact, that it returns nothing is
none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from spark_analysis.unknown import Attempt, Finding, Hole, Seen, settle

LINEARIZABLE: Final = "linearizable"
VIOLATED: Final = "violated"
UNDECIDED: Final = "undecided"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on one queue; the columns of schema.OPERATIONS that the log model looks at."""

    op: int
    function: str
    outcome: str
    invoke_ns: int
    complete_ns: int | None
    offset: int | None = None
    first_offset: int | None = None
    values: tuple[str, ...] = ()
    offsets: tuple[int, ...] | None = None
    next_offset: int | None = None
    end_offset: int | None = None
    filtered: bool = False
    client: str = "client"

    def pairs(self) -> list[tuple[int, str]]:
        """(offset, value) of everything appended or read."""
        if self.first_offset is None:
            return []
        offsets = self.offsets or range(self.first_offset, self.first_offset + len(self.values))
        return list(zip(offsets, self.values, strict=True))


def check_queue(operations: Sequence[Operation], *, sparse: bool = False) -> tuple[str, list[Finding]]:
    """The verdict on one queue, with what speaks against it.

    ``sparse``: offsets may hold what no client sees, so that nothing has to account for one that nobody knows.
    """
    if sparse:
        operations = without_gaps(operations)
    findings = [*_torn_reads(operations), *_backward_heads(operations)]
    acked: dict[int, list[str]] = defaultdict(list)
    seen: dict[int, set[str]] = defaultdict(set)
    for operation in operations:
        if operation.outcome == "ok":
            for position, value in operation.pairs():
                if operation.function == "append":
                    acked[position].append(value)
                elif operation.function in ("read", "poll"):
                    seen[position].add(value)
    for position, values in acked.items():
        if len(values) > 1:
            findings.append(Finding("duplicate-offset", position))
        if len(set(values) | seen[position]) > 1:
            findings.append(Finding("inconsistent-offset", position))
    for position, found in seen.items():
        if position not in acked and len(found) > 1:
            findings.append(Finding("inconsistent-offset", position))
    if findings:
        return VIOLATED, findings

    unexplained = {
        position: min(found) for position, found in seen.items() if found and position not in acked
    }
    lower, upper = _bounds(operations)
    positions = sorted({*lower, *upper, *acked, *unexplained})
    latest: dict[int, float] = {}
    smallest = math.inf
    for position in reversed(positions):
        smallest = min(smallest, upper.get(position, math.inf))
        latest[position] = smallest
    findings += [
        Finding("order", position)
        for position in positions
        if lower.get(position, -math.inf) > latest[position]
    ]
    if findings:
        return VIOLATED, findings
    return _explain(operations, acked, unexplained, upper, [] if sparse else positions, latest)


def without_gaps(operations: Iterable[Operation]) -> list[Operation]:
    """Reads may pass over offsets; of a batch of unknown outcome any value may stand anywhere."""
    given: list[Operation] = []
    for one in operations:
        if one.function == "append" and one.outcome == "info":
            given += [replace(one, values=(value,)) for value in one.values]
        else:
            given.append(replace(one, filtered=one.filtered or one.function == "read"))
    return given


def _torn_reads(operations: Iterable[Operation]) -> Iterable[Finding]:
    for operation in operations:
        if operation.function != "read" or operation.outcome != "ok":
            continue
        assert operation.offset is not None
        if operation.values:
            offsets = [offset for offset, _ in operation.pairs()]
            if operation.filtered:
                good = offsets[0] >= operation.offset and all(a < b for a, b in pairwise(offsets))
            else:
                good = offsets == list(range(operation.offset, operation.offset + len(offsets)))
            if operation.end_offset is not None and offsets[-1] >= operation.end_offset:
                good = False
            if not good:
                yield Finding("torn-read", offsets[0])
        elif operation.end_offset is not None:
            assert operation.next_offset is not None
            if operation.next_offset <= operation.offset < operation.end_offset:
                yield Finding("torn-read", operation.offset)


def _backward_heads(operations: Iterable[Operation]) -> Iterable[Finding]:
    """The first offset kept only grows: no query that began after another had ended states a lower one."""
    heads = [one for one in operations if one.function == "head" and one.outcome == "ok"]
    ended = sorted(heads, key=lambda one: one.complete_ns or 0)
    highest, place = -1, 0
    for one in sorted(heads, key=lambda one: one.invoke_ns):
        while place < len(ended) and (ended[place].complete_ns or 0) < one.invoke_ns:
            highest = max(highest, ended[place].offset or 0)
            place += 1
        if (one.offset or 0) < highest:
            yield Finding("backward-head", one.offset or 0)


def _bounds(operations: Iterable[Operation]) -> tuple[dict[int, int], dict[int, int]]:
    """Per position p: the latest invocation of what cannot precede, the earliest completion of what cannot
    follow.

    ``lower[p]``: an append at p, or an observer to whom the list ended at p or before, began then; so the
    value at p and all after it were appended later. ``upper[p]``: an append at p, or an observer of p, had
    ended by then; so the value at p and all before it were appended earlier.
    """
    lower: dict[int, int] = {}
    upper: dict[int, int] = {}

    def begins(position: int, time_ns: int) -> None:
        lower[position] = max(time_ns, lower.get(position, time_ns))

    def ends(position: int, time_ns: int) -> None:
        if position >= 0:
            upper[position] = min(time_ns, upper.get(position, time_ns))

    for operation in operations:
        if operation.outcome != "ok":
            continue
        assert operation.complete_ns is not None
        for position, _ in operation.pairs():
            ends(position, operation.complete_ns)
            if operation.function == "append":
                begins(position, operation.invoke_ns)
        stated = operation.offset if operation.function == "tail" else operation.end_offset
        if stated is not None:
            begins(stated, operation.invoke_ns)
            ends(stated - 1, operation.complete_ns)
        if operation.function == "head" and operation.offset is not None:
            ends(operation.offset - 1, operation.complete_ns)
        if operation.function == "read" and not operation.values:
            assert operation.offset is not None
            assert operation.next_offset is not None
            if operation.next_offset <= operation.offset:
                begins(operation.offset, operation.invoke_ns)
    return lower, upper


def _explain(
    operations: Sequence[Operation],
    acked: dict[int, list[str]],
    unexplained: dict[int, str],
    upper: dict[int, int],
    positions: list[int],
    latest: dict[int, float],
) -> tuple[str, list[Finding]]:
    """Find appends of unknown outcome for what was seen without an acknowledgement and for what must have been."""
    attempts = [
        Attempt(one.op, index, len(one.values), value, one.invoke_ns)
        for one in operations
        if one.function == "append" and one.outcome == "info"
        for index, value in enumerate(one.values)
    ]
    last_needed = max([*upper, *acked, *unexplained], default=-1)
    holes: list[Hole] = []
    previous = -1
    for position in positions:
        if position > last_needed:
            break
        last = position - 1 if position in acked or position in unexplained else position
        if previous < last:
            holes.append(Hole(previous + 1, last, latest[position]))
        previous = position
    seen = [Seen(position, value, latest[position]) for position, value in unexplained.items()]
    findings, unsure = settle(attempts, seen, holes)
    if findings:
        return VIOLATED, findings
    return (UNDECIDED, unsure) if unsure else (LINEARIZABLE, [])
