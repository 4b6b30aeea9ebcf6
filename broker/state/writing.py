"""The bytes of a snapshot, written in steps: a hundred thousand rows take a tenth of a second to encode.

They are MessagePack (tables) within CBOR (what holds them), as `msgspec` and `cbor2` read them. What stands before the
rows of a table, or before a text of bytes, is their number: that much of both formats is written here.
"""

import struct
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

import cbor2
import msgspec

from broker.remoting.pieces import Pieces
from broker.requests.processing import Pace

ROWS_AT_ONCE: Final = 1_000
"""Rows, or offsets in rows, that one step writes: some 1 ms, and 8 where each has the longest settings."""

NUMBERS_A_ROW: Final = 16
"""Numbers are packed, so that many of them are written in the time of a row."""

# The first byte of a value of MessagePack, as its specification calls them. The count or length of a FIX_ one stands in
# that byte; that of another one follows, in as many bits as its name says.
FIX_MAP, FIX_ARRAY, FIX_TEXT = 0x80, 0x90, 0xA0
FIX_COUNT_MAX: Final = 15
ARRAY_16, ARRAY_32, MAP_16, MAP_32 = 0xDC, 0xDD, 0xDE, 0xDF
BYTES_8, BYTES_16, BYTES_32, TEXT_8, TEXT_16, TEXT_32 = 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB

# The first byte of a value of CBOR (RFC 8949, 3): its major type in 3 bits, and 5 bits that are its number (a length, a
# count of members), or say that this follows.
CBOR_BYTES, CBOR_TEXT, CBOR_ARRAY, CBOR_MAP, CBOR_TAG = range(2, 7)
CBOR_TYPE_SHIFT: Final = 5
CBOR_NUMBER_BITS: Final = 0x1F
CBOR_SHORT_NUMBER_MAX: Final = 23
CBOR_ONE_BYTE, CBOR_TWO_BYTES, CBOR_FOUR_BYTES, CBOR_EIGHT_BYTES = range(24, 28)
"""The number follows in so many bytes. Above these nothing has a meaning, or a length that only an end mark tells."""

_Row = TypeVar("_Row")
Written = Generator[None, None, Pieces]
"""Does a step of the work up to each yield, and returns the bytes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """An array of `count` rows, which come in slices. `weight` says for how many rows a slice counts in a step."""

    count: int
    slices: Iterable[list[Any]]
    weight: Callable[[list[Any]], int] = len


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of 64 bits as one text of bytes."""

    numbers: Collection[int]


def slices(rows: Iterable[_Row], at_once: int) -> Iterator[list[_Row]]:
    """Returns the rows in lists of so many."""
    left = iter(rows)
    while some := list(islice(left, at_once)):
        yield some


class MessagePackWriter:
    """Writes MessagePack, `rows_at_once` in a step; what is short takes less than one."""

    def __init__(self, rows_at_once: int) -> None:
        self._rows_at_once = rows_at_once
        self._pace = Pace(rows_at_once)

    def map(self, fields: Mapping[str, Any]) -> Written:
        """Writes a map, whose values are `Rows`, `Numbers`, lists of these, or what msgspec writes."""
        pieces = Pieces(map_head(len(fields)))
        for name, value in fields.items():
            pieces.write(msgspec.msgpack.encode(name))
            yield from self._write(pieces, value)
        return pieces

    def array(self, rows: Rows) -> Written:
        """Writes an array."""
        pieces = Pieces()
        yield from self._write(pieces, rows)
        return pieces

    def _write(self, pieces: Pieces, value: Any) -> Iterator[None]:
        if isinstance(value, Rows):
            pieces.write(array_head(value.count))
            written = 0
            for some in value.slices:
                # Without the head of its own that each slice is encoded with: all are one array.
                pieces.write(memoryview(msgspec.msgpack.encode(some))[len(array_head(len(some))) :])
                written += len(some)
                if self._pace.spent(value.weight(some)):
                    yield
            assert written == value.count, "there are as many rows as were announced"
        elif isinstance(value, Numbers):
            pieces.write(_bytes_head(8 * len(value.numbers)))
            for packed in slices(value.numbers, self._rows_at_once * NUMBERS_A_ROW):
                pieces.write(struct.pack(f"<{len(packed)}q", *packed))
                if self._pace.spent(max(1, len(packed) // NUMBERS_A_ROW)):
                    yield
        elif isinstance(value, list) and any(isinstance(item, Rows | Numbers) for item in value):
            pieces.write(array_head(len(value)))
            for item in value:
                yield from self._write(pieces, item)
        else:
            pieces.write(msgspec.msgpack.encode(value))


def cbor_map(fields: Mapping[str, object]) -> Pieces:
    """Returns a map of CBOR. A value that is `Pieces` becomes a byte string; it must not be written to afterwards."""
    whole = Pieces(_cbor_head(CBOR_MAP, len(fields)))
    for name, value in fields.items():
        whole.write(cbor2.dumps(name))
        if isinstance(value, Pieces):
            whole.write(_cbor_head(CBOR_BYTES, sum(map(len, value.all()))))
            whole.take(value)
        else:
            whole.write(cbor2.dumps(value))
    return whole


def map_head(count: int) -> bytes:
    """Returns what stands before so many names with their values."""
    assert count <= FIX_COUNT_MAX, "a map that is longer has another head"
    return bytes((FIX_MAP | count,))


def array_head(count: int) -> bytes:
    """Returns what stands before so many rows."""
    if count <= FIX_COUNT_MAX:
        return bytes((FIX_ARRAY | count,))
    return struct.pack(">BH", ARRAY_16, count) if count < 1 << 16 else struct.pack(">BI", ARRAY_32, count)


def _bytes_head(length: int) -> bytes:
    if length < 1 << 8:
        return bytes((BYTES_8, length))
    return struct.pack(">BH", BYTES_16, length) if length < 1 << 16 else struct.pack(">BI", BYTES_32, length)


def _cbor_head(major_type: int, number: int) -> bytes:
    """Returns the head of a value, which is the shortest one, as cbor2 writes it."""
    first = major_type << CBOR_TYPE_SHIFT
    if number <= CBOR_SHORT_NUMBER_MAX:
        return bytes((first | number,))
    if number < 1 << 8:
        return bytes((first | CBOR_ONE_BYTE, number))
    if number < 1 << 16:
        return struct.pack(">BH", first | CBOR_TWO_BYTES, number)
    if number < 1 << 32:
        return struct.pack(">BI", first | CBOR_FOUR_BYTES, number)
    return struct.pack(">BQ", first | CBOR_EIGHT_BYTES, number)
