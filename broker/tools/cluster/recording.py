"""Trace files of a run: one for each client and one for what was done to the servers, beside the replicas' own."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import trio

from broker.shell.machine import machine_clock
from broker.trace import TRACE_SUFFIX, TraceHeader, TraceWriter
from broker.trace.format import Source
from log.files.private_files import make_directories, open_file

_FLUSH_S = 0.25


class Recording:
    """Writers by name into one directory; `run` flushes them now and then, the end of the block closes them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writers: dict[str, TraceWriter] = {}
        self._files: list[BinaryIO] = []

    def __enter__(self) -> Self:
        """Make the directory."""
        make_directories(self.directory)
        self._driver = self.writer("driver", "driver")
        return self

    def __exit__(self, *_error: object) -> None:
        """Write out and close everything."""
        with contextlib.ExitStack() as stack:
            for file in self._files:
                stack.callback(file.close)
            self.flush()

    def writer(self, process: str, source: Source = "client") -> TraceWriter:
        """A new writer, its file named after ``process``."""
        assert process not in self._writers, f"{process} records already"
        file = open_file(self.directory / f"{process}{TRACE_SUFFIX}", "ab")
        self._files.append(file)
        header = TraceHeader(
            source=source,
            process=process,
            clock=machine_clock(),
            zero_wall_ns=time.time_ns() - time.monotonic_ns(),
        )
        writer = self._writers[process] = TraceWriter(file.write, header)
        return writer

    def fault(self, name: str, targets: Sequence[str], detail: str = "") -> None:
        """Record what is being done to servers; written out at once, with everything before it."""
        self._driver.fault(time.monotonic_ns(), name, targets, detail)
        self.flush()

    def flush(self) -> None:
        """Write out what the writers hold."""
        for writer in self._writers.values():
            writer.flush()

    async def run(self) -> None:
        """Flush a few times a second, until cancelled."""
        while True:
            await trio.sleep(_FLUSH_S)
            self.flush()
