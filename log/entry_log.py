"""The Raft log on disk: DLedger entries in mapped files, with an index of fixed-size units (docs/storage.md).

    data/   entries, each a 48-byte header and one message record; an entry never spans files
    index/  32 bytes per entry: where it begins, its size and its term

The data files are the truth and alone are flushed before an acknowledgement; index units are rebuilt from
them (`log.entry_recovery`), and checkpoints make them durable now and then so that little is to rebuild.

Who calls what: one thread owns the log. `FlushJob.run` and `PrepareJob.run` may run in worker threads; the
owner takes a job, has it run, and gives it back. At most one of each kind is out. A flush job that raised is
never given back: from then on nothing becomes durable, and the node must stop.

Truncation zeroes what it cuts off and flushes before it returns. Otherwise a crash could bring back entries
of an older term behind new ones, because pages reach the disk in any order; that would break log matching
(Raft figure 3). Committed entries are never truncated; the caller asserts that, who alone knows.

Slices are views of the mapping: valid for as long as they are held, but those of entries that are
truncated while a slice is held show zeros or other entries. A leader never truncates.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from log.columns import Places, leading
from log.disk import Disk, MappedFile
from log.durable_note import DurableNote
from log.entry_index import EntryIndex
from log.entry_range import EntryRange, check_range
from log.entry_recovery import LogRecovery, RecoveryKind, recover
from log.entry_scrub import problem_of_entry
from log.errors import (
    DamagedEntryError,
    DamagedLogError,
    DamagedRangeError,
    EntryTooLargeError,
    OutOfRangeError,
)
from log.layout import (
    END_MAGIC,
    END_MARKER,
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    MARKER_BYTES,
    UNIT,
    UNIT_BYTES,
)
from log.options import StoreOptions
from log.record import Buffer
from log.segments import Segments
from log.tail import PrepareJob, Tail
from log.unit_repair import checked_unit

_BETWEEN_BYTES = 64 * 1024
"""Room for the entries of others that come between those of a batch."""


def _ignore() -> None:
    """Nobody is told."""


class FlushJob:
    """A flush of what was appended since the last one. `last_index` is durable once `run` returned (see `flushed`)."""

    __slots__ = ("_ranges", "last_index")

    def __init__(self, ranges: list[tuple[MappedFile, int, int]], last_index: int) -> None:
        self._ranges = ranges
        self.last_index = last_index

    def run(self) -> None:
        """Worker. Raises FlushError: never acknowledge, stop the node."""
        for mapped, begin, end in self._ranges:
            mapped.flush(begin, end)


class Run(NamedTuple):
    """Entries in one data file, one behind the other: the last one's index, where they begin, and their bytes."""

    last_index: int
    position: int
    body: memoryview


class EntryLog:
    """Entries `first_index`..`last_index` (none if last is first - 1); the first entry of a log is 0.

    They are the bytes [first_position, end_position) of the log. `base_term` is the term of the entry before the first.
    `epoch` grows when entries that may have been durable are given up (`reset`, `cut_damage`): what was noted elsewhere
    of an earlier epoch is void.

    Always `_durable_index` <= `last_index`, and the note says the same while nothing is damaged;
    `_flush_from` <= `_written_position` <= `end_position` where there is a write buffer. `_runs` begin at `first_index`
    and `_last_term` is the term of the last of them. `_data_limit` and the index's `limit` say up to where pages are
    ready: below both an append cannot fail.
    """

    __slots__ = (
        "_begin_path",
        "_data",
        "_data_limit",
        "_disk",
        "_durable_index",
        "_file_bytes",
        "_flush_from",
        "_flush_job",
        "_hot_bytes",
        "_index",
        "_last_term",
        "_loops",
        "_note",
        "_prepare_job",
        "_reset_pending",
        "_runs",
        "_sound_from",
        "_sound_position",
        "_tail",
        "_units",
        "_write_buffer",
        "_written_position",
        "base_term",
        "damage_met",
        "damage_seen",
        "damaged",
        "end_position",
        "epoch",
        "first_index",
        "first_position",
        "last_index",
        "units_doubted",
    )

    first_index: int
    last_index: int
    first_position: int
    end_position: int
    base_term: int
    epoch: int
    _durable_index: int
    _flush_from: int
    _last_term: int
    _sound_from: int
    """The first entry whose unit was written or checked since the start."""
    _sound_position: int
    """All bytes from here on were written or checked since the start."""
    _written_position: int

    def __init__(
        self,
        disk: Disk,
        directory: str,
        options: StoreOptions,
        data: Segments,
        units: Segments,
        note: DurableNote,
    ) -> None:
        """For `EntryLog.open` alone, which recovers first."""
        self._disk = disk
        self._note = note
        self._begin_path = f"{directory}/begin"
        self._data = data
        self._units = units
        self._file_bytes = options.data_file_bytes
        self._loops = options.loops
        self._hot_bytes = options.hot_bytes
        self.damage_seen: dict[int, DamagedEntryError] = {}
        """By position: entries that a reader has found damaged, for the owner to take out and have repaired."""
        self.units_doubted = False
        """A unit of a queue or of the index has led a reader astray, or nowhere; for the owner to take out."""
        self.damage_met: Callable[[], None] = _ignore
        """Called when a reader has met damage, which `damage_seen` or `units_doubted` says then."""
        self._tail = Tail(data, options.prepare_ahead_bytes, options.prepare_step_bytes)
        self._index = EntryIndex(units)
        self._data_limit = 0
        self._flush_job: FlushJob | None = None
        self._prepare_job: PrepareJob | None = None
        self._runs: list[tuple[int, int]] = []
        self._reset_pending = False
        self._write_buffer = options.write_buffer
        self.damaged = False
        """Valid entries follow behind a damaged place: appending needs `cut_damage` first."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        options: StoreOptions,
        *,
        clean_stop: bool = False,
        checkpoint_index: int | None = None,
    ) -> tuple["EntryLog", LogRecovery]:
        """Recovers the log in `directory` (made if missing), see `log.entry_recovery`.

        `checkpoint_index` is the last index that a checkpoint noted as durable, data and units alike;
        `clean_stop` says that nothing was written after it. Raises DiskError.
        """
        data = Segments(
            disk,
            f"{directory}/data",
            options.data_file_bytes,
            options.data_mappings,
            buffered=options.write_buffer,
        )
        units = Segments(disk, f"{directory}/index", options.index_file_units * UNIT_BYTES, 4)
        note = DurableNote(disk, directory)
        recovery = recover(
            disk,
            directory,
            data,
            units,
            options,
            clean_stop=clean_stop,
            checkpoint_index=checkpoint_index,
            note=note,
        )
        log = cls(disk, directory, options, data, units, note)
        log._adopt(recovery)
        return log, recovery

    # ---- what is there -------------------------------------------------------------------------------

    @property
    def durable_index(self) -> int:
        """The last index known to be on stable storage."""
        return self._durable_index

    @property
    def last_term(self) -> int:
        """Term of the last entry, `base_term` if there is none."""
        return self._last_term

    def term_runs(self) -> list[tuple[int, int]]:
        """Returns (first index, term) of every run of entries with equal terms, ascending."""
        return list(self._runs)

    def term_of(self, index: int) -> int:
        """Returns the term of an entry, or of the one before the first. Raises OutOfRangeError."""
        runs = self._runs
        if runs and runs[-1][0] <= index <= self.last_index:  # nearly always it is one of the newest run
            return self._last_term
        if index == self.first_index - 1:
            return self.base_term
        self._check_index(index)
        return runs[bisect_right(runs, index, key=itemgetter(0)) - 1][1]

    def position_of(self, index: int) -> int:
        """Returns the position at which the entry begins. Raises OutOfRangeError, DamagedLogError."""
        if not self.first_index <= index <= self.last_index:
            self._check_index(index)
        is_sound = index >= self._sound_from and index >= self._index.first
        return (self._index.unit(index) if is_sound else self._unit(index))[0]

    def index_at(self, position: int) -> int:
        """Returns the entry in whose bytes `position` lies; an end marker counts to the entry before it. O(log n).

        Raises OutOfRangeError, DamagedLogError.
        """
        if not self.first_position <= position < self.end_position:
            raise OutOfRangeError(
                f"position {position} is not in [{self.first_position}, {self.end_position})"
            )
        low, high = self.first_index, self.last_index
        while low < high:
            middle = (low + high + 1) // 2
            if self._unit(middle)[0] <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def file_beginnings(self) -> Iterator[tuple[int, int]]:
        """Yields (position, first entry) of the data files behind the first one, oldest first.

        A file whose first entry is hidden by damage is left out: the log could not begin with it.
        """
        for start in self.file_starts():
            try:
                first = self.index_at(start)
            except DamagedLogError:
                continue
            if start > self.first_position:
                yield start, first

    def noted(self, index: int) -> tuple[int, int, int] | None:
        """Returns (position, size, term) of an entry as its index unit has it, unchecked; None if that is damaged."""
        try:
            unit = self._index.unit(index)
        except DamagedLogError:
            return None
        position, size, _ = unit
        sensible = (
            size > HEADER_BYTES and self.first_position <= position <= position + size <= self.end_position
        )
        return unit if sensible else None

    def index_of(self, position: int) -> int | None:
        """Returns the entry that begins at a position, by the index units alone; None if none does. O(log n)."""
        low, high = self.first_index, self.last_index
        while low <= high:
            middle = (low + high) // 2
            noted = self.noted(middle)
            if noted is None:
                return None
            if noted[0] == position:
                return middle
            if noted[0] < position:
                low = middle + 1
            else:
                high = middle - 1
        return None

    def next_position(self, body_size: int, end: int | None = None) -> int:
        """Returns the position of an entry with a body of that size, which is appended next, or first behind `end`.

        An entry that does not fit into the rest of a file begins the next one. Raises EntryTooLargeError.
        """
        size = body_size + HEADER_BYTES
        if end is None:
            end = self.end_position
        left = self._file_bytes - end % self._file_bytes
        if size + MARKER_BYTES <= left:
            return end
        if size + MARKER_BYTES > self._file_bytes:
            raise EntryTooLargeError(size, self._file_bytes - MARKER_BYTES)
        return end + left

    # ---- reading -------------------------------------------------------------------------------------

    def run(self, first_index: int, last_index: int, max_bytes: int | None = None) -> Run:
        """Returns the longest run of entries from `first_index`, not beyond `last_index`, in one data file.

        It has at most `max_bytes`, but one entry at least, whatever its size. O(log n) where it is shorter than asked.
        Raises OutOfRangeError, DamagedLogError.
        """
        file_bytes = self._file_bytes
        begin = self.position_of(first_index)
        at = begin % file_bytes
        start = begin - at
        limit = start + file_bytes
        if max_bytes is not None and begin + max_bytes < limit:
            limit = begin + max_bytes
        end = self.end_position if last_index == self.last_index else self._end_of(last_index)
        if end > limit:
            last_index = self._last_before(limit, first_index, last_index - 1)
            end = self._end_of(last_index)
        tail = self._tail
        buffer = tail.buffer if start == tail.start else self._data.mapping(start).buffer
        return Run(last_index, begin, buffer[at : end - start])

    def _last_before(self, limit: int, low: int, high: int) -> int:
        """Returns the last entry of `low`..`high` that ends at `limit` or before; `low` if none does."""
        while low < high:
            middle = (low + high + 1) // 2
            position, size, _ = self._unit(middle)
            if position + size <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def checked_position(self) -> int:
        """Bytes from this position on are as they were written here, or checked since the start, and in memory since.

        What lies before it may have come from the disk again: readers check it (`record_at`, `check_record`).
        """
        hot = self.end_position - self._hot_bytes
        return hot if hot > self._sound_position else self._sound_position

    def record_at(self, physical_offset: int, size: int | None = None) -> memoryview:
        """Returns the record whose bytes begin at `physical_offset` (entry position + HEADER_BYTES).

        Of what may have come from the disk again (`checked_position`) header and checksum are checked. Raises
        OutOfRangeError, and DamagedEntryError: read it again when it is repaired.
        """
        try:
            record = self.bytes_at(physical_offset, size)
        except OutOfRangeError:
            position = physical_offset - HEADER_BYTES
            if (
                self.first_position <= position < self.checked_position
                and self.index_of(position) is not None
            ):
                raise self._damage(self._data.start_of(position), position, "its header is none") from None
            raise
        if physical_offset < self.checked_position and self.check_record(physical_offset) != len(record):
            self.doubt_units()
            start = self._data.start_of(physical_offset)
            raise DamagedEntryError(
                self._data.path(start), physical_offset - start, "its unit has another size", physical_offset
            )
        return record

    def check_record(self, physical_offset: int) -> int:
        """Checks the entry of a record, whose bytes are read for it; returns the record's size.

        Raises DamagedEntryError, which is noted in `damage_seen`, too; OutOfRangeError if the log does not hold the
        record any more.
        """
        position = physical_offset - HEADER_BYTES
        if not self.first_position <= position < self.end_position:
            raise OutOfRangeError(f"offset {physical_offset} has left the log")
        start = self._data.start_of(position)
        return self._check_entry(self._buffer(start), start, position)

    def check_run(self, first_index: int, run: Run) -> None:
        """Checks all entries of a run in the same way, with their headers, if they may have come from the disk again.

        Raises DamagedEntryError for the first one that is damaged.
        """
        if run.position >= self.checked_position:
            return
        start = self._data.start_of(run.position)
        buffer, position = self._buffer(start), run.position
        for index in range(first_index, run.last_index + 1):
            size = HEADER_BYTES + self._check_entry(buffer, start, position)
            _, _, number, term, *_ = HEADER.unpack_from(buffer, position - start)
            if (number, term) != (index, self.term_of(index)):
                raise self._damage(start, position, f"its header says entry {number} of term {term}")
            position += size

    def _check_entry(self, buffer: memoryview, start: int, position: int) -> int:
        """Returns the size of the record of an entry that is whole. Raises DamagedEntryError."""
        found = problem_of_entry(buffer, position - start, position)
        if isinstance(found, str):
            raise self._damage(start, position, found)
        return found

    def _damage(self, start: int, position: int, problem: str) -> DamagedEntryError:
        return self._met(DamagedEntryError(self._data.path(start), position - start, problem, position))

    def _met(self, error: DamagedEntryError) -> DamagedEntryError:
        """Notes damage that a reader has met, for the owner."""
        self.damage_seen[error.position] = error
        self.damage_met()
        return error

    def doubt_units(self) -> None:
        """A unit has led a reader astray, or nowhere: all of them are to be looked at."""
        self.units_doubted = True
        self.damage_met()

    def bytes_at(self, physical_offset: int, size: int | None = None) -> memoryview:
        """Does as `record_at` without reading the record: who uses it calls `check_record` when it is in memory.

        Without `size` the entry's header is checked to be there; with it (from a ConsumeQueue unit or an
        offset that a check has already passed) only the bounds are. Raises OutOfRangeError.
        """
        position = physical_offset - HEADER_BYTES
        if position < self.first_position or position >= self.end_position:
            raise OutOfRangeError(
                f"offset {physical_offset} is not in the log, which holds positions "
                f"{self.first_position} to {self.end_position}"
            )
        at = position % self._file_bytes
        start = position - at
        tail = self._tail
        buffer = tail.buffer if start == tail.start else self._data.mapping(start).buffer
        if size is None:
            size = -1
            if at + HEADER_BYTES <= self._file_bytes:
                magic, entry_size, _, _, found, _, _, _, body_size = HEADER.unpack_from(buffer, at)
                if magic == ENTRY_MAGIC and found == position and entry_size == body_size + HEADER_BYTES:
                    size = body_size
        begin = at + HEADER_BYTES
        if size < 0 or begin + size > self._file_bytes or physical_offset + size > self.end_position:
            raise OutOfRangeError(f"no record begins at offset {physical_offset}")
        return buffer[begin : begin + size]

    def file_view(self, position: int) -> tuple[memoryview, int]:
        """Returns (all bytes of the data file in which `position` lies, the file's start), for walks over entries."""
        start = self._data.start_of(position)
        return self._buffer(start), start

    def places(self, first: int, last: int) -> tuple[memoryview, int, Places, Places]:
        """Returns (all bytes of the data file with entry `first`, its start, places in it, sizes) of many entries.

        They are those from `first` to `last` that are in that file, or fewer, and none where their units were not
        checked yet. Raises as `position_of`.
        """
        buffer, start = self.file_view(self.position_of(first))
        units = self._index.units(first, last)
        if first < self._sound_from:
            units = units[:0]
        places = units["position"].astype(np.int64) - start
        places = places[: leading(places < self._file_bytes)]
        return buffer, start, places, units["size"][: len(places)].astype(np.int64)

    def file_at(self, start: int) -> MappedFile:
        """Returns the data file that begins at `start`."""
        return self._tail.mapped if start == self._tail.start else self._data.mapping(start)

    @property
    def file_bytes(self) -> int:
        """Size of a data file."""
        return self._file_bytes

    def end_of(self, index: int) -> int:
        """Returns the position behind the entry; `first_position` for first_index - 1. Raises OutOfRangeError."""
        if index == self.first_index - 1:
            return self.first_position
        return self._end_of(index)

    def bytes_after(self, index: int) -> int:
        """Returns how many bytes the log holds behind an entry, which may be one that it does not have any more."""
        if index >= self.last_index:
            return 0
        if index < self.first_index:
            return self.end_position - self.first_position
        return self.end_position - self.position_of(index + 1)

    def file_starts(self) -> list[int]:
        """Returns the positions at which the data files with entries begin, oldest first."""
        begin, end = self.first_position, max(self.end_position, 1)
        return [start for start in self._data.starts if begin <= start < end]

    # ---- writing -------------------------------------------------------------------------------------

    def append(self, term: int, body: bytes) -> int:
        """Appends one entry and returns its index; the bytes are in the page cache then, not durable.

        `body` is a record whose PHYSICALOFFSET is already `next_position(len(body)) + HEADER_BYTES`.
        Raises EntryTooLargeError, DiskFullError, DiskError; nothing has changed then.
        """
        size = len(body) + HEADER_BYTES
        position = self.end_position
        index = self.last_index + 1
        if position + size > self._data_limit or index >= self._index.limit:
            position = self._make_room(size)
        if term != self._last_term or not self._runs:
            assert term >= self._last_term, "terms never decrease along the log"
            self._runs.append((index, term))
            self._last_term = term
        tail, units = self._tail, self._index
        self._loops.store_entry(
            tail.buffer,
            position - tail.start,
            units.buffer,
            (index - units.first) * UNIT_BYTES,
            term,
            index,
            position,
            body,
        )
        self.last_index = index
        self.end_position = position + size
        return index

    def make_room(self, size: int) -> None:
        """Makes sure that the next `append` does not fail for want of space, if its entry has at most `size` bytes.

        Raises DiskFullError, DiskError; nothing has changed then.
        """
        assert not self.damaged, "cut_damage comes before any append"
        tail = self._tail
        file_end = tail.start + self._file_bytes
        end = self.end_position + size + MARKER_BYTES
        tail.ensure(min(end, file_end))
        if end > file_end:
            tail.ensure_next(file_end + size + MARKER_BYTES)
        self._index.reserve(self.last_index + 1, self.last_index + 1)
        self._set_limit()

    def make_room_for_all(self, body_sizes: Places) -> Places:
        """Makes sure that no `append` of entries with bodies of these sizes, in this order, fails.

        Returns the positions at which they will begin.

        Raises EntryTooLargeError, DiskFullError, DiskError; nothing of the log has changed then.
        """
        assert not self.damaged, "cut_damage comes before any append"
        file_bytes = self._file_bytes
        sizes = body_sizes + HEADER_BYTES
        positions = np.empty(len(sizes), np.int64)
        end, placed = self.end_position, 0
        while placed < len(sizes):
            left = file_bytes - end % file_bytes
            ends = np.cumsum(sizes[placed:])
            fitting = leading(ends + MARKER_BYTES <= left)
            if fitting:
                positions[placed : placed + fitting] = end + ends[:fitting] - sizes[placed : placed + fitting]
                end += int(ends[fitting - 1])
                placed += fitting
            elif left < file_bytes:
                end += left
            else:
                raise EntryTooLargeError(int(sizes[placed]), file_bytes - MARKER_BYTES)
        try:
            self._tail.ensure_through(end)
            self._index.reserve_ahead(self.last_index + len(sizes))
        finally:
            self._set_limit()
        return positions

    def make_room_for(self, count: int, bytes_together: int, largest: int) -> None:
        """Makes sure that no `append` of `count` entries fails whose bodies have so many bytes, and `largest` at most.

        There is room left for a few short entries between them. Raises EntryTooLargeError, DiskFullError, DiskError;
        nothing of the log has changed then.
        """
        assert not self.damaged, "cut_damage comes before any append"
        self.next_position(largest)
        size = bytes_together + count * HEADER_BYTES + _BETWEEN_BYTES
        # The end of each data file that they come to may stay empty, as its rest is too short for the next entry.
        unused = largest + HEADER_BYTES + MARKER_BYTES
        files = 1 + size // max(self._file_bytes - unused, unused)
        try:
            self._tail.ensure_through(self.end_position + size + files * unused)
            self._index.reserve_ahead(self.last_index + count)
        finally:
            self._set_limit()

    def make_room_for_range(self, entries: EntryRange) -> None:
        """Makes sure that `append_range` of these entries does not fail for want of space.

        They may follow this log with a gap, or not at all: that shows when they are appended. Raises DiskFullError,
        DiskError; nothing of the log has changed then.
        """
        assert not self.damaged, "cut_damage comes before any append"
        if entries.end_position <= self._data_limit and entries.last_index < self._index.limit:
            return
        if entries.last_index <= self.last_index:
            return
        try:
            self._tail.ensure_through(entries.end_position)
            self._index.reserve_ahead(entries.last_index)
        finally:
            self._set_limit()

    def check_range(self, data: Buffer, first_index: int, position: int) -> EntryRange:
        """Checks entries from a peer, see `log.entry_range.check_range`. Raises DamagedRangeError."""
        return check_range(data, first_index, position, self._file_bytes, self._loops.checked_run)

    def append_range(self, entries: EntryRange, skip_entries: int = 0) -> None:
        """Appends a checked range (without its first `skip_entries`, which are in the log already).

        Its first new entry must have the index behind the last one here. Raises DamagedRangeError if its
        position or term cannot follow this log, DiskFullError, DiskError; nothing has changed then.
        """
        first = entries.first_index + skip_entries
        assert first == self.last_index + 1, "a range continues the log"
        assert first <= entries.last_index, "something of the range is new"
        position, term = entries.position, entries.term_spans[0][1]
        if skip_entries:
            position, term = entries.position_of(first), entries.term_of(first)
        if term < self._last_term:
            raise DamagedRangeError(0, f"term {term} cannot follow term {self._last_term}")
        end = entries.end_position
        if position != self.end_position or end > self._data_limit or entries.last_index >= self._index.limit:
            self._make_room_for_range(entries, first, position)
        if term != self._last_term or not self._runs:
            self._runs.append((first, term))
        if len(entries.term_spans) > 1:
            self._runs += [span for span in entries.term_spans if span[0] > first]
        self._last_term = self._runs[-1][1]
        tail = self._tail
        at = position - tail.start
        tail.buffer[at : at + end - position] = entries.data[position - entries.position :]
        self._index.store(entries, first)
        self.last_index = entries.last_index
        self.end_position = end

    # ---- flushing and preparing ----------------------------------------------------------------------

    def write_back(self) -> None:
        """Makes what was appended survive a crash of the process; before that nothing of it may be acknowledged.

        Does nothing without a write buffer. Raises DiskError: stop the node.
        """
        if self._write_buffer and self._written_position < self.end_position:
            for mapped, begin, end in self._ranges_from(self._written_position):
                mapped.write_back(begin, end)
            self._written_position = self.end_position
            self._data.settle_before(self._tail.start)

    def flush_job(self) -> FlushJob | None:
        """Returns the flush of what was appended since the last job; None if nothing was, or if a job is still out.

        Raises DiskError.
        """
        if self._flush_job is not None or self._flush_from == self.end_position:
            return None
        ranges = self._ranges_from(self._flush_from)
        self.write_back()
        self._flush_from = self.end_position
        self._flush_job = FlushJob(ranges, self.last_index)
        return self._flush_job

    @property
    def note_waits(self) -> bool:
        """True while a power failure may take what the log has noted of how far it is durable (`log.durable_note`)."""
        return not self._note.is_flushed

    def note_job(self) -> FlushJob | None:
        """Returns the flush of that note; None if it does not wait for one, or if a job is still out."""
        if self._flush_job is not None or self._note.is_flushed:
            return None
        self._flush_job = FlushJob([self._note.flush_range()], self._durable_index)
        return self._flush_job

    def flush_note(self) -> None:
        """Flushes that note at once, for an orderly stop. Raises FlushError."""
        if not self._note.is_flushed:
            self._note.flush()

    @property
    def flush_is_out(self) -> bool:
        """True while a flush job has not come back: it runs, or it failed."""
        return self._flush_job is not None

    def flushed(self, job: FlushJob) -> int:
        """Takes back a job whose `run` returned without an error; returns the durable index.

        Entries truncated while the job ran do not count, although others may have their index now.
        """
        assert job is self._flush_job, "the job that is out comes back, once"
        assert job.last_index <= self.last_index, "a truncation draws the job back with it"
        self._flush_job = None
        if job.last_index > self._durable_index:
            self._durable_index = job.last_index
            self._note.store(self.epoch, job.last_index)
        return self._durable_index

    def prepare_job(self) -> PrepareJob | None:
        """Returns the files and pages to make ready ahead of the writer; None if enough are, or a job is out."""
        if self._prepare_job is not None or self.damaged:
            return None
        data, units = self._tail, self._index.tail
        end, units_end = self.end_position, (self.last_index + 1) * UNIT_BYTES
        if data.prepared_end - end > data.enough and units.prepared_end - units_end > units.enough:
            return None
        steps = [*data.wanted(end), *units.wanted(units_end)]
        if not steps:
            return None
        self._prepare_job = PrepareJob(steps)
        return self._prepare_job

    def prepared(self, job: PrepareJob) -> None:
        """Takes back a job, whether its `run` raised or not."""
        assert job is self._prepare_job, "the job that is out comes back, once"
        self._prepare_job = None
        job.finish()
        self._index.update()
        self._set_limit()

    def unit_files_since(self, index: int) -> list[str]:
        """Returns the paths of the index files with units of entries from `index` on, for a checkpoint to flush."""
        index = min(max(index, self.first_index), self.last_index + 1)
        begin = self._units.start_of(index * UNIT_BYTES)
        return [self._units.path(start) for start in self._units.starts if start >= begin]

    def close(self) -> None:
        """Forgets all mappings; slices still held stay valid."""
        self._data.close()
        self._units.close()
        self._note.close()

    # ---- inside --------------------------------------------------------------------------------------

    def _adopt(self, recovery: LogRecovery) -> None:
        """Takes over what recovery found. A damaged log can be read, and not be written."""
        self.first_index = recovery.first_index
        self.first_position = recovery.first_position
        self.base_term = recovery.base_term
        self.epoch = recovery.epoch
        self.last_index = recovery.last_good_index
        self._sound_from = recovery.last_good_index + 1 - recovery.scanned_entries
        self.end_position = self._sound_position = recovery.end_position
        self._reset_pending = recovery.kind is RecoveryKind.RESET_PENDING
        self.damaged = self._reset_pending or recovery.kind is RecoveryKind.DAMAGED
        if self.damaged:
            self._durable_index = self.last_index
            self._flush_from = self._written_position = self.end_position
        else:
            self._start_writing()
        self._runs = EntryIndex.term_runs(
            self.first_index, self.last_index, lambda index: self._unit(index)[2]
        )
        self._last_term = self._runs[-1][1] if self._runs else self.base_term
        if self._sound_from <= self.last_index:
            self._sound_position = self.position_of(max(self._sound_from, self.first_index))
        if self._runs and self._runs[0][1] < max(self.base_term, 1):
            self._refuse_first_term()

    def _refuse_first_term(self) -> None:
        index, term = self._runs[0]
        position = self.position_of(index)
        start = self._data.start_of(position)
        raise DamagedLogError(
            self._data.path(start),
            position - start,
            f"entry {index} has term {term}, where no term is below {max(self.base_term, 1)}. If RocketMQ wrote this "
            "store, take it over with `trivet migrate`; else give the node an empty one, and its group fills it",
        )

    def _start_writing(self) -> None:
        """Begins to write at the log's end: nothing lies behind it, and recovery has flushed all before it."""
        self._tail.move_to(self.end_position)
        self._durable_index = self.last_index
        self._note.store(self.epoch, self.last_index)
        self._flush_from = self._written_position = self.end_position
        self._index.move_to(self.last_index + 1)
        self._set_limit()

    def _set_limit(self) -> None:
        """Takes over a change of the tail: up to the limit pages are ready, and an end marker still fits behind."""
        tail = self._tail
        self._data_limit = min(tail.prepared_end, tail.start + self._file_bytes - MARKER_BYTES)

    def _make_room(self, size: int) -> int:
        """Does what `append` need not do each time: rolls, creates, prepares. Returns the entry's position.

        Raises EntryTooLargeError, DiskFullError, DiskError; nothing has changed then.
        """
        position = self.next_position(size - HEADER_BYTES)
        self._advance(position, position + size, self.last_index + 1)
        return position

    def _make_room_for_range(self, entries: EntryRange, first: int, position: int) -> None:
        """Does as `_make_room` for a range whose first new entry claims `position`. Raises DamagedRangeError, too."""
        # Files are of one size on all replicas, so each entry can only be at one position behind the one before it.
        if position != self.end_position:
            offset = (first - entries.first_index) * UNIT_BYTES
            size = UNIT.unpack_from(entries.units, offset)[2]
            expected = self.next_position(size - HEADER_BYTES)
            if position != expected:
                raise DamagedRangeError(
                    position - entries.position,
                    f"entry {first} is at position {position}, but in this log it must be at {expected}",
                )
        self._advance(position, entries.end_position, entries.last_index)

    def _advance(self, position: int, end: int, last_index: int) -> None:
        """Makes the pages of an entry at `position` ready, up to `end`; ends the current file where it does not fit."""
        assert not self.damaged, "cut_damage comes before any append"
        self._index.reserve(self.last_index + 1, last_index)
        tail = self._tail
        if position >= tail.start + self._file_bytes:
            # All that can fail comes first: a marker without an entry behind it must not stay.
            at = self.end_position - tail.start
            tail.ensure(self.end_position + MARKER_BYTES)
            tail.ensure_next(end)
            END_MARKER.pack_into(tail.buffer, at, END_MAGIC, self._file_bytes - at)
            tail.roll()
        else:
            tail.ensure(end)
        self._set_limit()

    def _check_index(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            raise OutOfRangeError(f"entry {index} is not in {self.first_index}..{self.last_index}")

    def _unit(self, index: int) -> tuple[int, int, int]:
        """Returns (position, size, term) of an entry. Raises DamagedLogError."""
        # Those of older files may have come from the disk again.
        if index >= self._sound_from and index >= self._index.first:
            return self._index.unit(index)
        try:
            return checked_unit(
                index, self._index, self._data, self._units, self.first_position, self.end_position
            )
        except DamagedEntryError as error:
            raise self._met(error) from None

    def _end_of(self, index: int) -> int:
        if index == self.last_index:
            return self.end_position
        self._check_index(index)
        position, size, _ = self._unit(index)
        return position + size

    def _ranges_from(self, position: int) -> list[tuple[MappedFile, int, int]]:
        """Returns [position, end_position) by data file: (file, begin, end), the places within the file."""
        ranges = []
        while position < self.end_position:
            start = self._data.start_of(position)
            end = min(self.end_position, start + self._file_bytes)
            ranges.append((self.file_at(start), position - start, end - start))
            position = start + self._file_bytes
        return ranges

    def _buffer(self, start: int) -> memoryview:
        return self._tail.buffer if start == self._tail.start else self._data.mapping(start).buffer
