"""FIFO queues in which every value that was taken out had been put in once: decided in O(n log n).

Value v comes before value w in the queue if its put precedes w's, or its take precedes w's. The queue is linearizable
if and only if no two values come before each other, and at a moment of every take that found nothing no core is going
on (docs/checker.md). Takes of unknown outcome serve the values that nobody took, in the order in which their puts
ended: whatever other choice there is, this one is at least as good.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import accumulate

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.cover import moments_of_empties
from spark_analysis.checking.unambiguous.stays import Empty, Moment, Stay, linearizable, stays_of, violated
from spark_analysis.importing.calls import Call


def decide_fifo(calls: Sequence[Call]) -> SearchResult | None:
    """Decide a queue of ``enqueue`` and ``dequeue``; None if values repeat."""
    stays = stays_of(calls, "enqueue", "dequeue")
    if stays is None or isinstance(stays, SearchResult):
        return stays
    left = sorted(stays.left, key=lambda one: one.put_until)
    served = [one.taken_by(op, begin) for one, (begin, op) in zip(left, stays.spare, strict=False)]
    values = [*stays.taken, *served, *left[len(served) :]]
    wrong = _two_before_each_other(values)
    if wrong is not None:
        return _with_others_left(wrong, left)
    moments = moments_of_empties([(one.put_until, one.take_from, one) for one in values], stays.empties)
    if isinstance(moments, SearchResult):
        return _with_others_left(moments, left)
    return linearizable(_witness(list(_in_order(values)), stays.empties, moments))


def _two_before_each_other(values: Sequence[Stay]) -> SearchResult | None:
    """Returns a violation if a value was enqueued after another's enqueue had ended, and its dequeue had ended before
    the other's began; None if there is no such pair.

    Of all values that were enqueued behind another one, the one whose dequeue ended first decides.
    """
    by_put = sorted(values, key=lambda one: -one.put_from)
    first_taken = list(accumulate(by_put, _taken_first))
    place = -1
    for one in sorted(values, key=lambda one: -one.put_until):
        while place + 1 < len(by_put) and by_put[place + 1].put_from > one.put_until:
            place += 1
        if place >= 0 and first_taken[place].take_until < one.take_from:
            later = first_taken[place]
            when = "later" if one.take_until < math.inf else "not in time"
            return violated(
                f"{one.value!r:.60} had been enqueued before {later.value!r:.60}, and was dequeued {when}",
                *(one.put_op, later.put_op, *later.ops[1:], *one.ops[1:]),
            )
    return None


def _taken_first(one: Stay, other: Stay) -> Stay:
    return other if other.take_until < one.take_until else one


def _with_others_left(wrong: SearchResult, left: Sequence[Stay]) -> SearchResult:
    """Adds to a violation the enqueues of all values of ``left`` before the last one that it names.

    Nobody was seen to take these values: where one of them had to leave, those before it had to leave first.
    """
    last = max((place for place, one in enumerate(left) if one.put_op in wrong.stuck), default=-1)
    return replace(
        wrong, stuck=tuple(dict.fromkeys([*wrong.stuck, *(one.put_op for one in left[: last + 1])]))
    )


def _in_order(values: Sequence[Stay]) -> Iterator[Stay]:
    """Yields the values in the order in which the queue has them. Each follows all that must come before it; where
    several could come next, the one whose put ended first does."""
    numbers = range(len(values))
    by_put = sorted(numbers, key=lambda one: values[one].put_from)
    by_take = sorted(numbers, key=lambda one: values[one].take_from)
    by_put_end = sorted(numbers, key=lambda one: values[one].put_until)
    by_take_end = sorted(numbers, key=lambda one: values[one].take_until)
    is_placed, ready = bytearray(len(values)), bytearray(len(values))
    candidates: list[tuple[Moment, int]] = []
    puts = takes = first_put = first_take = 0
    # A value may come next once it has come in both orders: of no value that is left the put was over before its own
    # began, or the take. Each pointer only moves on, so that the whole takes no longer than the sorting.
    for _ in numbers:
        while is_placed[by_put_end[first_put]]:
            first_put += 1
        while is_placed[by_take_end[first_take]]:
            first_take += 1
        put_until = values[by_put_end[first_put]].put_until
        take_until = values[by_take_end[first_take]].take_until
        come = []
        while puts < len(values) and values[by_put[puts]].put_from <= put_until:
            come.append(by_put[puts])
            puts += 1
        while takes < len(values) and values[by_take[takes]].take_from <= take_until:
            come.append(by_take[takes])
            takes += 1
        for one in come:
            ready[one] += 1
            if ready[one] == 2:
                heappush(candidates, (values[one].put_until, one))
        _, chosen = heappop(candidates)
        is_placed[chosen] = 1
        yield values[chosen]


def _witness(order: Sequence[Stay], empties: Sequence[Empty], moments: Sequence[Moment]) -> list[int]:
    """An order of the operations, from the order of the values and the moments at which the queue is empty.

    Each put has the first moment that is neither before its invocation nor before the put of the value before it, and
    that is behind every empty moment that it can be behind; each take likewise. At an empty moment those values come
    first that must be out by then, then the takes that found nothing, then the others.
    """
    is_empty = set(moments)
    sorted_moments = sorted(is_empty)
    events: list[tuple[Moment, int, int, int, int]] = [
        (moment, 1, 0, 0, one.op) for one, moment in zip(empties, moments, strict=True)
    ]
    put_at = take_at = -float("inf")
    by_end = sorted(range(len(order)), key=lambda place: order[place].put_until)
    behind: dict[int, Moment] = {}
    passed = -1
    for place in by_end:
        while passed + 1 < len(sorted_moments) and sorted_moments[passed + 1] <= order[place].put_until:
            passed += 1
        behind[place] = sorted_moments[passed] if passed >= 0 else put_at
    for place, one in enumerate(order):
        put_at = max(put_at, one.put_from, behind[place])
        events.append((put_at, _side(one, put_at, is_empty), 0, place, one.put_op))
        if one.take_op is not None:
            take_at = max(take_at, one.take_from, put_at)
            events.append((take_at, _side(one, take_at, is_empty), 1, place, one.take_op))
    events.sort()
    return [op for *_, op in events]


def _side(one: Stay, moment: Moment, empty: set[Moment]) -> int:
    # A value that can be put in then comes behind the empty moment whole; another one must be out by then.
    return 2 if moment in empty and one.put_until >= moment else 0
