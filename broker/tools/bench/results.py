"""The results of the benchmark, as they are printed and kept."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Literal

import msgspec

from broker.tools.bench.limits import RawLimits

Flush = Literal["async", "sync"]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which it was measured."""

    processor: str
    cores: int
    memory_mib: int
    system: str
    python: str


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One workload with one flush mode. Figures that a workload does not give are None."""

    workload: str = ""
    flush: Flush = "async"
    description: str = ""
    messages: int = 0
    msgs_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    server_cpu_us_per_msg: float | None = None
    """All three brokers together."""
    client_cpu_us_per_msg: float | None = None
    memory_mib: tuple[float, ...] = ()
    """Resident memory of each broker at the end."""
    memory_beside_mappings_mib: tuple[float, ...] = ()
    failover_ms: tuple[float, ...] = ()
    """Time from each SIGKILL of the leader to the first acknowledgement of a send begun after it."""
    idle_cpu_percent: float | None = None
    """Share of one core, all three brokers and the name server together."""
    settings: tuple[Setting, ...] = ()
    """Every setting tried where the best is reported."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a search."""

    batch: int
    in_flight: int
    body_bytes: int
    msgs_per_s: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run."""

    machine: Machine
    limits: RawLimits
    measurements: tuple[Measurement, ...]


def this_machine() -> Machine:
    """A description that names no host."""
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of the values lies, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
