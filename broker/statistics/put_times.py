"""The times that a leader's appends take until they are committed, for the runtime table (request 28).

What is appended in one turn is looked at together: a clock and a count for every message would cost each of them, and
tell no more, for a turn is committed as a whole.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from broker.statistics.histogram import Histogram

_LIMITS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_NAMES: Final = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
"""The reference's classes and their names."""

_MS: Final = 1_000_000


@dataclass(slots=True, eq=False)
class PutTimes:
    """Entries by the time that they took, since the node started; `longest_ms` of all.

    `_histogram` gets the same times, in finer classes.
    """

    _histogram: Histogram
    _counts: list[int] = field(default_factory=lambda: [0] * len(_NAMES))
    _under_way: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Last index, number of entries, and when they were appended (ns)."""
    _last_index: int | None = None
    longest_ms: int = 0

    def turn_ended(self, serving: bool, last_index: int, applied_index: int, now_ns: int) -> None:
        """Notes what the log holds, and how much of it is applied, after a turn of a node that serves or not."""
        under_way = self._under_way
        # A leadership's own entries only: what it appends last may never be committed, or be by the next leader.
        if not serving:
            self._last_index = None
            under_way.clear()
            return
        before = self._last_index
        if before is None:
            self._last_index = last_index
        elif last_index > before:
            under_way.append((last_index, last_index - before, now_ns))
            self._last_index = last_index
        while under_way and under_way[0][0] <= applied_index:
            _, count, appended_ns = under_way.popleft()
            took_ns = now_ns - appended_ns
            self._histogram.observe(took_ns, count)
            took_ms = took_ns // _MS
            self._counts[bisect_left(_LIMITS_MS, took_ms)] += count
            if took_ms > self.longest_ms:
                self.longest_ms = took_ms

    def __str__(self) -> str:
        """Writes the counts as RocketMQ does."""
        return " ".join(f"{name}:{count}" for name, count in zip(_NAMES, self._counts, strict=True))
