"""``trivet bench``: the speed and the cost of a local group, beside the limits of this machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import AsJson
from broker.tools.cli.output import print_json, print_table
from log.files.private_files import make_directories

if TYPE_CHECKING:
    from broker.tools.bench.results import Flush, Measurement, Report


async def bench(
    *,
    only: Annotated[str, Parameter(help="Workloads to run, such as AB; I is the idle group.")] = "ABCDEI",
    flush: Annotated[
        Literal["both", "async", "sync"], Parameter(help="Flush modes to measure; D, E and I run once.")
    ] = "both",
    output: Annotated[Path | None, Parameter(help="Keep the results as JSON in this file.")] = None,
    dir: Annotated[
        Path | None, Parameter(help="Where the stores go meanwhile; a temporary directory by default.")
    ] = None,
    quick: Annotated[
        bool, Parameter(help="A few messages only: does it run, not how fast.", negative="")
    ] = False,
    json: AsJson = False,
) -> int:
    """Measure a local group of three: sends, batches, reading, failover, idle CPU and memory.

    Each workload runs against a fresh group. The limits that the machine sets (writing a mapping, copying over the
    loopback, flushing) are measured in the same run. Takes three to four minutes; use an otherwise quiet machine.
    """
    import msgspec

    from broker.tools.bench.limits import measure_limits
    from broker.tools.bench.results import Report, this_machine
    from broker.tools.bench.workloads import QUICK, WORKLOADS, Scale, run_workload

    names = list(dict.fromkeys(only.upper()))
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown or not names:
        raise CommandError(f"--only {only}: letters of {''.join(WORKLOADS)}", USAGE)
    modes: list[Flush] = ["async", "sync"] if flush == "both" else [flush]
    scale = QUICK if quick else Scale()
    if dir is not None:
        make_directories(dir)
    machine = this_machine()
    if not machine.python_build.is_optimised:
        print(
            f"trivet: this Python {machine.python} is {machine.python_build.words}: one with PGO needs 0.8 to 0.95 of "
            "its CPU time; take figures worth keeping with such a one (docs/benchmarks.md)",
            file=sys.stderr,
        )
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="trivet-bench-", dir=dir) as scratch:
        limits = measure_limits(Path(scratch))
        for name in names:
            for mode in modes if name in "ABC" else modes[:1]:
                print(f"{name} {mode} ...", file=sys.stderr, flush=True)
                # A fresh store for each: what an earlier workload has left would be work in the next one.
                with tempfile.TemporaryDirectory(dir=scratch) as directory:
                    measurements += await run_workload(name, mode, Path(directory), scale)
    report = Report(machine=machine, limits=limits, measurements=tuple(measurements))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if json:
        print_json(report)
    else:
        _print(report)
    return 0


def _print(report: Report) -> None:
    machine, limits = report.machine, report.limits
    print(
        f"{machine.processor}, {machine.cores} cores, {machine.memory_mib:,} MiB, Python {machine.python}, "
        f"{machine.python_build.words}, loops in {machine.loops}"
    )
    print(
        f"limits: mapping {limits.mapping_first_write_bytes_per_s / 1e9:.2f} GB/s fresh and "
        f"{limits.mapping_rewrite_bytes_per_s / 1e9:.2f} GB/s again, "
        f"loopback {limits.loopback_bytes_per_s / 1e9:.2f} GB/s, "
        f"flush of 1 KiB {limits.flush_1_kib_ms:.3f} ms; so at most {limits.ceiling_1_kib_msgs_per_s:,.0f} msgs/s of "
        f"1 KiB and {limits.ceiling_100_b_msgs_per_s:,.0f} of 100 B"
    )
    columns = [
        "",
        "flush",
        "work",
        "msgs/s",
        "p50 ms",
        "p99 ms",
        "server us/msg",
        "client us/msg",
        "MiB a node",
        "other",
    ]
    print_table(columns, [_row(found) for found in report.measurements])


def _row(found: Measurement) -> list[object]:
    other = ""
    if found.failover_ms:
        other = "failover ms: " + ", ".join(f"{taken:,.0f}" for taken in found.failover_ms)
    elif found.idle_cpu_percent is not None:
        other = f"{found.idle_cpu_percent:.2f} % of a core"
    memory = ""
    if found.memory_beside_mappings_mib:
        memory = f"{max(found.memory_beside_mappings_mib):.0f} (with mappings {max(found.memory_mib):.0f})"
    return [
        found.workload,
        found.flush,
        found.description,
        _figure(found.msgs_per_s, 0),
        _figure(found.p50_ms, 3),
        _figure(found.p99_ms, 3),
        _figure(found.server_cpu_us_per_msg, 1),
        _figure(found.client_cpu_us_per_msg, 1),
        memory,
        other,
    ]


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
