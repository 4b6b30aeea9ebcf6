"""The body of a batch send (SEND_BATCH_MESSAGE 320): items that become one record each (`MessageDecoder`).

Item: int32 size, int32 magic 0, int32 body CRC 0, int32 flag, int32 body length, body, int16 properties
length, properties.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from log.errors import RecordError
from log.record import MAX_PROPERTIES_BYTES, Buffer

_ITEM = struct.Struct(">iiiii")
_SHORT = struct.Struct(">h")
ITEM_OVERHEAD = _ITEM.size + _SHORT.size
"""Bytes of an item beside its body and properties."""


class BatchItem(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def parse_batch(body: Buffer) -> list[BatchItem]:
    """Returns all items, in order. Raises as `batch_items`."""
    return list(batch_items(body))


def batch_items(body: Buffer) -> Iterator[BatchItem]:
    """Yields all items, in order. Raises RecordError if there is none, or where the lengths do not add up."""
    raw = bytes(body)
    number = 0
    offset = 0
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
    """Returns the body of a batch send. Raises RecordError if the properties of an item are too long."""
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise RecordError(f"properties of {len(properties)} bytes exceed {MAX_PROPERTIES_BYTES}")
        size = ITEM_OVERHEAD + len(body) + len(properties)
        parts += (_ITEM.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties)
    return b"".join(parts)
