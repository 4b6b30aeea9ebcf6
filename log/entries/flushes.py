"""Flushes, and how far a log is on the disk: written back, flushed, and noted to be flushed
(`log.entries.durable_note`).

The owner takes a `FlushJob`, has it run in a worker thread, and returns it (`done`). At most one is out. A job that
raised is never returned: from then on nothing becomes durable, and the node must stop.
"""

from dataclasses import dataclass
from typing import Protocol

from log.entries.durable_note import DurableNote
from log.entries.segments import Segments
from log.files.disk import MappedFile


@dataclass(slots=True, eq=False)
class FlushJob:
    """A flush of what was appended since the last one. `last_index` is durable once `run` returned (`Flushes.done`)."""

    _ranges: list[tuple[MappedFile, int, int]]
    last_index: int

    def run(self) -> None:
        """Worker. Raises FlushError: never acknowledge, stop the node."""
        for mapped, begin, end in self._ranges:
            mapped.flush(begin, end)


class Written(Protocol):
    """The flushed part: the log up to entry `last_index`, which ends at `end_position`."""

    last_index: int
    end_position: int
    epoch: int
    damaged: bool

    def file_of(self, position: int) -> tuple[MappedFile, int]:
        """Returns the data file in which `position` lies, and the position of its start."""


class Flushes:
    """The flushes of one log. `durable_index` is the last entry known to be on stable storage.

    Always `durable_index` <= the log's last index, and the note says the same while nothing is damaged;
    `_flush_from` <= `_written_position` <= the log's end where there is a write buffer.
    """

    __slots__ = (
        "_data",
        "_flush_from",
        "_job",
        "_log",
        "_note",
        "_write_buffer",
        "_written_position",
        "durable_index",
    )

    durable_index: int
    _flush_from: int
    _written_position: int

    def __init__(self, log: Written, data: Segments, note: DurableNote, *, write_buffer: bool) -> None:
        """`begin` comes before all else."""
        self._log = log
        self._data = data
        self._note = note
        self._write_buffer = write_buffer
        self._job: FlushJob | None = None

    def begin(self) -> None:
        """All that is in the log is durable: a start or a cut has seen to that."""
        log = self._log
        self.durable_index = log.last_index
        self._flush_from = self._written_position = log.end_position
        if not log.damaged:
            self._note.store(log.epoch, log.last_index)

    def write_back(self) -> None:
        """Makes what was appended survive a crash of the process; before that nothing of it may be acknowledged.

        Does nothing without a write buffer. Raises DiskError: stop the node.
        """
        end = self._log.end_position
        if self._write_buffer and self._written_position < end:
            for mapped, begin, end_in_file in self._ranges_from(self._written_position):
                mapped.write_back(begin, end_in_file)
            self._written_position = end
            self._data.settle_before(self._data.start_of(end))

    @property
    def log_waits(self) -> bool:
        """True while the log has bytes that no job has covered."""
        return self._flush_from != self._log.end_position

    def job(self) -> FlushJob | None:
        """Returns the flush of what was appended since the last job; None if nothing was, or if a job is still out.

        Raises DiskError.
        """
        log = self._log
        if self._job is not None or not self.log_waits:
            return None
        # Else a job of no bytes would come back, and entries that nothing has flushed would count as durable.
        assert self._flush_from < log.end_position, (
            f"flushed to {self._flush_from}, behind {log.end_position}"
        )
        ranges = self._ranges_from(self._flush_from)
        self.write_back()
        self._flush_from = log.end_position
        self._job = FlushJob(ranges, log.last_index)
        return self._job

    @property
    def is_out(self) -> bool:
        """True while a job has not come back: it runs, or it failed."""
        return self._job is not None

    def done(self, job: FlushJob) -> int:
        """Takes back a job whose `run` returned without an error; returns the durable index.

        Entries truncated while the job ran do not count, although others may have their index now.
        """
        assert job is self._job, "the job that is out comes back, once"
        assert job.last_index <= self._log.last_index, (
            f"{job.last_index} is durable, of a log that was cut to {self._log.last_index}"
        )
        self._job = None
        if job.last_index > self.durable_index:
            self.durable_index = job.last_index
            self._note.store(self._log.epoch, job.last_index)
        return self.durable_index

    # ---- the note ------------------------------------------------------------------------------------

    @property
    def note_waits(self) -> bool:
        """True while a power failure may take what the log has noted of how far it is durable."""
        return not self._note.is_flushed

    def note_job(self) -> FlushJob | None:
        """Returns the flush of that note; None if it does not wait for one, or if a job is still out."""
        if self._job is not None or self._note.is_flushed:
            return None
        self._job = FlushJob([self._note.flush_range()], self.durable_index)
        return self._job

    def flush_note(self) -> None:
        """Flushes that note at once, for an orderly stop. Raises FlushError."""
        if not self._note.is_flushed:
            self._note.flush()

    # ---- for the log's cuts --------------------------------------------------------------------------

    def lower_note(self, last_index: int) -> None:
        """Notes durably that entries behind `last_index` will be cut off: the next start must not miss them."""
        if self._note.index > last_index:
            self._note.store(self._log.epoch, last_index)
            self._note.flush()

    def truncated(self) -> None:
        """The log was cut behind its last index: other entries may get the indices behind it."""
        log = self._log
        # The next start would take the cut for damage.
        assert self._note.index <= log.last_index, (
            f"the note says {self._note.index}, of a log that is cut to {log.last_index}"
        )
        self.durable_index = min(self.durable_index, log.last_index)
        self._flush_from = min(self._flush_from, log.end_position)
        self._written_position = min(self._written_position, log.end_position)
        if self._job is not None:
            self._job.last_index = min(self._job.last_index, log.last_index)

    def begins_at(self, position: int) -> None:
        """The log begins at `position` now: nothing before it is flushed any more."""
        self._flush_from = max(self._flush_from, position)
        self._written_position = max(self._written_position, position)

    def close(self) -> None:
        """Forgets the mapping of the note."""
        self._note.close()

    def _ranges_from(self, position: int) -> list[tuple[MappedFile, int, int]]:
        """Returns [position, the log's end) by data file: (file, begin, end), the places within the file."""
        ranges = []
        end_position = self._log.end_position
        while position < end_position:
            mapped, start = self._log.file_of(position)
            next_start = start + self._data.file_bytes
            end = min(end_position, next_start)
            ranges.append((mapped, position - start, end - start))
            position = next_start
        return ranges
