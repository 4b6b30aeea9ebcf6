"""The values that takes of unknown outcome took, where the kind of container leaves a choice that matters.

Each may have taken one of the values that nobody was seen to take, or nothing. Some of these values must have gone: by
a *deadline*, the latest moment at which something happened that cannot happen above or behind them. A take serves a
value only if it was invoked by the deadline. So the values that must have gone are served in the order of their
deadlines, which by Hall's theorem finds a take for each if there is any way to; if there is none, no order exists.

Which of the fitting takes serves which value is a choice. Tried are some that are best in most histories, and one that
has an order proves the history right. It is proved wrong if there is no order even where the first of all these takes
serves every value. Between the two the answer is left to the search.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from spark_analysis.checking.search import SearchResult
from spark_analysis.checking.unambiguous.stays import Empty, Moment, Stay, Stays, violated
from spark_analysis.checking.verdict import LINEARIZABLE, VIOLATED

Judge = Callable[[Sequence[Stay]], SearchResult]
Deadline = tuple[Moment, tuple[int, ...]]
"""The latest moment at which a value must have gone, infinite if it may have stayed, and the operations that say so."""
NEVER: Final[Deadline] = (math.inf, ())
Pairs = dict[int, tuple[int, int]]
"""The take, as (invocation, op), that serves each value, by its number."""


def choose(stays: Stays, deadlines: Callable[[Stays], list[Deadline]], judge: Judge) -> SearchResult | None:
    """The answer for the best choice; None if it depends on a choice that was not tried.

    ``deadlines`` gives one for each of the values left.
    """
    if not stays.left or not stays.spare:
        return judge([*stays.taken, *stays.left])
    # Letting the first take serve all values allows whatever any choice allows: what is wrong even then is wrong.
    begin, op = stays.spare[0]
    ideal = judge([*stays.taken, *(one.taken_by(op, begin) for one in stays.left)])
    if ideal.verdict == VIOLATED:
        return ideal
    due = deadlines(stays)
    in_order = sorted((number for number in range(len(due)) if due[number] < NEVER), key=due.__getitem__)
    # Hall's theorem: as many takes must have been invoked by a deadline as values must have gone by it.
    for place, number in enumerate(in_order):
        if place >= len(stays.spare) or stays.spare[place][0] > due[number][0]:
            return violated(
                f"{place + 1} values that nobody was seen to take must have gone, and no more than {place} takes of "
                "unknown outcome were invoked in time",
                *dict.fromkeys(
                    op for one in in_order[place::-1] for op in (stays.left[one].put_op, *due[one][1])
                ),
            )
    for pairs in _choices(stays, due, in_order):
        served = (
            one.taken_by(pairs[number][1], pairs[number][0]) if number in pairs else one
            for number, one in enumerate(stays.left)
        )
        found = judge([*stays.taken, *served])
        if found.verdict == LINEARIZABLE:
            return found
    return None


def _choices(stays: Stays, due: Sequence[Deadline], in_order: Sequence[int]) -> Iterator[Pairs]:
    """The values that must have gone are served first; all others by what is left, or not at all."""
    others = sorted(set(range(len(due))).difference(in_order), key=lambda one: -stays.left[one].put_until)
    tried: list[Pairs] = []
    for early in (False, True):
        for rest in ((), others):
            free = list(stays.spare)
            pairs: Pairs = {}
            for number in (*in_order, *rest):
                if not free:
                    break
                put_until = stays.left[number].put_until
                # A take that was invoked before the put had ended: the value need never be inside at all. The last of
                # them, as earlier ones serve more values. Without one, the first that comes behind.
                place = 0 if early else max(0, bisect_right(free, (put_until, math.inf)) - 1)
                pairs[number] = free.pop(place)
            if pairs not in tried:
                tried.append(pairs)
                yield pairs


class Deadlines:
    """The least end among the known takes that were invoked behind a moment, as takes are added."""

    def __init__(self, stays: Stays) -> None:
        self._begins = sorted({one.take_from for one in stays.taken})
        self._least = [NEVER] * (len(self._begins) + 1)
        # A take that found nothing needs all that was certainly put in before it began to have gone by its end.
        self._empties = sorted(stays.empties, key=_begin)
        self._by_empty = [NEVER] * (len(self._empties) + 1)
        for place in range(len(self._empties) - 1, -1, -1):
            one = self._empties[place]
            self._by_empty[place] = min(self._by_empty[place + 1], (one.end, (one.op,)))

    def add(self, one: Stay) -> None:
        place = len(self._begins) - bisect_left(self._begins, one.take_from)
        while place < len(self._least):
            self._least[place] = min(self._least[place], (one.take_until, one.ops))
            place += place & -place

    def behind(self, moment: Moment) -> Deadline:
        """The deadline of a value whose put had ended at ``moment``."""
        found = self._by_empty[bisect_right(self._empties, moment, key=_begin)]
        place = len(self._begins) - bisect_right(self._begins, moment)
        while place:
            found = min(found, self._least[place])
            place -= place & -place
        return found


def _begin(one: Empty) -> int:
    return one.begin
