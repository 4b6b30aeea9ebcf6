"""An order of all that happened to the queues of a history that holds, step by step: the proof that it does.

docs/checker.md, "One queue in O(n log n)", says why there is one: offset p is filled at T(p), the greatest Lower(q) of
all q up to p, and an observer looks at the first moment in its interval at which the list is long enough. An append of
unknown outcome that had effect is placed likewise: its invocation is a lower bound.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from spark_analysis.checking.queues.attempts import Attempt, Placement
from spark_analysis.checking.queues.knowledge import Operation, sweep
from spark_analysis.checking.queues.reference import (
    Swept,
    placed_attempts,
    swept_and_tried,
)
from spark_analysis.checking.queues.unknown_appends import place

UNSEEN: Final = "unseen"
_BEFORE_ALL: Final = -(1 << 62)
# A moment; of what happens at one moment, the length of the list, observers before the append, first offsets kept in
# their own order.
_Place = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation takes effect, or one value of an append.

    ``offset`` is where an append's ``value`` stands, where a read or poll began or found its first value, what a tail
    or a head stated, or a consumer group's position. ``op`` None: from ``offset`` up to the next step of the queue
    stands what no client sees (model sparse-log).
    """

    op: int | None
    function: str
    key: str
    offset: int | None
    value: str | None
    moment_ns: int


def queue_steps(
    queues: Mapping[str, Sequence[Operation]], *, sparse: bool = False
) -> list[list[Step]] | None:
    """The steps of each queue, in order, for queues without a finding and without a place that is undecided.

    None if the search for the appends of unknown outcome that had effect takes too long.
    """
    queues, swept, tried = swept_and_tried(queues, sparse=sparse)
    attempts, _ = placed_attempts(tried, swept)
    homeless = {one.op for key, listed in tried.items() if key.endswith("/") for one in listed}
    in_several = {
        op
        for op, homes in Counter(
            op for listed in attempts.values() for op in homeless & {one.op for one in listed}
        ).items()
        if homes > 1
    }
    invoked = {one.op: one.invoke_ns for listed in queues.values() for one in listed}
    values = {(one.op, one.index): str(one.value) for listed in tried.values() for one in listed}
    used: set[int] = set()
    steps = []
    for key, one in swept.items():
        mine = [each for each in attempts.get(key, ()) if each.op not in used]
        # Appends that other queues may need are left to them where possible, so the queue's own are taken first.
        sure = [each for each in mine if each.op not in in_several]
        placed = place(sure, one.seen, one.holes) if len(sure) < len(mine) else None
        if placed is None:
            placed = place(_own_first(mine, one, in_several), one.seen, one.holes)
        if placed is None:
            return None
        used |= homeless & {op for op, _ in placed.values()}
        steps.append(_steps(key, queues[key], one, placed, invoked, values, sparse=sparse))
    return steps


def _own_first(mine: Sequence[Attempt], queue: Swept, in_several: Set[int]) -> list[Attempt]:
    """The attempts, such that :func:`place`, which takes the latest that fits, takes those of several queues last.

    They must fit wherever their value stands, then. Where they do not, or might fill a hole, no other queue needs them.
    """
    earliest = {one.value: one.deadline_ns for one in reversed(queue.seen)}
    return [
        replace(each, invoke_ns=_BEFORE_ALL)
        if each.op in in_several and not queue.holes and each.invoke_ns <= earliest.get(each.value, math.inf)
        else each
        for each in mine
    ]


def _steps(
    key: str,
    operations: Sequence[Operation],
    swept: Swept,
    placed: Placement,
    invoked: Mapping[int, int],
    values: Mapping[tuple[int, int], str],
    *,
    sparse: bool,
) -> list[Step]:
    acknowledged = {
        offset: one.op
        for one in operations
        if one.function == "append" and one.outcome == "ok"
        for offset, _ in one.pairs()
    }
    filled: list[int] = []  # the offsets that must be filled, and the moment of each
    moments: list[int] = []
    events: list[tuple[_Place, Step]] = []
    moment = min((one.invoke_ns for one in operations), default=0)
    needed = {at for at, _, latest, _ in sweep(swept.positions) if latest is not None}
    for at in sorted({*needed, *placed}):
        known = swept.positions.get(at)
        if known is not None and known.lower is not None:
            moment = max(moment, known.lower >> 2)
        op = acknowledged.get(at)
        if op is None and at in placed:
            op = placed[at][0]
            moment = max(moment, invoked[op])
        length = filled[-1] + 1 if filled else 0
        if op is None or at > length:
            # Without gaps allowed every offset up to the last needed one has its append, as nothing was found wrong.
            assert sparse, (key, at)
            after = at + 1 if op is None else at
            events.append(((moment, length, 1, 0), Step(None, UNSEEN, key, after, None, moment)))
        if op is not None:
            value = known.value if known is not None and known.values else values[op, placed[at][1]]
            events.append(((moment, at, 1, 0), Step(op, "append", key, at, value, moment)))
        filled.append(at)
        moments.append(moment)
    passed = _BEFORE_ALL  # since when an earlier first offset would be wrong
    heads = sorted(
        (one for one in operations if one.function == "head"),
        key=lambda one: (one.offset or 0, one.invoke_ns),
    )
    for one in [*(one for one in operations if one.function in ("read", "poll", "tail")), *heads]:
        if one.outcome != "ok":
            continue
        least = _least_length(one)
        moment = one.invoke_ns
        if least:
            moment = max(moment, moments[bisect_left(filled, least - 1)])
        head = (one.offset or 0) if one.function == "head" else 0
        if one.function == "head":
            moment = max(moment, passed)
            passed = moment
        before = bisect_left(moments, moment)
        length = max(least, filled[before - 1] + 1 if before else 0)
        offset = one.offset if one.first_offset is None else one.first_offset
        events.append(((moment, length, 0, head), Step(one.op, one.function, key, offset, None, moment)))
    events.sort(key=lambda event: event[0])
    return [step for _, step in events]


def _least_length(one: Operation) -> int:
    """The least length of the list at which an observer can have had its answer."""
    stated = one.end_offset if one.function == "read" else one.offset if one.function != "poll" else None
    pairs = one.pairs()
    return max(stated or 0, pairs[-1][0] + 1 if pairs else 0)
