"""The traces of a run: a file for each process, its digest, and the bytes if somebody wants them."""

import hashlib
from collections.abc import Callable
from typing import Any

from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import Source


class Traces:
    """All traces of one run, in the order in which their processes began."""

    def __init__(self, seed: int, *, keep: bool) -> None:
        """`keep`: whether the bytes are wanted, and not only their digest."""
        self._seed = seed
        self._keep = keep
        self._kept: dict[str, list[bytes]] = {}
        self._digests: dict[str, Any] = {}
        self._writers: list[TraceWriter] = []
        self.histories: list[str] = []
        """The names of the clients' traces."""

    def header(self, source: Source, process: str, **attributes: str) -> TraceHeader:
        """Returns the header of a process's trace."""
        return TraceHeader(
            source, process, f"simulation {self._seed}", 0, attributes=tuple(attributes.items())
        )

    def sink(self, name: str) -> Callable[[bytes], None]:
        """Returns a function that takes the bytes of a trace; that of a broker goes on with its next process."""
        digest = self._digests.setdefault(name, hashlib.sha256())
        kept = self._kept.setdefault(name, [])

        def write(data: bytes) -> None:
            digest.update(data)
            if self._keep:
                kept.append(data)

        return write

    def add(self, writer: TraceWriter) -> None:
        """Has `flush` flush this writer, too."""
        self._writers.append(writer)

    def flush(self) -> None:
        """Writes out what all writers hold."""
        for writer in self._writers:
            writer.flush()

    def digest(self) -> str:
        """Returns one digest of all traces, in hexadecimal digits."""
        total = hashlib.sha256()
        for name, digest in self._digests.items():
            total.update(f"{name} {digest.hexdigest()}\n".encode())
        return total.hexdigest()

    def kept(self) -> dict[str, bytes]:
        """Returns the bytes of all traces by name; nothing if they were not kept."""
        return {name: b"".join(pieces) for name, pieces in self._kept.items()} if self._keep else {}

    def kept_histories(self) -> dict[str, bytes]:
        """Returns the bytes of the clients' traces by name."""
        return {name: b"".join(self._kept[name]) for name in self.histories}
