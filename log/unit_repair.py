"""Index units that were damaged on the disk: noticed when they are read, and written anew from the data files.

A start looks through the last data files only (`log.entry_recovery`), and brings the units of their entries in line.
Those of older entries are held against the entries' headers when they are used, which costs nothing where it matters:
readers and followers live at the log's end.
"""

from log.entry_index import EntryIndex
from log.errors import DamagedEntryError, DamagedLogError
from log.layout import END_MAGIC, ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES, UNIT, UNIT_BYTES
from log.segments import Segments


def checked_unit(
    index: int, entries: EntryIndex, data: Segments, units: Segments, first_position: int, end_position: int
) -> tuple[int, int, int]:
    """Returns (position, size, term) of an entry that is in the log, whose bytes are [first_position, end_position).

    Raises DamagedEntryError when the data file does not say it either.
    """
    try:
        unit = entries.unit(index)
    except DamagedLogError:
        pass
    else:
        if _names_entry(unit, index, data, first_position, end_position):
            return unit
    _rebuild_file_of(index, data, units, first_position, end_position)
    return entries.unit(index)


def _names_entry(
    unit: tuple[int, int, int], index: int, data: Segments, first_position: int, end_position: int
) -> bool:
    position, size, term = unit
    start = data.start_of(position)
    at = position - start
    if not first_position <= position < end_position or at + HEADER_BYTES > data.file_bytes:
        return False
    header = HEADER.unpack_from(data.mapping(start).buffer, at)
    return header[:5] == (ENTRY_MAGIC, size, index, term, position)


def _rebuild_file_of(
    index: int, data: Segments, units: Segments, first_position: int, end_position: int
) -> None:
    """Writes the units of the entries of the data file in which entry `index` lies, up to a damaged one behind it.

    Raises DamagedEntryError for one that comes before, or is `index`.
    """
    begin, found = first_position, -1
    for start in data.starts:
        position = max(start, first_position)
        if position >= end_position:
            break
        first = HEADER.unpack_from(data.mapping(start).buffer, position - start)[2]
        if first > index:
            break
        begin, found = position, first
    start = data.start_of(begin)
    buffer = data.mapping(start).buffer
    at = begin - start
    while start + at < end_position and at + HEADER_BYTES + MARKER_BYTES <= data.file_bytes:
        magic, size, number, term, position, *_ = HEADER.unpack_from(buffer, at)
        if magic == END_MAGIC:
            break
        if magic != ENTRY_MAGIC or number != found or position != start + at or size < HEADER_BYTES:
            if found > index:
                return  # the unit that is wanted is made; who needs those behind it meets the damage
            raise DamagedEntryError(data.path(start), at, f"it does not hold entry {found}", start + at)
        _write_unit(units, number, UNIT.pack(ENTRY_MAGIC, position, size, number, term))
        at += size
        found += 1
    if found <= index:
        raise DamagedEntryError(data.path(start), at, f"it does not hold entry {index}", start + at)


def _write_unit(units: Segments, index: int, unit: bytes) -> None:
    byte = index * UNIT_BYTES
    start = units.start_of(byte)
    mapped = units.mapping(start)
    at = byte - start
    if mapped.buffer[at : at + UNIT_BYTES] != unit:
        mapped.prepare(at, at + UNIT_BYTES, touch=False)
        mapped.buffer[at : at + UNIT_BYTES] = unit
