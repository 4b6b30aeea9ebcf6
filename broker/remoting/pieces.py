"""Long bodies in pieces: written bit by bit, and never copied into one, which takes as long as to write them."""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 64 * 1024


class Pieces:
    """Bytes that are written one behind the other."""

    __slots__ = ("_last", "_pieces")

    def __init__(self, begin: bytes = b"") -> None:
        self._pieces: list[bytes | memoryview] = []
        self._last = bytearray(begin)

    def write(self, *texts: bytes | bytearray | memoryview) -> None:
        """Adds what comes next."""
        for text in texts:
            self._last += text
        if len(self._last) >= PIECE_BYTES:
            self._pieces.append(memoryview(self._last))
            self._last = bytearray()

    def take(self, others: Pieces) -> None:
        """Moves all of the others behind these; the others must not be used any more."""
        self._pieces += (memoryview(self._last), *others._pieces)
        self._last = others._last

    def all(self) -> list[bytes | memoryview]:
        """Returns all of it, in few pieces. Nothing may be written afterwards."""
        return [*self._pieces, memoryview(self._last)]
