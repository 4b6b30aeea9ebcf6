"""The results of the benchmark, as they are printed and kept."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Callable, Container
from pathlib import Path
from typing import Literal

import msgspec

from broker.tools.bench.limits import RawLimits
from log.formats.loops import INSTALLED

Flush = Literal["async", "sync"]


class PythonBuild(msgspec.Struct, frozen=True, kw_only=True):
    """How the Python of servers and clients was built, as far as it tells."""

    pgo: bool
    """Optimised by the profile of a run (``--enable-optimizations``): 0.8 to 0.95 of the CPU time of one without."""
    lto: bool | None
    """Optimised across files when it was linked (``--with-lto``); None where nothing tells."""
    debug: bool
    """With assertions and counts of references: several times as slow."""

    @property
    def words(self) -> str:
        """The build in words, for one line."""
        if self.debug:
            return "a debug build"
        unknown = " (of LTO it does not tell)" if self.lto is None else ""
        used = [name for name, has in (("PGO", self.pgo), ("LTO", self.lto)) if has]
        return ("built with " + " and ".join(used) if used else "built without PGO and LTO") + unknown

    @property
    def is_optimised(self) -> bool:
        """True if figures taken with it are worth keeping."""
        return self.pgo and not self.debug


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine on which it was measured."""

    processor: str
    cores: int
    memory_mib: int
    system: str
    python: str
    python_build: PythonBuild
    loops: str
    """The code that goes over the bytes of the log: pure Python, or C (``trivet[fast]``)."""


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
    """Every setting that was tried, where only the best is reported."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a search."""

    batch: int
    in_flight: int
    body_bytes: int
    msgs_per_s: float
    server_cpu_us_per_msg: float
    """All three brokers together."""
    client_cpu_us_per_msg: float


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
        python_build=python_build(_build_variable, sysconfig.get_scheme_names()),
        loops=INSTALLED.name,
    )


def python_build(variable: Callable[[str], str], schemes: Container[str]) -> PythonBuild:
    """The build that the variables of `sysconfig` and its installation schemes tell of.

    ``configure`` notes its options. Builds without it are known by the compiler's flags; Debian's and Ubuntu's, which
    have PGO and note neither, by their scheme.
    """
    options, flags = variable("CONFIG_ARGS"), f"{variable('PY_CFLAGS')} {variable('PY_CORE_CFLAGS')}"
    is_debian = "deb_system" in schemes
    has_lto = "--with-lto" in options.replace("--with-lto=no", "") or "-flto" in flags
    return PythonBuild(
        pgo=is_debian
        or "--enable-optimizations" in options
        or "-fprofile-use" in flags
        or "-fprofile-instr-use" in flags,
        lto=None if is_debian and not has_lto else has_lto,
        debug="--with-pydebug" in options or variable("Py_DEBUG") == "1",
    )


def _build_variable(name: str) -> str:
    value = sysconfig.get_config_var(name)
    return "" if value is None else str(value)


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
