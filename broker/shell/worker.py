"""A thread that waits for a disk while the event loop goes on.

Trio's own worker threads do the same for any function; this one only ever runs one job after the other, and hands over
in half the time, which is felt where every acknowledgement waits for a flush.
"""

import queue
import threading
from collections.abc import Callable

import outcome
import trio

Job = Callable[[], None]


class Worker:
    """Runs jobs in a thread of its own, one at a time; `close` ends the thread when the jobs given are done."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, trio.lowlevel.Task] | None] = queue.SimpleQueue()
        self._token = trio.lowlevel.current_trio_token()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, job: Job) -> None:
        """Returns when the job has; raises what it raised. A job that was begun is waited for, even if cancelled."""
        self._jobs.put((job, trio.lowlevel.current_task()))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def close(self) -> None:
        """No `run` may be called, or be waiting."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, task = item
            result = outcome.capture(job)
            self._token.run_sync_soon(trio.lowlevel.reschedule, task, result)
