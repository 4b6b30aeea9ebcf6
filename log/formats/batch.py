"""The body of a batch send (SEND_BATCH_MESSAGE 320): items that become one record each (`MessageDecoder`).

Item: int32 size, int32 magic 0, int32 body CRC 0, int32 flag, int32 body length, body, int16 properties
length, properties.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Self

import numpy as np

from log.errors import RecordError
from log.formats.columns import RUN_FROM, Places, chain, gather, pieces
from log.formats.record import MAX_PROPERTIES_BYTES, Buffer

_ITEM = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
ITEM_OVERHEAD = _ITEM.size + _SHORT.size
"""Bytes of an item beside its body and properties."""


_ITEM_TYPE = np.dtype(
    {"names": ["flag", "body"], "formats": [">i4", ">i4"], "offsets": [12, 16], "itemsize": 20}
)
_SHORT_TYPE = np.dtype(">i2")


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


class BatchColumns(NamedTuple):
    """Items, one element of each list for each of them."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]

    @classmethod
    def of(cls, items: Iterable[BatchItem]) -> Self:
        """Returns the same items as columns."""
        columns = cls([], [], [])
        for flag, body, properties in items:
            columns.flags.append(flag)
            columns.bodies.append(body)
            columns.properties.append(properties)
        return columns

    def part(self, begin: int, end: int) -> Self:
        """Returns items [begin, end)."""
        return self._replace(
            flags=self.flags[begin:end], bodies=self.bodies[begin:end], properties=self.properties[begin:end]
        )

    def extend(self, other: "BatchColumns") -> None:
        """Adds items at the end."""
        self.flags.extend(other.flags)
        self.bodies.extend(other.bodies)
        self.properties.extend(other.properties)


def batch_columns(body: bytes, items_max: int) -> Iterator[BatchColumns]:
    """Yields all items, in order, at most so many at a time. Raises as `batch_items`."""
    number, at, end = 0, 0, len(body)
    while at < end or not number:
        found = chain(body, at, end, 0, ITEM_OVERHEAD, items_max)
        columns = None
        if found is not None and len(found[0]) >= RUN_FROM:
            columns = _columns(body, *found)
        if columns is not None:
            assert found is not None, "columns are made of what was found"
            at = found[1]
        else:
            # Few, or something is wrong with one of them: this says with which.
            columns = BatchColumns([], [], [])
            for item in islice(batch_items(body, at, number), items_max):
                columns.extend(BatchColumns.of((item,)))
                at += ITEM_OVERHEAD + len(item.body) + len(item.properties)
        number += len(columns.flags)
        yield columns


def _columns(body: bytes, places: Places, end: int) -> BatchColumns | None:
    """Returns the items at these places; None if the lengths of one of them do not add up."""
    heads = gather(body, places, _ITEM.size, _ITEM_TYPE)
    lengths = heads["body"].astype(np.int64)
    ends = np.append(places[1:], end)
    body_ends = places + lengths + _ITEM.size
    if (lengths < 0).any() or (body_ends + _SHORT.size > ends).any():
        return None
    if (body_ends + gather(body, body_ends, _SHORT.size, _SHORT_TYPE) + _SHORT.size != ends).any():
        return None
    return BatchColumns(
        heads["flag"].tolist(),
        pieces(body, places + _ITEM.size, body_ends),
        pieces(body, body_ends + _SHORT.size, ends),
    )


def batch_items(body: Buffer, offset: int = 0, number: int = 0) -> Iterator[BatchItem]:
    """Yields all items, in order. Raises RecordError if there is none, or where the lengths do not add up.

    They begin at `offset`, with item `number`.
    """
    raw = bytes(body)
    end = len(raw)
    while offset < end:
        if end - offset < ITEM_OVERHEAD:
            raise RecordError(f"batch item {number} is cut off: {end - offset} bytes are left")
        size, _, _, flag, body_length = _ITEM.unpack_from(raw, offset)
        body_begin = offset + _ITEM.size
        body_end = body_begin + body_length
        properties_begin = body_end + _SHORT.size
        item_end = offset + size
        # Every length comes from a client: none is believed before it is seen to stay within the item.
        if body_length < 0 or properties_begin > item_end or item_end > end:
            raise RecordError(
                f"batch item {number} of {size} bytes with a body of {body_length} does not fit"
            )
        if properties_begin + _SHORT.unpack_from(raw, body_end)[0] != item_end:
            raise RecordError(f"batch item {number}: the properties do not end at its {size} bytes")
        yield BatchItem(flag, raw[body_begin:body_end], raw[properties_begin:item_end])
        number += 1
        offset = item_end
    if not number:
        raise RecordError("a batch needs at least one item")


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Returns the body of a batch send, as tests make it. Raises as `encode_columns`."""
    return encode_columns(BatchColumns.of(items))


def encode_columns(columns: BatchColumns) -> bytes:
    """Returns the body of a batch send. Raises RecordError for properties that are too long, and a flag that is no
    int32.

    Items of one shape (flag, length of the body, length of the properties) have the same bytes around body and
    properties: they are made once for all of them.
    """
    flags, bodies, properties = columns
    shapes = list(zip(flags, map(len, bodies), map(len, properties), strict=True))
    around = {shape: _around(*shape) for shape in set(shapes)}
    parts = [b""] * (4 * len(shapes))
    parts[0::4] = [around[shape][0] for shape in shapes]
    parts[1::4] = bodies
    parts[2::4] = [around[shape][1] for shape in shapes]
    parts[3::4] = properties
    return b"".join(parts)


def _around(flag: int, body: int, properties: int) -> tuple[bytes, bytes]:
    """Returns what stands before the body of an item with these lengths, and what between body and properties."""
    if properties > MAX_PROPERTIES_BYTES:
        raise RecordError(f"properties of {properties} bytes exceed {MAX_PROPERTIES_BYTES}")
    if not -(1 << 31) <= flag < 1 << 31:
        raise RecordError(f"flag {flag}: at most 31 bits and a sign can be stored")
    return _ITEM.pack(ITEM_OVERHEAD + body + properties, 0, 0, flag, body), _SHORT.pack(properties)
