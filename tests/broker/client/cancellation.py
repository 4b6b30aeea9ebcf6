"""Cancelling a piece of code at each of its awaits in turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio


class _CancelAt(trio.abc.Instrument):
    def __init__(self, task: trio.lowlevel.Task, scope: trio.CancelScope, step: int) -> None:
        self._task = task
        self._scope = scope
        self._left = step

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def cancel_at_step(step: int, action: Callable[[], Awaitable[None]]) -> bool:
    """Run the action and cancel it when it waits for the ``step``-th time; returns whether it waited so often.

    The action runs in a task of its own, in which every return to the scheduler counts as a step.
    """
    cancelled = False

    async def run() -> None:
        nonlocal cancelled
        with trio.CancelScope() as scope:
            instrument = _CancelAt(trio.lowlevel.current_task(), scope, step)
            trio.lowlevel.add_instrument(instrument)
            try:
                await action()
            finally:
                trio.lowlevel.remove_instrument(instrument)
        cancelled = scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
    return cancelled
