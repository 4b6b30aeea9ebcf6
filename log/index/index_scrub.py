"""Index files are held against the checksums of their entries, and made anew from the log where they were damaged.

What a file holds follows from the log: the keys of its records, in their order. So a damaged one is filled once more,
in its place, while the entries of the log go by (`log.dispatching.queue_scrub`), and it is right if it has the checksum
again that it had. The file under work is left out: its pages are in memory. A query meanwhile may find less, and never
what is not there, as every record that it finds is looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from log.errors import DamagedLogError, DiskFullError
from log.files.disk import MappedFile
from log.index.index_file import IndexFile, hashes_of_keys
from log.index.index_files import IndexFiles

SLICE_BYTES = 256 * 1024


@dataclass(slots=True)
class IndexScrub:
    """Sums up a slice of the entries of one file. A worker runs it."""

    file: IndexFile
    mapped: MappedFile
    begin: int
    end: int
    checksum: int
    is_last: bool

    def run(self) -> None:
        """Worker. Raises nothing."""
        self.mapped.load(self.begin, self.end)
        self.checksum = crc32(self.mapped.buffer[self.begin : self.end], self.checksum)
        self.mapped.cool(self.begin, self.end)


class IndexScrubber:
    """Goes over the index files of one store, one after the other, and fills those anew that are damaged."""

    def __init__(self, files: IndexFiles) -> None:
        self._files = files
        self._names: list[str] = []
        self._slice: tuple[IndexFile, int, int] | None = None
        """The file under work, where its next slice begins, and the checksum so far."""
        self._damaged: IndexFile | None = None
        """The file to fill anew in the next pass, while the entries go by."""
        self._rebuilt: _Rebuilt | None = None
        """What this pass has filled of `_damaged`, in its place; None before the first keys: until then queries find by
        the damaged file's slots what is left of it."""
        self.corrected: list[tuple[MappedFile, int, int]] = []
        """Ranges of files that were written and are to be flushed: the caller takes them out."""
        self.given_up: list[str] = []
        """The paths of files that cannot be made anew, as records of theirs are gone: the caller takes them out."""
        self._told: dict[str, None] = {}
        """The files of `given_up` so far, each named there once, and those that a full disk kept from being made anew.
        Each pass tries the one whose last try is the oldest again: entries that were damaged may be whole by then."""

    # ------------------------------------------------------------------ checking

    def begin(self) -> None:
        """The next `job` is of the first file."""
        names = self._files.full_files()
        self._told = {name: None for name in self._told if name in names}
        # Those that could not be made anew come last, and keep no other one from it.
        self._names = [*(name for name in names if name not in self._told), *self._told]
        self._slice = None
        # The entries of the log go by from the first one on, also where the pass before did not come to its end.
        self._rebuilt = None

    def job(self) -> IndexScrub | None:
        """Returns the next slice, None behind the last one; `done` takes it back."""
        while self._slice is None:
            if not self._names:
                return None
            file = self._files.named(self._names.pop(0))
            if file is not None and file.is_summed_up:
                self._slice = (file, file.place_of(1), 0)
        file, at, checksum = self._slice
        end = min(at + SLICE_BYTES, file.place_of(file.count))
        return IndexScrub(file, self._files.map(file), at, end, checksum, end == file.place_of(file.count))

    def done(self, job: IndexScrub) -> DamagedLogError | None:
        """Takes a slice back; returns what is wrong with the file, which is filled anew then as entries go by."""
        file = job.file
        if self._files.named(file.name) is not file:
            self._slice = None  # deleted meanwhile
            return None
        if not job.is_last:
            self._slice = (file, job.end, job.checksum)
            return None
        self._slice = None
        was_told = file.name in self._told
        at, problem = 0, ""
        try:
            if job.checksum != file.noted_checksum:
                at, problem = job.begin, "its entries do not match their checksum"
                self._names = []  # one at a time; the next pass finds others
                self._damaged = file
            elif not file.slots_are_right(job.mapped.buffer):
                problem = "header or slots do not match the entries"
                file.restore_slots(job.mapped)
                self._told.pop(file.name, None)
                self.corrected.append((job.mapped, 0, file.place_of(0)))
        except DiskFullError:
            self._later(file)
        return DamagedLogError(job.mapped.path, at, problem) if problem and not was_told else None

    # ------------------------------------------------------------------ filling anew

    @property
    def is_in_haste(self) -> bool:
        """A file is damaged, and was not tried yet: all entries of the log should go by."""
        return self._damaged is not None and self._damaged.name not in self._told

    end_offset = 1 << 62
    """Greater than any offset: so the dispatcher does not take runs, and calls `put` for each entry."""

    def put(self, keys: Sequence[bytes], offsets: Sequence[int], times: Sequence[int], now_ms: int) -> None:
        """Takes the keys of entries that go by, as `IndexFiles.put` does. On a full disk a later pass does."""
        file = self._damaged
        if file is None or self._files.named(file.name) is not file:
            return
        try:
            if self._rebuilt is None:
                self._rebuilt = _Rebuilt(self._files, file)
            self._rebuilt.put(keys, offsets, times)
        except DiskFullError:
            self._damaged = self._rebuilt = None
            self._later(file)

    def _later(self, file: IndexFile) -> None:
        """Leaves a file to a later pass, behind the others that are."""
        self._told.pop(file.name, None)
        self._told[file.name] = None

    def passed(self, first_position: int, *, is_whole: bool) -> None:
        """All entries of the log, which begins at `first_position`, have gone by; `is_whole`: none of them is damaged.

        Of a file of which retention took the first records those that are left make a shorter one.
        """
        file, rebuilt = self._damaged, self._rebuilt
        self._damaged = self._rebuilt = None
        if file is None or self._files.named(file.name) is not file:
            return
        mapped = self._files.map(file)
        if rebuilt is not None and is_whole and rebuilt.is_of_what_is_left(first_position):
            self._files.replace(file, rebuilt.copy)
            is_right = True
        else:
            # What was filled anew must be what the file's header and checksum say, or it helps nobody.
            is_right = rebuilt is not None and rebuilt.is_right()
        if is_right:
            self._told.pop(file.name, None)
            self.corrected.append((mapped, 0, mapped.size))
        else:
            if file.name not in self._told:
                self.given_up.append(mapped.path)
            self._later(file)


class _Rebuilt:
    """An index file that is filled once more, in its place."""

    def __init__(self, files: IndexFiles, file: IndexFile) -> None:
        self.file = file
        self._mapped = files.map(file)
        self.copy = files.empty_copy(file, self._mapped)
        # Of its first record and of its last one some keys may be in the files beside it.
        self._skip = files.keys_before(file, file.begin_offset)
        self._keys_after = files.keys_after(file, file.end_offset)

    def put(self, keys: Sequence[bytes], offsets: Sequence[int], times: Sequence[int]) -> None:
        """Adds those that belong to the file; all keys of a record come in one call."""
        file, copy = self.file, self.copy
        taken = []
        for number, offset in enumerate(offsets):
            if offset == file.begin_offset and self._skip:
                self._skip -= 1
            elif file.begin_offset <= offset <= file.end_offset:
                taken.append(number)
        if taken and offsets[taken[-1]] == file.end_offset:
            taken = taken[: max(len(taken) - self._keys_after, 0)]
        # There is room for these: the files beside it may be damaged, too, and say that they have fewer than they have.
        taken = taken[: file.count - copy.count]
        if taken:
            copy.put(
                self._mapped,
                hashes_of_keys([keys[number] for number in taken]),
                np.array([offsets[number] for number in taken], np.int64),
                np.array([times[number] for number in taken], np.int64),
            )

    def is_of_what_is_left(self, first_position: int) -> bool:
        """True if it has the keys of all records up to the last one, and the first ones of the file are gone."""
        return self.file.begin_offset <= first_position and self.copy.end_offset == self.file.end_offset

    def is_right(self) -> bool:
        """True if what was filled from the log equals the file as it was: number of entries, header and checksum."""
        copy, file = self.copy, self.file
        return (
            copy.count == file.count
            and copy.header() == file.header()
            and copy.checksum(self._mapped.buffer) == file.noted_checksum
        )
