"""The binary layouts of the DLedger store (`DLedgerEntryCoder`), as `struct.Struct`s with their field order.

`bodyCrc`, which the reference leaves 0, holds the unsigned CRC-32 of the entry's body (the whole record, so
that a flipped bit in a topic or an offset is found too, which the record's own BODYCRC does not cover).
`channel` and `chainCrc` stay 0.
"""

import struct

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

assert HEADER.size == HEADER_BYTES
assert UNIT.size == UNIT_BYTES
assert END_MARKER.size == MARKER_BYTES


def file_name(start: int) -> str:
    """Returns the 20-digit name of the file that begins at byte `start` of its sequence."""
    return f"{start:020d}"
