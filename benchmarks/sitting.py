"""All figures of docs/benchmarks.md that want a quiet machine, in one sitting: Trivet, its peers, the tail, growth.

    python -m benchmarks.sitting FOLDER [--only STEP ...] [--minutes 90] [--tiny]
    python -m benchmarks.sitting FOLDER --tables

Each step is a program of its own, run by this interpreter, whose figures and output go to FOLDER. No step begins when
the time is over; one that takes more than its limit is ended, and what others have found stays. `--only` does a part,
or what is left. `--tiny` shows in five minutes whether everything runs. `--tables` prints what the folder holds as the
tables of the page. The peers need their servers and clients (benchmarks/peers/README.md); a system that cannot be
started only lacks its column.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.steady_load import table as steady_table
from broker.tools.bench.results import Measurement, Report, this_machine

PEERS: Final = (
    "trivet-async",
    "nats",
    "trivet-sync",
    "rabbitmq",
    "etcd",
    "dledger",
    "master-slave",
)


class Step(NamedTuple):
    """A program, as a module and its arguments; `{to}` is the folder of the figures."""

    name: str
    limit_s: int
    arguments: str
    tiny: str
    """The arguments that only show whether it runs."""


def _peer(system: str) -> Step:
    """All messages: behind fewer Java is not compiled yet."""
    works = "ABCD" if system == "master-slave" else "ABCDE"
    common = f"benchmarks.peers {system} --output {{to}} --only {works} --repetitions 1"
    return Step(system, 900, common, f"{common} --scale 0.01")


STEPS: Final = (
    Step(
        "trivet",
        420,
        "trivet bench --output {to}/trivet.json",
        "trivet bench --only ABCDI --quick --output {to}/trivet.json",
    ),
    *map(_peer, PEERS),
    *(
        Step(
            f"clients-{flush}",
            600,
            f"{clients} --output {{to}}/clients-{flush}.json",
            f"{clients} --rounds 1 --scale 0.05 --output {{to}}/clients-{flush}.json",
        )
        for flush in ("async", "sync")
        for clients in (f"benchmarks.clients_in_turns --flush {flush}",)
    ),
    Step(
        "steady-sync",
        300,
        "benchmarks.steady_load --flush sync --rate 500 --seconds 12 --output {to}/steady-sync.json",
        "benchmarks.steady_load --flush sync --seconds 2 --only steady --output {to}/steady-sync.json",
    ),
    Step(
        "growth",
        420,
        "benchmarks.growth --only topics connections groups --output {to}/growth.json",
        "benchmarks.growth --only connections --up-to 1 --output {to}/growth.json",
    ),
    Step(
        "timed",
        900,
        "benchmarks.growth --only delayed --output {to}/timed.json",
        "benchmarks.growth --only delayed --up-to 1000 --output {to}/timed.json",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=[step.name for step in STEPS], metavar="STEP")
    parser.add_argument("--minutes", type=float, default=90.0, help="no step begins after that")
    parser.add_argument("--tiny", action="store_true", help="does it run, not how fast")
    parser.add_argument("--tables", action="store_true", help="print what is there, and measure nothing")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    if not options.tables:
        folder.mkdir(parents=True, exist_ok=True)
        run([step for step in STEPS if not options.only or step.name in options.only], folder, options)
    for text in tables(folder):
        print(f"\n{text}")
    return 0


def run(steps: Sequence[Step], folder: Path, options: argparse.Namespace) -> None:
    """Runs one step after the other; says how each ended, how long it took, and the load when it began."""
    print(
        f"Python {sys.version.split()[0]}, {this_machine().python_build.words}, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    until = time.monotonic() + 60 * options.minutes
    for step in steps:
        left_s = until - time.monotonic()
        if left_s <= 0:
            print(f"{step.name:13s} left out: the time is over", flush=True)
            continue
        arguments = (step.tiny if options.tiny else step.arguments).format(to=folder).split()
        load, begin = os.getloadavg()[0], time.monotonic()
        with (folder / f"{step.name}.log").open("w") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=log, stderr=subprocess.STDOUT, text=True
            )
            try:
                code: object = child.wait(step.limit_s)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)  # it stops its servers at that
                code = f"{child.wait(60)}, ended after {step.limit_s} s"
        print(f"{step.name:13s} {time.monotonic() - begin:4.0f} s, load {load:4.1f}, exit {code}", flush=True)


def tables(folder: Path) -> list[str]:
    """Returns what the folder holds as tables in Markdown."""
    found = []
    own = folder / "trivet.json"
    report = msgspec.json.decode(own.read_bytes(), type=Report) if own.exists() else None
    systems = {name: _json(folder / f"{name}.json") for name in PEERS}
    if report is not None or any(systems.values()):
        found.append(_side_by_side(report, {name: figures for name, figures in systems.items() if figures}))
    if report is not None:
        found.append(_of_itself(report))
    for flush in ("async", "sync"):
        if rows := _json(folder / f"clients-{flush}.json"):
            figures = ("p50_ms", "msgs_s", "server_us", "server_system_us", "client_us")
            found.append(
                _markdown(
                    [f"clients, {flush}", *figures],
                    ([_turn_of(row), *(row.get(name, "") for name in figures)] for row in rows),
                )
            )
    if rows := _json(folder / "steady-sync.json"):
        found.append(steady_table(rows))
    rows = (_json(folder / "growth.json") or []) + (_json(folder / "timed.json") or [])
    if rows:
        columns = ("row", "size", "us_per_message", "idle_percent", "memory_mib", "load")
        found.append(_markdown(columns, ([row[key] for key in columns] for row in rows)))
    return found


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _turn_of(row: dict[str, Any]) -> str:
    return f"{row['work']}: {row['batch']} x {row['body']} B, {row['client']}"


def _side_by_side(report: Report | None, systems: dict[str, dict[str, Any]]) -> str:
    """One column for each system, `trivet` for its own client: the first table of the page."""
    columns: dict[str, list[str]] = {}
    if report is not None:
        for flush in ("async", "sync"):
            of_flush = {one.workload: one for one in reversed(report.measurements) if one.flush == flush}
            batches = {
                one.settings[0].body_bytes: one
                for one in report.measurements
                if one.workload == "C" and one.flush == flush and one.settings
            }
            read, killed = of_flush.get("D"), of_flush.get("E")
            columns[f"Trivet {flush}, own client"] = [
                *_column(
                    [_of_measurement(of_flush.get(work)) for work in "AB"]
                    + [_of_measurement(batches.get(size)) for size in (1024, 100)]
                ),
                "" if read is None else f"{read.msgs_per_s:,.0f}",
                "" if killed is None else ", ".join(f"{ms:.0f}" for ms in killed.failover_ms),
            ]
    for name, figures in systems.items():
        works = [figures.get(work, {}) for work in ("A", "B", "C_1024", "C_100")]
        columns[f"{name}, load {figures.get('load')}"] = [
            *_column(works),
            f"{figures.get('D', {}).get('msgs_s', 0):,.0f}",
            ", ".join(f"{ms:,}" for ms in figures.get("E_ms", ())),
        ]
    work = [
        "A: 1 in flight, 1 KiB: msgs/s",
        "A: p50 ms",
        "A: server CPU, us a message",
        "B: 64 in flight, 1 KiB: msgs/s",
        "B: server; client CPU, us a message",
        "C: batches, 1 KiB, msgs/s",
        "C: batches, 100 B, msgs/s",
        "D: read back, 1 KiB, msgs/s",
        "E: leader killed to next acknowledgement, ms",
    ]
    return _markdown(["work", *columns], zip(work, *columns.values(), strict=True))


def _of_measurement(one: Measurement | None) -> dict[str, Any]:
    if one is None:
        return {}
    return {
        "msgs_s": one.msgs_per_s,
        "p50_ms": one.p50_ms,
        "server_cpu_us_per_msg": one.server_cpu_us_per_msg,
        "client_cpu_us_per_msg": one.client_cpu_us_per_msg,
    }


def _column(works: list[dict[str, Any]]) -> list[str]:
    def figure(work: dict[str, Any], name: str, form: str = ",.0f") -> str:
        value = work.get(name)
        return "" if value is None else format(value, form)

    a, b, large, small = works
    both = "; ".join(figure(b, name) for name in ("server_cpu_us_per_msg", "client_cpu_us_per_msg"))
    return [
        figure(a, "msgs_s"),
        figure(a, "p50_ms", ".2f"),
        figure(a, "server_cpu_us_per_msg"),
        figure(b, "msgs_s"),
        both if b else "",
        figure(large, "msgs_s"),
        figure(small, "msgs_s"),
    ]


def _of_itself(report: Report) -> str:
    """What only Trivet is measured for, and the limits of the machine in the same run."""
    machine = report.machine
    lines = [f"{msgspec.json.encode(machine).decode()}"]
    for one in report.measurements:
        if one.workload == "I":
            lines.append(f"idle: {one.idle_cpu_percent:.2f} % of a core")
        if one.memory_beside_mappings_mib:
            each = ", ".join(f"{mib:.1f}" for mib in one.memory_beside_mappings_mib)
            lines.append(f"{one.workload} {one.flush}: memory beside mappings, MiB: {each}")
    return "\n".join(lines)


def _markdown(columns: Sequence[str], rows: Any) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
