"""Index units that were damaged on the disk: noticed when they are read, and written anew from the data files.

A start looks through the last data files only (`log.entries.entry_recovery`), and brings the units of their entries in
line. Those of older entries are held against the entries' headers when they are used, which costs nothing where it
matters: readers and followers live at the log's end.

Where many units are damaged a node that runs must not stand still until all are made: a reader gets an error for the
time being, and its next try, or the scrubber, goes on from there. Before a node runs nobody waits, and all are made.

A start needs the terms of old entries, and must not fail because one of these is damaged: the group puts it back once
the node runs. Terms do not decrease, so what is whole on both sides of it tells its term, or bounds what its unit says.
"""

from typing import Protocol

from log.entries.damage_met import DamageMet
from log.entries.entry_index import EntryIndex
from log.entries.entry_terms import EntryTerms
from log.errors import DamagedEntryError, DamagedLogError
from log.files.disk import MappedFile
from log.formats.layout import END_MAGIC, ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES, UNIT, UNIT_BYTES

_PIECE_UNITS = 4096 // UNIT_BYTES
"""The units of a page: what is damaged together, and made together."""

PIECES_AT_ONCE = 16
"""The most pieces that are made for one reader: some milliseconds' work."""


class Held(Protocol):
    """The log whose units are looked at: entries from `first_index` on, bytes [first_position, end_position)."""

    first_index: int
    first_position: int
    end_position: int
    file_bytes: int
    terms: EntryTerms
    damage: DamageMet

    def file_of(self, position: int) -> tuple[MappedFile, int]:
        """Returns the data file in which `position` lies, and the position of its start."""


def checked_unit(log: Held, units: EntryIndex, index: int) -> tuple[int, int, int]:
    """Returns (position, size, term) of an entry that is in the log.

    Raises DamagedEntryError when the data file does not say it either; or not yet, in a node that runs.
    """
    pieces = 0
    while (unit := _sound_unit(log, units, index)) is None:
        first, position = _first_damaged(log, units, index)
        if pieces == PIECES_AT_ONCE and log.damage.tell is not None:
            raise damaged_entry(
                log, position, f"the unit of entry {first} is damaged, and of others up to {index}"
            )
        # From the first damaged unit on, a page at a time: each entry says where the next one begins.
        made = []
        for number in range(first, min(index, first + _PIECE_UNITS - 1) + 1):
            position, size, term = _entry_at(log, position, number)
            made.append(UNIT.pack(ENTRY_MAGIC, position, size, number, term))
            position += size
        units.correct(first, b"".join(made))
        pieces += 1
    return unit


def term_of_damaged(log: Held, units: EntryIndex, index: int, last_index: int) -> int | None:
    """Returns the term of an entry that is damaged, in a log up to `last_index`; None if nothing says it for certain.

    Between whole entries of one term it is theirs. Between those of two it is the unit's, if that lies between them.
    """
    before = _first_sound(log, units, range(index - 1, log.first_index - 1, -1))
    behind = _first_sound(log, units, range(index + 1, last_index + 1))
    if behind is None:
        return None
    least, most = log.terms.base if before is None else before[2], behind[2]
    if least == most:
        return most
    try:
        term = units.unit(index)[2]
    except DamagedLogError:
        return None
    return term if least <= term <= most else None


def _first_sound(log: Held, units: EntryIndex, indices: range) -> tuple[int, int, int] | None:
    found = (_sound_unit(log, units, index) for index in indices)
    return next((unit for unit in found if unit is not None), None)


def _sound_unit(log: Held, units: EntryIndex, index: int) -> tuple[int, int, int] | None:
    """Returns a unit that leads to its entry; None if it does not."""
    try:
        unit = units.unit(index)
    except DamagedLogError:
        return None
    position, size, term = unit
    if not log.first_position <= position < log.end_position:
        return None
    mapped, start = log.file_of(position)
    at = position - start
    if at + HEADER_BYTES > log.file_bytes:
        return None
    header = HEADER.unpack_from(mapped.buffer, at)
    return unit if header[:5] == (ENTRY_MAGIC, size, index, term, position) else None


def _first_damaged(log: Held, units: EntryIndex, index: int) -> tuple[int, int]:
    """Returns an entry whose unit is damaged behind one whose unit is not, and the end of the one before it.

    It is `index`, which is damaged, or one before it, near if few are damaged. O(log n).
    """
    low, high, step = index - 1, index, 1
    while low >= log.first_index and _sound_unit(log, units, low) is None:
        high, step = low, 2 * step
        low = max(index - step, log.first_index - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if _sound_unit(log, units, middle) is None:
            high = middle
        else:
            low = middle
    before = _sound_unit(log, units, low) if low >= log.first_index else None
    return high, log.first_position if before is None else before[0] + before[1]


def _entry_at(log: Held, position: int, index: int) -> tuple[int, int, int]:
    """Returns (position, size, term) of the entry that begins at `position`, or in the next file behind an end marker.

    Raises DamagedEntryError if that is not entry `index`.
    """
    mapped, start = log.file_of(position)
    at, next_start = position - start, start + log.file_bytes
    if (
        at + HEADER_BYTES + MARKER_BYTES > log.file_bytes
        or HEADER.unpack_from(mapped.buffer, at)[0] == END_MAGIC
    ) and next_start < log.end_position:
        position, at, mapped = next_start, 0, log.file_of(next_start)[0]
    if at + HEADER_BYTES <= log.file_bytes:
        magic, size, number, term, found, *_ = HEADER.unpack_from(mapped.buffer, at)
        fits = HEADER_BYTES < size <= min(log.file_bytes - MARKER_BYTES - at, log.end_position - position)
        if fits and (magic, number, found) == (ENTRY_MAGIC, index, position):
            return position, size, term
    raise damaged_entry(log, position, f"it does not hold entry {index}")


def damaged_entry(log: Held, position: int, problem: str) -> DamagedEntryError:
    """Returns the error of an entry that is not at `position` as it was written, with its file and place there."""
    mapped, start = log.file_of(position)
    return DamagedEntryError(mapped.path, position - start, problem, position)
