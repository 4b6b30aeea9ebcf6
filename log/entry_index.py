"""The index of the entry log: a unit of 32 bytes per entry, in files of their own.

It answers where an entry begins in O(1), and by bisection which terms the log has. The data files are the
truth: units are flushed by checkpoints only, and recovery makes them again. But a unit that is dropped is
zeroed durably, so that none ever outlives its entry.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from log.entry_range import EntryRange
from log.errors import DamagedLogError
from log.layout import ENTRY_MAGIC, UNIT, UNIT_BYTES, UNIT_TYPE
from log.segments import Segments
from log.tail import Tail

_AHEAD_BYTES = 1 << 20
_STEP_BYTES = 1 << 18
_NO_ENTRY = 1 << 62
"""Greater than the index of any entry."""


class EntryIndex:
    """The units of all entries in the log. `EntryLog.append` packs into `buffer` itself while the index of
    the entry is below `limit`; `first` is the entry whose unit comes first in that file.

    `buffer`, `first` and `limit` follow from `tail`: `update` must come after every change of it.
    """

    __slots__ = ("_segments", "buffer", "first", "limit", "tail")

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.tail = Tail(segments, _AHEAD_BYTES, _STEP_BYTES)
        self.buffer = memoryview(b"")
        self.first = _NO_ENTRY  # until `move_to`, units are looked up in their files
        self.limit = 0

    def unit(self, index: int) -> tuple[int, int, int]:
        """Returns (position, size, term) of an entry that is in the log. Raises DamagedLogError."""
        first = self.first
        if index >= first:
            buffer = self.buffer
            at = (index - first) * UNIT_BYTES
        else:
            start = self._segments.start_of(index * UNIT_BYTES)
            buffer = self._segments.mapping(start).buffer
            at = index * UNIT_BYTES - start
        magic, position, size, found, term = UNIT.unpack_from(buffer, at)
        if found != index or magic != ENTRY_MAGIC:
            path = self._segments.path(self._segments.start_of(index * UNIT_BYTES))
            raise DamagedLogError(path, at, f"it does not hold the index unit of entry {index}")
        return position, size, term

    def units(self, first: int, last: int) -> NDArray[np.void]:
        """Returns the units of entries `first`..`last`, as far as they are in one file; none if they are damaged."""
        begin = self.first
        buffer = self.buffer
        if first < begin:
            start = self._segments.start_of(first * UNIT_BYTES)
            begin, buffer = start // UNIT_BYTES, self._segments.mapping(start).buffer
        count = min(last + 1, begin + len(buffer) // UNIT_BYTES) - first
        units = np.frombuffer(buffer, UNIT_TYPE, count, (first - begin) * UNIT_BYTES)
        sound = (units["index"] == np.arange(first, first + count)) & (units["magic"] == ENTRY_MAGIC)
        return units if sound.all() else units[:0]

    @staticmethod
    def term_runs(first: int, last: int, term_of: Callable[[int], int]) -> list[tuple[int, int]]:
        """Returns (first index, term) of every run of equal terms.

        Terms do not decrease, so that the end of each run is found by bisection: O(runs * log n).
        """
        runs: list[tuple[int, int]] = []
        index = first
        while index <= last:
            term = term_of(index)
            runs.append((index, term))
            low, high = index + 1, last + 1
            while low < high:
                middle = (low + high) // 2
                if term_of(middle) > term:
                    high = middle
                else:
                    low = middle + 1
            index = low
        return runs

    def move_to(self, index: int) -> None:
        """The next unit written will be that of entry `index`; files behind it are removed."""
        byte = index * UNIT_BYTES
        self._segments.remove_from(self._segments.start_of(byte) + self._segments.file_bytes)
        self.tail.move_to(byte)
        self.update()

    def reserve(self, index: int, last_index: int) -> None:
        """Makes room for the unit of entry `index`, and of those up to `last_index` in the same file.

        Raises DiskFullError; nothing has changed then.
        """
        tail = self.tail
        if index * UNIT_BYTES >= tail.start + self._segments.file_bytes:
            tail.ensure_next((index + 1) * UNIT_BYTES)
            tail.roll()
        tail.ensure(min((last_index + 1) * UNIT_BYTES, tail.start + self._segments.file_bytes))
        self.update()

    def reserve_ahead(self, last_index: int) -> None:
        """Makes room for the units up to that of entry `last_index`, in whatever file. Raises DiskFullError."""
        try:
            self.tail.ensure_through((last_index + 1) * UNIT_BYTES)
        finally:
            self.update()

    def store(self, entries: EntryRange, first: int) -> None:
        """Copies the units of a range from entry `first` on, going on to new files as they fill."""
        units = memoryview(entries.units)[(first - entries.first_index) * UNIT_BYTES :]
        while units:
            if entries.last_index >= self.limit:
                self.reserve(first, entries.last_index)
            at = (first - self.first) * UNIT_BYTES
            size = min(len(units), self._segments.file_bytes - at)
            self.buffer[at : at + size] = units[:size]
            units = units[size:]
            first += size // UNIT_BYTES

    def drop(self, first: int, last: int) -> None:
        """Zeroes the units of entries `first`..`last`, the last ones, durably. Raises FlushError, DiskError."""
        self.move_to(first)
        tail = self.tail
        begin = first * UNIT_BYTES - tail.start
        end = min((last + 1) * UNIT_BYTES - tail.start, self._segments.file_bytes)
        self.buffer[begin:end] = bytes(end - begin)
        tail.mapped.flush(begin, end)
        tail.prepared_end = tail.start + end
        self.update()

    def update(self) -> None:
        """Takes over a change of the tail."""
        tail = self.tail
        self.buffer = tail.buffer
        self.first = tail.start // UNIT_BYTES
        self.limit = min(tail.prepared_end, tail.start + self._segments.file_bytes) // UNIT_BYTES
