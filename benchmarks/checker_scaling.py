"""How the time and memory of ``trivet analyze`` grow with the history, and of porcupine on the same histories.

    python -m benchmarks.checker_scaling trivet SCRATCH --output docs/checker-scaling.json
    python -m benchmarks.checker_scaling porcupine SCRATCH --output docs/checker-scaling.json
    python -m benchmarks.checker_scaling plot docs/checker-scaling.json docs/checker-scaling.svg

Every measurement is a process of its own, from its start to its exit: for trivet that includes some seconds in which
Java and Spark start. Histories are made once and kept in SCRATCH as Parquet; making them is not measured. Memory is
the sum of the resident sets of the process and all its children (the JVM, Python workers), looked at four times a
second; pages that they share count once for each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.checker_histories import APPEND, INFO, READ, TAIL, Columns, good_history, spoil, write_parquet

SIZES: Final = (10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
QUEUES: Final = (1, 100)
PORCUPINE_SIZES: Final = (
    (1_000, 0),
    (3_000, 0),
    (10_000, 0),
    (30_000, 0),
    (100_000, 0),
    (200_000, 0),
    (10_000, 10),
)
LIMIT_SECONDS: Final = 600
MEMORY_BYTES: Final = 8 << 30
DRIVER_MEMORY: Final = "4g"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run; ``verdict`` also "memory" or "time" where the process was ended because it went beyond its bounds."""

    checker: str
    operations: int
    queues: int
    unknown: int
    planted: bool
    verdict: str
    seconds: float
    peak_bytes: int


def measure(command: list[str], environment: dict[str, str]) -> tuple[str, str, float, int]:
    """Run ``command`` within the bounds: how it was ended ("", "memory", "time"), its output, seconds, peak bytes."""
    begin = time.monotonic()
    peak, ended = 0, ""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment, start_new_session=True
    )
    while True:
        try:
            output, _ = process.communicate(timeout=0.25)
            break
        except subprocess.TimeoutExpired:
            peak = max(peak, _resident_bytes(process.pid))
            if peak > MEMORY_BYTES or time.monotonic() - begin > LIMIT_SECONDS:
                ended = "memory" if peak > MEMORY_BYTES else "time"
                os.killpg(process.pid, signal.SIGKILL)
    return ended, output, time.monotonic() - begin, peak


def _resident_bytes(session: int) -> int:
    """Of all processes of a session: /proc/PID/stat gives the session as its sixth field, pages as its 24th."""
    pages = 0
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == session:
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


def unknown_outcomes(operations: int) -> int:
    """One in ten thousand, that is 1,000 of ten million."""
    return operations // 10_000


def prepared(scratch: Path, operations: int, queues: int, planted: bool) -> Path:
    """The directory of a history, made if it is not there."""
    target = scratch / f"{operations}-{queues}-{'bad' if planted else 'good'}"
    if not target.exists():
        history = good_history(operations, queues, unknown_outcomes(operations))
        if planted:
            spoil(history)
        write_parquet(history, target)
    return target


def run_trivet(scratch: Path, sizes: list[int]) -> list[Measurement]:
    measured = []
    for operations in sizes:
        for queues in QUEUES:
            for planted in (False, True):
                history = prepared(scratch, operations, queues, planted)
                command = [
                    sys.executable,
                    "-m",
                    "trivet",
                    "analyze",
                    "--format",
                    "parquet",
                    "--json",
                    str(history),
                ]
                ended, output, seconds, peak = measure(command, {"TRIVET_SPARK_MEMORY": DRIVER_MEMORY})
                verdict = ended or json.loads(output)["histories"][0]["verdict"]
                unknown = unknown_outcomes(operations)
                measured.append(
                    Measurement(
                        "trivet", operations, queues, unknown, planted, verdict, round(seconds, 2), peak
                    )
                )
                print(measured[-1], flush=True)
    return measured


def write_lines(history: Columns, path: Path) -> None:
    """The appends, reads and tails of a history in the words of benchmarks/porcupine/main.go."""
    starts = np.cumsum(history.counts) - history.counts
    letters = {APPEND: "a", READ: "r", TAIL: "t"}
    with path.open("w") as lines:
        for number, kind in enumerate(history.kind.tolist()):
            if kind not in letters or (kind == APPEND and history.outcome[number] not in (0, INFO)):
                continue
            offset = history.first_offset[number] if kind == APPEND else history.offset[number]
            values = history.flat[starts[number] : starts[number] + history.counts[number]]
            words = [
                number % 16,
                history.invoke_ns[number],
                history.complete_ns[number],
                letters[kind],
                offset,
                *values,
            ]
            lines.write(" ".join(map(str, words)) + "\n")


def run_porcupine(scratch: Path, program: str) -> list[Measurement]:
    measured = []
    for operations, unknown in PORCUPINE_SIZES:
        path = scratch / f"porcupine-{operations}-{unknown}.txt"
        scratch.mkdir(parents=True, exist_ok=True)
        write_lines(good_history(operations, 1, unknown), path)
        ended, output, seconds, peak = measure([program, "-limit", f"{LIMIT_SECONDS}s", str(path)], {})
        words = {"Ok": "linearizable", "Illegal": "violated", "Unknown": "time"}
        verdict = ended or words[json.loads(output)["verdict"]]
        measured.append(
            Measurement("porcupine", operations, 1, unknown, False, verdict, round(seconds, 2), peak)
        )
        print(measured[-1], flush=True)
    return measured


def plot(measured: list[dict[str, Any]], target: Path) -> None:
    """Time and memory over operations, both logarithmic; a run that was ended for its bounds is a cross."""
    import altair as alt
    import pandas as pd

    rows = []
    for one in measured:
        queues = "1 queue" if one["queues"] == 1 else f"{one['queues']} queues"
        what = f"trivet, {queues}, {'bad' if one['planted'] else 'good'}"
        if one["checker"] == "porcupine":
            what = "porcupine, 1 queue" + (f", {one['unknown']} unknown" if one["unknown"] else "")
        ended = "out of bounds" if one["verdict"] in ("memory", "time") else "verdict"
        rows.append(
            {
                "operations": one["operations"],
                "seconds": one["seconds"],
                "GB": one["peak_bytes"] / 1e9,
                "what": what,
                "ended": ended,
            }
        )
    base = alt.Chart(pd.DataFrame(rows)).encode(
        x=alt.X("operations:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format="~s")),
        color=alt.Color("what:N", title=None, scale=alt.Scale(scheme="category10")),
    )

    def panel(field: str, title: str) -> Any:
        y = alt.Y(f"{field}:Q", scale=alt.Scale(type="log"), title=title)
        shape = alt.Shape(
            "ended:N",
            title=None,
            scale=alt.Scale(domain=["verdict", "out of bounds"], range=["circle", "cross"]),
        )
        points = base.mark_point(filled=True, size=50, opacity=1).encode(y=y, shape=shape)
        return (base.mark_line(opacity=0.6).encode(y=y) + points).properties(width=380, height=300)

    chart = alt.hconcat(
        panel("seconds", "seconds, start of the process to verdict"), panel("GB", "peak memory, GB")
    )
    chart.configure_legend(orient="bottom", columns=3, labelLimit=300).save(str(target))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trivet = commands.add_parser("trivet")
    porcupine = commands.add_parser("porcupine")
    porcupine.add_argument(
        "--program", required=True, help="what `go build` in benchmarks/porcupine has made"
    )
    for command in (trivet, porcupine):
        command.add_argument("scratch", type=Path)
        command.add_argument("--output", type=Path, required=True)
    trivet.add_argument(
        "--sizes", type=lambda text: [int(float(one)) for one in text.split(",")], default=SIZES
    )
    plotter = commands.add_parser("plot")
    plotter.add_argument("input", type=Path)
    plotter.add_argument("target", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "plot":
        plot(json.loads(chosen.input.read_text())["measurements"], chosen.target)
        return
    if chosen.command == "trivet":
        measured = run_trivet(chosen.scratch, list(chosen.sizes))
    else:
        measured = run_porcupine(chosen.scratch, chosen.program)
    document: dict[str, Any] = {"cores": os.cpu_count(), "driver_memory": DRIVER_MEMORY, "measurements": []}
    if chosen.output.exists():
        document = json.loads(chosen.output.read_text())
    new = [asdict(one) for one in measured]
    same = {(one["checker"], one["operations"], one["queues"], one["unknown"], one["planted"]) for one in new}
    document["measurements"] = [
        one
        for one in document["measurements"]
        if (one["checker"], one["operations"], one["queues"], one["unknown"], one["planted"]) not in same
    ] + new
    chosen.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
