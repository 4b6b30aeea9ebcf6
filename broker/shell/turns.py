"""The turns of a node, or of a name server: one follows whatever has happened, and one comes at each deadline.

Whoever gives the node something calls `wake`. A turn that sockets want runs in the same step, when all sockets that are
ready have been read (broker/shell/socket_reading.py). A turn that other tasks want runs after all tasks that are ready
now. Either way it sees everything that arrived together: batches appear by themselves, and an idle node sleeps until
its next deadline. One timer task serves all deadlines; it is disturbed only when a deadline moves closer.
"""

import math
from collections.abc import Callable
from typing import Final, NoReturn

import trio

_NEVER_NS: Final = 1 << 62


class Turns:
    """Runs `turn` whenever it is due. `turn` returns the next deadline in monotonic nanoseconds."""

    def __init__(self, turn: Callable[[], int], now_ns: Callable[[], int]) -> None:
        self._turn = turn
        self._now_ns = now_ns
        self._wanted = True
        self._reading = False
        # The task of `run` while it waits for `wake`. Then no turn is wanted, unless sockets are being read
        # (`_reading`): what they bring has its turn right behind that.
        self._sleeping: trio.lowlevel.Task | None = None
        self._deadline_ns = 0
        # The timer sleeps in this scope until `_timer_until_ns`; while there is none, it is about to look at the
        # deadline.
        self._timer_scope: trio.CancelScope | None = None
        self._timer_until_ns = 0

    def wake(self) -> None:
        """Asks for a turn. It is cheap, and may be called any number of times before the turn."""
        self._wanted = True
        task = self._sleeping
        # What sockets bring has its turn in the same step (`run_after`): no task need wake for it.
        if task is not None and not self._reading:
            self._sleeping = None
            trio.lowlevel.reschedule(task)

    async def run(self) -> NoReturn:
        """Runs the turns that tasks want, for ever."""
        while True:
            if self._wanted:
                # Woken by the turn itself, or by a task of the batch that ran it: others may be ready, too.
                await trio.lowlevel.checkpoint()
            else:
                assert self._sleeping is None, "the task that was asleep would never be woken"
                self._sleeping = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._stop_sleeping)
            # Whoever was ready together with the one that woke this task has run before it. If one of them has failed
            # there must be no turn: it might send what a failed write was to precede.
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._wanted:
                self._run()
                self.set_timer()

    def run_after(self, read: Callable[[], None]) -> None:
        """Calls `read`, and runs the turn at once if anything that it did wants one.

        `set_timer` is to be called before other tasks run.
        """
        self._reading = True
        try:
            read()
        finally:
            self._reading = False
        if self._wanted:
            self._run()

    def _run(self) -> None:
        self._wanted = False
        self._deadline_ns = self._turn()

    def is_due_within(self, time_ns: int) -> bool:
        """Returns True if the next turn's deadline is no further away than that."""
        return self._deadline_ns - self._now_ns() <= time_ns

    def set_timer(self) -> None:
        """Sets the timer to the last turn's deadline, if it is earlier than the one that the timer waits for."""
        deadline_ns = self._deadline_ns
        # Without a scope the timer's task is about to look at the deadline itself.
        if deadline_ns < self._timer_until_ns and self._timer_scope is not None:
            self._timer_until_ns = deadline_ns
            self._timer_scope.deadline = self._trio_time(deadline_ns)

    def _stop_sleeping(self, _: object) -> trio.lowlevel.Abort:
        self._sleeping = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _trio_time(self, at_ns: int) -> float:
        return trio.current_time() + (at_ns - self._now_ns()) / 1e9

    async def run_timer(self) -> NoReturn:
        """Asks for a turn at each deadline, for ever."""
        while True:
            if self._deadline_ns > self._now_ns():
                until_ns = self._deadline_ns
                deadline = self._trio_time(until_ns)
            else:
                # The turn that is asked for here sets the timer: it would wake once more in vain for the old deadline.
                self.wake()
                until_ns, deadline = _NEVER_NS, math.inf
            self._timer_until_ns = until_ns
            with trio.CancelScope(deadline=deadline) as scope:
                self._timer_scope = scope
                await trio.sleep_forever()
            self._timer_scope = None
