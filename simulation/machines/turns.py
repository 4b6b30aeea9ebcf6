"""The turns of a simulated process: soon after whatever arrived, and when its own deadline has come."""

from collections.abc import Callable

from simulation.journal import Violation
from simulation.machines.clock import HostClock
from simulation.machines.wires import Guard
from simulation.randomness import Random, draw_range
from simulation.scheduler import MICROSECOND, SECOND, Scheduler, Timer

TURN_DELAYS_NS = (120 * MICROSECOND, 400 * MICROSECOND, 1500 * MICROSECOND)
_DELAY_NS_MIN = 20 * MICROSECOND
_BUSY_SHARE = 0.95
"""A node is in a busy loop if it applies nothing in this share of all the turns that a second has room for."""


class ProcessTurns:
    """The turns of one process, of which one at most is planned. Its deadline has a timer of its own."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: HostClock,
        random: Random,
        delay_ns_max: int,
        slowed_ns: Callable[[], int],
        guarded: Guard,
        turn: Callable[[], object],
    ) -> None:
        """A turn follows what arrives by `delay_ns_max` at most, and by what the machine's other work takes, which
        `slowed_ns` tells; `guarded` makes of `turn` what the world may call.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._random = random
        self._delay_ns_max = delay_ns_max
        self._slowed_ns = slowed_ns
        self._turn = turn
        self._guarded_turn = guarded(self._take)
        self._guarded_deadline = guarded(self._deadline_passed)
        self._is_planned = False
        self._deadline_ns = 0
        """The process's own, by its clock. `_timer` fires then, or earlier, and looks again."""
        self._timer: Timer | None = None

    def wake(self) -> None:
        """A turn follows soon; what arrives meanwhile shares it."""
        if not self._is_planned:
            self._is_planned = True
            delay = draw_range(self._random, _DELAY_NS_MIN, self._delay_ns_max) + self._slowed_ns()
            self._scheduler.at(self._scheduler.now_ns + delay, self._guarded_turn)

    def _take(self) -> None:
        self._is_planned = False
        self._turn()

    def await_deadline(self, deadline_ns: int) -> None:
        """The next turn is due then, if nothing arrives before."""
        self._deadline_ns = deadline_ns
        # A timer that fires too early looks again: deadlines are put off in nearly every turn, and a new timer for each
        # would be dear.
        at_ns = self._clock.true_ns(deadline_ns)
        timer = self._timer
        if timer is not None and timer.callback is not None:
            if timer.time_ns <= at_ns:
                return  # it looks again when it fires
            timer.cancel()
        self._timer = self._scheduler.at(at_ns, self._guarded_deadline)

    def _deadline_passed(self) -> None:
        if self._clock.now_ns() >= self._deadline_ns:
            self.wake()
        else:
            self.await_deadline(self._deadline_ns)


class IdleTurns:
    """Judges turns that have applied nothing; a node that catches up takes a turn for each slice."""

    def __init__(self, name: str, scheduler: Scheduler, delay_ns_max: int) -> None:
        self._name = name
        self._scheduler = scheduler
        mean_delay_ns = (_DELAY_NS_MIN + delay_ns_max) // 2
        self._max = _BUSY_SHARE * SECOND / mean_delay_ns
        """The number of turns in one second that is too many."""
        self._second, self._count = -1, 0
        """The second that is counted, and its idle turns so far."""

    def count(self) -> None:
        """Counts a turn that has applied nothing. Raises Violation."""
        second = self._scheduler.now_ns // SECOND
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        if self._count > self._max:
            detail = f"{self._count} turns that applied nothing in second {second}"
            raise Violation("busy loop", self._name, detail)
