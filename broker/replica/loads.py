"""Responses that wait until a worker has brought their bytes into memory (log/entries/cold_reads.py).

One window is loaded at a time: readers of a long backlog share the disk with the flushes, and must not crowd them out.
"""

from collections.abc import Callable

from log.entries.cold_reads import ColdReads, LoadJob

WAITING_MAX = 4096
"""The most responses that wait; further ones are sent at once, and the thread that sends them waits for the disk."""


class Loads:
    """The windows of the log to be loaded, and those who wait for them."""

    def __init__(self, reads: ColdReads) -> None:
        self.reads = reads
        self.wanted: dict[int, tuple[LoadJob, list[Callable[[], None]]]] = {}
        """window -> its job and those who wait for it. The first is the job that is out while `_running`; `_waiting` is
        the number of all who wait."""
        self._running = False
        self._waiting = 0

    def when_loaded(self, position: int, ready: Callable[[], None], now_ns: int) -> None:
        """Calls `ready` when the bytes of the log around `position` may be touched, maybe before this returns."""
        job = self.reads.missing(position, now_ns)
        if job is None or self._waiting >= WAITING_MAX:
            ready()
            return
        self._waiting += 1
        # Who wants the same window waits for the same job, also for one that is out.
        self.wanted.setdefault(job.window, (job, []))[1].append(ready)

    def job(self) -> LoadJob | None:
        """Returns the job that a worker is to run now, None if there is none or one is out; `loaded` takes it back."""
        if self._running or not self.wanted:
            return None
        self._running = True
        return next(iter(self.wanted.values()))[0]

    def loaded(self, job: LoadJob, now_ns: int) -> None:
        """Takes back a job that has run, and calls all who wait for its window."""
        assert self._running, "a load comes back once"
        self._running = False
        self.reads.loaded(job, now_ns)
        # Taken out before anybody is called, who may want the next window.
        _, waiting = self.wanted.pop(job.window)
        self._waiting -= len(waiting)
        assert self.wanted or not self._waiting, f"{self._waiting} are counted of whom nobody waits"
        for ready in waiting:
            ready()
