"""Space for entries that are about to be appended, made ready before the first of them is.

`EntryLog.append` takes the space that it needs, and fails where there is none. Who must not fail halfway asks first.
All functions raise DiskFullError and DiskError; nothing of the log has changed then.
"""

import numpy as np

from log.entries.entry_log import EntryLog
from log.errors import EntryTooLargeError
from log.formats.columns import Places, leading
from log.formats.entry_range import EntryRange
from log.formats.layout import HEADER_BYTES, MARKER_BYTES, UNIT_BYTES

_BETWEEN_BYTES = 64 * 1024
"""Room for the entries of others that come between those of a batch."""


def make_room(log: EntryLog, size: int) -> None:
    """Makes sure that the next `append` does not fail for want of space, if its entry has at most `size` bytes."""
    assert not log.damaged, "cut_damage comes before any append"
    tail = log.tail
    file_end = tail.start + log.file_bytes
    end = log.end_position + size + MARKER_BYTES
    tail.ensure(min(end, file_end))
    if end > file_end:
        tail.ensure_next(file_end + size + MARKER_BYTES)
    log.index.reserve(log.last_index + 1, log.last_index + 1)


def make_room_for_all(log: EntryLog, body_sizes: Places) -> Places:
    """Makes sure that no `append` of entries with bodies of these sizes, in this order, fails.

    Returns the positions at which they will begin. Raises EntryTooLargeError, too.
    """
    file_bytes = log.file_bytes
    sizes = body_sizes + HEADER_BYTES
    positions = np.empty(len(sizes), np.int64)
    end, placed = log.end_position, 0
    # File by file, as `EntryLog.next_position` says it entry by entry: as many as leave room for an end marker, and the
    # next one begins the next file.
    while placed < len(sizes):
        left = file_bytes - end % file_bytes
        ends = np.cumsum(sizes[placed:])
        fitting = leading(ends + MARKER_BYTES <= left)
        if fitting:
            positions[placed : placed + fitting] = end + ends[:fitting] - sizes[placed : placed + fitting]
            end += int(ends[fitting - 1])
            placed += fitting
        elif left < file_bytes:
            end += left
        else:
            raise EntryTooLargeError(int(sizes[placed]), file_bytes - MARKER_BYTES)
    _prepare(log, end, log.last_index + len(sizes))
    return positions


def make_room_for(log: EntryLog, count: int, bytes_together: int, largest: int) -> None:
    """Makes sure that no `append` of `count` entries fails whose bodies have so many bytes, and `largest` at most.

    There is room left for a few short entries between them. Raises EntryTooLargeError, too.
    """
    log.next_position(largest)
    size = bytes_together + count * HEADER_BYTES + _BETWEEN_BYTES
    # The end of each data file that they come to may stay empty, as its rest is too short for the next entry.
    unused = largest + HEADER_BYTES + MARKER_BYTES
    files = 1 + size // max(log.file_bytes - unused, unused)
    _prepare(log, log.end_position + size + files * unused, log.last_index + count)


def make_room_for_range(log: EntryLog, entries: EntryRange) -> None:
    """Makes sure that `append_range` of these entries does not fail for want of space.

    They may follow this log with a gap, or not at all: that shows when they are appended.
    """
    units_end = (entries.last_index + 1) * UNIT_BYTES
    if entries.end_position <= log.tail.limit and units_end <= log.index.tail.limit:
        return
    # At most the rest of one file stays empty behind the log's end. Entries that claim a place further on are of
    # another log, and are refused: space for them would be space for all files in between.
    if entries.last_index > log.last_index and entries.position <= log.end_position + log.file_bytes:
        _prepare(log, entries.end_position, entries.last_index)


def _prepare(log: EntryLog, end: int, last_index: int) -> None:
    """Makes pages ready up to position `end`, and for the units up to that of entry `last_index`."""
    assert not log.damaged, "cut_damage comes before any append"
    log.tail.ensure_through(end)
    log.index.tail.ensure_through((last_index + 1) * UNIT_BYTES)
