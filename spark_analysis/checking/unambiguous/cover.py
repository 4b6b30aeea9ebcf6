"""The moments at which a container is empty in no order: the union of open intervals, kept as disjoint ones.

Two intervals that only touch stay apart: at the moment between them one value can leave before the other comes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.stays import Empty, Moment, Stay, violated


class Cover:
    """Open intervals (begin, end), begin < end, of which those that overlap are one."""

    def __init__(self, intervals: Iterable[tuple[Moment, Moment]] = ()) -> None:
        self._begins: list[Moment] = []
        self._ends: list[Moment] = []
        for begin, end in sorted(intervals):
            if self._ends and begin < self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)

    def first_free(self, moment: Moment) -> Moment:
        """The first moment at or after ``moment`` that is inside of none; infinite if there is none."""
        place = bisect_left(self._begins, moment) - 1
        return self._ends[place] if place >= 0 and self._ends[place] > moment else moment

    def add(self, begin: Moment, end: Moment) -> None:
        # All intervals that overlap it; one that only touches it at an end does not.
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]


def moments_of_empties(
    stays: Sequence[tuple[Moment, Moment, Stay]], empties: Sequence[Empty]
) -> list[Moment] | SearchResult:
    """For each take that found nothing a moment at which none of ``stays``, each with the open interval in which it is
    inside for certain, is inside; the result if one of them has none."""
    cover = Cover((begin, end) for begin, end, _ in stays if begin < end)
    moments = []
    for one in empties:
        moment = cover.first_free(one.begin)
        if moment > one.end:
            ops = [op for stay in chain(stays, one.begin, one.end) for op in stay.ops]
            return violated(
                "it was found empty, although at every moment of the call something was inside", one.op, *ops
            )
        moments.append(moment)
    return moments


def chain(stays: Sequence[tuple[Moment, Moment, Stay]], begin: Moment, end: Moment) -> list[Stay]:
    """The fewest stays that cover every moment of [begin, end] with the insides of their intervals."""
    near = sorted((one for one in stays if one[0] < end and one[1] > begin), key=lambda one: one[0])
    chosen: list[Stay] = []
    reach, best, place = begin, None, 0
    is_over = False
    while not is_over:
        # The interval that goes furthest of those that have the moment `reach` inside.
        while place < len(near) and near[place][0] < reach:
            if best is None or near[place][1] > best[1]:
                best = near[place]
            place += 1
        if best is None or best[1] <= reach:
            break
        chosen.append(best[2])
        reach, is_over = best[1], best[1] > end
    return chosen
