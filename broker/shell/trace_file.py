"""A replica's trace on disk (docs/trace-format.md)."""

import time
from pathlib import Path
from typing import Final

from broker.shell.clock import machine_clock
from broker.trace import TraceHeader, TraceWriter

_FLUSH_INTERVAL_NS: Final = 200_000_000


class TraceFile:
    """Appends to the file at `path`; a crash loses at most the events of the last fifth of a second."""

    def __init__(self, path: Path, node: str, group: str) -> None:
        self._file = path.open("ab", buffering=0)
        header = TraceHeader(
            "replica",
            node,
            machine_clock(),
            time.time_ns() - time.monotonic_ns(),
            attributes=(("group", group),),
        )
        self.writer = TraceWriter(self._file.write, header)
        self._flushed_ns = 0

    def flush_if_due(self, now_ns: int) -> None:
        """Hands what is buffered to the system, from time to time."""
        if now_ns - self._flushed_ns > _FLUSH_INTERVAL_NS:
            self.writer.flush()
            self._flushed_ns = now_ns

    def close(self) -> None:
        """Flushes and closes."""
        try:
            self.writer.flush()
        finally:
            self._file.close()
