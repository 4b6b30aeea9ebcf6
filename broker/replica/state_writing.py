"""The replica's state, written down in steps: one a turn, so that nobody waits for a hundred thousand rows.

What is written is the state as it was when that began. It goes to the disk (broker/replica/upkeep.py), to a peer that
lacks the log's head, or is summed up (broker/replica/digests.py). One that a leader has sent is read in the same way
(broker/replica/incoming_snapshots.py). A state that is small is written, or read, at once.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeVar

from broker.statistics.timings import Timings

_Result = TypeVar("_Result")

_OVER: Final = object()
"""Returned for an iterator of steps that has come to its end."""


class StateWriting:
    """The tables of state that are being written, or summed up, one step of one of them in each turn."""

    __slots__ = ("_timings", "under_way")

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self.under_way: deque[Iterator[None]] = deque()
        """The steps that are left of each; to be looked at only. While there are any the next turn is wanted at once.
        """

    def begin(
        self, written: Generator[None, None, _Result], done: Callable[[_Result, int], None]
    ) -> Callable[[], None] | None:
        """Does a first step; `done` is called with the bytes or the sum, and the time that all steps took.

        Returns what gives it up before that; None if all is done already.
        """
        steps = self._steps(written, done)
        # Each step yields None: what is not None says that the first one was the last.
        if next(steps, _OVER) is not None:
            return None
        self.under_way.append(steps)
        return lambda: self.under_way.remove(steps)

    def step(self) -> None:
        """Goes on with what was begun first; to be called once a turn."""
        if self.under_way:
            steps = self.under_way.popleft()
            if next(steps, _OVER) is None:
                self.under_way.append(steps)

    def _steps(
        self, written: Generator[None, None, _Result], done: Callable[[_Result, int], None]
    ) -> Iterator[None]:
        stopwatch, took_ns = self._timings.stopwatch, 0
        while True:
            began_ns = stopwatch()
            try:
                next(written)
            except StopIteration as end:
                done(end.value, took_ns + stopwatch() - began_ns)
                return
            took_ns += stopwatch() - began_ns
            yield
