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

_FIXED_ARRAY, _SHORT_ARRAY, _LONG_ARRAY = 0x90, struct.Struct(">BH"), struct.Struct(">BI")

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
    assert len(fields) < 24, "a map that is longer has another head"
    whole = Pieces(bytes((0xA0 | len(fields),)))
    for name, value in fields.items():
        whole.write(cbor2.dumps(name))
        if isinstance(value, Pieces):
            whole.write(_cbor_bytes_head(sum(map(len, value.all()))))
            whole.take(value)
        else:
            whole.write(cbor2.dumps(value))
    return whole


def map_head(count: int) -> bytes:
    """Returns what stands before so many names with their values."""
    assert count < 16, "a map that is longer has another head"
    return bytes((0x80 | count,))


def array_head(count: int) -> bytes:
    """Returns what stands before so many rows."""
    if count < 16:
        return bytes((_FIXED_ARRAY | count,))
    return _SHORT_ARRAY.pack(0xDC, count) if count < 1 << 16 else _LONG_ARRAY.pack(0xDD, count)


def _bytes_head(length: int) -> bytes:
    if length < 1 << 8:
        return bytes((0xC4, length))
    return struct.pack(">BH", 0xC5, length) if length < 1 << 16 else struct.pack(">BI", 0xC6, length)


def _cbor_bytes_head(length: int) -> bytes:
    if length < 24:
        return bytes((0x40 | length,))
    if length < 1 << 8:
        return bytes((0x58, length))
    if length < 1 << 16:
        return struct.pack(">BH", 0x59, length)
    return struct.pack(">BI", 0x5A, length) if length < 1 << 32 else struct.pack(">BQ", 0x5B, length)
