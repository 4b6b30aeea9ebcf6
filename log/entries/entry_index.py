"""The index of the entry log: a unit of 32 bytes per entry, in files of their own.

It answers where an entry begins in O(1), and by bisection which terms the log has. The data files are the
truth: units are flushed by checkpoints only, and recovery makes them again. But a unit that is dropped is
zeroed durably, so that none ever outlives its entry.
"""

import numpy as np
from numpy.typing import NDArray

from log.entries.segments import Segments
from log.entries.tail import Tail
from log.errors import DamagedLogError
from log.files.disk import MappedFile
from log.formats.entry_range import EntryRange
from log.formats.layout import ENTRY_MAGIC, UNIT, UNIT_BYTES, UNIT_TYPE

_AHEAD_BYTES = 1 << 20
_STEP_BYTES = 1 << 18


class EntryIndex:
    """The units of all entries in the log. `EntryLog.append` packs into the tail itself."""

    __slots__ = ("segments", "sound_from", "tail")

    def __init__(self, segments: Segments, sound_from: int) -> None:
        self.segments = segments
        self.sound_from = sound_from
        """The first entry whose unit was written or checked since the start."""
        self.tail = Tail(segments, _AHEAD_BYTES, _STEP_BYTES)
        """Until `move_to` it is nowhere, and units are looked up in their files."""

    def unit(self, index: int) -> tuple[int, int, int]:
        """Returns (position, size, term) of an entry that is in the log. Raises DamagedLogError."""
        byte = index * UNIT_BYTES
        tail = self.tail
        start, buffer = tail.start, tail.buffer
        if byte < start:
            start = self.segments.start_of(byte)
            buffer = self.segments.mapping(start).buffer
        magic, position, size, found, term = UNIT.unpack_from(buffer, byte - start)
        if found != index or magic != ENTRY_MAGIC:
            path = self.segments.path(start)
            raise DamagedLogError(path, byte - start, f"it does not hold the index unit of entry {index}")
        return position, size, term

    def units(self, first: int, last: int) -> NDArray[np.void]:
        """Returns the units of entries `first`..`last`, as far as they are in one file.

        None if they are damaged, or were not checked yet.
        """
        byte = first * UNIT_BYTES
        start, buffer = self.tail.start, self.tail.buffer
        if byte < start:
            start = self.segments.start_of(byte)
            buffer = self.segments.mapping(start).buffer
        count = min(last + 1, (start + len(buffer)) // UNIT_BYTES) - first
        units = np.frombuffer(buffer, UNIT_TYPE, count, byte - start)
        sound = (units["index"] == np.arange(first, first + count)) & (units["magic"] == ENTRY_MAGIC)
        return units if first >= self.sound_from and sound.all() else units[:0]

    def move_to(self, index: int) -> None:
        """The next unit written will be that of entry `index`; files behind it are removed."""
        byte = index * UNIT_BYTES
        self.segments.remove_from(self.segments.start_of(byte) + self.segments.file_bytes)
        self.tail.move_to(byte)

    def reserve(self, index: int, last_index: int) -> None:
        """Makes room for the units of entries `index` to `last_index`. The tail is in the file of the first one then.

        Raises DiskFullError, DiskError; nothing has changed then.
        """
        tail = self.tail
        if index * UNIT_BYTES >= tail.start + self.segments.file_bytes:
            tail.ensure_next((index + 1) * UNIT_BYTES)
            tail.roll()
        end = (last_index + 1) * UNIT_BYTES
        tail.ensure(min(end, tail.start + self.segments.file_bytes))
        tail.ensure_through(end)

    def store(self, entries: EntryRange, first: int) -> None:
        """Copies the units of a range from entry `first` on, going on to new files as they fill."""
        units = memoryview(entries.units)[(first - entries.first_index) * UNIT_BYTES :]
        tail = self.tail
        while units:
            if (entries.last_index + 1) * UNIT_BYTES > tail.limit:
                self.reserve(first, entries.last_index)
            at = first * UNIT_BYTES - tail.start
            size = min(len(units), self.segments.file_bytes - at)
            tail.buffer[at : at + size] = units[:size]
            units = units[size:]
            first += size // UNIT_BYTES

    def correct(self, first: int, units: bytes) -> list[tuple[MappedFile, int, int]]:
        """Writes units of entries from `first` on where they differ; returns what is to be flushed then."""
        changed: list[tuple[MappedFile, int, int]] = []
        view = memoryview(units)
        byte = first * UNIT_BYTES
        while view:
            start = self.segments.start_of(byte)
            at = byte - start
            size = min(len(view), self.segments.file_bytes - at)
            # Of the file that is written to there is one mapping only.
            mapped = self.tail.mapped if start == self.tail.start else self.segments.mapping(start)
            if mapped.buffer[at : at + size] != view[:size]:
                mapped.buffer[at : at + size] = view[:size]
                changed.append((mapped, at, at + size))
            view = view[size:]
            byte += size
        return changed

    def drop(self, first: int, last: int) -> None:
        """Zeroes the units of entries `first`..`last`, the last ones, durably. Raises FlushError, DiskError."""
        self.move_to(first)
        tail = self.tail
        begin = first * UNIT_BYTES - tail.start
        end = min((last + 1) * UNIT_BYTES - tail.start, self.segments.file_bytes)
        tail.buffer[begin:end] = bytes(end - begin)
        tail.mapped.flush(begin, end)
        tail.set_prepared(tail.start + end)
        self.sound_from = min(self.sound_from, first)
