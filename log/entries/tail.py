"""The writer's end of a file sequence: the mapping being written and how far ahead of it pages are ready.

Touching fresh pages of a file costs forty times what writing touched ones does, and creating a file costs a
flush of its directory. So both are done ahead, in a worker thread, by a `PrepareJob`; a writer that outruns
it prepares the piece it needs itself, and is slower but never wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from log.entries.segments import Segments
from log.files.disk import MappedFile

_PIECE_BYTES = 1 << 20
_NOWHERE = 1 << 62
"""Behind the end of any file."""


class PrepareStep:
    """The part of a job that concerns one file. `run` is for a worker thread; the rest belongs to the owner.

    Always begin <= done_end <= end; positions are absolute.
    """

    __slots__ = ("begin", "created", "done_end", "end", "generation", "mapped", "segments", "start", "tail")

    def __init__(self, tail: "Tail", start: int, mapped: MappedFile | None, begin: int, end: int) -> None:
        self.tail = tail
        self.segments = tail.segments
        self.generation = tail.generation
        self.start = start
        self.mapped = mapped
        self.created = False
        self.begin = begin
        self.end = end
        self.done_end = begin

    def run(self) -> None:
        if self.mapped is None:
            self.mapped = self.segments.create(self.start)
            self.created = True
        while self.done_end < self.end:
            piece_end = min(self.end, self.done_end + _PIECE_BYTES)
            self.mapped.prepare(self.done_end - self.start, piece_end - self.start)
            self.done_end = piece_end


@dataclass(slots=True, eq=False)
class PrepareJob:
    """Files and pages to make ready. Return it with `prepared`, even if `run` raised."""

    _steps: list[PrepareStep]

    def run(self) -> None:
        """Worker. Raises DiskFullError, DiskError; what was done until then counts."""
        for step in self._steps:
            step.run()

    def finish(self) -> None:
        """Owner's thread: takes over what was made ready, and removes files that nobody wants any more."""
        for step in self._steps:
            step.tail.finish(step)


class Tail:
    """The writer's end of one sequence. `start`, `mapped` and `buffer` are the file being written.

    Positions are absolute. Pages before `prepared_end` are ready. Up to `limit` no write fails: it is in this file,
    and leaves `kept_bytes` of it free. `_next_end` is the end of the pages that are ready in the next file, 0 if none
    are. `generation` grows when the tail moves other than forward: a job of an earlier one has prepared pages that mean
    nothing any more.
    """

    __slots__ = (
        "_ahead",
        "_next_end",
        "_step",
        "_usable_bytes",
        "buffer",
        "enough",
        "generation",
        "limit",
        "mapped",
        "prepared_end",
        "segments",
        "start",
    )

    def __init__(self, segments: Segments, ahead_bytes: int, step_bytes: int, kept_bytes: int = 0) -> None:
        self.segments = segments
        self._usable_bytes = segments.file_bytes - kept_bytes
        self._ahead = min(ahead_bytes, segments.file_bytes)
        self._step = min(step_bytes, self._ahead)
        self.enough = self._ahead - self._step
        """As long as the writer has more bytes than this left before `prepared_end`, nothing need be made ready."""
        self.generation = 0
        self.start = _NOWHERE
        self.mapped: MappedFile
        self._next_end = 0
        self.buffer = memoryview(b"")
        self.prepared_end = self.limit = 0

    def move_to(self, position: int) -> None:
        """Makes the file of `position` the one being written; it is the last one, or is created."""
        self._use(self.segments.start_of(position))
        assert self.segments.starts[-1] == self.start, (
            f"a file behind {self.start}, which is to be the last one"
        )
        self.generation += 1
        self.set_prepared(position)
        self._next_end = 0

    def ensure_next(self, end: int) -> None:
        """Makes the next file and its pages up to `end` ready, without going there. Raises DiskFullError."""
        start = self.start + self.segments.file_bytes
        mapped = self.segments.obtain(start)
        # What is left of the current file may be unprepared for good, which `prepared_end` has to go on to say.
        if self.prepared_end < end:
            mapped.prepare(max(self.prepared_end - start, 0), end - start)
            self._next_end = end

    def roll(self) -> None:
        """Goes on to the next file, which `ensure_next` made ready."""
        start = self.start + self.segments.file_bytes
        assert self.segments.starts[-1] >= start, (
            f"file {start} is not there: the last one is {self.segments.starts[-1]}"
        )
        self._use(start)
        self.set_prepared(max(self.prepared_end, self._next_end, start))

    def ensure(self, end: int) -> None:
        """Makes the pages up to `end` (in the current file) ready, now. Raises DiskFullError."""
        if self.prepared_end < end:
            file_end = self.start + self.segments.file_bytes
            assert end <= file_end, f"pages up to {end} of a file that ends at {file_end}"
            target = min(max(end, self.prepared_end + self._step), file_end)
            self.mapped.prepare(self.prepared_end - self.start, target - self.start)
            self.set_prepared(target)

    def ensure_through(self, end: int) -> None:
        """Makes everything up to `end` ready, over as many files as it takes, without going there.

        Raises DiskFullError, DiskError; what was made ready until then counts.
        """
        segments = self.segments
        while self.prepared_end < end:
            start = segments.start_of(self.prepared_end)
            piece_end = min(end, start + segments.file_bytes)
            segments.obtain(start).prepare(self.prepared_end - start, piece_end - start)
            self.set_prepared(piece_end)

    def wanted(self, position: int) -> Iterable[PrepareStep]:
        """Yields what should be made ready when the writer is at `position`; nothing while enough is ready."""
        if self.prepared_end - position > self.enough:
            return
        file_end = self.start + self.segments.file_bytes
        target = position + self._ahead
        if self.prepared_end < file_end:
            yield PrepareStep(self, self.start, self.mapped, self.prepared_end, min(target, file_end))
        if target > file_end:
            known = self.segments.starts[-1] == file_end
            mapped = self.segments.mapping(file_end) if known else None
            yield PrepareStep(self, file_end, mapped, max(self.prepared_end, file_end), target)

    def finish(self, step: PrepareStep) -> None:
        """Takes over what a step has made ready, as far as it is still wanted. Raises DiskError."""
        starts = self.segments.starts
        current = step.generation == self.generation
        # The writer may have come and gone meanwhile, by any number of files: then the file is the log's.
        in_use = bool(starts) and starts[0] <= step.start <= starts[-1]
        if step.created and step.mapped is not None and not in_use:
            if not current or step.start != starts[-1] + self.segments.file_bytes:
                self.segments.disk.remove(self.segments.path(step.start))
                return
            self.segments.adopt(step.start, step.mapped)
        # Pages count up to the first that are not ready: where the step before this one failed there is a gap.
        if current and step.begin <= self.prepared_end:
            self.set_prepared(max(self.prepared_end, step.done_end))

    def set_prepared(self, end: int) -> None:
        """Pages before `end` are ready, and none behind it."""
        self.prepared_end = end
        self.limit = min(end, self.start + self._usable_bytes)

    def _use(self, start: int) -> None:
        self.mapped = self.segments.obtain(start)
        self.start = start
        self.buffer = self.mapped.buffer
