"""Priority queues, smallest first, in which every value that was taken out had been put in once: O(n log n).

A take needs a moment at which nothing smaller is inside. Values are gone through from the smallest on: each is put in
as late and taken out as early as it can be, so that it stands in the way of as little as possible (docs/checker.md).
"""

import math
from collections.abc import Sequence

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.choices import NEVER, Deadline, Deadlines, choose
from spark_analysis.checking.unambiguous.cover import Cover, chain, moments_of_empties
from spark_analysis.checking.unambiguous.stays import (
    Empty,
    Moment,
    Stay,
    Stays,
    linearizable,
    stays_of,
    violated,
)
from spark_analysis.importing.calls import Call
from spark_analysis.importing.frozen import order


def decide_priority_queue(calls: Sequence[Call]) -> SearchResult | None:
    """Decide a queue of ``enqueue`` and ``dequeue``, which takes the smallest value; None if values repeat, or if it
    depends on what takes of unknown outcome took."""
    stays = stays_of(calls, "enqueue", "dequeue")
    if stays is None or isinstance(stays, SearchResult):
        return stays
    return choose(stays, _deadlines, lambda values: _decide(values, stays.empties))


def _deadlines(stays: Stays) -> list[Deadline]:
    """A value that is certainly inside must have gone when a larger one is taken."""
    largest_first = sorted(stays.taken, key=lambda one: order(one.value), reverse=True)
    found = [NEVER] * len(stays.left)
    deadlines, place = Deadlines(stays), 0
    for number in sorted(range(len(found)), key=lambda one: order(stays.left[one].value), reverse=True):
        one = stays.left[number]
        while place < len(largest_first) and order(largest_first[place].value) > order(one.value):
            deadlines.add(largest_first[place])
            place += 1
        found[number] = deadlines.behind(one.put_until)
    return found


def _decide(values: Sequence[Stay], empties: Sequence[Empty]) -> SearchResult:
    cover = Cover()
    inside: list[tuple[Moment, Moment, Stay]] = []
    events: list[tuple[Moment, int, int, int, int]] = []
    for place, one in enumerate(sorted(values, key=lambda one: order(one.value))):
        take_at = math.inf if one.take_op is None else cover.first_free(one.take_from)
        if take_at > one.take_until:
            return violated(
                f"{one.value!r:.60} was dequeued, although at every moment of the call something smaller was inside",
                *_chains(inside, one, one.take_until),
            )
        put_at = min(one.put_until, take_at)
        if put_at < take_at:
            cover.add(put_at, take_at)
            inside.append((put_at, take_at, one))
            events.append((put_at, 2, place, 0, one.put_op))
        else:
            events.append((put_at, 0, place, 0, one.put_op))
        if one.take_op is not None and take_at < math.inf:  # else a take of unknown outcome took nothing
            events.append((take_at, 0, place, 1, one.take_op))
    moments = moments_of_empties(inside, empties)
    if isinstance(moments, SearchResult):
        return moments
    # At one moment: what leaves, the smallest first; those that find nothing; what comes to stay.
    events += ((moment, 1, 0, 0, one.op) for one, moment in zip(empties, moments, strict=True))
    return linearizable([op for *_, op in sorted(events)])


def _chains(inside: Sequence[tuple[Moment, Moment, Stay]], last: Stay, until: Moment) -> list[int]:
    """A value that could not leave before ``until``, what kept it, what kept that, and so on."""
    left = {one.put_op: moment for _, moment, one in inside}
    ops = dict.fromkeys(last.ops[::-1])
    waiting = [(last, until)]
    while waiting:
        one, moment = waiting.pop()
        smaller = [entry for entry in inside if order(entry[2].value) < order(one.value)]
        for other in chain(smaller, one.take_from, moment):
            if other.put_op not in ops:
                ops.update(dict.fromkeys(other.ops))
                if other.take_op is not None:
                    waiting.append((other, left[other.put_op]))
    return list(ops)
