"""IndexFile: from a message key to physical offsets, a hash table in a file.

    40 header | 4 * slots: newest entry of each chain | 20 * entries: hash, offset, seconds, previous entry

Large batches are linked into the table by numpy, small ones entry by entry, which is faster below some tens of keys.
The slots follow from the entries: they are put right where their pages did not reach the disk.
"""

from dataclasses import InitVar, dataclass, field
from struct import Struct
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from log.files.disk import MappedFile
from log.formats.java_hash import java_hash_utf8, java_hash_utf8_many
from log.options import StoreOptions

# beginTimestamp, endTimestamp, beginPhyOffset, endPhyOffset, hashSlotCount, indexCount
HEADER = Struct(">qqqqii")
ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
HEADER_BYTES = 40
ENTRY_BYTES = 20
_ENTRY_TYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_BULK_FROM = 32
_STEP_BYTES = 1 << 18
_CHUNK_ENTRIES = 1 << 18
"""The number of entries that are looked at together: numpy needs a few MiB beside them."""
_LARGEST_SECONDS = 0x7FFFFFFF
_LARGEST_HASH = 0x7FFFFFFF

_Hashes = NDArray[np.int32]
_Numbers = NDArray[np.int64]


def key_hash(key: bytes) -> int:
    """Returns the absolute value of the Java hash, 0 for the one that has none (`IndexFile.indexKeyHashMethod`)."""
    value = abs(java_hash_utf8(key))
    return value if value <= _LARGEST_HASH else 0


@dataclass(slots=True)
class StepBudget:
    """The number of entries, of any key, that a query may still look at; it is `exhausted` when there were more."""

    left: int
    exhausted: bool = False


@dataclass(slots=True, eq=False)
class IndexFile:
    """One file; `count` is the number of the next entry (1 for an empty file).

    Entries are numbered from 1: 0 ends a chain. Their offsets ascend, and each names an older one as the previous one
    of its chain. Always 1 <= count <= the number of entries that fit, and `flushed_count`, `_checked_count` <= count.
    """

    name: str
    options: InitVar[StoreOptions]
    _slots: int = field(init=False)
    _entries_max: int = field(init=False)
    _entries_at: int = field(init=False)
    _prepared_count: int = 0
    _checked_count: int = 1
    _checked_crc: int = 0
    flushed_count: int = 0
    begin_time: int = 0
    end_time: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    used_slots: int = 0
    count: int = 1

    def __post_init__(self, options: StoreOptions) -> None:
        self._slots = options.index_slots
        self._entries_max = options.index_entries
        self._entries_at = HEADER_BYTES + _SLOT.size * options.index_slots

    @staticmethod
    def file_bytes(options: StoreOptions) -> int:
        """Returns the size of every IndexFile of a store."""
        return HEADER_BYTES + _SLOT.size * options.index_slots + ENTRY_BYTES * options.index_entries

    @property
    def room(self) -> int:
        """The number of entries that still fit."""
        return self._entries_max - self.count

    def header(self) -> bytes:
        return HEADER.pack(
            self.begin_time,
            self.end_time,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.count,
        )

    def load_header(self, raw: bytes) -> bool:
        """Takes over a header; returns False if it makes no sense."""
        self.begin_time, self.end_time, self.begin_offset, self.end_offset, *counts = HEADER.unpack(raw)
        self.used_slots, self.count = counts
        return 1 <= self.count <= self._entries_max and self.begin_offset <= self.end_offset

    def put(self, mapped: MappedFile, hashes: _Hashes, offsets: _Numbers, times: _Numbers) -> None:
        """Adds entries, as many as there are hashes; they must fit. Raises DiskFullError."""
        number = len(hashes)
        assert 0 < number <= self.room, f"{number} entries for a file with room for {self.room}"
        self._prepare(mapped, self.count + number)
        if self.count == 1:
            self.begin_time, self.begin_offset = int(times[0]), int(offsets[0])
        put = self._put_each if number < _BULK_FROM else self._put_bulk
        put(mapped.buffer, hashes, offsets, times)
        self.count += number
        self.end_time, self.end_offset = int(times[-1]), int(offsets[-1])
        mapped.buffer[:HEADER_BYTES] = self.header()

    def query(
        self,
        buffer: memoryview,
        wanted_hash: int,
        limit: int,
        begin_time: int,
        end_time: int,
        least_offset: int,
        budget: StepBudget | None,
    ) -> list[int]:
        """Returns the physical offsets of entries with that hash, newest first.

        Only those from `least_offset` on count that were stored in [begin_time, end_time]. Stored times are whole
        seconds after the file's first, so that the lower bound is taken 1 s wider.
        """
        found: list[int] = []
        steps, count, entries_at = 0, self.count, self._entries_at
        # Whoever chooses keys can put all of them in one chain, so a query says how many entries it may look at.
        steps_max = count if budget is None else budget.left
        (number,) = _SLOT.unpack_from(buffer, HEADER_BYTES + _SLOT.size * (wanted_hash % self._slots))
        # 0 ends a chain; beyond `count` only damage leads.
        while 0 < number < count and len(found) < limit:
            if steps == steps_max:
                assert budget is not None, "a chain visits no entry twice"
                budget.exhausted = True
                break
            steps += 1
            entry_hash, offset, seconds, previous = ENTRY.unpack_from(
                buffer, entries_at + ENTRY_BYTES * number
            )
            if offset < least_offset:
                break  # a chain leads to ever smaller offsets
            # Keys of other hashes share the slot. One of the same hash may be another, too: the caller asks the record.
            if entry_hash == wanted_hash:
                stored = self.begin_time + 1000 * seconds
                in_time = begin_time < stored + 1000 and stored <= end_time
                if in_time and offset not in found:  # twice: a repeated key
                    found.append(offset)
            if previous >= number:
                break  # a chain only leads to older entries
            number = previous
        if budget is not None:
            budget.left -= steps
        return found

    def checksum(self, buffer: memoryview) -> int:
        """Returns the CRC-32 of entries 1..count-1; goes on where the last call ended."""
        begin, end = self.place_of(self._checked_count), self.place_of(self.count)
        self._checked_crc = crc32(buffer[begin:end], self._checked_crc)
        self._checked_count = self.count
        return self._checked_crc

    @property
    def is_summed_up(self) -> bool:
        """`noted_checksum` is that of all entries."""
        return self._checked_count == self.count

    @property
    def noted_checksum(self) -> int:
        """The CRC-32 of the entries that were summed up last."""
        return self._checked_crc

    def place_of(self, number: int) -> int:
        """Returns the place of an entry in the file."""
        return self._entries_at + ENTRY_BYTES * number

    def keys_at_end(self, buffer: memoryview, offset: int) -> int:
        """Returns how many of the last entries are of the record at `offset`."""
        number = self.count
        while number > 1 and ENTRY.unpack_from(buffer, self.place_of(number - 1))[1] == offset:
            number -= 1
        return self.count - number

    def keys_at_begin(self, buffer: memoryview, offset: int) -> int:
        """Returns how many of the first entries are of the record at `offset`."""
        number = 1
        while number < self.count and ENTRY.unpack_from(buffer, self.place_of(number))[1] == offset:
            number += 1
        return number - 1

    def slots_are_right(self, buffer: memoryview) -> bool:
        """Tells whether header and slots are those that follow from the entries."""
        return buffer[:HEADER_BYTES] == self.header() and np.array_equal(
            self._table(buffer), self._expected_slots(buffer)
        )

    def _expected_slots(self, buffer: memoryview) -> NDArray[np.int32]:
        hashes = self._entries(buffer)["hash"]
        expected = np.zeros(self._slots, np.int32)
        for begin in range(1, self.count, _CHUNK_ENTRIES):
            end = min(begin + _CHUNK_ENTRIES, self.count)
            # Of several values for one slot the last assigned, the newest entry, stays.
            expected[hashes[begin:end] % self._slots] = np.arange(begin, end, dtype=np.int32)
        return expected

    def clear_slots(self, mapped: MappedFile) -> None:
        """Empties the table of slots: the entries are put anew. Raises DiskFullError."""
        mapped.prepare(0, self._entries_at, touch=False)
        self._table(mapped.buffer)[:] = 0

    def restore_slots(self, mapped: MappedFile) -> None:
        """Corrects the slot table by the entries, whose checksum was right. Raises DiskFullError.

        A file that is in order is only read: old ones are many, and large.
        """
        expected = self._expected_slots(mapped.buffer)
        if not np.array_equal(self._table(mapped.buffer), expected):
            mapped.prepare(0, self._entries_at, touch=False)
            self._table(mapped.buffer)[:] = expected
        if mapped.buffer[:HEADER_BYTES] != self.header():
            mapped.prepare(0, HEADER_BYTES, touch=False)
            mapped.buffer[:HEADER_BYTES] = self.header()

    def _put_each(self, buffer: memoryview, hashes: _Hashes, offsets: _Numbers, times: _Numbers) -> None:
        number = self.count
        slots, begin_time = self._slots, self.begin_time
        at = self.place_of(number)
        for entry_hash, offset, time in zip(hashes.tolist(), offsets.tolist(), times.tolist(), strict=True):
            slot_at = HEADER_BYTES + _SLOT.size * (entry_hash % slots)
            (previous,) = _SLOT.unpack_from(buffer, slot_at)
            # As in RocketMQ's putKey: a slot that leads to no older entry begins a chain. A crash may leave it ahead.
            if not 0 < previous < number:
                previous = 0
                self.used_slots += 1
            seconds = min(max((time - begin_time) // 1000, 0), _LARGEST_SECONDS)
            ENTRY.pack_into(buffer, at, entry_hash, offset, seconds, previous)
            _SLOT.pack_into(buffer, slot_at, number)
            number += 1
            at += ENTRY_BYTES

    def _put_bulk(self, buffer: memoryview, hashes: _Hashes, offsets: _Numbers, times: _Numbers) -> None:
        number = len(hashes)
        numbers = np.arange(self.count, self.count + number, dtype=np.int32)
        # What `_put_each` does one by one. For a few the calls of numpy cost more than that loop.
        table = self._table(buffer)
        slots = hashes % self._slots
        previous = table[slots].astype(np.int32)
        previous[(previous <= 0) | (previous >= self.count)] = 0
        # Entries of this batch that share a slot are linked to each other, in order.
        order = np.argsort(slots, kind="stable")
        shared = np.flatnonzero(slots[order[1:]] == slots[order[:-1]])
        previous[order[shared + 1]] = numbers[order[shared]]
        entries = self._entries(buffer)[self.count : self.count + number]
        entries["hash"] = hashes
        entries["offset"] = offsets
        seconds = (times - self.begin_time) // 1000
        entries["seconds"] = np.clip(seconds, 0, _LARGEST_SECONDS)
        entries["previous"] = previous
        table[slots] = numbers
        self.used_slots += int((previous == 0).sum())

    def _prepare(self, mapped: MappedFile, count: int) -> None:
        if count <= self._prepared_count:
            return
        if not self._prepared_count:
            # The slots are touched at random, so only their blocks are allocated.
            mapped.prepare(0, self._entries_at, touch=False)
            self._prepared_count = self.count
        begin = self.place_of(self._prepared_count)
        end = min(mapped.size, max(self.place_of(count), begin + _STEP_BYTES))
        mapped.prepare(begin, end)
        self._prepared_count = (end - self._entries_at) // ENTRY_BYTES

    def _table(self, buffer: memoryview) -> NDArray[np.int32]:
        return np.frombuffer(buffer, ">i4", self._slots, HEADER_BYTES)

    def _entries(self, buffer: memoryview) -> NDArray[np.void]:
        return np.frombuffer(buffer, _ENTRY_TYPE, self._entries_max, self._entries_at)


def hashes_of_keys(keys: list[bytes]) -> NDArray[np.int32]:
    """Returns the hashes of keys as the index has them."""
    return positive(java_hash_utf8_many(keys))


def positive(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns Java hashes as the index has them, see `key_hash`."""
    absolute = np.abs(hashes)
    absolute[absolute < 0] = 0  # the absolute value of -2**31 is itself
    return absolute
