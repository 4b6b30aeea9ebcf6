"""Virtual time: the events to come, in order, and the only thing in the world that decides what happens next.

Events of one instant run in the order in which they were scheduled, so that a run is a function of its seed: nothing
here depends on hashes, addresses or the real clock. Cancelled events stay where they are until their time comes, which
costs less than finding them.

Most events are due within a millisecond, and most of what waits is a time limit seconds away, which nearly always is
cancelled. So there are two heaps: the near one holds what is due before `_near_end_ns`, a handful, and is all that the
usual event touches; when it is empty, the next stretch of time is moved to it from the far one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000

_NEAR_NS: Final = 2 * MILLISECOND


def nothing() -> None:
    """Does nothing: the callback of somebody who need not be called."""


class Timer:
    """An event to come, which `Scheduler.at` makes; `cancel` makes it nothing."""

    __slots__ = ("arguments", "callback", "time_ns")

    time_ns: int
    callback: Callable[..., object] | None
    arguments: tuple[Any, ...]

    def cancel(self) -> None:
        """Cancels it: it will not happen. Does nothing when it has happened."""
        self.callback = None
        self.arguments = ()


class TooManyEventsError(BaseException):
    """A run has had as many events as it may; no Exception, which the world would take for a mistake of its own."""


@dataclass(slots=True, eq=False)
class Scheduler:
    """`now_ns` is true time: nanoseconds since the world began, which no host in it can see (see `clock`)."""

    now_ns: int = 0
    events_run: int = 0
    events_max: int | None = None
    """`run_until` raises `TooManyEventsError` behind so many events."""
    pause_behind: int = 0
    """`run_until` returns early behind the event of this number, counted from 1; it may be the present one's."""
    stopped: bool = False
    """Set to end `run_until` after the present event."""
    _sequence: int = 0
    _near: list[tuple[int, int, Timer]] = field(default_factory=list)
    _far: list[tuple[int, int, Timer]] = field(default_factory=list)
    _near_end_ns: int = 0

    def at(self, time_ns: int, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Calls `callback(*arguments)` at a time; one that has passed means as soon as possible."""
        if time_ns < self.now_ns:
            time_ns = self.now_ns
        timer = Timer()
        timer.time_ns = time_ns
        timer.callback = callback
        timer.arguments = arguments
        self._sequence += 1
        heappush(self._near if time_ns < self._near_end_ns else self._far, (time_ns, self._sequence, timer))
        return timer

    def after(self, delay_ns: int, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Calls `callback(*arguments)` in `delay_ns`."""
        return self.at(self.now_ns + delay_ns, callback, *arguments)

    def run_until(self, end_ns: int) -> bool:
        """Runs every event up to and including `end_ns`, and stands there. What an event raises passes through.

        Returns False if it stands behind the event of `pause_behind` instead, and is to be called again.
        """
        near = self._near
        while (near or self._come_nearer()) and near[0][0] <= end_ns and not self.stopped:
            self.now_ns, _, timer = heappop(near)
            callback = timer.callback
            if callback is not None:
                self.events_run += 1
                timer.callback = None
                callback(*timer.arguments)
                if self.events_run == self.events_max and not self.stopped:
                    raise TooManyEventsError
                if self.events_run == self.pause_behind:
                    return False
        if not self.stopped:
            self.now_ns = max(self.now_ns, end_ns)
        return True

    def _come_nearer(self) -> bool:
        """Moves the next events to the near heap, which is empty; False when there are none."""
        near, far = self._near, self._far
        while far and not near:
            end_ns = self._near_end_ns = far[0][0] + _NEAR_NS
            while far and far[0][0] < end_ns:
                event = heappop(far)
                if event[2].callback is not None:
                    near.append(event)  # in order, as a heap may be
        return bool(near)
