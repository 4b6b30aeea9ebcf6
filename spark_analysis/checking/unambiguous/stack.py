"""Stacks in which every value that was taken out had been put in once: decided in O(n log² n).

Where at some moment no core is going on, the stack may as well be empty then, and what is before and what is behind are
questions of their own. Where the cores of a part leave no such moment, one value lies below all others from the first
end of a put to the last beginning of a take: any that can is as good as any other, and what is above it is again a
question of its own (docs/checker.md).
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, merge
from itertools import pairwise

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.choices import NEVER, Deadline, Deadlines, choose
from spark_analysis.checking.unambiguous.cover import moments_of_empties
from spark_analysis.checking.unambiguous.depths import Depths
from spark_analysis.checking.unambiguous.stays import (
    Empty,
    LinearizationPoint,
    Moment,
    Stay,
    Stays,
    linearizable,
    stays_of,
    violated,
)
from spark_analysis.importing.calls import Call


def decide_stack(calls: Sequence[Call]) -> SearchResult | None:
    """Decide a stack of ``push`` and ``pop``; None if values repeat, or if it depends on what pops of unknown outcome
    took."""
    stays = stays_of(calls, "push", "pop")
    if stays is None or isinstance(stays, SearchResult):
        return stays
    return choose(stays, _deadlines, lambda values: _decide(values, stays.empties))


def _deadlines(stays: Stays) -> list[Deadline]:
    """A value is above every other whose core has all of its put, and must have gone when that one is popped."""
    by_put_end = sorted(stays.taken, key=lambda one: one.put_until)
    found = [NEVER] * len(stays.left)
    deadlines, place = Deadlines(stays), 0
    for number in sorted(range(len(found)), key=lambda one: stays.left[one].put_from):
        one = stays.left[number]
        while place < len(by_put_end) and by_put_end[place].put_until < one.put_from:
            deadlines.add(by_put_end[place])
            place += 1
        found[number] = deadlines.behind(one.put_until)
    return found


def _decide(values: Sequence[Stay], empties: Sequence[Empty]) -> SearchResult:
    moments = moments_of_empties([(one.put_until, one.take_from, one) for one in values], empties)
    if isinstance(moments, SearchResult):
        return moments
    nested = _Nesting([one for one in values if one.has_core]).events()
    if isinstance(nested, SearchResult):
        return nested
    # A value that need never be inside comes and goes at one moment, whatever is below it.
    passing = [
        (one.take_from, op)
        for one in values
        if not one.has_core
        for op in one.ops
        if one.take_from < math.inf
    ]
    passing.sort(key=lambda event: event[0])
    found = sorted((moment, one.op) for one, moment in zip(empties, moments, strict=True))
    together = merge(_with_empties(nested, found), passing, key=lambda event: event[0])
    return linearizable([op for _, op in together])


def _with_empties(
    nested: Sequence[tuple[Moment, int, int]], empties: Sequence[LinearizationPoint]
) -> Iterator[LinearizationPoint]:
    """Put the takes that found nothing between the parts: as early as they can be where nothing is inside."""
    depth, place = 0, 0
    for moment, op, change in nested:
        while depth == 0 and place < len(empties) and empties[place][0] <= moment:
            yield empties[place]
            place += 1
        depth += change
        yield moment, op
    yield from empties[place:]


@dataclass(slots=True)
class _Part:
    """The cores at [first, last) in the order of their beginnings which are left, all inside [begin, end] and without a
    moment between that is inside of none. Of their values ``low`` can have been put in by ``begin``, those taken out
    latest first; ``high`` not yet, those put in first first. Both may have values that are of other parts by now."""

    first: int
    last: int
    begin: int
    end: int
    high: list[tuple[Moment, int]]
    low: list[tuple[Moment, int]]


class _Nesting:
    """The order of values in the stack: which of them lie below which.

    Moments are counted in places among all ends of cores.
    """

    def __init__(self, values: Sequence[Stay]) -> None:
        self.values = sorted(values, key=lambda one: one.put_until)
        self.moments = sorted({end for one in values for end in (one.put_until, one.take_from)})
        number = {moment: place for place, moment in enumerate(self.moments)}
        self.begins = [number[one.put_until] for one in self.values]
        self.ends = [number[one.take_from] for one in self.values]
        self.depths = Depths(len(self.moments), zip(self.begins, self.ends, strict=True))
        self.is_left = bytearray(b"\1" * len(self.values))

    def events(self) -> list[tuple[Moment, int, int]] | SearchResult:
        """Puts and takes in an order, each with its moment and 1 or -1; or why there is none."""
        events: list[tuple[Moment, int, int]] = []
        if not self.values:
            return events
        high = [(one.put_from, place) for place, one in enumerate(self.values)]
        heapify(high)
        whole = _Part(0, len(self.values), 0, len(self.moments) - 1, high, [])
        waiting: list[_Part | tuple[Moment, int, int]] = list(reversed(self._split(whole)))
        while waiting:
            part = waiting.pop()
            if not isinstance(part, _Part):
                events.append(part)
                continue
            chosen = self._lowest(part)
            if chosen is None:
                return self._without_lowest(part)
            value = self.values[chosen]
            # It lies below everything that is left of the part. Without it, the part may fall into pieces.
            self.is_left[chosen] = 0
            self.depths.remove(self.begins[chosen], self.ends[chosen])
            events.append((self.moments[part.begin], value.put_op, 1))
            if value.take_op is not None and self.moments[part.end] < math.inf:
                waiting.append((self.moments[part.end], value.take_op, -1))
            waiting += reversed(self._split(part))
        return events

    def _lowest(self, part: _Part) -> int | None:
        """A value that can lie below all others of the part."""
        begin, end = self.moments[part.begin], self.moments[part.end]
        while part.high and part.high[0][0] <= begin:
            _, place = heappop(part.high)
            if self._is_in(part, place):
                heappush(part.low, (-self.values[place].take_until, place))
        # The heaps are handed on whole: what belongs to other parts by now is dropped when it comes up.
        while part.low and not self._is_in(part, part.low[0][1]):
            heappop(part.low)
        return part.low[0][1] if part.low and -part.low[0][0] >= end else None

    def _is_in(self, part: _Part, place: int) -> bool:
        return part.first <= place < part.last and bool(self.is_left[place])

    def _split(self, part: _Part) -> list[_Part]:
        """Cut what is left of a part at the moments that are inside of no core; the largest piece keeps its heaps."""
        cuts = [part.begin, *self.depths.free_between(part.begin, part.end), part.end]
        ranges = []
        first = part.first
        for begin, end in pairwise(cuts):
            last = bisect_left(self.begins, end, first, part.last)
            if self.is_left.find(1, first, last) >= 0:
                ranges.append((first, last, begin, end))
            first = last
        # So a value comes into new heaps only with a part that is at most half as large as the one before: log n times.
        largest = max(ranges, key=lambda one: one[1] - one[0], default=None)
        pieces = []
        for one in ranges:
            if one is largest:
                pieces.append(_Part(*one, part.high, part.low))
                continue
            high = [
                (self.values[place].put_from, place) for place in range(one[0], one[1]) if self.is_left[place]
            ]
            heapify(high)
            pieces.append(_Part(*one, high, []))
        return pieces

    def _without_lowest(self, part: _Part) -> SearchResult:
        left = [self.values[place] for place in range(part.first, part.last) if self.is_left[place]]
        first, last = left[0], max(left, key=lambda one: one.take_from)
        ops = dict.fromkeys(op for one in (first, last, *left) for op in one.ops)
        return violated(
            f"the {len(left)} values that were inside one after another, from {first.value!r:.60} to "
            f"{last.value!r:.60}, leave no moment at which the stack was empty, and none can lie below all others",
            *ops,
        )
