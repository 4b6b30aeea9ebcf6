"""The times of a recording that can be true: those that are not decades away from most others.

One absurd time (a wall clock among monotonic ones, seconds taken for nanoseconds, a flipped bit) must cost the record
that states it, and not the analysis: the checker counts moments from the history's first one in 62 bits with two flags
behind them (:mod:`spark_analysis.checking.queues.log_model`), so a history may span 36 years. So a time far from the
median of a recording's first records is left out where it is read, file by file, without a look at the whole history.
It is the median because any record may be the wrong one, the first as well.

A negative time is a time like any other: a clock's zero is arbitrary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.trace.events import MAX_INTEGER, MIN_TIME_NS

FARTHEST_NS: Final = 1 << 59
"""18 years: times within so much of one moment span no more than the checker can count."""
SAMPLE: Final = 1001
"""The number of records of a file whose median says where most of its times are."""
_YEAR_NS: Final = 31_556_952 * 10**9


@dataclass(frozen=True, slots=True)
class Period:
    """The times that a recording may state, both ends included, in nanoseconds."""

    low_ns: int = MIN_TIME_NS
    high_ns: int = MAX_INTEGER

    def complaint(self, time_ns: int) -> str | None:
        """Say what is wrong with a time, and which times are allowed; None if it is allowed."""
        if self.low_ns <= time_ns <= self.high_ns:
            return None
        beyond_ns = self.low_ns - time_ns if time_ns < self.low_ns else time_ns - self.high_ns
        years = (beyond_ns + FARTHEST_NS) / _YEAR_NS
        side = "before" if time_ns < self.low_ns else "after"
        return f"time {time_ns} is {years:.0f} years {side} most others; allowed are {self.low_ns} to {self.high_ns}"


def middle(times: Iterable[int]) -> int | None:
    """The median; of two, the earlier, as an absurd time is more often too late. None if there is no time."""
    ordered = sorted(times)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def period_around(time_ns: int | None) -> Period:
    """The times that are allowed where most times are about ``time_ns``; every time that can be stated if that is
    None."""
    if time_ns is None:
        return Period()
    return Period(max(MIN_TIME_NS, time_ns - FARTHEST_NS), min(MAX_INTEGER, time_ns + FARTHEST_NS - 1))
