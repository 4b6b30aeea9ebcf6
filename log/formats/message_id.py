"""The two message ids of RocketMQ, both upper-case hexadecimal of packed fields."""

import struct

import numpy as np
from numpy.typing import NDArray

from log.errors import RecordError

_OFFSET = struct.Struct(">q")
_KEY_PREFIX_TAIL = struct.Struct(">Hi")
_KEY_TAIL = struct.Struct(">iH")


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Returns the id that a broker answers with: packed store host (8 or 20 bytes, `record.pack_host`) and offset."""
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def offset_message_ids(store_host: bytes, physical_offsets: NDArray[np.int64]) -> str:
    """Returns the ids of many messages, joined by commas."""
    ids = np.empty(len(physical_offsets), [("host", f"V{len(store_host)}"), ("offset", ">i8")])
    ids["host"] = np.void(store_host)
    ids["offset"] = physical_offsets
    return ids.tobytes().hex(",", ids.itemsize).upper()


def parse_offset_message_id(text: str) -> tuple[bytes, int]:
    """Returns (packed store host, physical offset) of an id. Raises RecordError."""
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise RecordError(f"{text!r} is no message id: not hexadecimal") from error
    if len(raw) not in (16, 28):
        raise RecordError(f"{text!r} is no message id: it has {len(text)} characters, not 32 or 56")
    return raw[:-8], _OFFSET.unpack(raw[-8:])[0]


def unique_key_prefix(address: bytes, process_id: int, loader_hash: int) -> bytes:
    """Returns the constant part of one client's UNIQ_KEYs; `address` has 4 or 16 bytes, `loader_hash` an int32."""
    assert len(address) in (4, 16), "an IP address has 4 or 16 bytes"
    return address + _KEY_PREFIX_TAIL.pack(process_id & 0xFFFF, loader_hash)


def unique_key(prefix: bytes, milliseconds_of_month: int, counter: int) -> str:
    """Returns a UNIQ_KEY: unique as long as no client takes more than 65,536 in one millisecond."""
    return (prefix + _KEY_TAIL.pack(milliseconds_of_month & 0x7FFFFFFF, counter & 0xFFFF)).hex().upper()
