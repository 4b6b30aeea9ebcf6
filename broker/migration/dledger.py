"""The entries of a DLedger store (`DLedgerMmapFileStore`), read from its data files in order and checked as a chain.

DLedger sums nothing up, so the chain is what there is to check of its headers: each entry names its index, its
position and its term. What its body holds is checked by whoever takes it (`survey`). DLedger's own recovery believes
a chain as long as it holds, and so does this: zeros end it, as do, after a stop that was not clean, bytes that do not
go on with it. But nothing may end before the entry that the store's checkpoint calls committed.

Files are read in pieces and not mapped: one that another process cuts off would end this one with a signal.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from broker.migration.errors import DamagedSourceError, MigrationError
from log.formats.layout import END_MAGIC, END_MARKER, ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES

PIECE_BYTES: Final = 1 << 20
_NAME_LENGTH: Final = 20
_TERMS_MAX: Final = 1 << 62
_LATER_MAGICS: Final = (2, 3)
"""Entries of DLedger 0.4 that are no messages: no-ops and changes of members. No release of RocketMQ writes them."""


class Head(NamedTuple):
    """An entry: where it begins in its piece, and what its header says."""

    at: int
    size: int
    entry: int
    """Its index."""
    term: int


class Piece(NamedTuple):
    """Whole entries that follow each other in one file. `data` is the reader's own, and may be changed."""

    path: Path
    begin: int
    """The place in the file at which they begin."""
    position: int
    """The position in the log at which they begin."""
    data: bytearray
    heads: list[Head]


class EntryFiles:
    """The data files of one node, and the entries in them.

    `committed_index` is what the store's checkpoint says, a lower bound; `is_clean` that its broker stopped in order.
    `entries` sets `last_index`, `last_term`, `end_position` and `cut_off`, which says where an unfinished write was
    left out.
    """

    def __init__(self, directory: Path, committed_index: int, *, is_clean: bool) -> None:
        """Finds the files and the first entry. Raises MigrationError, DamagedSourceError, OSError."""
        self._directory = directory / "data"
        self._committed_index = committed_index
        self._is_clean = is_clean
        self._files = self._list()
        self.file_bytes = self._files[0].stat().st_size
        self._check_files()
        self.first_position = int(self._files[0].name)
        with self._files[0].open("rb") as file:
            raw = file.read(HEADER_BYTES)
        magic, _, self.first_index, self.base_term, position, *_ = HEADER.unpack(
            raw.ljust(HEADER_BYTES, b"\0")
        )
        if not magic:
            raise MigrationError(f"{self._files[0]} holds no entry: there is nothing to take over")
        if magic != ENTRY_MAGIC or position != self.first_position or self.first_index < 0:
            raise DamagedSourceError(self._files[0], 0, "it does not begin with an entry of DLedger")
        self.last_index = self.first_index - 1
        # The term before the first entry went with the entry that had it. Terms never fall, so this is the most it was.
        self.last_term = self.base_term
        self.end_position = self.first_position
        self.cut_off = ""

    def look_again(self, committed_index: int, *, is_clean: bool) -> None:
        """Finds the files of a store that has grown since. Raises MigrationError, DamagedSourceError, OSError."""
        self._committed_index = committed_index
        self._is_clean = is_clean
        self._files = self._list()
        self._check_files()

    def entries(self, up_to: int | None = None, *, go_on: bool = False) -> Iterator[Piece]:
        """Yields all entries, or those behind the last one if it is to `go_on`; up to index `up_to` if that is given.

        Raises MigrationError, DamagedSourceError, OSError.
        """
        if not go_on:
            self.last_index, self.end_position = self.first_index - 1, self.first_position
            self.last_term = self.base_term
        self.cut_off = ""
        if up_to is not None and self.last_index >= up_to:
            return
        # The broker goes on, and its retention with it.
        if int(self._files[0].name) > self.end_position:
            raise MigrationError(
                f"the entries behind {self.last_index} were deleted before they were read: begin again in another "
                "directory"
            )
        for number, path in enumerate(self._files):
            if int(path.name) + self.file_bytes <= self.end_position:
                continue
            at = max(0, self.end_position - int(path.name))
            while at < self.file_bytes:
                raw = _read(path, at, PIECE_BYTES)
                heads, used, problem = self._chain(raw, int(path.name) + at, at)
                # No entry is whole in this piece: there is one that is longer, or the log ends, or this file does.
                if not heads and not problem and len(raw) >= MARKER_BYTES:
                    size = HEADER.unpack_from(raw)[1] if len(raw) >= HEADER_BYTES else 0
                    if len(raw) < size <= self.file_bytes - at:  # one large entry
                        raw = _read(path, at, size)
                        heads, used, problem = self._chain(raw, int(path.name) + at, at)
                if up_to is not None:
                    heads = [head for head in heads if head.entry <= up_to]
                if heads:
                    used = heads[-1].at + heads[-1].size
                    self.last_term = heads[-1].term
                    self.last_index = heads[-1].entry
                    self.end_position = int(path.name) + at + used
                    yield Piece(path, at, int(path.name) + at, raw[:used], heads)
                    at += used
                if up_to is not None and self.last_index >= up_to:
                    return
                # The entries before it are sound, and have been handed on.
                if problem:
                    self._end_with(path, at, problem)
                    return
                if not heads:
                    magic, left = END_MARKER.unpack(raw[:MARKER_BYTES].ljust(MARKER_BYTES, b"\0"))
                    if magic != END_MAGIC:
                        self._end(path, at, self._files[number + 1 :])
                        return
                    if left != self.file_bytes - at:
                        raise DamagedSourceError(
                            path, at, f"a mark says that {left} bytes are left, of {self.file_bytes - at}"
                        )
                    break

    def _list(self) -> list[Path]:
        found = self._directory.iterdir() if self._directory.is_dir() else ()
        files = sorted(path for path in found if len(path.name) == _NAME_LENGTH and path.name.isdigit())
        if files and not files[-1].stat().st_size:
            files.pop()  # a broker makes its next file
        if not files:
            raise MigrationError(f"{self._directory} holds no data file of DLedger")
        return files

    def _check_files(self) -> None:
        for before, path in zip([None, *self._files], self._files, strict=False):
            if path.stat().st_size != self.file_bytes:
                raise DamagedSourceError(
                    path, 0, f"it has {path.stat().st_size} bytes, and the first file {self.file_bytes}"
                )
            if int(path.name) % self.file_bytes:
                raise DamagedSourceError(path, 0, f"its name is no multiple of {self.file_bytes}, its size")
            if before is not None and int(path.name) != int(before.name) + self.file_bytes:
                raise DamagedSourceError(path, 0, f"the file between it and {before.name} is missing")

    def _chain(self, raw: bytearray, position: int, at: int) -> tuple[list[Head], int, str]:
        """Returns the entries at the beginning of `raw`, where they end, and what is wrong behind them, if anything.

        An entry that is not all in `raw` is left to the next call, as are zeros and marks.

        Raises MigrationError.
        """
        heads: list[Head] = []
        offset, index, end = 0, self.last_index + 1, len(raw)
        last_term = self.last_term
        left = self.file_bytes - at
        unpack = HEADER.unpack_from
        while offset + HEADER_BYTES <= end:
            magic, size, found, term, found_position, _, _, _, body = unpack(raw, offset)
            if magic in (0, END_MAGIC):
                break
            if magic in _LATER_MAGICS:
                raise MigrationError(
                    f"entry {index} at position {position + offset} is of kind {magic}, which DLedger 0.4 writes "
                    "and no release of RocketMQ does: it is no message"
                )
            if magic != ENTRY_MAGIC:
                return heads, offset, f"magic number {magic:#x} is not one of an entry"
            # Behind the last entry of a file there is room for the mark that ends it.
            if size != body + HEADER_BYTES or body <= 0 or offset + size + MARKER_BYTES > left:
                return heads, offset, f"a size of {size} with a body of {body} is impossible"
            if found != index or found_position != position + offset:
                expected = f"not {index} at {position + offset}"
                return heads, offset, f"entry {found} at {found_position}, {expected}"
            if not 0 <= last_term <= term < _TERMS_MAX:
                return heads, offset, f"term {term} follows term {last_term}"
            if offset + size > end:
                break
            heads.append(Head(offset, size, index, term))
            last_term = term
            offset, index = offset + size, index + 1
        return heads, offset, ""

    def _end_with(self, path: Path, at: int, problem: str) -> None:
        """The chain breaks here: after an unclean stop that may be its end. Raises DamagedSourceError."""
        if self._is_clean or self.last_index < self._committed_index:
            raise DamagedSourceError(path, at, f"behind entry {self.last_index}: {problem}")
        self.cut_off = f"{path} at byte {at}: {problem}"

    def _end(self, path: Path, at: int, later: list[Path]) -> None:
        """Zeros begin here: nothing may follow. Raises DamagedSourceError, OSError."""
        if self.last_index < self._committed_index:
            raise DamagedSourceError(
                path,
                at,
                f"the log ends with entry {self.last_index}, and its checkpoint says that {self._committed_index} "
                "is committed",
            )
        for other in later:
            if any(_read(other, 0, HEADER_BYTES)):
                raise DamagedSourceError(
                    path, at, f"the log ends with entry {self.last_index} here, but goes on in {other.name}"
                )


def _read(path: Path, at: int, size: int) -> bytearray:
    with path.open("rb") as file:
        file.seek(at)
        return bytearray(file.read(size))
