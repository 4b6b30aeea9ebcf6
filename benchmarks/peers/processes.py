"""Servers of other systems as child processes on loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.interop.cluster import HOST, free_base_port

__all__ = ["HOST", "Servers", "free_base_port", "until"]

READY_LIMIT_S = 90.0
_STOP_LIMIT_S = 10.0

Found = TypeVar("Found")


async def until(
    look: Callable[[], Awaitable[Found]], what: str, errors: tuple[type[Exception], ...] = (OSError,)
) -> Found:
    """What `look` returns once it raises none of the errors any more. Raises TimeoutError."""
    reason: Exception | None = None
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            while True:
                try:
                    return await look()
                except errors as error:
                    reason = error
                    await asyncio.sleep(0.1)
    except TimeoutError:
        raise TimeoutError(f"waited {READY_LIMIT_S:.0f} s for {what}: {reason!r}") from reason


class Servers:
    """Processes that are started together, each with a log of its own in the folder, and ended by their ids."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(part) for part in command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **(env or {})},
                    start_new_session=True,
                )
            )

    @property
    def pids(self) -> list[int]:
        """They and all that they have started: some are scripts that start the server."""
        groups = {process.pid for process in self.processes if process.poll() is None}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue  # gone meanwhile
                if int(words[2]) in groups:
                    found.append(int(entry.name))
        return found

    async def kill(self, position: int) -> None:
        """SIGKILL to one of them and to what it has started; returns when it is gone."""
        process = self.processes[position]
        os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)

    async def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes:
            try:
                await asyncio.to_thread(process.wait, _STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                await asyncio.to_thread(process.wait)
