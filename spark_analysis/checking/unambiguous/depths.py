"""The number of open intervals that each moment is inside of, as intervals are taken away: a segment tree of minima.

Moments are numbered from 0; an interval (begin, end) has begin + 1 to end - 1 inside.
"""

from collections.abc import Iterable
from itertools import accumulate


class Depths:
    """A tree in an array: node n has the children 2n and 2n + 1, and ``_least`` is the least depth below it, but for
    what its ancestors have in ``_all``, the intervals that hold all of a node."""

    def __init__(self, size: int, intervals: Iterable[tuple[int, int]]) -> None:
        self._width = 1 << max(1, (size - 1).bit_length())
        change = [0] * (size + 1)
        for begin, end in intervals:
            if begin + 1 < end:
                change[begin + 1] += 1
                change[end] -= 1
        depths = list(accumulate(change[:size]))
        # Places behind the last moment are never free.
        self._least = [0] * self._width + depths + [1] * (self._width - size)
        self._all = [0] * (2 * self._width)
        for node in range(self._width - 1, 0, -1):
            self._least[node] = min(self._least[2 * node], self._least[2 * node + 1])

    def remove(self, begin: int, end: int) -> None:
        """Take one interval away."""
        least, whole = self._least, self._all
        left, right = begin + 1 + self._width, end + self._width
        if left >= right:
            return
        first, last = left, right - 1
        while left < right:
            if left & 1:
                least[left] -= 1
                whole[left] -= 1
                left += 1
            if right & 1:
                right -= 1
                least[right] -= 1
                whole[right] -= 1
            left >>= 1
            right >>= 1
        # Below all other nodes nothing has changed, or everything alike.
        for leaf in (first, last):
            node = leaf >> 1
            while node:
                one, other = least[2 * node], least[2 * node + 1]
                least[node] = (one if one < other else other) + whole[node]
                node >>= 1

    def free_between(self, begin: int, end: int) -> list[int]:
        """The moments strictly between the two that are inside of no interval."""
        found: list[int] = []
        waiting = [(1, 0, self._width, 0)]
        while waiting:
            node, first, width, above = waiting.pop()
            if first >= end or first + width <= begin + 1 or self._least[node] + above > 0:
                continue
            if width == 1:
                found.append(first)
                continue
            half, above = width >> 1, above + self._all[node]
            waiting.append((2 * node + 1, first + half, half, above))
            waiting.append((2 * node, first, half, above))
        return found
