"""Makes a log of messages that were pulled from a broker that runs.

A message keeps its bytes but for one field, the place in the log: that is a new one, since what RocketMQ keeps between
messages (and what DLedger does) is not told to those who pull.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final
from zlib import crc32

from broker.backups.directory import BackupWriter
from broker.migration.dledger import Head, Piece
from broker.migration.errors import MigrationError
from log.formats.entry_range import EntryRange, check_range
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, MARKER_BYTES, UNIT, UNIT_BYTES
from log.formats.record import PHYSICAL_OFFSET_AT

TERM: Final = 1
"""The first of Raft's terms; the group that begins with this log goes on with a later one."""
_PLACE: Final = struct.Struct(">q")


class PulledLog:
    """Puts messages behind the last entry of a backup that is being made."""

    def __init__(self, directory: BackupWriter, file_bytes: int) -> None:
        """`file_bytes` is the size of data files of the group that it becomes."""
        self._directory = directory
        self._file_bytes = file_bytes

    def append(self, records: Iterable[memoryview]) -> Iterator[Piece]:
        """Writes messages in this order; yields them as they are in the log. Raises MigrationError, BackupError,
        OSError."""
        data, heads = bytearray(), list[Head]()
        index, position = self._directory.last_index + 1, self._directory.end_position
        for record in records:
            size = HEADER_BYTES + len(record)
            end = position + len(data)
            left = self._file_bytes - end % self._file_bytes
            # As `EntryLog.next_position` has it: an entry that leaves no room for an end marker begins the next file.
            if size + MARKER_BYTES > left:
                if size + MARKER_BYTES > self._file_bytes:
                    raise MigrationError(
                        f"a message of {len(record):,} bytes does not fit into data files of {self._file_bytes:,}: "
                        "--config with a larger storage.data_file_bytes"
                    )
                if heads:
                    yield self._write(position, data, heads)
                    data, heads = bytearray(), []
                position = end = end + left
            at = len(data)
            data += bytes(HEADER_BYTES)
            data += record
            place = at + HEADER_BYTES
            _PLACE.pack_into(data, place + PHYSICAL_OFFSET_AT, end + HEADER_BYTES)
            checksum = crc32(memoryview(data)[place:])
            HEADER.pack_into(data, at, ENTRY_MAGIC, size, index, TERM, end, 0, 0, checksum, len(record))
            heads.append(Head(at, size, index, TERM))
            index += 1
        if heads:
            yield self._write(position, data, heads)

    def _write(self, position: int, data: bytearray, heads: list[Head]) -> Piece:
        entries = check_range(bytes(data), heads[0].entry, position, self._file_bytes)
        self._directory.append(entries)
        return piece_of(self._directory.path, entries)


def piece_of(directory: Path, entries: EntryRange) -> Piece:
    """Returns entries of a backup's log for a survey."""
    heads = []
    for at in range(0, len(entries.units), UNIT_BYTES):
        _, position, size, index, term = UNIT.unpack_from(entries.units, at)
        heads.append(Head(position - entries.position, size, index, term))
    return Piece(directory, entries.position, entries.position, bytearray(entries.data), heads)
