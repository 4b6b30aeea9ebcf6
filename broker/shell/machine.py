"""The machine that a server process runs on: the name of its clock, its memory, the local hour."""

import os
import time
from pathlib import Path


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


def local_hour(time_ms: int) -> int:
    """Returns the hour of the day, in this machine's time zone, at `time_ms` milliseconds since 1970."""
    return time.localtime(time_ms / 1000).tm_hour
