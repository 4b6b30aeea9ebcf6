"""Reads of entries by where they are: which one is at a position, and whether it is as it was written.

What was written, or checked at the start, and has been in memory since is believed. All before
`EntryLog.checked_position` may have come from the disk again, and is checked each time that it is read: damage is noted
for the owner (`log.entries.damage_met`) and raised, so that nobody gets bytes that nobody wrote.
"""

from collections.abc import Iterator

from log.entries.entry_log import EntryLog, Run
from log.entries.entry_scrub import NO_HEADER, problem_of_entry
from log.entries.unit_repair import damaged_entry
from log.errors import DamagedEntryError, DamagedLogError, OutOfRangeError
from log.formats.layout import HEADER, HEADER_BYTES

# ---- which entry is where ----------------------------------------------------------------------------


def index_at(log: EntryLog, position: int) -> int:
    """Returns the entry in whose bytes `position` lies; an end marker counts to the entry before it. O(log n).

    Raises OutOfRangeError, DamagedLogError.
    """
    if not log.first_position <= position < log.end_position:
        raise OutOfRangeError(f"position {position} is not in [{log.first_position}, {log.end_position})")
    low, high = log.first_index, log.last_index
    while low < high:
        middle = (low + high + 1) // 2
        if log.position_of(middle) <= position:
            low = middle
        else:
            high = middle - 1
    return low


def index_of(log: EntryLog, position: int) -> int | None:
    """Returns the entry that begins at a position, by the index units alone; None if none does. O(log n)."""
    low, high = log.first_index, log.last_index
    while low <= high:
        middle = (low + high) // 2
        noted = log.unit_unchecked(middle)
        if noted is None:
            return None
        if noted[0] == position:
            return middle
        if noted[0] < position:
            low = middle + 1
        else:
            high = middle - 1
    return None


def file_beginnings(log: EntryLog) -> Iterator[tuple[int, int]]:
    """Yields (position, first entry) of the data files behind the first one, oldest first.

    A file whose first entry is hidden by damage is left out: the log could not begin with it.
    """
    for start in log.file_starts():
        if start <= log.first_position:
            continue  # the first one, or that of a log without entries
        try:
            first = index_at(log, start)
        except DamagedLogError:
            continue
        yield start, first


# ---- as it was written, or damaged -------------------------------------------------------------------


def record_at(log: EntryLog, physical_offset: int, size: int | None = None) -> memoryview:
    """Returns the record whose bytes begin at `physical_offset` (entry position + HEADER_BYTES).

    Of what may have come from the disk again header and checksum are checked. Raises OutOfRangeError, and
    DamagedEntryError: read it again when it is repaired.
    """
    try:
        record = log.bytes_at(physical_offset, size)
    except OutOfRangeError:
        position = physical_offset - HEADER_BYTES
        if log.first_position <= position < log.checked_position and index_of(log, position) is not None:
            raise _damage(log, position, NO_HEADER) from None
        raise
    if physical_offset < log.checked_position and check_record(log, physical_offset) != len(record):
        log.damage.doubt_units()
        raise damaged_entry(log, physical_offset, "its unit has another size")
    return record


def check_record(log: EntryLog, physical_offset: int) -> int:
    """Checks the entry of a record, whose bytes are read for it; returns the record's size.

    Raises DamagedEntryError, which is noted, too; OutOfRangeError if the log does not hold the record any more.
    """
    position = physical_offset - HEADER_BYTES
    if not log.first_position <= position < log.end_position:
        raise OutOfRangeError(f"offset {physical_offset} has left the log")
    mapped, start = log.file_of(position)
    return _check_entry(log, mapped.buffer, start, position)


def check_run(log: EntryLog, first_index: int, run: Run) -> None:
    """Checks all entries of a run in the same way, with their headers, if they may have come from the disk again.

    Raises DamagedEntryError for the first one that is damaged.
    """
    if run.position >= log.checked_position:
        return
    position = run.position
    mapped, start = log.file_of(position)
    buffer = mapped.buffer
    for index in range(first_index, run.last_index + 1):
        size = HEADER_BYTES + _check_entry(log, buffer, start, position)
        _, _, number, term, *_ = HEADER.unpack_from(buffer, position - start)
        if (number, term) != (index, log.term_of(index)):
            raise _damage(log, position, f"its header says entry {number} of term {term}")
        position += size


def _check_entry(log: EntryLog, buffer: memoryview, start: int, position: int) -> int:
    """Returns the size of the record of an entry that is whole. Raises DamagedEntryError."""
    found = problem_of_entry(buffer, position - start, position)
    if isinstance(found, str):
        raise _damage(log, position, found)
    return found


def _damage(log: EntryLog, position: int, problem: str) -> DamagedEntryError:
    return log.damage.note(damaged_entry(log, position, problem))
