"""The machine that a server process runs on: the name of its clock, its memory, the local hour, and signals."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import trio


def machine_clock() -> str:
    """Returns a name of this machine's monotonic clock, another one after each start; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def machine_memory_bytes() -> int:
    """Returns the machine's memory in bytes; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def local_hour(wall_ms: int) -> int:
    """Returns the hour of the day, in this machine's time zone, at `wall_ms` milliseconds since 1970."""
    return time.localtime(wall_ms / 1000).tm_hour


async def reload_on_hangup(reload: Callable[[], None]) -> None:
    """Calls `reload` at each SIGHUP, until cancelled."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            reload()


async def stop_on_signal(stop: Callable[[str], None]) -> None:
    """Calls `stop` with the signal's name at the first SIGTERM or SIGINT, and returns."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            stop(signal.Signals(number).name)
            return
