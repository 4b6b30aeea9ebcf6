"""Linearizability of one queue by trying everything: slow, obvious, and independent of the checker's reasoning."""

from __future__ import annotations

from collections.abc import Sequence

from spark_analysis.reference import Operation

State = tuple[str, ...]


def is_linearizable(operations: Sequence[Operation]) -> bool:
    """Whether some order of effects explains every operation.

    A step is one value of an append or one observation. A step may come next if every operation that had completed
    before its operation began has taken all its steps. Between two steps of one append no other append takes a step.
    """
    relevant = [
        one
        for one in operations
        if one.outcome == "ok" or (one.function == "append" and one.outcome == "info")
    ]
    lengths = [len(one.values) if one.function == "append" else 1 for one in relevant]
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
        """``last``:

        the append that took the latest append step; others must leave it alone only if it is unfinished.
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
        for index, one in enumerate(relevant):
            if done[index] == lengths[index] or must_wait(index, done):
                continue
            after = (*done[:index], done[index] + 1, *done[index + 1 :])
            if one.function == "append":
                if done[index] and last != index:
                    continue  # another append came between its values
                if one.outcome == "ok":
                    assert one.first_offset is not None
                    if len(state) != one.first_offset + done[index]:
                        continue
                if search((*state, one.values[done[index]]), after, index):
                    return True
            elif _agrees(one, state) and search(state, after, last):
                return True
        return False

    return search((), tuple(0 for _ in relevant), None)


def _agrees(one: Operation, state: State) -> bool:
    if one.function == "tail":
        return one.offset == len(state)
    if one.function == "poll":
        return all(offset < len(state) and state[offset] == value for offset, value in one.pairs())
    assert one.function == "read"
    assert one.offset is not None
    assert one.next_offset is not None
    if one.end_offset is not None and one.end_offset != len(state):
        return False
    if not one.values:
        return one.next_offset > one.offset or len(state) <= one.offset
    pairs = one.pairs()
    offsets = [offset for offset, _ in pairs]
    if one.filtered:
        if offsets != sorted(set(offsets)) or offsets[0] < one.offset:
            return False
    elif offsets != list(range(one.offset, one.offset + len(offsets))):
        return False
    return all(offset < len(state) and state[offset] == value for offset, value in pairs)
