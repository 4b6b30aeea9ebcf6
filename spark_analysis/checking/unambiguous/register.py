"""Registers to which each value was written at most once, by a write or by a comparison that held: O(n log n).

The operations of one value are its write and the reads that returned it. Where a comparison that held replaced value u
by v, v stands right behind u, so both are one *block*; a block has no inner choice but the order of reads. Let f be the
first end and s the last beginning of a block's operations. If f < s the block takes at least the time from f to s, else
all of it can happen at any one moment from s to f. The register is linearizable if and only if every block is in itself
and no two blocks exclude both orders: f_A < s_B and f_B < s_A (Gibbons and Korach).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.stays import Moment, begin_of, end_of, linearizable, violated
from spark_analysis.importing.calls import Call


@dataclass(slots=True)
class _Block:
    """Operations in the order of their values; ``ended_first`` and ``begun_last`` have f and s, None of a block without
    operations."""

    calls: list[Call]
    ended_first: Moment
    begun_last: Moment
    begin: Moment = -math.inf


def decide_register(calls: Sequence[Call], initial: Any, write: str, read: str) -> SearchResult | None:
    """Decide a register of ``write``, ``read`` and ``cas``; None if values repeat in a way that matters."""
    reads: dict[Any, list[Call]] = defaultdict(list)
    changes: list[Call] = []
    for call in calls:
        if call.function == read:
            if call.complete_ns is not None:
                reads[call.result].append(call)
        elif call.function == write or (call.function == "cas" and (call.complete_ns is None or call.result)):
            changes.append(call)
        else:
            return None  # an append, or a comparison that failed: it says what the value was not
    # Before values are counted: an attempt that had no effect makes none of them ambiguous.
    changes = _that_matter(changes, reads.keys())
    written = Counter(map(_new, changes))
    written[initial] += 1
    if max(written.values()) > 1:
        return None
    observed = {**reads, **{one.argument[0]: [one] for one in changes if one.function == "cas"}}
    for value, listed in observed.items():
        if not written[value]:
            return violated(f"{value!r:.60} was there, which nobody had written", *(one.op for one in listed))
    blocks = list(_blocks(changes, reads, initial))
    in_blocks = sum(len(one.calls) for one in blocks)
    for block in blocks:
        wrong = _wrong_within(block)
        if wrong is not None:
            return wrong
    if in_blocks < len(changes) + sum(map(len, reads.values())):
        return violated("comparisons replaced values in a circle, or one value twice", *_circle(changes))
    return _placed(blocks)


def _new(call: Call) -> Any:
    return call.argument[1] if call.function == "cas" else call.argument


def _that_matter(changes: Sequence[Call], read: Any) -> list[Call]:
    """Leave out changes of unknown outcome whose value nobody saw: they need not have happened."""
    open_ones: dict[Any, list[Call]] = defaultdict(list)
    for one in changes:
        if one.complete_ns is None:
            open_ones[_new(one)].append(one)
    needed = set(read) | {
        one.argument[0] for one in changes if one.complete_ns is not None and one.function == "cas"
    }
    waiting = [value for value in needed if value in open_ones]
    while waiting:
        for one in open_ones[waiting.pop()]:
            if one.function == "cas" and one.argument[0] not in needed:
                needed.add(one.argument[0])
                if one.argument[0] in open_ones:
                    waiting.append(one.argument[0])
    return [one for one in changes if one.complete_ns is not None or _new(one) in needed]


def _blocks(changes: Sequence[Call], reads: dict[Any, list[Call]], initial: Any) -> Iterator[_Block]:
    following = {one.argument[0]: one for one in changes if one.function == "cas"}
    starts: list[tuple[Any, list[Call]]] = [(initial, [])]
    starts += [(one.argument, [one]) for one in changes if one.function != "cas"]
    for value, listed in starts:
        is_first = not listed
        while True:
            listed += sorted(reads.get(value, ()), key=lambda one: one.invoke_ns)
            comparison = following.pop(value, None)
            if comparison is None:
                break
            listed.append(comparison)
            value = _new(comparison)
        if listed or is_first:
            ended = min((end_of(one) for one in listed), default=math.inf)
            begun = max((one.invoke_ns for one in listed), default=-math.inf)
            yield _Block(listed, -math.inf if is_first else ended, begun)


def _wrong_within(block: _Block) -> SearchResult | None:
    """A value's operations: its write, its reads in any order, the comparison that replaced it."""
    latest: Call | None = None
    value_latest: Call | None = None
    for one in block.calls:
        # Reads of one value have no order among themselves: each is held to what was before the value, and the next
        # comparison to all of them.
        changes = one.function not in ("read", "get")
        if (
            changes
            and value_latest is not None
            and (latest is None or value_latest.invoke_ns > latest.invoke_ns)
        ):
            latest = value_latest
        if latest is not None and end_of(one) < latest.invoke_ns:
            return violated(
                "the second had ended before the first began, which it must follow", latest.op, one.op
            )
        if changes:
            value_latest = None
            if latest is None or one.invoke_ns > latest.invoke_ns:
                latest = one
        elif value_latest is None or one.invoke_ns > value_latest.invoke_ns:
            value_latest = one
    return None


def _circle(changes: Sequence[Call]) -> list[int]:
    replaced = Counter(one.argument[0] for one in changes if one.function == "cas")
    twice = [one.op for one in changes if one.function == "cas" and replaced[one.argument[0]] > 1]
    return twice or [one.op for one in changes if one.function == "cas"]


def _placed(blocks: Sequence[_Block]) -> SearchResult:
    """Gives every block its place in time; returns their order, or a violation by two blocks that exclude each other.

    Blocks that take time come one after the other; each of the others happens at one moment outside of them.
    """
    taking = sorted(
        (one for one in blocks if one.ended_first < one.begun_last), key=lambda one: one.ended_first
    )
    at_once = sorted(
        (one for one in blocks if one.ended_first >= one.begun_last), key=lambda one: one.begun_last
    )
    # Two that take time exclude each other where they overlap, and in the order of their begins neighbours overlap
    # first.
    previous: _Block | None = None
    for one in taking:
        if previous is not None and one.ended_first < previous.begun_last:
            return _exclude(previous, one)
        one.begin, previous = one.ended_first, one
    # The others may take any of their moments, so each takes its first one; where the block that takes time and ends
    # next behind it covers that, the first moment behind that block.
    place = 0
    for one in at_once:
        while place < len(taking) and taking[place].begun_last <= one.begun_last:
            place += 1
        one.begin = one.begun_last
        if place < len(taking) and taking[place].ended_first < one.begun_last:
            one.begin = taking[place].begun_last
            if one.begin > one.ended_first:
                return _exclude(taking[place], one)
    order = sorted([*at_once, *taking], key=lambda one: (one.begin, one.ended_first < one.begun_last))
    first = next(one for one in blocks if one.ended_first == -math.inf)
    return linearizable(
        [op for one in (first, *(one for one in order if one is not first)) for op in _ops(one)]
    )


def _ops(block: _Block) -> list[int]:
    return [one.op for one in block.calls]


def _exclude(one: _Block, other: _Block) -> SearchResult:
    calls = [
        pick(block.calls, key=key)
        for block in (one, other)
        if block.calls
        for pick, key in ((min, end_of), (max, begin_of))
    ]
    return violated(
        "two values each had an operation that ended before one of the other value began",
        *dict.fromkeys(c.op for c in calls),
    )
