"""CPU time and memory of server processes, from /proc (Linux)."""

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """User and system time that the processes have used so far, all together, in seconds."""
    return sum(user_and_system_s(pids))


def user_and_system_s(pids: Iterable[int]) -> tuple[float, float]:
    """User and system time of the processes, apart, in seconds."""
    user = system = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold blanks and parentheses
        user += int(fields[11])
        system += int(fields[12])
    return user / _TICKS_PER_S, system / _TICKS_PER_S


def resident_mib(pid: int) -> float:
    """All memory of the process that is resident, mappings included, in MiB."""
    return _status_kib(pid, "VmRSS:") / 1024


def resident_without_mappings_mib(pid: int, store: Path) -> float:
    """Resident memory in MiB without mappings of files under ``store``, which the kernel can take back at any time."""
    resident_kib = 0
    of_store = False
    prefix = f"{store}/"
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):
            # A line that begins a mapping: address, permissions, offset, device, inode, path.
            of_store = prefix in rest
        elif first == "Rss:" and not of_store:
            resident_kib += int(rest.split()[0])
    return resident_kib / 1024


def _status_kib(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/status has no {name}")
