"""Linearizability of one queue by trying everything: slow, obvious, and independent of the checker's reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_analysis.checking.queues.knowledge import Operation

# The values, None for what no client sees; and the first offset kept, as far as anybody was told.
State = tuple[tuple[str | None, ...], int]


def is_linearizable(operations: Sequence[Operation], *, sparse: bool = False) -> bool:
    """Returns whether some order of effects explains every operation.

    A step is one value of an append or one observation. A step may come next if every operation that had completed
    before its operation began has taken all its steps. Between two steps of one append no other append takes a step.
    ``sparse``: at any time something may be appended that no client sees, and reads pass over it.
    """
    relevant = [
        part
        for one in operations
        for part in _parts(one, sparse=sparse)
        if one.outcome == "ok" or (one.function == "append" and one.outcome == "info")
    ]
    lengths = [len(one.values) if one.function == "append" else 1 for one in relevant]
    longest = max((place + 1 for one in relevant for place in _places(one)), default=0)
    seen: set[tuple[State, tuple[int, ...], int | None]] = set()

    def must_wait(index: int, done: tuple[int, ...]) -> bool:
        return any(
            other.complete_ns is not None
            and other.outcome == "ok"
            and other.complete_ns < relevant[index].invoke_ns
            and done[place] < lengths[place]
            for place, other in enumerate(relevant)
        )

    def search(state: State, done: tuple[int, ...], last: int | None) -> bool:
        """``last``: the append that took the latest append step.

        Others must leave it alone only if it is unfinished.
        """
        if all(
            count == length
            for count, length, one in zip(done, lengths, relevant, strict=True)
            if one.outcome == "ok"
        ):
            return True
        key = (state, done, last)
        if key in seen:
            return False
        seen.add(key)
        log, head = state
        if sparse and len(log) < longest and search(((*log, None), head), done, None):
            return True
        for index, one in enumerate(relevant):
            if done[index] == lengths[index] or must_wait(index, done):
                continue
            after = (*done[:index], done[index] + 1, *done[index + 1 :])
            if one.function == "append":
                if done[index] and last != index:
                    continue  # another append came between its values
                if one.outcome == "ok":
                    assert one.first_offset is not None
                    if len(log) != one.first_offset + done[index]:
                        continue
                if search(((*log, one.values[done[index]]), head), after, index):
                    return True
            elif one.function == "head":
                assert one.offset is not None
                if head <= one.offset <= len(log) and search((log, one.offset), after, last):
                    return True
            elif _agrees(one, log, sparse=sparse) and search(state, after, last):
                return True
        return False

    return search(((), 0), tuple(0 for _ in relevant), None)


def _parts(one: Operation, *, sparse: bool) -> list[Operation]:
    """A transaction's messages are appends of one value each: others may stand between them.

    In a sparse queue so are the values of an append that nobody answered.
    """
    if one.function == "append" and one.offsets is not None:
        return [
            replace(one, first_offset=place, values=(value,), offsets=None) for place, value in one.pairs()
        ]
    if one.function == "append" and one.outcome == "info" and sparse:
        return [replace(one, values=(value,)) for value in one.values]
    return [one]


def _places(one: Operation) -> list[int]:
    """Offsets that the operation says are taken."""
    stated = [
        place - 1
        for place in (one.end_offset, one.offset if one.function in ("tail", "head") else None)
        if place
    ]
    return [*stated, *(place for place, _ in one.pairs())]


def _agrees(one: Operation, log: Sequence[str | None], *, sparse: bool) -> bool:
    if one.function == "tail":
        return one.offset == len(log)
    if one.function == "poll":
        return all(offset < len(log) and log[offset] == value for offset, value in one.pairs())
    assert one.function == "read"
    assert one.offset is not None
    assert one.next_offset is not None
    if one.end_offset is not None and one.end_offset != len(log):
        return False
    if not one.values:
        return one.next_offset > one.offset or len(log) <= one.offset
    pairs = one.pairs()
    offsets = [offset for offset, _ in pairs]
    if one.filtered or sparse:
        if offsets != sorted(set(offsets)) or offsets[0] < one.offset:
            return False
    elif offsets != list(range(one.offset, one.offset + len(offsets))):
        return False
    return all(offset < len(log) and log[offset] == value for offset, value in pairs)
