"""Java's `String.hashCode`, which tags codes and index keys are made of.

h = 31*h + c over the UTF-16 code units, modulo 2**32, read as a signed 32-bit number. Written as a sum of
c * 31**k it needs no loop in Python: `map` with a table of powers for one string, a matrix product in numpy
for the keys of a whole dispatch batch. numpy's unsigned 32-bit arithmetic wraps exactly as Java's does.
"""

from collections.abc import Sequence
from operator import mul

import numpy as np
from numpy.typing import NDArray

_LONGEST_TABLED = 256
TABLED_CHARACTERS = _LONGEST_TABLED
"""`java_hash_columns` takes fewer than so many characters."""
_POWERS = [pow(31, exponent, 1 << 32) for exponent in range(_LONGEST_TABLED)]
_RUNS = [tuple(reversed(_POWERS[:length])) for length in range(_LONGEST_TABLED + 1)]
_ARRAYS = [np.array(run, dtype=np.uint32) for run in _RUNS]


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


def _hash_units(units: Sequence[int]) -> int:
    if len(units) <= _LONGEST_TABLED:
        return _signed(sum(map(mul, units, _RUNS[len(units)])))
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return _signed(value)


def java_hash(text: str) -> int:
    """Returns `text.hashCode()` as Java gives it: a signed 32-bit integer."""
    if text.isascii():
        return _hash_units(text.encode())
    raw = text.encode("utf-16-be", "surrogatepass")
    return _hash_units([raw[at] << 8 | raw[at + 1] for at in range(0, len(raw), 2)])


def java_hash_utf8(raw: bytes) -> int:
    """Returns the hash of the string whose UTF-8 is `raw`; malformed bytes count as U+FFFD, as in Java."""
    if raw.isascii():
        return _hash_units(raw)
    return java_hash(raw.decode("utf-8", "replace"))


def java_hash_utf8_many(keys: Sequence[bytes]) -> NDArray[np.int32]:
    """Returns `java_hash_utf8` of every key, shape (len(keys),). Fast when many keys have the same length."""
    by_length: dict[int, list[int]] = {}
    hashes = np.empty(len(keys), dtype=np.int32)
    for number, key in enumerate(keys):
        if len(key) <= _LONGEST_TABLED and key.isascii():
            by_length.setdefault(len(key), []).append(number)
        else:
            hashes[number] = java_hash_utf8(key)
    # A hash is the sum of characters times powers of 31, modulo 2**32: for keys of one length a product with a table.
    for length, numbers in by_length.items():
        if not length:
            hashes[numbers] = 0
            continue
        alone = len(numbers) == len(keys)
        joined = b"".join(keys) if alone else b"".join([keys[number] for number in numbers])
        matrix = np.frombuffer(joined, dtype=np.uint8).reshape(len(numbers), length).astype(np.uint32)
        values = (matrix @ _ARRAYS[length]).view(np.int32)
        if alone:
            return values
        hashes[numbers] = values
    return hashes


def java_hash_columns(prefix: bytes, values: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Returns `java_hash_utf8` of `prefix` and each row of ASCII, shape (len(values),).

    The prefix ends with a whole character; a row has fewer than TABLED_CHARACTERS.
    """
    width = values.shape[1]
    begin = np.uint32(java_hash_utf8(prefix) * _POWERS[width] & 0xFFFFFFFF)
    return (values.astype(np.uint32) @ _ARRAYS[width] + begin).view(np.int32)
