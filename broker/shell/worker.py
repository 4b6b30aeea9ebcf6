"""A thread that waits for the disk while the event loop goes on.

A job begins in the turn that has it, and its end is read like bytes that have arrived (broker/shell/socket_reading.py):
the turn that it brings about follows in the same step. Trio's own worker threads take twice as long to hand over, which
is felt where every acknowledgement waits for a flush; they do for all other jobs.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import outcome
import trio

from broker.replica.jobs import Job
from broker.shell.socket_reading import Reading


class JobsBetweenReads:
    """Runs jobs in a thread of its own, one at a time; `done` is called with each that has run without an error.

    `run` must be running. What a job raised is raised by `Reading.run`, before another turn; or by `run` itself, at
    the end. Linux only, as `Reading`.
    """

    def __init__(self, name: str, reading: Reading, done: Callable[[Job], None]) -> None:
        assert sys.platform == "linux"
        self._reading = reading
        self._done = done
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        """None ends the thread."""
        self._ended: queue.SimpleQueue[tuple[Job, outcome.Maybe[None]]] = queue.SimpleQueue()
        self._is_out = False
        """A job was begun and has not been reported."""
        self._descriptor = -1
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self, job: Job) -> None:
        """Begins a job. The one before must have been reported."""
        assert not self._is_out, "one job at a time"
        self._is_out = True
        self._jobs.put(job)

    async def run(self) -> NoReturn:
        """Runs until cancelled. A job that was begun before is waited for then, and reported, too."""
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread.start()
        self._reading.add(self._descriptor, self._read, first=True)
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
            self._is_out = False
            # Before the job is reported: what has failed is not taken back, and no turn follows.
            result.unwrap()
            self._done(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result = outcome.capture(job.run)
            # Before the sign that it is there: whoever reads that finds it.
            self._ended.put((job, result))
            os.eventfd_write(self._descriptor, 1)
