"""A thread that waits for a disk while the event loop goes on.

Trio's own worker threads do the same for any function; this one only ever runs one job after the other, and hands over
in half the time, which is felt where every acknowledgement waits for a flush.

`JobsBetweenReads` does so among the sockets: a job begins in the turn that has it, and its end is read like bytes that
have arrived (broker/shell/reading.py), so that the turn which it brings about follows in the same step.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Generic, NoReturn, Protocol, TypeVar

import outcome
import trio

from broker.shell.reading import Reading

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


class Runnable(Protocol):
    """What a thread is to run."""

    def run(self) -> None: ...


SomeJob = TypeVar("SomeJob", bound=Runnable)


class JobsBetweenReads(Generic[SomeJob]):
    """Runs jobs in a thread of its own, one at a time; `done` is called with each that has run without an error.

    `run` must be running. What a job raised `Reading.run` raises, before another turn; or `run` itself, at the end.
    Linux only, as `Reading`.
    """

    def __init__(self, name: str, reading: Reading, done: Callable[[SomeJob], None]) -> None:
        assert sys.platform == "linux"
        self._reading = reading
        self._done = done
        self._jobs: queue.SimpleQueue[SomeJob | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[SomeJob, outcome.Maybe[None]]] = queue.SimpleQueue()
        self._descriptor = -1
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self, job: SomeJob) -> None:
        """Begins a job; the one before has been reported."""
        self._jobs.put(job)

    async def run(self) -> NoReturn:
        """Until cancelled: a job that was begun is waited for then, and reported, too."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread.start()
        self._reading.add(self._descriptor, self._read)
        try:
            await trio.sleep_forever()
        finally:
            self._reading.remove(self._descriptor)
            self._jobs.put(None)
            self._thread.join()  # for as long as one flush takes
            os.close(self._descriptor)
            self._report()

    def _read(self) -> None:
        os.eventfd_read(self._descriptor)
        self._report()

    def _report(self) -> None:
        while not self._ended.empty():
            job, result = self._ended.get()
            result.unwrap()
            self._done(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result = outcome.capture(job.run)
            self._ended.put((job, result))
            os.eventfd_write(self._descriptor, 1)
