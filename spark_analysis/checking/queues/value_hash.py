"""Spark's ``xxhash64`` of a string, in Python.

The DataFrames know values by this hash. Where an offset shows several values, they name the one with the least hash;
the plain rules must choose the same one to say the same.
"""

from typing import Final

_MASK: Final = (1 << 64) - 1
_PRIMES: Final = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
SEED: Final = 42
"""Spark's; also its hash of a null."""


def value_hash(value: str | None) -> int:
    """The signed 64-bit XXH64 of the text's UTF-8 with Spark's seed (xxHash's specification, version 0.1.1)."""
    if value is None:
        return SEED
    data = value.encode()
    one, two, three, four, five = _PRIMES
    place, size = 0, len(data)
    # Steps 1 to 3 of the specification: stripes of 32 bytes in four lanes, then their merge.
    if size >= 32:
        lanes = [SEED + one + two, SEED + two, SEED, SEED - one]
        while place + 32 <= size:
            for number in range(4):
                lanes[number] = _round(lanes[number], _word(data, place + 8 * number, 8))
            place += 32
        result = sum(_rotated(lane & _MASK, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * one + four) & _MASK
    else:
        result = SEED + five
    # Steps 4 and 5: the length, then what is left of the input in 8, 4 and 1 bytes.
    result = (result + size) & _MASK
    while place + 8 <= size:
        result = (_rotated(result ^ _round(0, _word(data, place, 8)), 27) * one + four) & _MASK
        place += 8
    if place + 4 <= size:
        mixed = result ^ (_word(data, place, 4) * one & _MASK)
        result = (_rotated(mixed, 23) * two + three) & _MASK
        place += 4
    for byte in data[place:]:
        result = _rotated(result ^ (byte * five & _MASK), 11) * one & _MASK
    # Step 6: the avalanche.
    result = (result ^ result >> 33) * two & _MASK
    result = (result ^ result >> 29) * three & _MASK
    result ^= result >> 32
    return result - (1 << 64) if result >> 63 else result


def _word(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _PRIMES[1]) & _MASK, 31) * _PRIMES[0] & _MASK
