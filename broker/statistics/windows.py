"""Sums of something over the last minute, hour and day, in a few hundred bytes.

A ring of buckets for each span: six of ten seconds, six of ten minutes, twenty-four of an hour, as RocketMQ's
statistics have it (request 315). A bucket is begun when something falls into it, so that what is not
counted costs nothing, and a sum passes over buckets that are too old.
"""

from dataclasses import dataclass
from typing import Final

_SPANS: Final = ((10, 6), (600, 6), (3600, 24))
"""Seconds in a bucket and number of buckets: a minute, an hour, a day."""

MINUTE: Final = 0
HOUR: Final = 1
DAY: Final = 2


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of a span: a count, which came in so many `times` (such as responses); both last fields are 0 where these
    are not known.
    """

    count: int
    per_second: float
    times: int
    per_time: float


class Windows:
    """Counts over the three spans. Times are seconds of a monotonic clock."""

    __slots__ = ("_counts", "_numbers", "_times")

    def __init__(self) -> None:
        self._counts = [[0] * buckets for _, buckets in _SPANS]
        self._times = [[0] * buckets for _, buckets in _SPANS]
        self._numbers = [[-1] * buckets for _, buckets in _SPANS]

    def add(self, now_s: int, count: int, times: int = 1) -> None:
        """Counts something that happened now, in so many times; 0 if nobody knows."""
        for span, (seconds, buckets) in enumerate(_SPANS):
            number = now_s // seconds
            place = number % buckets
            # The bucket is of an earlier round of the ring: it begins anew, which is all that time costs.
            if self._numbers[span][place] != number:
                self._numbers[span][place] = number
                self._counts[span][place] = self._times[span][place] = 0
            self._counts[span][place] += count
            self._times[span][place] += times

    def total(self, now_s: int, span: int) -> Total:
        """Returns what fell into `MINUTE`, `HOUR` or `DAY` until now."""
        seconds, buckets = _SPANS[span]
        oldest = now_s // seconds - buckets
        places = [place for place, number in enumerate(self._numbers[span]) if number > oldest]
        count = sum(self._counts[span][place] for place in places)
        times = sum(self._times[span][place] for place in places)
        return Total(count, count / (seconds * buckets), times, count / times if times else 0.0)
