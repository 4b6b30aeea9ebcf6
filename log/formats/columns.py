"""Many things of one layout, at any places of a buffer, as columns: one call of numpy instead of a loop.

What holds for each record or entry is asked of all of a run at once. The places need not be aligned, nor of equal
distance. Runs of a handful of things are faster one by one: see `RUN_FROM`.
"""

from struct import Struct, unpack_from
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from log.formats.record import Buffer

Places = NDArray[np.int64]

RUN_FROM = 128
"""Shorter runs are taken one by one: the calls of numpy cost 50 to 150 us a run (benchmarks/batch_cost.py)."""

_SIZE = Struct(">i")
_SAME_FROM = 8
_SINGLES = 32
_COPIED_BYTES = 512
"""Up to so many bytes a copy costs less than a view."""


def gather(buffer: Buffer, places: Places, size: int, layout: np.dtype[Any]) -> NDArray[Any]:
    """Returns a copy of the `size` bytes at each place, shape (len(places),), or (len(places), size) of bytes.

    All of them must lie within the buffer.
    """
    raw = f"V{size}"
    rows = np.ndarray((len(buffer) - size + 1,), raw, buffer, 0, (1,))[places]
    return rows.view(layout) if layout.itemsize > 1 else rows.view(layout).reshape(len(places), size)


def scatter(buffer: bytearray, places: Places, values: NDArray[Any]) -> None:
    """Stores a value at each place. All of them must lie within the buffer."""
    layout = values.dtype
    np.ndarray((len(buffer) - layout.itemsize + 1,), layout, buffer, 0, (1,))[places] = values


def leading(holds: NDArray[np.bool_]) -> int:
    """Returns how many rows, of one or more values, are all true before the first that is not."""
    if holds.all():
        return len(holds)
    return int((holds if holds.ndim == 1 else holds.all(axis=1)).argmin())


def chain(
    buffer: Buffer, begin: int, end: int, size_at: int, smallest: int, count_max: int
) -> tuple[Places, int] | None:
    """Returns the places of things that follow each other in [begin, end), at most `count_max`, and where they end.

    The int32 `size_at` bytes behind each place is the thing's size. None if a size is less than `smallest`, which is at
    least size_at + 4, or leads beyond the end.
    """
    found: list[Places] = []
    singles: list[int] = []
    at, left = begin, count_max
    look_at = 0
    unpack = _SIZE.unpack_from
    while at < end and left:
        if end - at < smallest:
            return None
        (size,) = unpack(buffer, at + size_at)
        if size < smallest or size > end - at:
            return None
        if len(singles) >= look_at and (count := min((end - at) // size, left)) >= _SAME_FROM:
            # Often all are of one size. If they are, each size stands as far behind the one before: all are compared at
            # once, and the first that differs ends the stretch.
            sizes = np.ndarray((count,), ">i4", buffer, at + size_at, (size,))
            same = leading(sizes == size)
            if same >= _SAME_FROM:
                if singles:
                    found.append(np.array(singles, np.int64))
                    singles = []
                found.append(np.arange(at, at + same * size, size, dtype=np.int64))
                at += same * size
                left -= same
                look_at = 0
                continue
            look_at = len(singles) + _SINGLES
        singles.append(at)
        at += size
        left -= 1
    if singles or not found:
        found.append(np.array(singles, np.int64))
    return (found[0] if len(found) == 1 else np.concatenate(found)), at


def pieces(buffer: Buffer, begins: Places, ends: Places) -> list[bytes]:
    """Returns copies of the bytes [begin, end) for each pair, in order."""
    sizes, steps = ends - begins, np.diff(begins)
    if (
        len(begins)
        and (sizes == sizes[0]).all()
        and (steps == (step := int(steps[0]) if len(steps) else 0)).all()
    ):
        size = int(sizes[0])
        if len(begins) == 1 or step >= size:
            one = f"{size}s{step - size}x" if len(begins) > 1 else ""
            return list(unpack_from(one * (len(begins) - 1) + f"{size}s", buffer, int(begins[0])))
    view = memoryview(buffer)
    return [bytes(view[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def checksums(buffer: Buffer, begins: Places, ends: Places) -> list[int]:
    """Returns the CRC-32 of the bytes [begin, end) for each pair, in order."""
    if int((ends - begins).max(initial=0)) <= _COPIED_BYTES:
        return list(map(crc32, pieces(buffer, begins, ends)))
    return list(map(crc32, map(memoryview(buffer).__getitem__, map(slice, begins.tolist(), ends.tolist()))))
