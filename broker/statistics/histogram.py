"""Times counted by how long they were, as Prometheus' histograms have them.

One bisection and two additions for each time, so that a turn can afford several. Whoever counts what belongs together
(all sends of a turn) does it with one call.
"""

from bisect import bisect_left
from typing import Final

_US: Final = 1_000

BOUNDS_NS: Final = tuple(
    bound * _US
    for bound in (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
) + tuple(seconds * 1_000_000 * _US for seconds in (1, 2, 5, 10))
"""The upper bounds of the classes, in nanoseconds: 50 us to 10 s, three in each power of ten."""

BOUNDS_S: Final = tuple(bound / 1e9 for bound in BOUNDS_NS)
"""The upper bounds in seconds, as they are shown."""


class Histogram:
    """Counts of times by class; the last class has all that are longer than the last bound."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def observe(self, took_ns: int, count: int = 1) -> None:
        """Counts something that took so long, or `count` things that took so long each."""
        self.counts[bisect_left(BOUNDS_NS, took_ns)] += count
        self.sum_ns += took_ns * count

    @property
    def count(self) -> int:
        """The number of times."""
        return sum(self.counts)
