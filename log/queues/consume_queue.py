"""ConsumeQueue: per queue of a topic, one 20-byte unit per message.

    8 physical offset of the record   4 its size   8 tags code

Unit n is message n of the queue. Units are built from committed records only, in log order, and can always
be built again; so nothing here is flushed before an acknowledgement.

Thousands of queues must cost little: a queue is a small object, its files are mapped when they are used, and
all queues share one pool of mappings (`MappingPool`, a CLOCK). What is hot in `append` and `units` is a
comparison or two and one `struct` call; `append_units` stores those of many messages at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from enum import Enum
from struct import Struct
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from log.errors import DiskError, QueueOrderError
from log.files.disk import Disk, MappedFile
from log.files.mapping_pool import MappingPool
from log.formats.layout import file_name
from log.options import StoreOptions

UNIT = Struct(">qiq")
UNIT_BYTES = 20
NO_RECORD_BYTES = 0x7FFFFFFF
"""The size in a unit without a message that could be read: no record is so long."""
FILLER = UNIT.pack(0, NO_RECORD_BYTES, 0)
"""The unit of messages before the first one that this queue holds."""

_UNIT_TYPE = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
_NO_BYTES = memoryview(b"")
_PAGE_BYTES = 1 << 12
_SMALLEST_STEP_BYTES = _PAGE_BYTES
_LARGEST_STEP_BYTES = 1 << 18
_DAMAGED_LOOKED_AT_MAX = 1024
"""Damaged units that a search for the beginning of one queue looks at: some milliseconds' work, unless they all lead to
records that are not in memory."""


class Boundary(Enum):
    """The message that a search by time means when none has exactly that time."""

    LOWER = "lower"
    """The earliest not before it (the default of 5.x)."""
    UPPER = "upper"
    """The latest not after it."""


@dataclass(slots=True, eq=False)
class ConsumeQueue:
    """Units `min_offset`..`max_offset` - 1 of one queue. An empty queue may begin at any offset.

    Always 0 <= min_offset <= max_offset, and flushed_end <= max_offset. `_buffer`, `_tail_first` and `_limit` describe
    the file with the last unit while it is mapped: its bytes, its first offset, and the offset up to which its pages
    are prepared. `let_go` resets `_buffer`, `_limit` and `tail_start` together.
    """

    _disk: Disk
    all_queues_directory: InitVar[str]
    topic: str
    queue_id: int
    options: InitVar[StoreOptions]
    _pool: MappingPool
    has_files: InitVar[bool] = field(default=True, kw_only=True)
    """Without, the disk is not asked for any: there are none, or none will be left."""
    _directory: str = field(init=False)
    _file_units: int = field(init=False)
    _starts: list[int] = field(init=False)
    """First bytes of the files, as in their names."""
    min_offset: int = 0
    max_offset: int = 0
    _buffer: memoryview = _NO_BYTES
    _tail_first: int = 0
    _limit: int = 0
    """Appending at or beyond this offset takes the slow path."""
    tail_start: int = -1
    recently_used: bool = False
    flushed_end: int = 0
    """Units before this offset are durable, or are being flushed by a checkpoint."""
    built_before: int = 0
    """A start has found, or built, the units of all records before this position of the log."""
    new_files: bool = False
    """A file was made since the last checkpoint: the directory must be flushed, too."""
    checked_end: int = 0
    checked_crc: int = 0
    """The checksum of the units of the last file before `checked_end`."""

    def __post_init__(self, all_queues_directory: str, options: StoreOptions, has_files: bool) -> None:
        self._directory = f"{all_queues_directory}/{self.topic}/{self.queue_id}"
        self._file_units = options.consume_queue_file_units
        names = self._disk.list(self._directory) if has_files else ()
        self._starts = [int(name) for name in names if len(name) == 20 and name.isdigit()]

    # ---- writing -------------------------------------------------------------------------------------

    def append(self, offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Adds unit `offset`; returns False if the queue has it already, or an earlier life had it (a replay).

        Raises QueueOrderError if it would leave a hole, DiskFullError, DiskError; nothing has changed then.
        """
        if (offset >= self._limit or offset != self.max_offset) and not self._make_room(
            offset, physical_offset
        ):
            return False
        UNIT.pack_into(
            self._buffer, (offset - self._tail_first) * UNIT_BYTES, physical_offset, size, tags_code
        )
        self.max_offset = offset + 1
        self.recently_used = True
        return True

    def append_run(
        self, offset: int, physical_offsets: NDArray[np.int64], sizes: NDArray[np.int64], tags_code: int
    ) -> None:
        """Adds the units of messages as `append_units` does."""
        units = np.empty(len(sizes), _UNIT_TYPE)
        units["offset"] = physical_offsets
        units["size"] = sizes
        units["tags"] = tags_code
        self.append_units(offset, units.tobytes())

    def append_units(self, offset: int, units: bytes) -> None:
        """Adds units from `offset` on, which is where the queue ends, or any offset for an empty queue.

        Raises DiskFullError, DiskError; some of them are added then, and their replay is ignored by `append`.
        """
        begin = 0
        while begin < len(units):
            if offset >= self._limit or offset != self.max_offset:
                is_room = self._make_room(offset, int(UNIT.unpack_from(units, begin)[0]))
                assert is_room, "a run is added behind the last unit"
            at = (offset - self._tail_first) * UNIT_BYTES
            end = min(len(units), begin + (self._limit - offset) * UNIT_BYTES)
            self._buffer[at : at + end - begin] = units[begin:end]
            offset += (end - begin) // UNIT_BYTES
            begin = end
            self.max_offset = offset
            self.recently_used = True

    def takes_run(self, offset: int, physical_offset: int) -> bool:
        """True if `append_run` and `append_units` may add units from `offset` on, the first one of that record.

        If not, it is a replay, a new life or a hole: `append` decides that unit by unit.
        """
        return physical_offset >= self.built_before and (
            offset == self.max_offset or self.max_offset == self.min_offset
        )

    def is_built_before(self, position: int) -> None:
        """All units of records before a position of the log are here: those that come again are ignored."""
        self.built_before = position
        self.let_go()  # the next unit is looked at

    def start_at(self, offset: int) -> None:
        """Tells an empty queue where its next message belongs (its history is not on this node)."""
        assert self.min_offset == self.max_offset, (
            f"a queue with {self.min_offset}..{self.max_offset - 1} is moved"
        )
        self.min_offset = self.max_offset = offset

    def begin_at(self, offset: int) -> None:
        """The queue begins with `offset` from now on: what was before it is gone."""
        assert self.min_offset <= offset <= self.max_offset, (
            f"the queue of {self.min_offset}..{self.max_offset - 1} is to begin with {offset}"
        )
        self.min_offset = offset

    def correct_min(self, physical_begin: int) -> None:
        """Raises `min_offset` to the first unit whose record is still in the log, which begins at `physical_begin`."""
        # No record begins at physical offset 0 (an entry header comes first), so that fillers never count.
        bound = max(physical_begin, 1)
        begin = self.min_offset
        first = self._first(begin, lambda unit: unit[0] >= bound)
        # A damaged unit that seems to be of a record that is gone leads behind others that are not.
        while first - 2 >= begin and self._unit_of_file(first - 2)[0] >= bound:
            first = self._first(begin, lambda unit: unit[0] >= bound, first - 2)
        self.min_offset = first

    def begins_in(self, physical_begin: int) -> bool:
        """True if the record of the first unit is in the log, which begins there: no unit is to be passed."""
        begin = self.min_offset
        return begin < self.max_offset and self._unit_of_file(begin)[0] >= max(physical_begin, 1)

    def first_staying(self, physical_begin: int, is_right: Callable[[int], bool]) -> int:
        """Returns the first offset whose record stays when the log is made to begin at `physical_begin`.

        `is_right` looks at the record that the unit of an offset leads to, and says whether it claims that offset. So
        damaged units hide no message, and keep none that goes: the offset is the one behind the last right unit whose
        record goes, the queue's beginning if there is none. Where very many units are damaged it may be an earlier one.
        """
        bound = max(physical_begin, 1)
        begin, end = self.min_offset, self.max_offset
        first = self._first(begin, lambda unit: unit[0] >= bound)
        if (first == begin or is_right(first - 1)) and (first == end or is_right(first)):
            return first
        # A damaged unit may have led the search astray; only right ones lead this one. Always: the unit before `low`
        # is right and goes, or `low` is the beginning; no right unit from `high` on goes.
        low, high, damaged_left = begin, end, _DAMAGED_LOOKED_AT_MAX
        while low < high:
            middle = at = (low + high) // 2
            while at < high and not is_right(at):
                at += 1
                damaged_left -= 1
                if not damaged_left:
                    return low
            if at < high and self._unit_of_file(at)[0] < bound:
                low = at + 1
            else:
                high = middle
        return low

    def remove_gone_files(self) -> int:
        """Removes the files before that of the first message, but never the last one; returns how many."""
        removed = 0
        while len(self._starts) > 1 and self._starts[1] // UNIT_BYTES <= self.min_offset:
            self._remove_file(self._starts[0])
            removed += 1
        return removed

    def truncate_to(self, physical_end: int) -> None:
        """Drops units whose record begins at or after `physical_end`; zeroes what was behind the end.

        Nothing behind `max_offset` comes back: after a power failure any bytes may stand there, and no checksum
        covers them. Of a unit that lies in two pages the size may be there and the position not, and 0 is before
        any `physical_end`.
        """
        # The search is by bisection, and must meet no file that is missing.
        self._keep_contiguous()
        first = self._starts[0] // UNIT_BYTES if self._starts else self.max_offset
        end = self._first(
            first,
            lambda unit: unit[0] >= physical_end or unit[0] < 0 or unit[1] <= 0,
            unit_at=self._stored_unit,
        )
        self._cut(end)

    def _cut(self, end: int) -> None:
        """Makes `end` the queue's end. An empty first file stays if it begins there: its name says where to go on."""
        for start in reversed(self._starts):
            if start // UNIT_BYTES < end or (start // UNIT_BYTES == end and start == self._starts[0]):
                break
            self._remove_file(start)
        if self._starts:
            start = self._starts[-1]
            mapped = self._pool.get(self, start)
            at = min(end * UNIT_BYTES - start, mapped.size)
            _zero_rest(mapped, at)
        self.flushed_end = min(self.flushed_end, end)
        self.let_go()
        self.max_offset = end
        self.min_offset = min(self.min_offset, end)
        if self.checked_end > end:
            self.checked_end = self.checked_crc = 0

    def remove(self) -> None:
        """Removes all files: the queue is built again from the log. Raises DiskError."""
        self._disk.discard(self._directory)
        self.forget()

    def forget(self) -> None:
        """Becomes empty, for its files are removed."""
        for start in self._starts:
            self._pool.forget(self, start)
        self._starts = []
        self.let_go()
        self.min_offset = self.max_offset = 0
        self.flushed_end = self.built_before = 0
        self.checked_end = self.checked_crc = 0

    # ---- reading -------------------------------------------------------------------------------------

    def unit_bytes(self, offset: int, count: int) -> memoryview:
        """Returns the bytes of up to `count` units from `offset`: fewer at the end of the queue or of a file, none
        outside of `min_offset`..`max_offset`. Raises DiskError if the file vanished."""
        end = min(self.max_offset, offset + count)
        if offset < self.min_offset or offset >= end:
            return _NO_BYTES
        first = self._tail_first
        if offset >= first and self.tail_start >= 0:
            self.recently_used = True
            return self._buffer[(offset - first) * UNIT_BYTES : (end - first) * UNIT_BYTES]
        first = offset - offset % self._file_units
        buffer = self._pool.get(self, first * UNIT_BYTES).buffer
        return buffer[(offset - first) * UNIT_BYTES : (end - first) * UNIT_BYTES]

    def units(self, offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yields (physical offset, size, tags code) of up to `count` units from `offset` to the end of their file.

        The caller asks again for what follows. Raises DiskError if the file vanished.
        """
        return UNIT.iter_unpack(self.unit_bytes(offset, count))

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Returns one unit as `units` does, None outside of `min_offset`..`max_offset`."""
        raw = self.unit_bytes(offset, 1)
        return UNIT.unpack(raw) if raw else None

    def correct(self, offset: int, unit: tuple[int, int, int]) -> tuple[MappedFile, int, int] | None:
        """Writes a damaged unit anew; returns the file and the place in it, to be flushed, None if the unit is gone."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        mapped, at = self._place_of(offset)
        UNIT.pack_into(mapped.buffer, at, *unit)
        self.checked_end = self.checked_crc = 0  # a checksum may have been made over what was there
        return mapped, at, at + UNIT_BYTES

    def offset_at_time(
        self, timestamp: int, store_time_of: Callable[[int, int], int], boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Returns the offset of the message stored at `timestamp` (ms), or of the neighbour that `boundary` names.

        Of several that were stored in that millisecond UPPER gives the last one, LOWER the first.
        `store_time_of(physical offset, size)` reads a record's time. With no message on that side: LOWER
        gives `max_offset`, UPPER the closest there is, an empty queue its `max_offset`.
        """
        if boundary is Boundary.UPPER:
            after = self._first(self.min_offset, lambda unit: store_time_of(unit[0], unit[1]) > timestamp)
            return max(after - 1, self.min_offset)
        return self._first(self.min_offset, lambda unit: store_time_of(unit[0], unit[1]) >= timestamp)

    # ---- recovery and checkpoints --------------------------------------------------------------------

    def restore(self, min_offset: int, max_offset: int, before_removal: Callable[[], object]) -> bool:
        """Takes the extent noted by a checkpoint, before anything else is done with the queue; returns False if a file
        was missing between others. Those before it go then, and `before_removal` is called before that.

        Files that retention removed since are passed by: their records are gone from the log. Files outside of the
        extent go. Of those behind it a power failure may have left some and not those before, and dispatch makes them
        again; of those before it, which were removed, it may have brought some back.
        """
        first = min_offset // self._file_units * self._file_units * UNIT_BYTES
        last = (max_offset - 1) // self._file_units * self._file_units * UNIT_BYTES
        for start in [start for start in self._starts if not first <= start <= last]:
            self._remove_file(start)
        is_without_hole = self._keep_contiguous(before_removal)
        held = self._starts[0] // UNIT_BYTES if self._starts else max_offset
        self.min_offset = min(max(min_offset, held), max_offset)
        self.max_offset = self.flushed_end = max_offset
        return is_without_hole

    def recover(self, physical_begin: int, physical_end: int) -> None:
        """Finds the extent from the files, keeping units of records in [physical_begin, physical_end)."""
        self._keep_contiguous()
        if self._starts:
            self.min_offset = self._starts[0] // UNIT_BYTES
            self.max_offset = self._starts[-1] // UNIT_BYTES + self._file_units
            self.truncate_to(physical_end)
            self.correct_min(physical_begin)
        else:
            self.min_offset = self.max_offset = 0

    def is_sound(self, begin: int, end: int, checksum: int) -> bool:
        """True if units [begin, end), which lie in one file, are those that a checkpoint summed up.

        The next checkpoint goes on from there: it would map the last file of each queue otherwise, in one turn.
        """
        if begin >= end:
            return True
        start = begin // self._file_units * self._file_units * UNIT_BYTES
        if start not in self._starts or self._disk.size(self._path(start)) != self._file_units * UNIT_BYTES:
            return False
        buffer = self._pool.get(self, start).buffer
        first = start // UNIT_BYTES
        units = buffer[(begin - first) * UNIT_BYTES : (end - first) * UNIT_BYTES]
        if crc32(units) != checksum:
            return False
        # The searches need ascending offsets; a checksum that was made over others would vouch for them.
        offsets = np.frombuffer(units, _UNIT_TYPE)["offset"]
        if not (np.diff(offsets) >= 0).all():
            return False
        if begin == first:
            self.checked_end, self.checked_crc = end, checksum
        return True

    def checksum(self) -> tuple[int, int]:
        """Returns (first offset, CRC-32) of the units in the last file; goes on where the last call ended."""
        if not self._starts or self.max_offset == self.min_offset:
            return self.max_offset, 0
        first = (self.max_offset - 1) // self._file_units * self._file_units
        if not (first <= self.checked_end and self.checked_end == self.max_offset):
            self._sum_up(first, self._pool.get(self, first * UNIT_BYTES))
        return first, self.checked_crc

    def _sum_up(self, first: int, last_file: MappedFile) -> None:
        """Has `checked_crc` cover all units of the last file, which begins with offset `first`."""
        if not first < self.checked_end <= self.max_offset:
            self.checked_end, self.checked_crc = first, 0
        begin, end = (self.checked_end - first) * UNIT_BYTES, (self.max_offset - first) * UNIT_BYTES
        self.checked_crc = crc32(last_file.buffer[begin:end], self.checked_crc)
        self.checked_end = self.max_offset

    def dirty_files(self) -> list[str]:
        """Returns the paths of the files with units that were never flushed; they count as flushed from now on."""
        begin = self.flushed_end // self._file_units * self._file_units * UNIT_BYTES
        self.flushed_end = self.max_offset
        return [self._path(start) for start in self._starts if start >= begin]

    @property
    def last_file_begin(self) -> int:
        """The first offset of the file with the last unit: units before it may have come from the disk again."""
        return (self.max_offset - 1) // self._file_units * self._file_units

    @property
    def file_count(self) -> int:
        """The number of its files."""
        return len(self._starts)

    @property
    def directory(self) -> str:
        return self._directory

    # ---- for the pool --------------------------------------------------------------------------------

    def open_file(self, start: int, *, create: bool) -> MappedFile:
        return self._disk.open(self._path(start), self._file_units * UNIT_BYTES, create=create)

    def let_go(self) -> None:
        """The last file is no longer mapped; the next append maps it again."""
        self._buffer = _NO_BYTES
        self._limit = 0
        self.tail_start = -1

    def evicted(self, mapped: MappedFile) -> None:
        """Lets the last file go, summed up: else the next checkpoint would map those of all queues in one turn."""
        first = self._tail_first
        # A file that has just been made has no unit yet: the last one is in the file before it.
        if self.checked_end != self.max_offset and first < self.max_offset <= first + self._file_units:
            self._sum_up(first, mapped)
        self.let_go()

    # ---- inside --------------------------------------------------------------------------------------

    def _is_behind(self, physical_offset: int) -> bool:
        """True if a record stands in the log behind that of the last unit, or there is no unit."""
        last = self.unit(self.max_offset - 1)
        return last is None or physical_offset > last[0]

    def _make_room(self, offset: int, physical_offset: int) -> bool:
        """Makes unit `offset` writable; returns False if the queue has it already, or an earlier life of it had.

        Units are added in the order of the log. So a record behind that of the last unit which claims an offset that is
        taken begins a new life of the queue: its topic was deleted and made again in between, and this queue is built
        again from the log. So it is, too, in a node that runs and whose log was cut behind the state that it keeps: it
        gets the entries in between anew, but the deletion is not applied twice. And what a start has built comes again
        without a use, in whatever life.

        Raises QueueOrderError, DiskFullError, DiskError, FlushError.
        """
        if physical_offset < self.built_before:
            return False
        if self.max_offset > self.min_offset:
            if offset > self.max_offset:
                raise QueueOrderError(self.topic, self.queue_id, offset, self.max_offset)
            if offset < self.max_offset:
                if not self._is_behind(physical_offset):
                    return False
                self._remove_durably()
        elif offset != self.max_offset and self._starts:
            self._remove_durably()  # units of records that are all gone
        if self.max_offset == self.min_offset and not self._starts:
            self._begin(offset)
            return True
        self._map_tail(offset)
        return True

    def _remove_durably(self) -> None:
        """Removes the files of an earlier life. Raises DiskError, FlushError.

        A checkpoint may have noted them, of which it has summed up the last one only. If a power failure brought that
        one back, and had left the next life's first one, the start would take both for what was noted.
        """
        self.remove()
        self._disk.sync_directory(self._directory.rpartition("/")[0])

    def _begin(self, offset: int) -> None:
        """Begins the queue at `offset`; fillers stand for what came before it in its file."""
        try:
            self._map_tail(offset)
            fillers = offset - self._tail_first
            if fillers:
                self._pool.get(self, self.tail_start).prepare(0, fillers * UNIT_BYTES)
                self._buffer[: fillers * UNIT_BYTES] = FILLER * fillers
        except DiskError:
            # With its file the next append would take the queue for one that has begun, and leave zeros for fillers.
            for start in tuple(self._starts):
                self._remove_file(start)
            raise
        self.flushed_end = self._tail_first
        self.min_offset = self.max_offset = offset

    def _map_tail(self, offset: int) -> None:
        """Maps the file of `offset` and allocates its next units, in steps that grow with the queue."""
        first = offset - offset % self._file_units
        start = first * UNIT_BYTES
        known = start in self._starts
        mapped = self._pool.get(self, start, create=not known)
        if not known:
            self._starts.append(start)
            self.new_files = True
        self.tail_start, self._tail_first, self._buffer = start, first, mapped.buffer
        at = (offset - first) * UNIT_BYTES
        step = min(max(at, _SMALLEST_STEP_BYTES), _LARGEST_STEP_BYTES)
        end = min(at + step, self._file_units * UNIT_BYTES)
        self._limit = offset  # if this fails, the next append tries again
        mapped.prepare(at, end)
        self._limit = first + end // UNIT_BYTES

    def _first(
        self,
        begin: int,
        holds: Callable[[tuple[int, int, int]], bool],
        end: int | None = None,
        unit_at: Callable[[int], tuple[int, int, int]] | None = None,
    ) -> int:
        """Returns the first offset from `begin` for whose unit `holds` is true, `end` if there is none.

        It must be false for all units before that one and true for all behind it. Without `end` it is `max_offset`.
        """
        unit_at = unit_at or self._unit_of_file
        low, high = begin, self.max_offset if end is None else end
        while low < high:
            middle = (low + high) // 2
            if holds(unit_at(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def _place_of(self, offset: int) -> tuple[MappedFile, int]:
        """Returns the file of a unit, whatever the extent of the queue is, and the place in it."""
        first = offset - offset % self._file_units
        return self._pool.get(self, first * UNIT_BYTES), (offset - first) * UNIT_BYTES

    def _unit_of_file(self, offset: int) -> tuple[int, int, int]:
        """Returns a unit that was stored."""
        mapped, at = self._place_of(offset)
        return UNIT.unpack_from(mapped.buffer, at)

    def _stored_unit(self, offset: int) -> tuple[int, int, int]:
        """Returns a unit likewise, which may never have been stored."""
        mapped, at = self._place_of(offset)
        return UNIT.unpack(mapped.read(at, at + UNIT_BYTES))

    def _keep_contiguous(self, before_removal: Callable[[], object] = lambda: None) -> bool:
        """Keeps the files that follow each other without a hole up to the last one; returns False if there were others.

        `before_removal` is called before these go.
        """
        file_bytes = self._file_units * UNIT_BYTES
        starts = [start for start in self._starts if start % file_bytes == 0]
        keep = len(starts)
        while keep > 1 and starts[keep - 1] - starts[keep - 2] == file_bytes:
            keep -= 1
        kept = set(starts[keep - 1 :])
        others = [start for start in self._starts if start not in kept]
        if others:
            before_removal()
        for start in others:
            self._remove_file(start)
        return not others

    def _path(self, start: int) -> str:
        return f"{self._directory}/{file_name(start)}"

    def _remove_file(self, start: int) -> None:
        self._pool.forget(self, start)
        if self.tail_start == start:
            self.let_go()
        self._disk.remove(self._path(start))
        self._starts.remove(start)


def _zero_rest(mapped: MappedFile, begin: int) -> None:
    """Zeroes from `begin` on, and stops at a piece that is zero already: no writer was further ahead than that.

    Pages of zeros are left alone. Few of a file are allocated, and where the disk is full a store into another one ends
    the process.
    """
    for at in range(begin, mapped.size, _LARGEST_STEP_BYTES):
        end = min(mapped.size, at + _LARGEST_STEP_BYTES)
        held = np.flatnonzero(np.frombuffer(mapped.read(at, end), np.uint8))
        if not len(held):
            return
        for page in np.unique((held + at) // _PAGE_BYTES).tolist():
            first, last = max(at, page * _PAGE_BYTES), min(end, (page + 1) * _PAGE_BYTES)
            mapped.buffer[first:last] = bytes(last - first)
