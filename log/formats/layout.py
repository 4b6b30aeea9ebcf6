"""The binary layouts of the DLedger store (`DLedgerEntryCoder`), as `struct.Struct`s with their field order.

`bodyCrc`, which the reference leaves 0, holds the unsigned CRC-32 of the entry's body (the whole record, so
that a flipped bit in a topic or an offset is found too, which the record's own BODYCRC does not cover).
`channel` and `chainCrc` stay 0.
"""

import struct
from zlib import crc32

import numpy as np

ENTRY_MAGIC = 1
HEADER_BYTES = 48
MARKER_BYTES = 8
UNIT_BYTES = 32

# magic, size, index, term, position, channel, chainCrc, bodyCrc, bodyLength
HEADER = struct.Struct(">iiqqqiiIi")

# magic, position, size, index, term
UNIT = struct.Struct(">iqiqq")

# -1, bytes left: the rest of a data file that the next entry did not fit into
END_MARKER = struct.Struct(">ii")
END_MAGIC = -1

HEADER_TYPE = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("position", ">i8"),
        ("channel", ">i4"),
        ("chain", ">i4"),
        ("checksum", ">u4"),
        ("body", ">i4"),
    ]
)
UNIT_TYPE = np.dtype(
    [("magic", ">i4"), ("position", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
"""`HEADER` and `UNIT`, field by field, for numpy."""

assert HEADER.size == HEADER_BYTES
assert UNIT.size == UNIT_BYTES
assert (HEADER_TYPE.itemsize, UNIT_TYPE.itemsize) == (HEADER_BYTES, UNIT_BYTES)
assert END_MARKER.size == MARKER_BYTES


def store_entry(
    buffer: memoryview,
    at: int,
    units: memoryview,
    unit_at: int,
    term: int,
    index: int,
    position: int,
    body: bytes | bytearray | memoryview,
) -> None:
    """Writes an entry into a data file at `at`, and its unit into an index file at `unit_at`."""
    body_size = len(body)
    size = body_size + HEADER_BYTES
    HEADER.pack_into(buffer, at, ENTRY_MAGIC, size, index, term, position, 0, 0, crc32(body), body_size)
    buffer[at + HEADER_BYTES : at + size] = body
    UNIT.pack_into(units, unit_at, ENTRY_MAGIC, position, size, index, term)


def file_name(start: int) -> str:
    """Returns the 20-digit name of the file that begins at byte `start` of its sequence."""
    return f"{start:020d}"
