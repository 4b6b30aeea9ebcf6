"""The bytes of a snapshot, read in steps: a hundred thousand rows take tenths of a second to decode.

`writing` says what they look like. msgspec decodes whole texts only, so where a row ends is found out here.
"""

from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, TypeVar

import cbor2
import msgspec

from broker.requests.processing import Pace
from broker.state.writing import (
    ARRAY_16,
    ARRAY_32,
    BYTES_8,
    BYTES_16,
    BYTES_32,
    CBOR_ARRAY,
    CBOR_BYTES,
    CBOR_EIGHT_BYTES,
    CBOR_MAP,
    CBOR_NUMBER_BITS,
    CBOR_ONE_BYTE,
    CBOR_SHORT_NUMBER_MAX,
    CBOR_TAG,
    CBOR_TEXT,
    CBOR_TYPE_SHIFT,
    FIX_ARRAY,
    FIX_COUNT_MAX,
    FIX_MAP,
    FIX_TEXT,
    MAP_16,
    MAP_32,
    TEXT_8,
    TEXT_16,
    TEXT_32,
    array_head,
)

_Result = TypeVar("_Result")

Read = Generator[None, None, _Result]
"""Does a step of the work up to each yield, and returns what was read."""

_VALUES_A_ROW: Final = 6
"""The number of values that are passed over in the time that a row takes, which is most of the work."""

_LENGTH_BYTES: Final = {BYTES_8: 1, BYTES_16: 2, BYTES_32: 4, TEXT_8: 1, TEXT_16: 2, TEXT_32: 4}
"""By the first byte of a text, of bytes or of characters: the bytes of its length, which follow it."""
_COUNT_BYTES: Final = {ARRAY_16: 2, ARRAY_32: 4, MAP_16: 2, MAP_32: 4}
"""By the first byte of an array or a map: the bytes of its count."""


def _lengths() -> tuple[bytes, bytes]:
    lengths, members = bytearray(256), bytearray(256)
    for head in (*range(FIX_MAP), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):
        lengths[head] = 1  # a number, nil, false or true: in this very byte
    for count in range(FIX_COUNT_MAX + 1):
        lengths[FIX_MAP | count], members[FIX_MAP | count] = 1, 2 * count
        lengths[FIX_ARRAY | count], members[FIX_ARRAY | count] = 1, count
    for length in range(32):
        lengths[FIX_TEXT | length] = 1 + length
    # Numbers, unsigned and signed; of 4 and 8 bytes also fractions.
    for length, heads in (
        (1, (0xCC, 0xD0)),
        (2, (0xCD, 0xD1)),
        (4, (0xCE, 0xD2, 0xCA)),
        (8, (0xCF, 0xD3, 0xCB)),
    ):
        for head in heads:
            lengths[head] = 1 + length
    return bytes(lengths), bytes(members)


_LENGTHS, _MEMBERS = _lengths()
"""By the first byte of a value: its length without its members, 0 if that byte does not tell it; how many values follow
as its members."""


def read_cbor_map(data: bytes | memoryview) -> dict[str, Any]:
    """Returns the members of a map of CBOR. A text of bytes, which may be long, is a view of `data`.

    Raises ValueError, or what cbor2 raises.
    """
    view = memoryview(data)
    kind, count, at = cbor_head(view, 0)
    if kind != CBOR_MAP:
        raise ValueError("no map of CBOR")
    members: dict[str, Any] = {}
    for _ in range(count):
        name_end = _cbor_end(view, at)
        end = _cbor_end(view, name_end)
        kind, _, begin = cbor_head(view, name_end)
        # The long texts, which hold the tables, are not copied; all else is short.
        value = view[begin:end] if kind == CBOR_BYTES else cbor2.loads(bytes(view[name_end:end]))
        members[cbor2.loads(bytes(view[at:name_end]))] = value
        at = end
    if at != len(view):
        raise ValueError("a map of CBOR does not end where its bytes do")
    return members


def cbor_head(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """Returns the kind of the value at `at`, its number (RFC 8949, 3), and where what follows them begins.

    Raises ValueError where the data ends before, or for a length that only an end mark tells.
    """
    if at >= len(data):
        raise ValueError("the end is missing")
    kind, number = data[at] >> CBOR_TYPE_SHIFT, data[at] & CBOR_NUMBER_BITS
    if number <= CBOR_SHORT_NUMBER_MAX:
        return kind, number, at + 1
    # What has an end mark instead of a length nothing here writes.
    if number > CBOR_EIGHT_BYTES:
        raise ValueError("indefinite lengths are not read")
    begin = at + 1 + (1 << (number - CBOR_ONE_BYTE))
    return kind, int.from_bytes(data[at + 1 : begin]), begin


def _cbor_end(data: memoryview, at: int) -> int:
    """Returns where the value at `at` ends. Raises as `cbor_head`."""
    missing = 1
    while missing:
        kind, number, at = cbor_head(data, at)
        # A value takes the place of one that was missing, and its own members are missing then.
        missing -= 1
        if kind in {CBOR_BYTES, CBOR_TEXT}:
            at += number
        elif kind == CBOR_ARRAY:
            missing += number
        elif kind == CBOR_MAP:
            missing += 2 * number
        elif kind == CBOR_TAG:
            missing += 1
    # A text that ends behind the data was passed over unseen.
    if at > len(data):
        raise ValueError("the end is missing")
    return at


def let_go(parts: list[object], at_once: int) -> Read[None]:
    """Empties a list of objects that nobody else has any more: to free hundreds of thousands takes tens of
    milliseconds."""
    while parts:
        # From the end: the rest need not move.
        del parts[-at_once:]
        if parts:
            yield


class MessagePackReader:
    """Reads a text of MessagePack, from its beginning on. Every method raises `msgspec.DecodeError`.

    `rows_at_once` and `pace` say how much a step does.
    """

    def __init__(self, data: memoryview, rows_at_once: int, pace: Pace) -> None:
        self._data = data
        self._at = 0
        self._rows_at_once = rows_at_once
        self._pace = pace

    @property
    def is_at_array(self) -> bool:
        """True if what comes next is an array."""
        head = self._data[self._at : self._at + 1]
        return bool(head) and (FIX_ARRAY <= head[0] < FIX_TEXT or head[0] in {ARRAY_16, ARRAY_32})

    def enter(self) -> int:
        """Goes into an array or a map; returns the number of its members."""
        count, self._at = self._count()
        return count

    def value(self) -> bytes:
        """Returns the bytes of the next value, whatever it is."""
        begin = self._at
        self._pass(1, 1, len(self._data))
        return bytes(self._data[begin : self._at])

    def rows(
        self, decoder: msgspec.msgpack.Decoder[list[Any]], take: Callable[[list[Any]], None]
    ) -> Iterator[None]:
        """Reads an array; `take` is called with some of its rows after the other. Each yield ends a step."""
        left = self.enter()
        while left:
            begin = self._at
            values_max = self._rows_at_once * _VALUES_A_ROW
            count, missing = self._pass(1, min(left, self._rows_at_once), values_max)
            # A row that is longer than a step goes on in the next ones; it is taken when it has ended.
            while missing:
                yield
                passed, missing = self._pass(missing, 1, values_max)
                count += passed
            # The rows of the step, with a head of their own: msgspec decodes whole texts only.
            take(decoder.decode(b"".join((array_head(count), self._data[begin : self._at]))))
            left -= count
            if self._pace.spent(count):
                yield

    def end(self) -> None:
        """Checks that nothing follows. Raises msgspec.DecodeError."""
        if self._at != len(self._data):
            raise msgspec.DecodeError(f"{len(self._data) - self._at} bytes behind the end")

    def _count(self) -> tuple[int, int]:
        """Returns the number of members of the array or map that comes next, and where they begin."""
        data, at = self._data, self._at
        head = data[at] if at < len(data) else 0
        if FIX_MAP <= head < FIX_TEXT:  # or FIX_ARRAY, between them
            return head & FIX_COUNT_MAX, at + 1
        size = _COUNT_BYTES.get(head)
        if size is None or at + 1 + size > len(data):
            raise msgspec.DecodeError(f"neither an array nor a map at byte {at}")
        return int.from_bytes(data[at + 1 : at + 1 + size]), at + 1 + size

    def _pass(self, missing: int, count_max: int, values_max: int) -> tuple[int, int]:
        """Passes over at most so many members, and so many values in them; `missing` of the first are yet to come.

        Returns how many members have ended, and how many values are missing of one that has begun.
        """
        data, at, count = self._data, self._at, 0
        try:
            for _ in range(values_max):
                head = data[at]
                # A value takes the place of one that was missing, and its own members are missing then.
                if length := _LENGTHS[head]:
                    at += length
                    missing += _MEMBERS[head] - 1
                else:
                    at, members = self._long(at, head)
                    missing += members - 1
                if not missing:
                    count += 1
                    if count == count_max:
                        break
                    missing = 1
        except IndexError:
            at = len(data) + 1  # a head is cut, as a text is that ends behind the data
        if at > len(data):
            raise msgspec.DecodeError("the end is missing")
        self._at = at
        return count, missing

    def _long(self, at: int, head: int) -> tuple[int, int]:
        """Returns where a long text, array or map at `at` ends, without its members, and how many these are."""
        if (size := _LENGTH_BYTES.get(head)) is not None:
            return at + 1 + size + int.from_bytes(self._data[at + 1 : at + 1 + size]), 0
        if (size := _COUNT_BYTES.get(head)) is not None:
            members = int.from_bytes(self._data[at + 1 : at + 1 + size])
            return at + 1 + size, members if head < MAP_16 else 2 * members
        raise msgspec.DecodeError(f"no value begins with {head:#04x}, at byte {at}")
