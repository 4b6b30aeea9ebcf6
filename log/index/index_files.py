"""All IndexFiles of a store: a sequence, written by dispatch and read newest first.

Keys wait until `_PENDING_KEYS` are together, or somebody asks: a node that gets one message at a time would otherwise
spend more on the index than on all the rest. Hashes of a batch are computed by numpy at once.

Only the checkpoint flushes. It notes each file's header and a checksum of its entries; after an unclean stop a file is
cut back to its note, and its slots are put right by the entries. What does not match is dropped, and dispatch builds it
again from the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from log.errors import DiskFullError
from log.files.disk import Disk, MappedFile
from log.index.index_file import HEADER_BYTES, IndexFile, StepBudget, hashes_of_keys, key_hash, positive
from log.options import StoreOptions

DIRECTORY = "index"
MAX_QUERY_RESULTS = 64
_PENDING_KEYS = 256


@dataclass(frozen=True, slots=True)
class IndexNote:
    """A checkpoint's note of one file: its header, and the CRC-32 of its entries 1..indexCount-1."""

    name: str
    header: bytes
    checksum: int


@dataclass(slots=True, eq=False)
class IndexFiles:
    """All IndexFiles of a store, oldest first, and the keys that wait to be written into the last one.

    Offsets ascend through the files, `_hashed`, whose columns have `_hashed_count` elements together, and `_keys`; the
    last one is `end_offset`. `_tail` is the last file's mapping, None until it is written to.
    """

    _disk: Disk
    _options: StoreOptions
    _file_bytes: int = field(init=False)
    _files: list[IndexFile] = field(default_factory=list)
    _mapped: dict[str, MappedFile] = field(default_factory=dict)
    _tail: MappedFile | None = None
    _keys: tuple[list[bytes], list[int], list[int]] = field(default_factory=lambda: ([], [], []))
    """Keys, offsets and times that are neither hashed nor in a file yet."""
    _hashed: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=list
    )
    """Hashes, offsets and times that are not in a file yet, and come before `_keys`."""
    _hashed_count: int = 0
    _now_ms: int = 0
    end_offset: int = -1
    """The largest offset indexed or pending."""
    _end_keys: int | None = None
    """How many keys of the record at `end_offset` are in files, where more of them may come; None: it has all."""
    new_files: bool = False

    def __post_init__(self) -> None:
        self._file_bytes = IndexFile.file_bytes(self._options)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[IndexFile]:
        """Yields the files, oldest first."""
        return iter(self._files)

    def put(self, keys: Sequence[bytes], offsets: Sequence[int], times: Sequence[int], now_ms: int) -> None:
        """Indexes keys (`topic#key`, UTF-8), each with its record's physical offset and store time in ms.

        Offsets ascend; all keys of a record come in one call. They are in a file at the latest when `write` has
        been called. Raises DiskFullError, DiskError: nothing is forgotten, the next call tries again.
        """
        begin = 0
        # A dispatch that failed comes again, and one after a start repeats what a checkpoint had.
        while begin < len(keys) and offsets[begin] <= self.end_offset:
            begin += 1
        if self._end_keys is not None:
            # The others of the record were in a file that is gone.
            begin -= max(offsets[:begin].count(self.end_offset) - self._end_keys, 0)
        if begin < len(keys):
            pending_keys, pending_offsets, pending_times = self._keys
            pending_keys += keys[begin:]
            pending_offsets += offsets[begin:]
            pending_times += times[begin:]
            self.end_offset, self._end_keys = offsets[-1], None
            self._now_ms = now_ms
        if len(self._keys[0]) + self._hashed_count >= _PENDING_KEYS:
            self.write()

    def put_hashes(
        self,
        hashes: NDArray[np.int32],
        offsets: NDArray[np.int64],
        times: NDArray[np.int64],
        now_ms: int,
    ) -> None:
        """Does as `put` for keys of which only the Java hashes are told; none of them was indexed before.

        Raises as `put`.
        """
        assert int(offsets[0]) > self.end_offset, (
            f"keys from {offsets[0]} on are indexed, to {self.end_offset}"
        )
        # Keys that wait unhashed came before these, and files have them in the order of their offsets.
        self._hash_keys()
        self._hashed.append((positive(hashes), offsets, times))
        self._hashed_count += len(hashes)
        self.end_offset, self._end_keys = int(offsets[-1]), None
        self._now_ms = now_ms
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
                self._add_file(self._now_ms)
            file = self._files[-1]
            if self._tail is None:
                self._tail = self.map(file)
            end = min(file.room, len(hashes))
            # After each file what is left is noted: the next file may find no space, and no key may be put twice.
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
                buffer = self.map(file).buffer
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
        self._disk.discard(DIRECTORY)
        self._files.clear()
        self._mapped.clear()
        self._tail = None
        self._keys, self._hashed, self._hashed_count = ([], [], []), [], 0
        self.end_offset, self._end_keys = -1, None

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
                # Offsets ascend from file to file: sound ones behind this one would have to be filled before it is. So
                # they go, too, and what comes again of the files before it is passed over (`put`).
                rebuild_from = file.begin_offset if sensible and self._files else 0
                self._end_keys = self.keys_before(file, self.end_offset) if self._files else None
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

    def keys_before(self, file: IndexFile, offset: int) -> int:
        """Returns how many keys of the record at `offset` are in the files before one of these, or before one that is
        to follow them: the keys of one record may be in several files. Raises DiskError.
        """
        before = self._files[: self._files.index(file)] if file in self._files else self._files
        number = 0
        for each in reversed(before):
            at_end = each.keys_at_end(self.map(each).buffer, offset)
            number += at_end
            if at_end < each.count - 1:
                break
        return number

    def keys_after(self, file: IndexFile, offset: int) -> int:
        """Returns how many keys of the record at `offset`, the last one of a file, are in the files behind it, or wait
        to be written there. Raises DiskError.
        """
        number = sum(int((offsets == offset).sum()) for _, offsets, _ in self._hashed)
        for each in self._files[self._files.index(file) + 1 :]:
            at_begin = each.keys_at_begin(self.map(each).buffer, offset)
            number += at_begin
            if at_begin < each.count - 1:
                break
        return number

    def empty_copy(self, file: IndexFile, mapped: MappedFile) -> IndexFile:
        """Returns a file without entries, to be filled in place of one that is damaged; empties its slots.

        Raises DiskFullError.
        """
        copy = IndexFile(file.name, self._options)
        copy.clear_slots(mapped)
        return copy

    def replace(self, file: IndexFile, copy: IndexFile) -> None:
        """Puts a copy that was filled anew, and is to be flushed, in the place of a file."""
        copy.flushed_count = copy.count
        self._files[self._files.index(file)] = copy

    def map(self, file: IndexFile) -> MappedFile:
        """Returns the mapping of one of these files. Raises DiskError."""
        mapped = self._mapped.get(file.name)
        if mapped is None:
            mapped = self._disk.open(f"{DIRECTORY}/{file.name}", self._file_bytes, create=False)
            self._remember(file.name, mapped)
        return mapped

    def notes(self) -> tuple[list[IndexNote], list[str]]:
        """Returns (what a checkpoint must note, files to flush first). Raises as `write`."""
        self.write()
        notes, files = [], []
        for file in self._files:
            if file.count != file.flushed_count:
                files.append(f"{DIRECTORY}/{file.name}")
                file.flushed_count = file.count
            notes.append(IndexNote(file.name, file.header(), file.checksum(self.map(file).buffer)))
        return notes, files

    def close(self) -> None:
        self._mapped.clear()
        self._tail = None

    def _is_sound(self, file: IndexFile, note: IndexNote, *, clean_stop: bool) -> bool:
        """True if the file holds what the checkpoint noted; after an unclean stop its slots are corrected, too."""
        path = f"{DIRECTORY}/{note.name}"
        if not self._disk.exists(path) or self._disk.size(path) != self._file_bytes:
            return False
        mapped = self.map(file)
        if file.checksum(mapped.buffer) != note.checksum:
            return False
        if clean_stop:
            return bytes(mapped.buffer[:HEADER_BYTES]) == note.header
        file.restore_slots(mapped)
        return True

    def _add_file(self, now_ms: int) -> None:
        name = file_name(now_ms)
        if self._files and name <= self._files[-1].name:
            # Two files in one millisecond, or the clock went back: names still ascend.
            name = f"{int(self._files[-1].name) + 1:017d}"
        self._remove(name)
        # On a full disk it may not come to be: then the file before it is the last one still.
        mapped = self._disk.open(f"{DIRECTORY}/{name}", self._file_bytes, create=True)
        self._files.append(IndexFile(name, self._options))
        self._tail = mapped
        self._remember(name, mapped)
        self.new_files = True

    def _remember(self, name: str, mapped: MappedFile) -> None:
        while len(self._mapped) >= self._options.index_mappings:
            del self._mapped[next(iter(self._mapped))]
        self._mapped[name] = mapped

    def _remove(self, name: str) -> None:
        self._mapped.pop(name, None)
        self._disk.remove(f"{DIRECTORY}/{name}")


def file_name(now_ms: int) -> str:
    """Returns the name of a file made at `now_ms` (ms since 1970): yyyyMMddHHmmssSSS in UTC."""
    days, ms = divmod(now_ms, 86_400_000)
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
