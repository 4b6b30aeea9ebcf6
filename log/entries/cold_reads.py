"""Reads of the log far behind its end: their pages are brought in by a worker thread before anybody waits for them.

New entries are in memory. A consumer that works off yesterday's messages asks for pages that are on the disk only, and
the thread that touches them waits for it: the owner's thread would stand still, and all clients with it. So the log is
divided into windows. The first read of a cold window becomes a `LoadJob` for a worker, and the requests for its bytes
are answered when the job is done. A window counts as loaded for `KEPT_NS`. The kernel is told to give up first what the
reader has passed, so that a long backlog does not push the live end of the log out of memory.
"""

from dataclasses import dataclass

from log.entries.entry_log import EntryLog
from log.files.disk import MappedFile

WINDOW_BYTES = 4 << 20
"""The bytes that one job brings in: enough for some dozen responses, so that a reader does not wait for each."""

KEPT_NS = 10_000_000_000
"""A window counts as loaded for so long after its last use; the kernel may have taken it back by then."""

WINDOWS_MAX = 64
"""The most windows that count as loaded at one time."""


@dataclass(slots=True, eq=False)
class LoadJob:
    """Brings one window into memory. Return it with `ColdReads.loaded` when `run` has returned."""

    window: int
    _mapped: MappedFile
    _begin: int
    _end: int
    _passed: tuple[int, int] | None

    def run(self) -> None:
        """Worker. Reads the window. It cannot fail: a page that does not come in now is read where it is used."""
        self._mapped.load(self._begin, self._end)
        if self._passed is not None:
            self._mapped.cool(*self._passed)


class ColdReads:
    """Knows the parts of a log that are taken to be in memory: its last `hot_bytes` and the windows loaded lately."""

    __slots__ = ("_hot_bytes", "_loaded", "_log")

    def __init__(self, log: EntryLog, hot_bytes: int) -> None:
        self._log = log
        self._hot_bytes = hot_bytes
        self._loaded: dict[int, int] = {}
        """window -> the time (ns) until which it counts as loaded, in the order of use."""

    def is_hot(self, position: int) -> bool:
        """True if the position is so near to the log's end that it is taken to be in memory."""
        return position >= self._log.end_position - self._hot_bytes

    def missing(self, position: int, now_ns: int) -> LoadJob | None:
        """Returns the job to run before bytes at `position` are touched; None if they may be touched now."""
        log = self._log
        if self.is_hot(position) or position < log.first_position:
            return None
        window = position // WINDOW_BYTES
        until_ns = self._loaded.pop(window, 0)
        if until_ns > now_ns:
            self._loaded[window] = now_ns + KEPT_NS
            return None
        # A window never reaches over the ends of its data file. What lies two windows before it is given up.
        mapped, start = log.file_of(position)
        begin = max(window * WINDOW_BYTES, start)
        end = min((window + 1) * WINDOW_BYTES, start + log.file_bytes)
        passed_end = begin - WINDOW_BYTES
        passed = (max(passed_end - WINDOW_BYTES, start) - start, passed_end - start)
        return LoadJob(
            window,
            mapped,
            begin - start,
            end - start,
            passed if passed[0] < passed[1] else None,
        )

    def loaded(self, job: LoadJob, now_ns: int) -> None:
        """The job has run: its window counts as loaded from now on, for `KEPT_NS`."""
        self._loaded.pop(job.window, None)
        while len(self._loaded) >= WINDOWS_MAX:
            del self._loaded[next(iter(self._loaded))]
        self._loaded[job.window] = now_ns + KEPT_NS
