"""The knowledge about offsets that are settled: a word for each, in a file that no process memory is spent on."""

import os
import tempfile
from typing import Final, Protocol

_WORD: Final = 8
_BUCKET_BITS: Final = 16
_BUCKET_BYTES: Final = _WORD << _BUCKET_BITS


class Words(Protocol):
    """Words of 64 bits by (queue, offset); 0 where none was written."""

    def write(self, queue: int, offset: int, word: int) -> None: ...

    def read(self, queue: int, offset: int) -> int: ...

    def close(self) -> None: ...


class SettledWords:
    """Words of 64 bits by (queue, offset); 0 where none was written. Of 65,536 offsets of which one was written, this
    process keeps one number."""

    def __init__(self) -> None:
        """Raises OSError where no temporary file can be made."""
        self._file = tempfile.TemporaryFile(prefix="trivet-follow-")  # noqa: SIM115 - close() does it
        self._places: dict[tuple[int, int], int] = {}

    def write(self, queue: int, offset: int, word: int) -> None:
        """Raises OSError on a full disk."""
        place = self._places.setdefault((queue, offset >> _BUCKET_BITS), len(self._places))
        os.pwrite(self._file.fileno(), word.to_bytes(_WORD, "little"), self._at(place, offset))

    def read(self, queue: int, offset: int) -> int:
        place = self._places.get((queue, offset >> _BUCKET_BITS))
        if place is None:
            return 0
        # Behind what was written last the file ends, or has a hole: both are zeros.
        return int.from_bytes(os.pread(self._file.fileno(), _WORD, self._at(place, offset)), "little")

    def close(self) -> None:
        self._file.close()

    def _at(self, place: int, offset: int) -> int:
        return place * _BUCKET_BYTES + (offset & (1 << _BUCKET_BITS) - 1) * _WORD
