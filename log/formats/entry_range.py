"""A contiguous run of entries as it comes from a peer: checked once, then copied as one slice.

`check_range` is a pure function of the bytes and the place they claim, so that it can run before the
follower decides where (and whether) they fit. While walking the headers it also builds the index units, so
that appending is two copies.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import NamedTuple
from zlib import crc32

import numpy as np

from log.errors import DamagedRangeError, MisplacedRangeError
from log.formats.columns import RUN_FROM, chain, checksums, gather
from log.formats.layout import (
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    HEADER_TYPE,
    MARKER_BYTES,
    UNIT,
    UNIT_BYTES,
    UNIT_TYPE,
)
from log.formats.record import Buffer

_SIZE = Struct(">i")
_SIZE_AT = 4
"""The place of the size in a header."""


class EntryRange(NamedTuple):
    """Entries `first_index`..`last_index`, bytes [position, end_position) of the log, all within one data file."""

    data: memoryview
    first_index: int
    last_index: int
    position: int
    end_position: int
    units: bytes
    """Index units of all entries, 32 bytes each."""
    term_spans: tuple[tuple[int, int], ...]
    """(first index, term) of each run of equal terms, ascending."""

    def position_of(self, index: int) -> int:
        """Returns the log position at which the entry begins."""
        if index == self.first_index:
            return self.position
        assert self.first_index < index <= self.last_index, (
            f"entry {index} is not in {self.first_index}..{self.last_index}"
        )
        return int(UNIT.unpack_from(self.units, (index - self.first_index) * UNIT_BYTES)[1])

    def term_of(self, index: int) -> int:
        """Returns the term of one entry."""
        assert self.first_index <= index <= self.last_index, (
            f"entry {index} is not in {self.first_index}..{self.last_index}"
        )
        return int(UNIT.unpack_from(self.units, (index - self.first_index) * UNIT_BYTES)[4])

    def has_terms(self, runs: Iterable[tuple[int, int]]) -> bool:
        """True if the entries have exactly these runs of (term, count), in order."""
        index = self.first_index
        spans = []
        for term, count in runs:
            spans.append((index, term))
            index += count
        return self.last_index == index - 1 and self.term_spans == tuple(spans)


def check_range(
    data: Buffer,
    first_index: int,
    position: int,
    data_file_bytes: int,
    quickly: Callable[[memoryview, int, int], EntryRange | None] | None = None,
) -> EntryRange:
    """Checks magic, sizes, indices, positions, terms and checksums of all entries in `data`; returns them as a range.

    `quickly` does as `checked_run`, which it replaces (`log.formats.loops`).

    Raises DamagedRangeError with the offset in `data`; nothing of a damaged range may be used. It is a
    MisplacedRangeError where they would cross the end of a data file.
    """
    view = memoryview(data)
    end = len(view)
    # Behind the last entry of a file there is always room for an end marker.
    file_left = data_file_bytes - position % data_file_bytes - MARKER_BYTES
    if not end:
        raise DamagedRangeError(0, "a range holds at least one entry")
    if end > file_left:
        reason = f"{end} bytes at position {position} do not fit into one data file"
        raise MisplacedRangeError(0, reason, data_file_bytes)
    return (quickly or checked_run)(view, first_index, position) or _checked_each(view, first_index, position)


def checked_run(view: memoryview, first_index: int, position: int) -> EntryRange | None:
    """Returns a range that passes all checks, found as columns; None where `_checked_each` is to say what is wrong.

    Short ranges are left to that, too.
    """
    end = len(view)
    if end < HEADER_BYTES:
        return None
    (first_size,) = _SIZE.unpack_from(view, _SIZE_AT)
    if end < RUN_FROM * max(first_size, HEADER_BYTES):
        return None  # as far as the first one tells, they are too few to be worth it
    found = chain(view, 0, end, _SIZE_AT, HEADER_BYTES, end)
    if found is None or len(found[0]) < RUN_FROM:
        return None
    places, _ = found
    count = len(places)
    # What `_checked_each` asks of each header, as columns. Sizes need no bounds: `chain` has followed them to the end.
    headers = gather(view, places, HEADER_BYTES, HEADER_TYPE)
    indices = np.arange(first_index, first_index + count)
    terms = headers["term"]
    sound = (
        (headers["magic"] == ENTRY_MAGIC)
        & (headers["channel"] | headers["chain"] == 0)
        & (headers["body"] == headers["size"] - HEADER_BYTES)
        & (headers["index"] == indices)
        & (headers["position"] == places + position)
    )
    if not sound.all() or int(terms[0]) < 0 or (terms[1:] < terms[:-1]).any():
        return None
    # Last, as it is the only check that goes over all bytes.
    found_checksums = checksums(view, places + HEADER_BYTES, np.append(places[1:], end))
    if found_checksums != headers["checksum"].tolist():
        return None
    units = np.empty(count, UNIT_TYPE)
    for name in UNIT_TYPE.names or ():
        units[name] = headers[name]
    changes = [0, *(np.flatnonzero(terms[1:] != terms[:-1]) + 1).tolist()]
    spans = tuple([(first_index + change, int(terms[change])) for change in changes])
    return EntryRange(
        view, first_index, first_index + count - 1, position, position + end, units.tobytes(), spans
    )


def _checked_each(view: memoryview, first_index: int, position: int) -> EntryRange:
    """Checks entry by entry. Raises DamagedRangeError."""
    end = len(view)
    unpack, pack = HEADER.unpack_from, UNIT.pack
    offset = 0
    index = first_index
    last_term = 0
    units: list[bytes] = []
    spans: list[tuple[int, int]] = []
    while offset < end:
        if end - offset < HEADER_BYTES:
            raise DamagedRangeError(offset, f"{end - offset} bytes are no entry header")
        magic, size, found_index, term, found_position, channel, chain, checksum, body_size = unpack(
            view, offset
        )
        next_offset = offset + size
        # The sizes first: they lead to the next header, and to the bytes that the checksum covers.
        if magic != ENTRY_MAGIC or channel or chain:
            raise DamagedRangeError(offset, f"magic {magic}, channel {channel}, chain {chain}: no entry")
        if size != body_size + HEADER_BYTES or body_size < 0 or next_offset > end:
            raise DamagedRangeError(offset, f"size {size} with a body of {body_size} is impossible")
        # Each header names its index and position: entries of another place of the log would pass all other checks.
        if found_index != index or found_position != position + offset:
            raise DamagedRangeError(
                offset,
                f"entry {found_index} at {found_position}, not {index} at {position + offset}",
            )
        # Terms never fall along a log (Raft 5.3).
        if term != last_term or not spans:
            if term < last_term:
                raise DamagedRangeError(offset, f"term {term} follows term {last_term}")
            spans.append((index, term))
            last_term = term
        if crc32(view[offset + HEADER_BYTES : next_offset]) != checksum:
            raise DamagedRangeError(offset, f"checksum of entry {index} does not match its body")
        units.append(pack(ENTRY_MAGIC, found_position, size, index, term))
        offset = next_offset
        index += 1
    return EntryRange(view, first_index, index - 1, position, position + end, b"".join(units), tuple(spans))
