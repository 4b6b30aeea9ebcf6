"""A node's log as it was written, where a fault has damaged its disk and nobody has repaired it yet.

The log itself cannot be asked there: its reads raise for damage, note it for the node, which repairs it then, and make
index units anew. A judge that read so would take a fault for a mistake, and help the node to find it.
"""

from __future__ import annotations

from dataclasses import dataclass

from log.entries.entry_log import EntryLog, Run
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, UNIT, UNIT_BYTES

Pages = tuple[tuple[int, bytes], ...]
"""Pages of a file: where each begins, and the bytes that it had before the damage."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The pages of a node's log that faults have damaged: of its data files by position, of its index by byte."""

    data: Pages = ()
    units: Pages = ()

    def run(self, log: EntryLog, first_index: int, last_index: int, max_bytes: int) -> Run:
        """Does as `EntryLog.run`, without a trace in the log; it raises only for what no fault explains.

        Only the damaged pages are taken as they were: whatever else the node has made of its log is seen.
        """
        if not self.data and not self.units:
            return log.run(first_index, last_index, max_bytes)
        begin, size = self._place(log, first_index)
        limit = min(begin - begin % log.file_bytes + log.file_bytes, begin + max_bytes)
        index, end = first_index, begin + size
        while index < last_index:
            position, size = self._place(log, index + 1)
            if position != end or end + size > limit:
                break
            index, end = index + 1, end + size
        return Run(index, begin, self._bytes(log, begin, end))

    def mended(self, begin: int, data: memoryview) -> memoryview:
        """Returns bytes of the log with what was damaged among them as it was."""
        end = begin + len(data)
        for position, content in self.data:
            first, last = max(position, begin), min(position + len(content), end)
            if first < last:
                mended = bytearray(data)
                mended[first - begin : last - begin] = content[first - position : last - position]
                data = memoryview(mended)
        return data

    def _place(self, log: EntryLog, index: int) -> tuple[int, int]:
        """Returns where an entry begins, and its size."""
        noted = log.unit_unchecked(index)
        # A unit that is damaged may lead anywhere: the header of the entry there tells.
        if noted is None or not self._leads(log, index, *noted):
            for byte, content in self.units:
                at = index * UNIT_BYTES - byte
                if 0 <= at < len(content):
                    _, position, size, *_ = UNIT.unpack_from(content, at)
                    return position, size
            position = log.position_of(index)
            return position, log.end_of(index) - position
        return noted[0], noted[1]

    def _leads(self, log: EntryLog, index: int, position: int, size: int, term: int) -> bool:
        """True if the header of that entry is where its unit says."""
        if position % log.file_bytes + size > log.file_bytes:
            return False
        header = HEADER.unpack(self._bytes(log, position, position + HEADER_BYTES))
        return header[:5] == (ENTRY_MAGIC, size, index, term, position)

    def _bytes(self, log: EntryLog, begin: int, end: int) -> memoryview:
        mapped, start = log.file_of(begin)
        return self.mended(begin, mapped.buffer[begin - start : end - start])


NO_DAMAGE = Damage()
