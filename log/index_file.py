"""IndexFile: from a message key to physical offsets, a hash table in a file.

    40 header | 4 * slots: newest entry of each chain | 20 * entries: hash, offset, seconds, previous entry

`IndexFiles` is the sequence of them, written by dispatch and read newest first. Hashes of a batch are
computed by numpy at once; large batches are also linked into the table by numpy, small ones entry by entry,
which is faster below some tens of keys. Keys wait until `_PENDING_KEYS` are together, or somebody asks: a node
that gets one message at a time would otherwise spend more on the index than on all the rest.

Only the checkpoint flushes. It notes each file's header and a checksum of its entries; after an unclean stop
a file is cut back to its note and the slots, whose pages may have reached the disk in any order, are put
right by the entries. What does not match is dropped, and dispatch builds it again from the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from log.disk import Disk, MappedFile
from log.errors import DiskFullError
from log.java_hash import java_hash_utf8, java_hash_utf8_many
from log.options import StoreOptions

DIRECTORY = "index"
MAX_QUERY_RESULTS = 64

# beginTimestamp, endTimestamp, beginPhyOffset, endPhyOffset, hashSlotCount, indexCount
HEADER = Struct(">qqqqii")
ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
HEADER_BYTES = 40
ENTRY_BYTES = 20
_ENTRY_TYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_BULK_FROM = 32
_PENDING_KEYS = 256
_STEP_BYTES = 1 << 18
_CHUNK_ENTRIES = 1 << 18
"""The number of entries that are looked at together: numpy needs a few MiB beside them."""
_LARGEST_SECONDS = 0x7FFFFFFF
_LARGEST_HASH = 0x7FFFFFFF


def key_hash(key: bytes) -> int:
    """Returns the absolute value of the Java hash, 0 for the one that has none (`IndexFile.indexKeyHashMethod`)."""
    value = abs(java_hash_utf8(key))
    return value if value <= _LARGEST_HASH else 0


def file_name(wall_ms: int) -> str:
    """Returns the name of a file made at `wall_ms` (ms since 1970): yyyyMMddHHmmssSSS in UTC."""
    days, ms = divmod(wall_ms, 86_400_000)
    # Civil date from days since 1970-01-01, in years that begin in March (leap day last).
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (month <= 2)
    seconds, ms = divmod(ms, 1000)
    return (
        f"{year:04d}{month:02d}{day:02d}"
        f"{seconds // 3600:02d}{seconds // 60 % 60:02d}{seconds % 60:02d}{ms:03d}"
    )


@dataclass(frozen=True, slots=True)
class IndexNote:
    """A checkpoint's note of one file: its header, and the CRC-32 of its entries 1..indexCount-1."""

    name: str
    header: bytes
    checksum: int


@dataclass(slots=True)
class StepBudget:
    """The number of entries, of any key, that a query may still look at; it is `exhausted` when there were more."""

    left: int
    exhausted: bool = False


class IndexFile:
    """One file; `count` is the number of the next entry (1 for an empty file).

    Entries are numbered from 1: 0 ends a chain. Their offsets ascend, and each names an older one as the previous one
    of its chain. Always 1 <= count <= the number of entries that fit, and `flushed_count`, `_checked_count` <= count.
    """

    __slots__ = (
        "_checked_count",
        "_checked_crc",
        "_entries_at",
        "_entries_max",
        "_prepared_count",
        "_slots",
        "begin_offset",
        "begin_time",
        "count",
        "end_offset",
        "end_time",
        "flushed_count",
        "name",
        "used_slots",
    )

    def __init__(self, name: str, options: StoreOptions) -> None:
        self.name = name
        self._slots = options.index_slots
        self._entries_max = options.index_entries
        self._entries_at = HEADER_BYTES + _SLOT.size * options.index_slots
        self._prepared_count = 0
        self._checked_count = 1
        self._checked_crc = 0
        self.flushed_count = 0
        self.begin_time = self.end_time = 0
        self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.count = 1

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
        values = HEADER.unpack(raw)
        self.begin_time, self.end_time, self.begin_offset, self.end_offset, self.used_slots, self.count = (
            values
        )
        return 1 <= self.count <= self._entries_max and self.begin_offset <= self.end_offset

    def put(
        self,
        mapped: MappedFile,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
    ) -> None:
        """Adds entries, as many as there are hashes; they must fit. Raises DiskFullError."""
        number = len(hashes)
        assert 0 < number <= self.room, "the caller goes on to a new file when one is full"
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
        least_offset: int = 0,
        budget: StepBudget | None = None,
    ) -> list[int]:
        """Returns the physical offsets of entries with that hash, newest first.

        Only those from `least_offset` on count that were stored in [begin_time, end_time]. Stored times are whole
        seconds after the file's first, so that the lower bound is taken 1 s wider.
        """
        found: list[int] = []
        steps = 0
        steps_max = self.count if budget is None else budget.left
        (number,) = _SLOT.unpack_from(buffer, HEADER_BYTES + _SLOT.size * (wanted_hash % self._slots))
        while 0 < number < self.count and len(found) < limit:
            if steps == steps_max:
                assert budget is not None, "a chain visits no entry twice"
                budget.exhausted = True
                break
            steps += 1
            entry_hash, offset, seconds, previous = ENTRY.unpack_from(
                buffer, self._entries_at + ENTRY_BYTES * number
            )
            if offset < least_offset:
                break  # a chain leads to ever smaller offsets
            stored = self.begin_time + 1000 * seconds
            in_time = begin_time < stored + 1000 and stored <= end_time
            if entry_hash == wanted_hash and in_time and offset not in found:  # twice: a repeated key
                found.append(offset)
            if previous >= number:
                break  # a chain only leads to older entries
            number = previous
        if budget is not None:
            budget.left -= steps
        return found

    def checksum(self, buffer: memoryview) -> int:
        """Returns the CRC-32 of entries 1..count-1; goes on where the last call ended."""
        begin, end = (self._entries_at + ENTRY_BYTES * number for number in (self._checked_count, self.count))
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
        """Empties the table of slots: the entries are put anew."""
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

    def _put_each(
        self,
        buffer: memoryview,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
    ) -> None:
        number = self.count
        slots, begin_time = self._slots, self.begin_time
        at = self._entries_at + ENTRY_BYTES * number
        for entry_hash, offset, time in zip(hashes.tolist(), offsets.tolist(), times.tolist(), strict=True):
            slot_at = HEADER_BYTES + _SLOT.size * (entry_hash % slots)
            (previous,) = _SLOT.unpack_from(buffer, slot_at)
            if not 0 < previous < number:
                previous = 0
                self.used_slots += 1
            seconds = min(max((time - begin_time) // 1000, 0), _LARGEST_SECONDS)
            ENTRY.pack_into(buffer, at, entry_hash, offset, seconds, previous)
            _SLOT.pack_into(buffer, slot_at, number)
            number += 1
            at += ENTRY_BYTES

    def _put_bulk(
        self,
        buffer: memoryview,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
    ) -> None:
        number = len(hashes)
        numbers = np.arange(self.count, self.count + number, dtype=np.int32)
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
        begin = self._entries_at + ENTRY_BYTES * self._prepared_count
        end = min(mapped.size, max(self._entries_at + ENTRY_BYTES * count, begin + _STEP_BYTES))
        mapped.prepare(begin, end)
        self._prepared_count = (end - self._entries_at) // ENTRY_BYTES

    def _table(self, buffer: memoryview) -> NDArray[np.int32]:
        return np.frombuffer(buffer, ">i4", self._slots, HEADER_BYTES)

    def _entries(self, buffer: memoryview) -> NDArray[np.void]:
        return np.frombuffer(buffer, _ENTRY_TYPE, self._entries_max, self._entries_at)


class IndexFiles:
    """All IndexFiles of a store, oldest first, and the keys that wait to be written into the last one."""

    __slots__ = (
        "_disk",
        "_file_bytes",
        "_files",
        "_hashed",
        "_hashed_count",
        "_keys",
        "_mapped",
        "_options",
        "_tail",
        "_wall_ms",
        "end_offset",
        "new_files",
    )

    def __init__(self, disk: Disk, options: StoreOptions) -> None:
        self._disk = disk
        self._options = options
        self._file_bytes = IndexFile.file_bytes(options)
        self._files: list[IndexFile] = []
        self._mapped: dict[str, MappedFile] = {}
        self._tail: MappedFile | None = None
        self._keys: tuple[list[bytes], list[int], list[int]] = ([], [], [])
        """Keys, offsets and times that are neither hashed nor in a file yet."""
        self._hashed: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]] = []
        """Hashes, offsets and times that are not in a file yet, and come before `_keys`."""
        self._hashed_count = 0
        self._wall_ms = 0
        self.end_offset = -1
        """The largest offset indexed or pending."""
        self.new_files = False

    def __len__(self) -> int:
        return len(self._files)

    def put(self, keys: Sequence[bytes], offsets: Sequence[int], times: Sequence[int], wall_ms: int) -> None:
        """Indexes keys (`topic#key`, UTF-8), each with its record's physical offset and store time in ms.

        Offsets ascend; all keys of a record come in one call. They are in a file at the latest when `write` has
        been called. Raises DiskFullError, DiskError: nothing is forgotten, the next call tries again.
        """
        begin = 0
        while begin < len(keys) and offsets[begin] <= self.end_offset:
            begin += 1
        if begin < len(keys):
            pending_keys, pending_offsets, pending_times = self._keys
            pending_keys += keys[begin:]
            pending_offsets += offsets[begin:]
            pending_times += times[begin:]
            self.end_offset = offsets[-1]
            self._wall_ms = wall_ms
        if len(self._keys[0]) + self._hashed_count >= _PENDING_KEYS:
            self.write()

    def put_hashes(
        self,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
        wall_ms: int,
    ) -> None:
        """Does as `put` for keys of which only the Java hashes are told; none of them was indexed before.

        Raises as `put`.
        """
        assert int(offsets[0]) > self.end_offset, "these keys were indexed before"
        self._hash_keys()
        self._hashed.append((_positive(hashes), offsets, times))
        self._hashed_count += len(hashes)
        self.end_offset = int(offsets[-1])
        self._wall_ms = wall_ms
        if self._hashed_count >= _PENDING_KEYS:
            self.write()

    def _hash_keys(self) -> None:
        """Makes hashes of the keys that wait."""
        keys, offsets, times = self._keys
        if keys:
            self._hashed.append(
                (hashes_of_keys(keys), np.array(offsets, np.int64), np.array(times, np.int64))
            )
            self._hashed_count += len(keys)
            self._keys = ([], [], [])

    def write(self) -> None:
        """Writes the pending keys into the files. Raises DiskFullError, DiskError; the next call goes on from there."""
        self._hash_keys()
        if not self._hashed:
            return
        if len(self._hashed) > 1:
            columns = [np.concatenate([chunk[column] for chunk in self._hashed]) for column in range(3)]
            self._hashed = [(columns[0], columns[1], columns[2])]
        hashes, offsets, times = self._hashed[0]
        while len(hashes):
            if not self._files or not self._files[-1].room:
                self._add_file(self._wall_ms)
            file = self._files[-1]
            if self._tail is None:
                self._tail = self._map(file)
            end = min(file.room, len(hashes))
            file.put(self._tail, hashes[:end], offsets[:end], times[:end])
            hashes, offsets, times = hashes[end:], offsets[end:], times[end:]
            self._hashed = [(hashes, offsets, times)] if len(hashes) else []
            self._hashed_count = len(hashes)

    def begin_of_newest(self, count: int) -> int:
        """Returns the first offset that is in the newest `count` files; 0 when there are no more than these."""
        return self._files[-count].begin_offset if len(self._files) > count else 0

    def query(
        self,
        topic: str,
        key: str,
        limit: int,
        begin_time: int,
        end_time: int,
        *,
        least_offset: int = 0,
        budget: StepBudget | None = None,
    ) -> list[int]:
        """Returns the physical offsets of records that may have the key (hashes collide), newest first.

        They were stored in the given time (ms, both ends included) and lie at `least_offset` or behind it; there are at
        most min(limit, MAX_QUERY_RESULTS). A key of millions of messages has a chain as long; with a `budget` the query
        ends when it is used up. Raises DiskError, but for a full disk: what finds no room in a file is looked through
        where it waits.
        """
        name = f"{topic}#{key}".encode("utf-8", "surrogatepass")
        wanted = key_hash(name)
        limit = min(limit, MAX_QUERY_RESULTS)
        found: list[int] = []
        try:
            self.write()
        except DiskFullError:
            newest_first = [
                one for chunk in self._hashed for one in zip(*(c.tolist() for c in chunk), strict=True)
            ][::-1]
            found = [
                offset
                for pending, offset, time in newest_first
                if pending == wanted and offset >= least_offset and begin_time <= time <= end_time
            ][:limit]
        for file in reversed(self._files):
            if (
                len(found) >= limit
                or (file.count > 1 and file.end_offset < least_offset)  # one that found no room is empty
                or (budget is not None and budget.exhausted)
            ):
                break
            if file.begin_time <= end_time and file.end_time >= begin_time and file.count > 1:
                buffer = self._map(file).buffer
                some = file.query(
                    buffer, wanted, limit - len(found), begin_time, end_time, least_offset, budget
                )
                # A batch repeated after an error may have one key in two files.
                found += [offset for offset in some if offset not in found]
        return found

    def delete_before(self, physical_begin: int) -> int:
        """Removes files all of whose records are gone from the log (not the last); returns how many."""
        removed = 0
        while len(self._files) > 1 and self._files[0].end_offset < physical_begin:
            self._remove(self._files.pop(0).name)
            removed += 1
        return removed

    def remove_all(self) -> None:
        """Removes every file, and what is pending. Raises DiskError."""
        for name in self._disk.list(DIRECTORY):
            self._remove(name)
        self._files.clear()
        self._tail = None
        self._keys, self._hashed, self._hashed_count = ([], [], []), [], 0
        self.end_offset = -1

    def recover(self, notes: list[IndexNote] | None, *, clean_stop: bool) -> int | None:
        """Opens the files that the last checkpoint noted, cut back to what it noted, and removes others.

        Returns the physical offset from which on records must be indexed again although the checkpoint
        had them (0 for all), None if nothing is missing. Raises DiskError.
        """
        rebuild_from = None if notes is not None else 0
        for note in notes or ():
            file = IndexFile(note.name, self._options)
            sensible = file.load_header(note.header)
            if not sensible or not self._is_sound(file, note, clean_stop=clean_stop):
                rebuild_from = file.begin_offset if sensible and self._files else 0
                break
            self._files.append(file)
            self.end_offset = file.end_offset
        known = {file.name for file in self._files}
        for name in self._disk.list(DIRECTORY):
            if name not in known:
                self._remove(name)
        return rebuild_from

    def full_files(self) -> list[str]:
        """Returns the names of all files but the last one, which is written to."""
        return [file.name for file in self._files[:-1]]

    def named(self, name: str) -> IndexFile | None:
        """Returns a file by its name; None if it is gone."""
        return next((file for file in self._files if file.name == name), None)

    def before(self, file: IndexFile) -> IndexFile | None:
        """Returns the file before one of these."""
        at = self._files.index(file)
        return self._files[at - 1] if at else None

    def empty_copy(self, file: IndexFile, mapped: MappedFile) -> IndexFile:
        """Returns a file without entries, to be filled in place of one that is damaged; empties its slots."""
        copy = IndexFile(file.name, self._options)
        copy.clear_slots(mapped)
        return copy

    def replace(self, file: IndexFile, copy: IndexFile) -> None:
        """Puts a copy that was filled anew, and is to be flushed, in the place of a file."""
        copy.flushed_count = copy.count
        self._files[self._files.index(file)] = copy

    def map(self, file: IndexFile) -> MappedFile:
        """Returns the mapping of one of these files. Raises DiskError."""
        return self._map(file)

    def notes(self) -> tuple[list[IndexNote], list[str]]:
        """Returns (what a checkpoint must note, files to flush first). Raises as `write`."""
        self.write()
        notes, files = [], []
        for file in self._files:
            if file.count != file.flushed_count:
                files.append(f"{DIRECTORY}/{file.name}")
                file.flushed_count = file.count
            notes.append(IndexNote(file.name, file.header(), file.checksum(self._map(file).buffer)))
        return notes, files

    def close(self) -> None:
        self._mapped.clear()
        self._tail = None

    def _is_sound(self, file: IndexFile, note: IndexNote, *, clean_stop: bool) -> bool:
        """True if the file holds what the checkpoint noted; after an unclean stop its slots are corrected, too."""
        path = f"{DIRECTORY}/{note.name}"
        if not self._disk.exists(path) or self._disk.size(path) != self._file_bytes:
            return False
        mapped = self._map(file)
        if file.checksum(mapped.buffer) != note.checksum:
            return False
        if clean_stop:
            return bytes(mapped.buffer[:HEADER_BYTES]) == note.header
        file.restore_slots(mapped)
        return True

    def _add_file(self, wall_ms: int) -> None:
        name = file_name(wall_ms)
        if self._files and name <= self._files[-1].name:
            # Two files in one millisecond, or the clock went back: names still ascend.
            name = f"{int(self._files[-1].name) + 1:017d}"
        self._remove(name)
        self._files.append(IndexFile(name, self._options))
        self._tail = self._disk.open(f"{DIRECTORY}/{name}", self._file_bytes, create=True)
        self._remember(name, self._tail)
        self.new_files = True

    def _map(self, file: IndexFile) -> MappedFile:
        mapped = self._mapped.get(file.name)
        if mapped is None:
            mapped = self._disk.open(f"{DIRECTORY}/{file.name}", self._file_bytes, create=False)
            self._remember(file.name, mapped)
        return mapped

    def _remember(self, name: str, mapped: MappedFile) -> None:
        while len(self._mapped) >= self._options.index_mappings:
            del self._mapped[next(iter(self._mapped))]
        self._mapped[name] = mapped

    def _remove(self, name: str) -> None:
        self._mapped.pop(name, None)
        self._disk.remove(f"{DIRECTORY}/{name}")


def hashes_of_keys(keys: list[bytes]) -> NDArray[np.int32]:
    """Returns the hashes of keys as the index has them."""
    return _positive(java_hash_utf8_many(keys))


def _positive(hashes: NDArray[np.int32]) -> NDArray[np.int32]:
    """The hashes as the index has them, see `key_hash`."""
    positive = np.abs(hashes)
    positive[positive < 0] = 0  # the absolute value of -2**31 is itself
    return positive
