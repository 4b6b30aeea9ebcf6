"""The clocks of a host: a monotonic one that may run fast or slow, and a wall clock that may jump.

Each host's monotonic clock has an arbitrary zero and a rate of its own, as real machines have; only durations on one
host mean anything. Rates stay within `RATE_MAX_PPM`, the bound that the election timeouts of a group are chosen for.
"""

from simulation.scheduler import Scheduler

RATE_MAX_PPM = 50_000
"""A clock gains or loses at most five percent, far more than any quartz does."""

_MILLION = 1_000_000
_EPOCH_MS = 1_700_000_000_000


class HostClock:
    """The two clocks of one host, over the scheduler's true time."""

    __slots__ = ("_local_base_ns", "_rate_ppm", "_scheduler", "_true_base_ns", "_wall_offset_ms")

    def __init__(self, scheduler: Scheduler, zero_ns: int, rate_ppm: int, wall_offset_ms: int) -> None:
        """`zero_ns`: the monotonic clock's reading now; `rate_ppm`: how much faster than true time it runs."""
        assert abs(rate_ppm) <= RATE_MAX_PPM
        self._scheduler = scheduler
        self._true_base_ns = scheduler.now_ns
        self._local_base_ns = zero_ns
        self._rate_ppm = rate_ppm
        self._wall_offset_ms = wall_offset_ms

    def now_ns(self) -> int:
        """Returns the host's monotonic time."""
        elapsed = self._scheduler.now_ns - self._true_base_ns
        return self._local_base_ns + elapsed + elapsed * self._rate_ppm // _MILLION

    def wall_ms(self) -> int:
        """Returns the host's wall clock, which nothing but people should believe."""
        return _EPOCH_MS + self._scheduler.now_ns // _MILLION + self._wall_offset_ms

    def read(self) -> tuple[int, int]:
        """Returns both: `now_ns` and `wall_ms`."""
        true_ns = self._scheduler.now_ns
        elapsed = true_ns - self._true_base_ns
        return (
            self._local_base_ns + elapsed + elapsed * self._rate_ppm // _MILLION,
            _EPOCH_MS + true_ns // _MILLION + self._wall_offset_ms,
        )

    def true_ns(self, local_ns: int) -> int:
        """Returns the true time at which the monotonic clock will have reached `local_ns`; never before it."""
        elapsed = local_ns - self._local_base_ns
        scaled = -(-elapsed * _MILLION // (_MILLION + self._rate_ppm))
        return self._true_base_ns + scaled

    def set_rate(self, rate_ppm: int) -> None:
        """Sets the rate of the monotonic clock from now on; the clock never goes back."""
        assert abs(rate_ppm) <= RATE_MAX_PPM
        self._local_base_ns = self.now_ns()
        self._true_base_ns = self._scheduler.now_ns
        self._rate_ppm = rate_ppm

    def stood_still(self, duration_ns: int) -> None:
        """Has the monotonic clock have stood still for so long until now, in which nobody has looked at it."""
        self._local_base_ns -= duration_ns

    def jump_wall(self, milliseconds: int) -> None:
        """Moves the wall clock."""
        self._wall_offset_ms += milliseconds
