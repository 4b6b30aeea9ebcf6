"""Reading old entries to find those that the disk does not hold any more as they were written.

`problem_of_entry` is the check of one entry, for readers of old messages, too. `EntryScrub` goes over a slice of one
data file in a worker thread. It believes nothing but where the slice begins: each header must name the index and the
position that follow from the entry before it, and each checksum must match.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import itemgetter
from zlib import crc32

from log.files.disk import MappedFile
from log.formats.layout import END_MAGIC, END_MARKER, ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES, UNIT

NO_HEADER = "its header is malformed"


def problem_of_entry(buffer: memoryview, at: int, position: int) -> str | int:
    """Returns the size of the record of the entry at offset `at` of a data file, or what is wrong with it.

    It is at `position` of the log.
    """
    file_bytes = len(buffer)
    if at + HEADER_BYTES + MARKER_BYTES > file_bytes:
        return "no entry fits there"
    magic, entry_size, _, _, found, channel, chain, checksum, body_size = HEADER.unpack_from(buffer, at)
    if magic != ENTRY_MAGIC or channel or chain or entry_size != body_size + HEADER_BYTES or body_size < 0:
        return NO_HEADER
    if found != position:
        return f"its header says position {found} instead of {position}"
    if at + entry_size + MARKER_BYTES > file_bytes:
        return f"its header says that its record has {body_size} bytes"
    if crc32(buffer[at + HEADER_BYTES : at + entry_size]) != checksum:
        return "its checksum does not match"
    return int(body_size)


@dataclass(slots=True)
class EntryScrub:
    """Checks entries from `index` at `position` on: those that begin in the next `slice_bytes`, one at least.

    It ends at the end of the data file, which begins at `start` of the log, and behind entry `last_index`, which is
    committed. `terms` are the (first index, term) of all runs of terms in the log, whose bytes end at `log_end`. What
    it has found stands in the other fields when `run` has returned.
    """

    mapped: MappedFile
    start: int
    index: int
    position: int
    last_index: int
    slice_bytes: int
    terms: list[tuple[int, int]]
    log_end: int
    next_index: int = 0
    next_position: int = 0
    """The entry to go on with, and where it begins; `next_index` - 1 is the last one that was found whole."""
    problem: str = ""
    """The reason why entry `next_index` at `next_position` is damaged; "" if none is."""
    units: list[bytes] = field(default_factory=list)
    """The index units of the entries that are whole, from `index` on."""

    def run(self) -> None:
        """Worker. Reads the slice. Raises nothing: what cannot be read is damaged."""
        at = self.position - self.start
        file_bytes = self.mapped.size
        end = min(at + self.slice_bytes, file_bytes)
        self.mapped.load(at, end)
        buffer = self.mapped.buffer
        index = self.index
        run = bisect_right(self.terms, index, key=itemgetter(0)) - 1
        # The last file has none: what looks like one there is damage.
        has_marker = self.start + file_bytes < self.log_end
        while index <= self.last_index and at < end:
            if has_marker and END_MARKER.unpack_from(buffer, at) == (END_MAGIC, file_bytes - at):
                at = file_bytes
                break
            found = problem_of_entry(buffer, at, self.start + at)
            if isinstance(found, str):
                self.problem = found
                break
            _, size, number, term, *_ = HEADER.unpack_from(buffer, at)
            if run + 1 < len(self.terms) and self.terms[run + 1][0] == index:
                run += 1
            if (number, term) != (index, self.terms[run][1]):
                self.problem = f"its header says entry {number} of term {term}"
                break
            self.units.append(UNIT.pack(ENTRY_MAGIC, self.start + at, size, index, term))
            at += size
            index += 1
        self.next_index, self.next_position = index, self.start + at
        self.mapped.cool(self.position - self.start, min(at, file_bytes))
