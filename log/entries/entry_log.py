"""The Raft log on disk: DLedger entries in mapped files, with an index of fixed-size units (docs/storage.md).

    data/   entries, each a 48-byte header and one message record; an entry never spans files
    index/  32 bytes per entry: where it begins, its size and its term

The data files are the truth and alone are flushed before an acknowledgement; index units are rebuilt from
them (`log.entries.entry_recovery`), and checkpoints make them durable now and then so that little is to rebuild.

Here entries are appended and lent as slices. What is done to a log beside that stands in modules of its own:

    entry_reads   which entry is at a position, and whether it is as it was written
    record_walk   the records of neighbouring entries, where each message costs
    entry_room    space is made for what must not fail halfway
    flushes       how far the log is on the disk
    cuts          its tail, its head, all behind damage or everything goes
    entry_repair  damaged entries are put back

One thread owns the log. `FlushJob.run` and `PrepareJob.run` may run in worker threads; the owner takes a job, has it
run, and returns it. At most one of each kind is out.

Slices are views of the mapping: valid for as long as they are held, but those of entries that are
truncated while a slice is held show zeros or other entries. A leader never truncates.
"""

from typing import NamedTuple

import numpy as np

from log.entries.damage_met import DamageMet
from log.entries.durable_note import DurableNote
from log.entries.entry_index import EntryIndex
from log.entries.entry_recovery import LogRecovery, RecoveryKind, recover
from log.entries.entry_terms import EntryTerms
from log.entries.flushes import Flushes
from log.entries.segments import Segments
from log.entries.tail import PrepareJob, Tail
from log.entries.unit_repair import checked_unit, term_of_damaged
from log.errors import (
    DamagedEntryError,
    DamagedLogError,
    DamagedRangeError,
    EntryTooLargeError,
    MisplacedRangeError,
    OutOfRangeError,
)
from log.files.disk import Disk, MappedFile
from log.formats.columns import Places, leading
from log.formats.entry_range import EntryRange, check_range
from log.formats.layout import (
    END_MAGIC,
    END_MARKER,
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    MARKER_BYTES,
    UNIT,
    UNIT_BYTES,
)
from log.formats.record import Buffer
from log.options import StoreOptions


class Run(NamedTuple):
    """Entries in one data file, one behind the other: the last one's index, where they begin, and their bytes."""

    last_index: int
    position: int
    body: memoryview


class EntryLog:
    """Entries `first_index`..`last_index` (none if last is first - 1); the first entry of a log is 0.

    They are the bytes [first_position, end_position) of the log. `epoch` grows when entries that may have been durable
    are given up (`reset`, `cut_damage`): what was noted elsewhere of an earlier epoch is void.

    The tails' `limit`s say up to where pages are ready: below both an append cannot fail.
    """

    __slots__ = (
        "_hot_bytes",
        "_loops",
        "_prepare_job",
        "damage",
        "damaged",
        "data",
        "directory",
        "end_position",
        "epoch",
        "file_bytes",
        "first_index",
        "first_position",
        "flushes",
        "index",
        "last_index",
        "reset_pending",
        "sound_position",
        "tail",
        "terms",
    )

    def __init__(
        self,
        directory: str,
        options: StoreOptions,
        data: Segments,
        units: Segments,
        note: DurableNote,
        recovery: LogRecovery,
    ) -> None:
        """For `EntryLog.open` alone, which recovers first. A damaged log can be read, and not be written."""
        self.directory = directory
        self.data = data
        self.file_bytes = options.data_file_bytes
        """Size of a data file."""
        self._loops = options.loops
        self._hot_bytes = options.hot_bytes
        self.damage = DamageMet()
        self.tail = Tail(data, options.prepare_ahead_bytes, options.prepare_step_bytes, MARKER_BYTES)
        self._prepare_job: PrepareJob | None = None
        self.first_index = recovery.begin.index
        self.first_position = recovery.begin.position
        self.epoch = recovery.begin.epoch
        self.last_index = recovery.last_good_index
        self.end_position = recovery.end_position
        self.index = EntryIndex(units, self.last_index + 1 - recovery.scanned_entries)
        self.reset_pending = recovery.kind is RecoveryKind.RESET_PENDING
        """A reset was begun: another one has to come first."""
        self.damaged = self.reset_pending or recovery.kind is RecoveryKind.DAMAGED
        """Valid entries follow behind a damaged place: appending needs `cut_damage` first."""
        self.flushes = Flushes(self, data, note, write_buffer=options.write_buffer)
        # A damaged log has no writer's end: its tails stay nowhere until `cut_damage`.
        if self.damaged:
            self.flushes.begin()
        else:
            self.start_writing()
        self.terms = EntryTerms(recovery.begin.base_term)
        self.terms.find(self.first_index, self.last_index, self._term_at_start)
        self.sound_position = self.end_position
        """All bytes from here on were written or checked since the start."""
        if self.index.sound_from <= self.last_index:
            self.sound_position = self.position_of(max(self.index.sound_from, self.first_index))
        if self.terms.starts and self.terms.starts[0][1] < max(self.base_term, 1):
            self._refuse_first_term()

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
        """Recovers the log in `directory` (made if missing), see `log.entries.entry_recovery`.

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
        return cls(directory, options, data, units, note, recovery), recovery

    # ---- what is there -------------------------------------------------------------------------------

    @property
    def durable_index(self) -> int:
        """The last index known to be on stable storage."""
        return self.flushes.durable_index

    @property
    def checked_position(self) -> int:
        """Bytes from this position on are as they were written here, or checked since the start, and in memory since.

        What lies before it may have come from the disk again: readers check it (`log.entries.entry_reads`).
        """
        hot = self.end_position - self._hot_bytes
        return hot if hot > self.sound_position else self.sound_position

    def doubt(self) -> bool:
        """Takes nothing to be in memory any more: all is checked when it is read. Returns False if that was so before.

        To be called where something that was believed is not as it was written.
        """
        believed = self._hot_bytes > 0 or self.sound_position > 0
        self._hot_bytes = self.sound_position = 0
        return believed

    @property
    def base_term(self) -> int:
        """The term of the entry before the first."""
        return self.terms.base

    @property
    def last_term(self) -> int:
        """The term of the last entry, or of the one before the first."""
        return self.terms.newest or self.terms.base

    def term_starts(self) -> list[tuple[int, int]]:
        """Returns (first index, term) of every run of entries with equal terms, ascending."""
        return list(self.terms.starts)

    def term_of(self, index: int) -> int:
        """Returns the term of an entry, or of the one before the first. Raises OutOfRangeError."""
        runs = self.terms.starts
        if runs and runs[-1][0] <= index <= self.last_index:  # nearly always it is one of the newest run
            return runs[-1][1]
        if index == self.first_index - 1:
            return self.base_term
        self._check_index(index)
        return self.terms.of(index)

    def position_of(self, index: int) -> int:
        """Returns the position at which the entry begins. Raises OutOfRangeError, DamagedLogError."""
        if not self.first_index <= index <= self.last_index:
            self._check_index(index)
        units = self.index
        is_sound = index >= units.sound_from and index * UNIT_BYTES >= units.tail.start
        return (units.unit(index) if is_sound else self._unit(index))[0]

    def unit_unchecked(self, index: int) -> tuple[int, int, int] | None:
        """Returns (position, size, term) of an entry as its index unit has it; None if that cannot be."""
        try:
            unit = self.index.unit(index)
        except DamagedLogError:
            return None
        position, size, _ = unit
        sensible = (
            size > HEADER_BYTES and self.first_position <= position <= position + size <= self.end_position
        )
        return unit if sensible else None

    def end_of(self, index: int) -> int:
        """Returns the position behind the entry; `first_position` for first_index - 1.

        Raises OutOfRangeError, DamagedLogError.
        """
        if index == self.last_index:
            return self.end_position
        if index == self.first_index - 1:
            return self.first_position
        self._check_index(index)
        position, size, _ = self._unit(index)
        return position + size

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
        return [start for start in self.data.starts if begin <= start < end]

    def next_position(self, body_size: int, end: int | None = None) -> int:
        """Returns the position of an entry with a body of that size, which is appended next, or first behind `end`.

        An entry that does not fit into the rest of a file begins the next one. Raises EntryTooLargeError.
        """
        size = body_size + HEADER_BYTES
        if end is None:
            end = self.end_position
        left = self.file_bytes - end % self.file_bytes
        if size + MARKER_BYTES <= left:
            return end
        if size + MARKER_BYTES > self.file_bytes:
            raise EntryTooLargeError(size, self.file_bytes - MARKER_BYTES)
        return end + left

    # ---- reading -------------------------------------------------------------------------------------

    def run(self, first_index: int, last_index: int, max_bytes: int | None = None) -> Run:
        """Returns the longest run of entries from `first_index`, not beyond `last_index`, in one data file.

        It has at most `max_bytes`, but one entry at least, whatever its size. O(log n) where it is shorter than asked.
        Raises OutOfRangeError, DamagedLogError.
        """
        begin = self.position_of(first_index)
        mapped, start = self.file_of(begin)
        limit = start + self.file_bytes
        if max_bytes is not None and begin + max_bytes < limit:
            limit = begin + max_bytes
        end = self.end_position if last_index == self.last_index else self.end_of(last_index)
        if end > limit:
            last_index = self._last_before(limit, first_index, last_index - 1)
            end = self.end_of(last_index)
        return Run(last_index, begin, mapped.buffer[begin - start : end - start])

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

    def bytes_at(self, physical_offset: int, size: int | None = None) -> memoryview:
        """Returns the bytes of the record at `physical_offset`, not read and so not checked, even if they are damaged.

        Who uses them calls `check_record` (log/entries/entry_reads.py) once they are in memory. Without `size` the
        entry's header is read, and checked to be there; with it (from a ConsumeQueue unit or an offset that a check has
        already passed) only the bounds are. Raises OutOfRangeError.
        """
        position = physical_offset - HEADER_BYTES
        if position < self.first_position or position >= self.end_position:
            raise OutOfRangeError(
                f"offset {physical_offset} is not in the log, which holds positions "
                f"{self.first_position} to {self.end_position}"
            )
        # As `file_of`, but inlined: each message that is read comes by here, and the call would cost it 0.07 us of
        # 0.5 (`python -m benchmarks.log_hot_path`, read by queue); `run` is asked once for many.
        at = position % self.file_bytes
        start = position - at
        tail = self.tail
        buffer = tail.buffer if start == tail.start else self.data.mapping(start).buffer
        if size is None:
            size = -1  # none, unless a sound header says so
            if at + HEADER_BYTES <= self.file_bytes:
                magic, entry_size, _, _, found, _, _, _, body_size = HEADER.unpack_from(buffer, at)
                if magic == ENTRY_MAGIC and found == position and entry_size == body_size + HEADER_BYTES:
                    size = body_size
        begin = at + HEADER_BYTES
        if size < 0 or begin + size > self.file_bytes or physical_offset + size > self.end_position:
            raise OutOfRangeError(f"no record begins at offset {physical_offset}")
        return buffer[begin : begin + size]

    def places(self, first: int, last: int) -> tuple[memoryview, int, Places, Places]:
        """Returns (all bytes of the data file with entry `first`, its start, places in it, sizes) of many entries.

        They are those from `first` to `last` that are in that file, or fewer, and none where their units were not
        checked yet. Raises as `position_of`.
        """
        mapped, start = self.file_of(self.position_of(first))
        units = self.index.units(first, last)
        places = units["position"].astype(np.int64) - start
        places = places[: leading(places < self.file_bytes)]
        return mapped.buffer, start, places, units["size"][: len(places)].astype(np.int64)

    def file_of(self, position: int) -> tuple[MappedFile, int]:
        """Returns the data file in which `position` lies, for walks over its entries, and the position of its start."""
        start = position - position % self.file_bytes
        tail = self.tail
        return (tail.mapped if start == tail.start else self.data.mapping(start)), start

    # ---- writing -------------------------------------------------------------------------------------

    def append(self, term: int, body: bytes) -> int:
        """Appends one entry and returns its index; the bytes are in the page cache then, not durable.

        `body` is a record whose PHYSICALOFFSET is already `next_position(len(body)) + HEADER_BYTES`.
        Raises EntryTooLargeError, DiskFullError, DiskError; nothing has changed then.
        """
        size = len(body) + HEADER_BYTES
        position = self.end_position
        index = self.last_index + 1
        unit_at = index * UNIT_BYTES
        # All that can fail is done before the first field changes: below both limits a store is a copy.
        tail, units = self.tail, self.index.tail
        if position + size > tail.limit or unit_at + UNIT_BYTES > units.limit:
            position = self._make_room(size)
        if term != self.terms.newest:
            assert term >= self.last_term, f"term {term} cannot follow term {self.last_term}"
            self.terms.add(index, term)
        self._loops.store_entry(
            tail.buffer,
            position - tail.start,
            units.buffer,
            unit_at - units.start,
            term,
            index,
            position,
            body,
        )
        self.last_index = index
        self.end_position = position + size
        return index

    def check_range(self, data: Buffer, first_index: int, position: int) -> EntryRange:
        """Checks entries from a peer, see `log.formats.entry_range.check_range`. Raises DamagedRangeError."""
        return check_range(data, first_index, position, self.file_bytes, self._loops.checked_run)

    def check_place(self, entries: EntryRange, first: int) -> None:
        """Raises MisplacedRangeError unless entry `first` of a checked range is where it must be behind this log's end.

        Files are of one size on all replicas, so each entry can only be at one position behind the one before it.
        """
        at = (first - entries.first_index) * UNIT_BYTES
        _, position, size, _, _ = UNIT.unpack_from(entries.units, at)
        if position == self.end_position:
            return
        expected = self.next_position(size - HEADER_BYTES)
        if position != expected:
            reason = f"entry {first} is at position {position}, but in this log it must be at {expected}"
            raise MisplacedRangeError(position - entries.position, reason, self.file_bytes)

    def append_range(self, entries: EntryRange, skip_entries: int = 0) -> None:
        """Appends a checked range (without its first `skip_entries`, which are in the log already).

        Its first new entry must have the index behind the last one here. Raises MisplacedRangeError or
        DamagedRangeError if its position or its term cannot follow this log, DiskFullError, DiskError; nothing has
        changed then.
        """
        first = entries.first_index + skip_entries
        assert first == self.last_index + 1, f"a range from entry {first} on, behind entry {self.last_index}"
        assert first <= entries.last_index, f"nothing of {entries.first_index}..{entries.last_index} is new"
        position, term = entries.position, entries.term_spans[0][1]
        if skip_entries:
            position, term = entries.position_of(first), entries.term_of(first)
        # The range is sound in itself. Whether it follows this log shows in its first new entry alone: in its term
        # here, in its position where room is made for it.
        terms = self.terms
        if term != terms.newest and term < self.last_term:
            raise DamagedRangeError(0, f"term {term} cannot follow term {self.last_term}")
        end, tail = entries.end_position, self.tail
        units_end = (entries.last_index + 1) * UNIT_BYTES
        if position != self.end_position or end > tail.limit or units_end > self.index.tail.limit:
            self.check_place(entries, first)
            self._advance(position, end, entries.last_index)
        # Nothing fails from here on, so that terms, bytes, units and ends change together.
        if term != terms.newest:
            terms.add(first, term)
        for start, later in entries.term_spans:
            if start > first:
                terms.add(start, later)
        at = position - tail.start
        tail.buffer[at : at + end - position] = entries.data[position - entries.position :]
        self.index.store(entries, first)
        self.last_index = entries.last_index
        self.end_position = end

    # ---- preparing and closing -----------------------------------------------------------------------

    def prepare_job(self) -> PrepareJob | None:
        """Returns the files and pages to make ready ahead of the writer; None if enough are, or a job is out."""
        if self._prepare_job is not None or self.damaged:
            return None
        data, units = self.tail, self.index.tail
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

    def unit_files_since(self, index: int) -> list[str]:
        """Returns the paths of the index files with units of entries from `index` on, for a checkpoint to flush."""
        index = min(max(index, self.first_index), self.last_index + 1)
        units = self.index.segments
        begin = units.start_of(index * UNIT_BYTES)
        return [units.path(start) for start in units.starts if start >= begin]

    def close(self) -> None:
        """Forgets all mappings; slices still held stay valid."""
        self.data.close()
        self.index.segments.close()
        self.flushes.close()

    def start_writing(self) -> None:
        """Begins to write at the log's end: nothing lies behind it, and all before it is flushed."""
        self.tail.move_to(self.end_position)
        self.flushes.begin()
        self.index.move_to(self.last_index + 1)

    # ---- inside --------------------------------------------------------------------------------------

    def _refuse_first_term(self) -> None:
        index, term = self.terms.starts[0]
        position = self.position_of(index)
        start = self.data.start_of(position)
        raise DamagedLogError(
            self.data.path(start),
            position - start,
            f"entry {index} has term {term}, where no term is below {max(self.base_term, 1)}. If RocketMQ wrote this "
            "store, take it over with `trivet migrate`; else give the node an empty one, and its group fills it",
        )

    def _make_room(self, size: int) -> int:
        """Does what `append` need not do each time: rolls, creates, prepares. Returns the entry's position.

        Raises EntryTooLargeError, DiskFullError, DiskError; nothing has changed then.
        """
        position = self.next_position(size - HEADER_BYTES)
        self._advance(position, position + size, self.last_index + 1)
        return position

    def _advance(self, position: int, end: int, last_index: int) -> None:
        """Makes the pages of an entry at `position` ready, up to `end`; ends the current file where it does not fit."""
        assert not self.damaged, "cut_damage comes before any append"
        self.index.reserve(self.last_index + 1, last_index)
        tail = self.tail
        if position >= tail.start + self.file_bytes:
            # All that can fail comes first: a marker without an entry behind it must not stay. What is left of the file
            # is made ready, too: a write buffer is written to its end, and a cut that comes back to it zeroes it.
            at = self.end_position - tail.start
            tail.ensure(tail.start + self.file_bytes)
            tail.ensure_next(end)
            END_MARKER.pack_into(tail.buffer, at, END_MAGIC, self.file_bytes - at)
            tail.roll()
        else:
            tail.ensure(end)

    def _check_index(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            raise OutOfRangeError(f"entry {index} is not in {self.first_index}..{self.last_index}")

    def _unit(self, index: int) -> tuple[int, int, int]:
        """Returns (position, size, term) of an entry. Raises DamagedLogError."""
        # Those of older files may have come from the disk again.
        if index >= self.index.sound_from and index * UNIT_BYTES >= self.index.tail.start:
            return self.index.unit(index)
        try:
            return checked_unit(self, self.index, index)
        except DamagedEntryError as error:
            raise self.damage.note(error) from None

    def _term_at_start(self, index: int) -> int:
        """Returns the term of an entry, which may be damaged. Raises DamagedLogError if nothing says it for certain."""
        try:
            return self._unit(index)[2]
        except DamagedEntryError:
            term = term_of_damaged(self, self.index, index, self.last_index)
            if term is None:
                raise
            return term
