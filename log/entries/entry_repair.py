"""Entries of a log that were damaged on the disk are put back, from what a peer holds.

A log has each committed entry once, and all replicas have the same bytes of it at the same position. So what a peer
sends is those bytes if it passes the checks of every run of entries from a peer (`log.formats.entry_range`), if the
entries have the terms that this log knows for their indices (log matching, Raft figure 3), and if the run begins where
this log has its first entry. Only the caller knows what is committed, and asserts that nothing else is written.
"""

from log.entries.entry_log import EntryLog
from log.entries.flushes import FlushJob
from log.errors import DamagedRangeError
from log.formats.entry_range import EntryRange
from log.formats.layout import END_MAGIC, END_MARKER, ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES, UNIT

_PROBED_MAX = 10_000
"""Entries behind a damaged one that are looked at to find where the log is whole again: more than any page holds."""


def put_back(log: EntryLog, entries: EntryRange) -> tuple[int, FlushJob]:
    """Writes committed entries over what this log has in their place; returns how many differed, and a flush.

    They are durable when the flush has run. Raises DamagedRangeError, with nothing written, for entries that are not
    those of this log.
    """
    first, last = entries.first_index, entries.last_index
    # Committed entries are the same on every replica, byte for byte and at the same place. So whatever differs besides
    # the bytes that are damaged says that these are of another log, or that the damage is another than was thought.
    assert log.first_index <= first <= last <= log.last_index, (
        f"entries {first}..{last} are not in {log.first_index}..{log.last_index}"
    )
    for index in range(first, last + 1):
        if entries.term_of(index) != log.term_of(index):
            raise DamagedRangeError(
                0, f"entry {index} is of term {log.term_of(index)} here, not of {entries.term_of(index)}"
            )
    if not _is_in_place(log, entries):
        raise DamagedRangeError(0, f"entry {first} is not at position {entries.position} of this log")
    if last == log.last_index and entries.end_position != log.end_position:
        raise DamagedRangeError(0, f"the log ends at {log.end_position}, not at {entries.end_position}")
    mapped, start = log.file_of(entries.position)
    at = entries.position - start
    differing = 0
    for number in range(first, last + 1):
        begin = entries.position_of(number) - entries.position
        end = entries.position_of(number + 1) - entries.position if number < last else len(entries.data)
        differing += mapped.buffer[at + begin : at + end] != entries.data[begin:end]
    size = len(entries.data)
    mapped.buffer[at : at + size] = entries.data
    mapped.write_back(at, at + size)
    ranges = [(mapped, at, at + size), *log.index.correct(first, entries.units)]
    return differing, FlushJob(ranges, last)


def _is_in_place(log: EntryLog, entries: EntryRange) -> bool:
    """True if the first entry begins there by its index unit, or if that is damaged behind the entry before it.

    A unit has no checksum: it counts against the place only if it leads to the header of its entry.
    """
    index, position = entries.first_index, entries.position
    if index == log.first_index:
        return position == log.first_position
    noted = log.unit_unchecked(index)
    if noted is not None and (noted[0] == position or _has_header(log, index, noted[0])):
        return noted[0] == position
    before = log.unit_unchecked(index - 1)
    if before is None:
        return False
    size = UNIT.unpack_from(entries.units)[2]
    return position == log.next_position(size - HEADER_BYTES, before[0] + before[1])


def whole_again(log: EntryLog, index: int) -> tuple[int, int] | None:
    """Returns the first entry behind a damaged one that can be found, and its position; None if there is none.

    By the units of what follows in its file, whose headers must agree, or by the first header of a file behind it.
    """
    for number in range(index + 1, min(log.last_index, index + _PROBED_MAX) + 1):
        noted = log.unit_unchecked(number)
        if noted is not None and _has_header(log, number, noted[0]):
            return number, noted[0]
    known = log.unit_unchecked(index)
    behind = log.first_position if known is None else known[0]
    for start in log.file_starts():
        if start > behind:
            number = HEADER.unpack_from(log.file_of(start)[0].buffer, 0)[2]
            if not index < number <= log.last_index or not _has_header(log, number, start):
                continue
            noted = log.unit_unchecked(number)
            if noted is None or noted[0] == start:  # else it is the index in that header that is damaged
                return int(number), start
    return None


def _has_header(log: EntryLog, index: int, position: int) -> bool:
    mapped, start = log.file_of(position)
    at = position - start
    if at + HEADER_BYTES + MARKER_BYTES > log.file_bytes:
        return False
    magic, _, number, _, found, *_ = HEADER.unpack_from(mapped.buffer, at)
    return (magic, number, found) == (ENTRY_MAGIC, index, position)


def correct_marker(log: EntryLog, index: int, position: int) -> FlushJob | None:
    """Writes the end marker at `position` anew if entry `index` begins the next file; None if it does not."""
    mapped, start = log.file_of(position)
    at, next_start = position - start, start + log.file_bytes
    noted = log.unit_unchecked(index)
    if noted is None or noted[0] != next_start or not _has_header(log, index, next_start):
        return None
    END_MARKER.pack_into(mapped.buffer, at, END_MAGIC, log.file_bytes - at)
    mapped.write_back(at, at + MARKER_BYTES)
    return FlushJob([(mapped, at, at + MARKER_BYTES)], index)
