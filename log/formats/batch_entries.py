"""The messages of a batch as a run of entries: what they share is packed once, what differs is written as columns.

The result is the same bytes, checksums and index units as `encode_record` and `EntryLog.append` make of each; those
are what hosts of IPv6, long topics and short batches take.
"""

from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np

from log.errors import RecordError
from log.formats.batch import BatchColumns
from log.formats.columns import Places, checksums, pieces, scatter
from log.formats.entry_range import EntryRange
from log.formats.layout import ENTRY_MAGIC, HEADER, HEADER_BYTES, UNIT_TYPE
from log.formats.record import (
    FIXED_V4,
    HOST_V4_BYTES,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    POSITIVE_INT,
    SHORT_TOPIC_BYTES_MAX,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    encode_record,
)

# The varying fields of an entry's header, and of the fixed part of a record with IPv4 hosts behind it.
_HEAD = np.dtype(
    {
        "names": [
            "size",
            "index",
            "position",
            "body",
            "total",
            "crc",
            "flag",
            "offset",
            "physical",
            "length",
        ],
        "formats": [">i4", ">i8", ">i8", ">i4", ">i4", ">u4", ">i4", ">i8", ">i8", ">i4"],
        "offsets": [4, 8, 24, 44, 48, 56, 64, 68, 76, 132],
        "itemsize": HEADER_BYTES + FIXED_V4.size,
    }
)
_CHECKSUM_AT = 40


class Shared(NamedTuple):
    """The fields that all messages of a batch have in common, each as `encode_record` takes it."""

    topic: bytes
    queue_id: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int

    @property
    def fits(self) -> bool:
        """True if the records can be made as columns: IPv4 hosts and a short topic."""
        return (
            len(self.born_host) == len(self.store_host) == HOST_V4_BYTES
            and len(self.topic) <= SHORT_TOPIC_BYTES_MAX
        )


def encode_each(shared: Shared, items: BatchColumns, positions: Places, first_offset: int) -> list[bytes]:
    """Returns the record of each message, for entries that begin at `positions`. Raises as `encode_record`."""
    topic, queue_id, sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times = (
        shared
    )
    offsets = range(first_offset, first_offset + len(positions))
    return [
        encode_record(
            topic,
            queue_id,
            flag,
            queue_offset,
            position + HEADER_BYTES,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            0,
            body,
            properties,
        )
        for flag, body, properties, queue_offset, position in zip(
            *items, offsets, positions.tolist(), strict=True
        )
    ]


def encode_entries(
    shared: Shared,
    items: BatchColumns,
    sizes: Places,
    positions: Places,
    file_bytes: int,
    term: int,
    first_index: int,
    first_offset: int,
) -> list[EntryRange]:
    """Returns the entries of messages that follow each other, from that index and queue offset on, by data file.

    `sizes` are those of the records, `positions` where the entries begin; `shared` must fit. Raises RecordError if
    properties are too long for the format.
    """
    # A range is copied into the log in one piece, so that none goes over the end of a data file.
    files = positions // file_bytes
    bounds = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
    return [
        _encode_run(
            shared,
            items.part(begin, end),
            sizes[begin:end],
            positions[begin:end],
            term,
            first_index + begin,
            first_offset + begin,
        )
        for begin, end in pairwise(bounds)
    ]


def _encode_run(
    shared: Shared,
    items: BatchColumns,
    sizes: Places,
    positions: Places,
    term: int,
    first_index: int,
    first_offset: int,
) -> EntryRange:
    """Does as `encode_entries` for those in one data file."""
    assert shared.fits, "each is encoded alone"
    count = len(sizes)
    property_lengths = list(map(len, items.properties))
    if max(property_lengths) > MAX_PROPERTIES_BYTES:
        raise RecordError(f"properties of {max(property_lengths)} bytes exceed {MAX_PROPERTIES_BYTES}")
    template = HEADER.pack(ENTRY_MAGIC, 0, 0, term, 0, 0, 0, 0, 0) + FIXED_V4.pack(
        0,
        MAGIC_V1,
        0,
        shared.queue_id,
        0,
        0,
        0,
        shared.sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6),
        shared.born_timestamp,
        shared.born_host,
        shared.store_timestamp,
        shared.store_host,
        shared.reconsume_times,
        0,
        0,
    )
    indices = np.arange(first_index, first_index + count)
    whole = sizes + HEADER_BYTES
    heads = np.frombuffer(bytearray(template * count), _HEAD)
    heads["size"] = whole
    heads["index"] = indices
    heads["position"] = positions
    heads["body"] = heads["total"] = sizes
    heads["crc"] = list(map(crc32, items.bodies))
    heads["crc"] &= POSITIVE_INT  # Java's int has a sign, and RocketMQ clears it (`UtilAll.crc32`)
    heads["flag"] = items.flags
    heads["offset"] = np.arange(first_offset, first_offset + count)
    heads["physical"] = positions + HEADER_BYTES
    heads["length"] = list(map(len, items.bodies))
    # Behind the body stand the topic, whose length takes one byte, and the properties' length, which takes two.
    topic = bytes((len(shared.topic),)) + shared.topic
    between = {length: topic + length.to_bytes(2, "big") for length in set(property_lengths)}
    # Head, body, what is between, properties; and so on for each message: one join copies all that only once.
    parts: list[bytes] = [b""] * (4 * count)
    places = positions - int(positions[0])
    begins = np.arange(0, count * _HEAD.itemsize, _HEAD.itemsize)
    parts[0::4] = pieces(heads.tobytes(), begins, begins + _HEAD.itemsize)
    parts[1::4] = items.bodies
    parts[2::4] = [between[length] for length in property_lengths]
    parts[3::4] = items.properties
    data = bytearray().join(parts)
    end = len(data)
    assert end == int(places[-1] + whole[-1]), "the records are where they say"
    # The entry's checksum covers its record, which had to be whole for that.
    found = checksums(data, places + HEADER_BYTES, places + whole)
    scatter(data, places + _CHECKSUM_AT, np.array(found, ">u4"))
    units = np.empty(count, UNIT_TYPE)
    units["magic"], units["term"] = ENTRY_MAGIC, term
    units["position"], units["size"], units["index"] = positions, whole, indices
    first_position = int(positions[0])
    return EntryRange(
        memoryview(data),
        first_index,
        first_index + count - 1,
        first_position,
        first_position + end,
        units.tobytes(),
        ((first_index, term),),
    )
