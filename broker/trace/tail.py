"""Reading a trace that is still being written."""

from collections.abc import Iterator
from os import SEEK_END
from typing import IO, Any, Final

import cbor2

from broker.trace.events import Damage
from broker.trace.format import TraceFormatError, TraceHeader
from broker.trace.reader import find_mark, first_header, read_run

_CHUNK_BYTES: Final = 1 << 20


class TraceTail:
    """A trace, read piece by piece: each :meth:`read` goes on where the one before it came to the end.

    Nothing is said about a record of which only the beginning is there: its rest is still to come. After damage the
    tail goes on at the next header, which the recorder may not have written yet.
    """

    def __init__(
        self, name: str, *, piece_bytes: int = 4 << 20, position: int = 0, damage: Damage | None = None
    ) -> None:
        """``piece_bytes``: what one :meth:`read` reads at most, or one record if that is longer. A tail that goes on
        where another one stood has the ``position`` and ``damage`` of that."""
        self.piece_bytes = piece_bytes
        self.position = position
        """All before it was told, as records, headers or damage; never falls."""
        self.damage = damage
        """The damage that was told at `position`; None if records can be read from there on."""
        self._name = name
        self._header: TraceHeader | None = None
        self._mark = b""
        """The bytes of `_header`, once that is read."""

    def is_behind(self, size_bytes: int) -> bool:
        """True if a file of this size has whole pieces more than was read."""
        return self.damage is None and size_bytes - self.position > self.piece_bytes

    def read(
        self, stream: IO[bytes], size_bytes: int | None = None
    ) -> Iterator[tuple[int, TraceHeader | list[Any] | Damage]]:
        """Yield ``(byte offset, header | undecoded record | damage)`` of the next piece of what has been written since,
        within the first ``size_bytes`` of the file if they are given. A tail that goes on begins with the header.

        To be iterated to its end. Raises :class:`TraceFormatError` if the file is no trace.
        """
        if self._header is None:
            stream.seek(0)
            try:
                self._header, self._mark = first_header(stream.read(_CHUNK_BYTES), self._name)
            except TraceFormatError as error:
                if isinstance(error.__cause__, (cbor2.CBORDecodeEOF, EOFError)):
                    return  # not even the header is whole
                raise
            if self.position:
                yield self.position, self._header
        size = stream.seek(0, SEEK_END) if size_bytes is None else size_bytes
        if self.damage is not None:
            following = find_mark(stream, self._mark, self.position)
            if following is None or following >= size:
                return
            self.position, self.damage = following, None
        begin, most = self.position, self.piece_bytes
        while True:
            end = min(begin + most, size)
            damage = yield from read_run(
                stream, self._name, begin, end, _CHUNK_BYTES, self._mark, self._header
            )
            if damage is None:
                self.position = stream.tell()
                return
            self.position = damage.offset
            if not damage.cut or self._has_header(stream, damage.offset, end):
                yield damage.offset, damage
                self.damage = damage
                return
            if damage.offset > begin or end == size:
                return
            most *= 2  # one record is longer than a piece

    def _has_header(self, stream: IO[bytes], start: int, stop: int) -> bool:
        """True if a header begins there, which never does inside of a record: what seems to go on is damaged."""
        stream.seek(start)
        return self._mark in stream.read(stop - start)
