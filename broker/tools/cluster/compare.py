"""The comparison of a group's stores, byte by byte up to an index, from their files alone.

This reader of data files is written from DLedger's layout (docs/storage.md) and shares nothing with the store but the
numbers of it: a mistake in the writer must not hide behind the same mistake in the check. It opens files read-only and
can run beside the servers, as long as the entries up to the index asked for are committed.
"""

import contextlib
import mmap
import zlib
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from log.formats.layout import END_MAGIC, END_MARKER, ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry of a data file; ``data`` is its header and body, valid until the next entry is taken."""

    index: int
    term: int
    position: int
    data: memoryview


class StoresDifferError(Exception):
    """The stores are not the same; the text says which, where and how."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The part of the stores that was found identical."""

    first_index: int
    last_index: int
    entries: int
    bytes: int
    digest: int
    """CRC-32 over all entries compared."""


def walk_entries(data_directory: Path) -> Generator[StoredEntry, None, None]:
    """Yield every entry from the first file on, until the written part ends. Raises StoresDifferError for a damaged
    one."""
    expected_index: int | None = None
    for path in sorted(path for path in data_directory.iterdir() if path.name.isdigit()):
        if path.stat().st_size == 0:
            return
        start = int(path.name)
        with path.open("rb") as file, _mapped(file) as view:
            offset = 0
            while offset + MARKER_BYTES <= len(view):
                # A record that does not fit leaves this marker (DLedgerMmapFileStore), and goes to the next
                # file.
                if END_MARKER.unpack_from(view, offset)[0] == END_MAGIC:
                    break
                if offset + HEADER_BYTES > len(view):
                    return
                magic, size, index, term, position, _, _, body_crc, body_length = HEADER.unpack_from(
                    view, offset
                )
                # Zeros: the file is written up to here.
                if magic == 0 and size == 0:
                    return
                end = offset + size
                if (
                    magic != ENTRY_MAGIC
                    or size != HEADER_BYTES + body_length
                    or end > len(view)
                    or position != start + offset
                    or (expected_index is not None and index != expected_index)
                    or zlib.crc32(view[offset + HEADER_BYTES : end]) != body_crc
                ):
                    raise StoresDifferError(
                        f"{path} at {offset}: no whole entry where index {expected_index} should be"
                    )
                with view[offset:end] as data:
                    yield StoredEntry(index, term, position, data)
                expected_index = index + 1
                offset = end


@contextlib.contextmanager
def _mapped(file: BinaryIO) -> Iterator[memoryview]:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        yield view


def compare_stores(data_directories: Mapping[str, Path], last_index: int) -> Comparison:
    """Compare every entry that all stores hold, up to ``last_index``, which all must reach.

    A store's log may begin later than another's (retention); what comes before the latest beginning is not compared.
    Raises StoresDifferError.
    """
    walks = {name: walk_entries(directory) for name, directory in data_directories.items()}
    current = {name: _next(name, walk, 0) for name, walk in walks.items()}
    first_index = max(entry.index for entry in current.values())
    for name, walk in walks.items():
        while current[name].index < first_index:
            current[name] = _next(name, walk, first_index)
    reference = next(iter(walks))
    entries = byte_count = digest = 0
    for index in range(first_index, last_index + 1):
        wanted = current[reference]
        for name, entry in current.items():
            if entry.data != wanted.data:
                raise StoresDifferError(
                    f"entry {index} differs: {reference} has {_brief(wanted)}, {name} has {_brief(entry)}"
                )
        digest = zlib.crc32(wanted.data, digest)
        entries += 1
        byte_count += len(wanted.data)
        if index < last_index:
            current = {name: _next(name, walk, index + 1) for name, walk in walks.items()}
    for walk in walks.values():
        walk.close()  # it holds a mapping open
    return Comparison(first_index, last_index, entries, byte_count, digest)


def _next(name: str, walk: Iterator[StoredEntry], index: int) -> StoredEntry:
    entry = next(walk, None)
    if entry is None:
        raise StoresDifferError(f"{name}'s log ends before entry {index}")
    return entry


def _brief(entry: StoredEntry) -> str:
    return f"index {entry.index} term {entry.term} at {entry.position}, {len(entry.data)} bytes"
