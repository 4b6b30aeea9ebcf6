"""Calls of clients that must end in time, whatever happens to brokers and name servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.client.transport.runtime import Runtime
from simulation.journal import Violation
from simulation.machines.tasks import TaskProcess
from simulation.scheduler import MILLISECOND, SECOND, Scheduler

_LATE_NS: Final = 100 * MILLISECOND
"""A call may take so much longer than its limit, by the client's own clock."""


class TimeLimits:
    """The calls of one actor, by the host of each process."""

    def __init__(self, invariant: str, scheduler: Scheduler) -> None:
        """`invariant` names what does not hold when a call takes too long."""
        self._invariant = invariant
        self._scheduler = scheduler
        self._open: dict[str, list[tuple[int, str]]] = {}
        """Host -> the calls under way of its running process: (true time by which it must have ended, what it is)."""

    def starts(self, host: str) -> None:
        """Notes that a process starts; what the one before it was doing ended with it."""
        self._open[host] = []

    @contextmanager
    def in_time(self, runtime: Runtime, what: str, limit_s: float) -> Iterator[None]:
        """Checks that the block ends within a limit, the time left out in which its process stood still; `check_end`
        sees it if it never ends. Raises Violation.
        """
        assert isinstance(runtime, TaskProcess), "a simulated one"
        calls = self._open[runtime.local_address()]
        # The client's clock may be slow; twice the slack is for that, too.
        call = self._scheduler.now_ns + int(limit_s * 1.1 * SECOND) + 2 * _LATE_NS, what
        calls.append(call)
        began_ns, stood_still_ns = runtime.now_ns(), runtime.stood_still_ns
        try:
            yield
        finally:
            calls.remove(call)
        # By two clocks; the slack is for that, too.
        took_ns = runtime.now_ns() - began_ns - (runtime.stood_still_ns - stood_still_ns)
        if took_ns > limit_s * SECOND + _LATE_NS:
            raise Violation(self._invariant, "clients", f"{what}: {took_ns / SECOND} s of {limit_s} s")

    def check_end(self) -> None:
        """Checks that nothing goes on for ever. Raises Violation."""
        for host, calls in self._open.items():
            for until_ns, what in calls:
                if until_ns < self._scheduler.now_ns:
                    raise Violation(self._invariant, host, f"{what} goes on")
