"""A walk over the records of neighbouring entries, for those whom every message costs: one `struct` call reads the
heads of entry and record, one copy takes what stands behind the body, and no object is made of either.
"""

from collections.abc import Iterator
from struct import Struct

from log.entries.entry_log import EntryLog
from log.errors import DamagedLogError, RecordError
from log.formats.layout import ENTRY_MAGIC, HEADER_BYTES
from log.formats.record import MAGIC_V1, SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6, peek

# Entry: magic, size. Record with IPv4 hosts: TOTALSIZE, MAGIC, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET, SYSFLAG,
# STORETIMESTAMP, BODYLEN (log/formats/record.py and log/formats/layout.py).
_HEADS = Struct(">ii40xiI4xi4xqqi16xq20xi")
_HEADS_BYTES = 136
_ANY_HOST_V6 = SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_NO_BYTES = memoryview(b"")

assert _HEADS.size == _HEADS_BYTES

WalkedRecord = tuple[int, int, int, int, int, int, int, bytes, bytes]
"""(the entry's index; of its record the physical offset, size, system flags, queue id, queue offset, store time in ms,
topic and properties)."""


def walk_records(log: EntryLog, first: int, last: int) -> Iterator[WalkedRecord]:
    """Yields the records of entries `first`..`last`; an entry whose bytes are not a valid record is left out.

    The checksum of an entry covers its bytes, not their sense: bytes that are not a record name no topic to go on with.
    Every replica leaves out the same ones. Raises DamagedLogError where no entry begins at the place of one.
    """
    unpack = _HEADS.unpack_from
    last_at = log.file_bytes - _HEADS_BYTES
    buffer, start, end = _NO_BYTES, 0, log.file_bytes
    for index in range(first, last + 1):
        if end > last_at or buffer[end] == 0xFF:
            # The first entry, or the file's end marker, or what may be one: the entry index knows where this one is.
            position = log.position_of(index)
            mapped, start = log.file_of(position)
            buffer, end = mapped.buffer, position - start
            if end > last_at:
                continue  # shorter than any record
        at = end
        heads = unpack(buffer, at)
        magic, entry_size, size, version, queue_id, queue_offset, physical_offset, flags, time, body = heads
        if magic != ENTRY_MAGIC:
            # What is behind the snapshot comes again after a start, which has scanned the last files only.
            raise DamagedLogError(log.file_of(start)[0].path, at, f"entry {index} does not begin there")
        end = at + entry_size
        # The topic stands behind the body. `_HEADS` has read the right fields only of V1 records with IPv4 hosts.
        if flags & _ANY_HOST_V6 or version != MAGIC_V1:
            topic_at, time = _locate_slowly(buffer, at, entry_size)
        else:
            topic_at = at + _HEADS_BYTES + body
        if (
            size != entry_size - HEADER_BYTES
            or not 0 < topic_at < end
            or physical_offset != start + at + HEADER_BYTES
        ):
            continue
        # One copy of what follows the body: topic and properties, in which `find` is fastest on bytes.
        # The topic's length takes one byte in V1 and two in V2; the properties' length behind it takes two.
        rest = buffer[topic_at:end].tobytes()
        if version == MAGIC_V1:
            topic_end = rest[0] + 1
            topic = rest[1:topic_end]
        else:
            topic_end = (rest[0] << 8 | rest[1]) + 2
            topic = rest[2:topic_end]
        properties = rest[topic_end + 2 :]
        yield index, physical_offset, size, flags, queue_id, queue_offset, time, topic, properties


def _locate_slowly(buffer: memoryview, at: int, entry_size: int) -> tuple[int, int]:
    """Returns (place of the topic's length, store time) of a record with IPv6 hosts or of version 2.

    Returns (0, 0) if it is no record.
    """
    try:
        head = peek(buffer[at + HEADER_BYTES : at + entry_size])
    except RecordError:
        return 0, 0
    return at + HEADER_BYTES + head.body_end, head.store_timestamp
