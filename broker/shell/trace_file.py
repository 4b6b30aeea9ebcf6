"""A replica's trace on disk (docs/trace-format.md)."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from broker.shell.machine import machine_clock
from broker.trace import TraceFormatError, TraceHeader, TraceWriter, read_trace
from log.errors import DiskError, disk_error
from log.files.private_files import make_directories, open_file

_FLUSH_INTERVAL_NS: Final = 200_000_000


class TraceFile:
    """Appends to the file at `path`. A crash loses at most the events of the last fifth of a second.

    A node needs no trace: one that cannot be written any more stops, and the node goes on. To whoever reads the file it
    has then been killed.

    All processes of a node share a file, and its header, until the machine is started anew: times in a trace are those
    of one monotonic clock. A file of another clock, or one that cannot be read, is left alone; a new file is begun
    beside it, with a number before its suffix.
    """

    def __init__(self, path: Path, node: str, group: str) -> None:
        """Raises OSError, `log.errors.DiskError`: a trace that cannot begin is an error of who has asked for it."""
        self.failure: DiskError | None = None
        """Why nothing is written any more."""
        make_directories(path.parent)
        header = TraceHeader(
            "replica",
            node,
            machine_clock(),
            time.time_ns() - time.monotonic_ns(),
            attributes=(("group", group),),
        )
        base, number = path, 0
        while path.exists() and (earlier := _header_of(path)) != header:
            # The wall clock may have been set since; the monotonic clock is the same one.
            if earlier is not None and replace(earlier, zero_wall_ns=header.zero_wall_ns) == header:
                header = earlier
                break
            number += 1
            path = base.with_name(f"{base.stem}.{number}{base.suffix}")
        self._path = path
        self._file = open_file(path, "ab")
        self._has_begun = False
        # Its header is written at once: if that fails nothing has begun, and the error is raised.
        self.writer = TraceWriter(self._write, header)
        self._has_begun = True
        self._flushed_ns = 0

    def _write(self, data: bytes) -> None:
        """Writes all of the bytes, unless writing has failed. Raises `log.errors.DiskError` for the file's beginning;
        a later failure is kept in `failure`."""
        if self.failure is not None:
            return
        # Where the disk is nearly full the system takes less than it was given. The next call says why.
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            failure = disk_error(str(self._path), "writing", error)
            if not self._has_begun:
                raise failure from error
            self.failure = failure

    def flush_if_due(self, now_ns: int) -> None:
        """Hands what is buffered to the system if the last time was a fifth of a second ago."""
        if now_ns - self._flushed_ns > _FLUSH_INTERVAL_NS:
            self.writer.flush()
            self._flushed_ns = now_ns

    def close(self) -> None:
        """Hands what is buffered to the system, and closes the file."""
        try:
            self.writer.flush()
        finally:
            self._file.close()


def _header_of(path: Path) -> TraceHeader | None:
    try:
        with path.open("rb") as file:
            first = next(iter(read_trace(file, str(path))), None)
    except (OSError, TraceFormatError):
        return None
    return first if isinstance(first, TraceHeader) else None
