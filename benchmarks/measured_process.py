"""A command and everything it starts, measured and kept within bounds: time, memory, CPU, and who else was at work.

A benchmark on a shared machine says little without the last: a run that got half a core looks like a slow program.
So each measurement carries the CPU seconds of its own processes, which hardly change with the neighbours, and those
that the rest of the machine took meanwhile.

Linux only: processes are found in /proc by their session, which Java and Spark's Python workers do not leave.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_SAMPLE_SECONDS: Final = 0.1
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_TICKS: Final = os.sysconf("SC_CLK_TCK")

Ended = Literal["by itself", "memory", "time"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds for all processes together, which are killed beyond any of them.

    ``cpu_seconds``: the time that a quiet machine would have given to a single-threaded program in as many seconds.
    """

    seconds: float
    memory_bytes: int
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The cost of one command.

    ``peak_bytes``: the greatest sum of resident sets seen, ten samples a second; a page shared by several processes
    counts for each. ``cpu_seconds``: of all processes, to the last sample. ``others_cores``: the number of cores that
    the rest of the machine kept busy on average. ``load``: the machine's load average over a minute at the end.
    """

    ended: Ended
    exit_code: int
    output: str
    errors: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    others_cores: float
    load: float


def end_in_order() -> None:
    """Make SIGTERM an exception, so that what is being measured ends with the benchmark."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def measure(command: list[str], bounds: Bounds, environment: dict[str, str] | None = None) -> MeasuredRun:
    """Run ``command`` to its end or to a bound."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        machine = _machine_cpu_seconds()
        begin = time.monotonic()
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=errors,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
        peak, ended, cpu = 0, "by itself", dict[int, float]()
        try:
            while process.poll() is None:
                time.sleep(_SAMPLE_SECONDS)
                resident, busy = _session(process.pid)
                cpu |= busy
                peak = max(peak, resident)
                if peak > bounds.memory_bytes:
                    ended = "memory"
                    break
                is_spent = bounds.cpu_seconds is not None and sum(cpu.values()) > bounds.cpu_seconds
                if is_spent or time.monotonic() - begin > bounds.seconds:
                    ended = "time"
                    break
        finally:
            _kill_session(process.pid)
            process.wait()
        seconds = time.monotonic() - begin
        mine = sum(cpu.values())
        others = max(0.0, _machine_cpu_seconds() - machine - mine)
        output.seek(0)
        errors.seek(0)
        return MeasuredRun(
            ended,  # type: ignore[arg-type]
            process.returncode,
            output.read(),
            errors.read(),
            round(seconds, 2),
            round(mine, 2),
            peak,
            round(others / seconds, 2),
            round(os.getloadavg()[0], 2),
        )


def _stat_fields(place: Path) -> list[str]:
    """/proc/PID/stat behind the name, which may hold anything: field 3 of the manual page comes first."""
    try:
        return (place / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []  # it has just ended


def _members(session: int) -> dict[int, list[str]]:
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            fields = _stat_fields(place)
            if fields and int(fields[3]) == session:
                found[int(place.name)] = fields
    return found


def _session(session: int) -> tuple[int, dict[int, float]]:
    """Resident bytes of all processes of a session, and the CPU seconds of each."""
    members = _members(session)
    resident = sum(int(fields[21]) for fields in members.values()) * _PAGE_BYTES
    return resident, {pid: (int(fields[11]) + int(fields[12])) / _TICKS for pid, fields in members.items()}


def _kill_session(session: int) -> None:
    for pid in _members(session):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _machine_cpu_seconds() -> float:
    """User, nice, system, interrupt and steal time of all cores since the start of the machine."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS
