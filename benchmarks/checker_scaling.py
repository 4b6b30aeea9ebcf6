"""Time and memory of ``trivet analyze`` as the history grows, and porcupine beside it.

    python -m benchmarks.checker_scaling growth SCRATCH
    python -m benchmarks.checker_scaling compare SCRATCH
    python -m benchmarks.checker_scaling cluster SCRATCH --sizes 1e6,1e7,1e8
    python -m benchmarks.checker_plots

``growth``: 10^5 to 10^7 operations, one ten-thousandth of them of unknown outcome, on one queue and on a hundred, good
and with four violations planted, kept as Parquet; one queue also as the CBOR trace that clients record.

``compare``: porcupine (fetched and built by Go when this runs) and ``trivet analyze`` in turns on the same histories,
which are appends, reads and tails of one queue.

``cluster``: one good hot queue, judged by one Spark process with two cores and by a standalone cluster of a master and
two workers with one core each, in turns; and what each stage has read, written and shuffled, from Spark's event log.

Every measurement is a process of its own, from its start to its exit: reading the history from files, judging it,
printing the verdict, and for trivet some seconds in which Java and Spark start on a fresh virtual machine with two
cores. A run of 1,000 operations shows these. Histories are made once and kept in SCRATCH; making them is not measured.
A verdict other than the one that the history was made for ends the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.checker_histories import (
    good_history,
    parts_of_one_queue,
    spoil,
    write_parquet,
    write_trace,
    write_words,
)
from benchmarks.measured_process import Bounds, MeasuredRun, end_in_order, measure
from benchmarks.porcupine_module import build
from benchmarks.standalone_cluster import MASTER

RESULTS: Final = Path(__file__).parent / "results" / "checker-scaling.json"
CLUSTER_RESULTS: Final = RESULTS.with_name("checker-cluster.json")
CORES: Final = 2
# Of the 8 GB: the Java heap; the rest is for what Java keeps beside it, and for Python.
DRIVER_MEMORY: Final = "4g"
EXECUTOR_MEMORY: Final = "2g"  # on a cluster; the driver keeps Spark's default there, 1g
TRIVET_BOUNDS: Final = Bounds(7200.0, 8_000_000_000)
PORCUPINE_BOUNDS: Final = Bounds(1800.0, 6_000_000_000, cpu_seconds=120.0)
CLUSTER_BOUNDS: Final = Bounds(4 * 3600.0, 8_000_000_000)
CLUSTER: Final = "trivet on a standalone cluster"
LEAST_SHUFFLE_BYTES: Final = 100_000  # of the stages that are kept in the results
MOST_AT_ONCE: Final = 20_000_000  # operations that are made in memory
SIZES: Final = (1_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
# (operations, of unknown outcome)
COMPARED: Final = (
    *((1_000, 0), (10_000, 0), (30_000, 0), (100_000, 0), (200_000, 0), (400_000, 0)),
    *((10_000, 2), (10_000, 5), (10_000, 10)),
)


@dataclass(frozen=True, slots=True)
class History:
    """``unknown``: appends without an answer. ``planted``: violations are in it."""

    operations: int
    queues: int
    unknown: int
    planted: bool
    format: str

    @property
    def name(self) -> str:
        return f"{self.operations}-{self.queues}-{self.unknown}-{'bad' if self.planted else 'good'}-{self.format}"

    @property
    def verdict(self) -> str:
        return "violated" if self.planted else "linearizable"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run; ``verdict`` is "memory" or "time" where it was ended at that bound. Else as :class:`MeasuredRun`."""

    checker: str
    history: History
    verdict: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    others_cores: float
    load: float


class WrongVerdictError(RuntimeError):
    """A checker failed, or answered something else than what the history was made for."""


def prepared(scratch: Path, history: History) -> Path:
    """The path of a history; makes it if it is not there yet."""
    target = scratch / history.name
    if target.exists():
        return target
    if history.operations > MOST_AT_ONCE:
        return _prepared_in_parts(target, history)
    columns = good_history(history.operations, history.queues, history.unknown)
    if history.planted:
        spoil(columns)
    unfinished = scratch / f"{history.name}.unfinished"
    scratch.mkdir(parents=True, exist_ok=True)
    if history.format == "trace":
        write_trace(columns, unfinished)
    elif history.format == "parquet":
        write_parquet(columns, unfinished)
    elif history.format == "log-only":
        write_parquet(columns.log_only(), unfinished)
    else:
        write_words(columns.log_only(), unfinished)
    unfinished.rename(target)
    return target


def _prepared_in_parts(target: Path, history: History) -> Path:
    """Make a history that does not fit into memory: a good one of one queue, as Parquet."""
    assert (history.queues, history.planted, history.format) == (1, False, "parquet"), history
    unfinished = target.with_name(f"{target.name}.unfinished")
    before = 0
    for part in parts_of_one_queue(history.operations, history.unknown):
        write_parquet(part, unfinished, before)
        before += len(part.kind)
    unfinished.rename(target)
    return target


def run_trivet(
    path: Path,
    history: History,
    *,
    on_cluster: bool = False,
    settings: dict[str, str] | None = None,
    bounds: Bounds = TRIVET_BOUNDS,
) -> Measurement:
    master = MASTER if on_cluster else f"local[{CORES}]"
    format = "trace" if history.format == "trace" else "parquet"
    command = [sys.executable, "-m", "trivet", "analyze", "--json", "--master", master]
    command += ["--format", format, str(path)]
    options = dict(settings or {})
    if on_cluster:
        # The cluster belongs to what is measured, its start as well.
        command = [sys.executable, "-m", "benchmarks.standalone_cluster", *command]
        options["spark.executor.memory"] = EXECUTOR_MEMORY
    # The workers of Spark find the project where this benchmark has it.
    environment = {"TRIVET_SPARK_MEMORY": DRIVER_MEMORY, "PYTHONPATH": str(Path(__file__).parents[1])}
    given = [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    if given:
        environment["PYSPARK_SUBMIT_ARGS"] = " ".join([*given, "pyspark-shell"])
    run = measure(command, bounds, environment)
    verdict = ""
    if run.ended == "by itself" and run.exit_code in (0, 1, 3):
        verdict = json.loads(run.output.splitlines()[-1])["histories"][0]["verdict"]
    return _measurement(CLUSTER if on_cluster else "trivet", history, run, verdict)


def stages_of(event_log: Path) -> Iterator[dict[str, Any]]:
    """What the stages of one Spark application have shuffled, in the order of their ends."""
    with event_log.open() as lines:
        for line in lines:
            event = json.loads(line)
            if event["Event"] != "SparkListenerStageCompleted":
                continue
            stage = event["Stage Info"]
            counts = {
                one["Name"].removeprefix("internal.metrics."): one["Value"] for one in stage["Accumulables"]
            }
            local, remote = (int(counts.get(f"shuffle.read.{at}BytesRead", 0)) for at in ("local", "remote"))
            written = int(counts.get("shuffle.write.bytesWritten", 0))
            if local + remote + written >= LEAST_SHUFFLE_BYTES:
                yield {
                    "stage": stage["Stage ID"],
                    "name": re.sub(r" at \S*/", " at ", stage["Stage Name"]),
                    "tasks": stage["Number of Tasks"],
                    "shuffle_read_bytes": local + remote,
                    "shuffle_read_from_others_bytes": remote,
                    "shuffle_write_bytes": written,
                    "spilled_bytes": int(counts.get("diskBytesSpilled", 0)),
                    "cpu_seconds": round(int(counts.get("executorCpuTime", 0)) / 1e9, 1),
                }


def cluster(scratch: Path, sizes: list[int], places: list[str], results: Path) -> None:
    for operations in sizes:
        history = History(operations, 1, operations // 10_000, False, "parquet")
        path = prepared(scratch, history)
        for place in places:
            with tempfile.TemporaryDirectory(prefix="events-", dir=scratch) as directory:
                settings = {
                    "spark.eventLog.enabled": "true",
                    "spark.eventLog.dir": f"file://{Path(directory).resolve()}",
                    "spark.eventLog.compress": "false",
                    "spark.eventLog.rolling.enabled": "false",
                    "spark.local.dir": str(scratch.resolve()),
                }
                on_cluster = place == "cluster"
                measurement = run_trivet(
                    path, history, on_cluster=on_cluster, settings=settings, bounds=CLUSTER_BOUNDS
                )
                (log,) = Path(directory).iterdir()
                keep(measurement, results, list(stages_of(log)))


def run_porcupine(program: Path, path: Path, history: History) -> Measurement:
    # Its own limit of time is wider than the bound: what ends a run is always the bound.
    run = measure(
        [str(program), "-limit", f"{2 * PORCUPINE_BOUNDS.seconds:.0f}s", str(path)], PORCUPINE_BOUNDS
    )
    words = {"Ok": "linearizable", "Illegal": "violated"}
    verdict = (
        words[json.loads(run.output)["verdict"]] if run.ended == "by itself" and not run.exit_code else ""
    )
    return _measurement("porcupine", history, run, verdict)


def _measurement(checker: str, history: History, run: MeasuredRun, verdict: str) -> Measurement:
    if run.ended != "by itself":
        verdict = run.ended
    elif verdict != history.verdict:
        raise WrongVerdictError(
            f"{checker}, {history.name}: exit code {run.exit_code}, verdict {verdict!r}, "
            f"made to be {history.verdict}\n{run.output}\n{run.errors}"
        )
    figures = (run.seconds, run.cpu_seconds, run.peak_bytes, run.others_cores, run.load)
    return Measurement(checker, history, verdict, *figures)


def keep(measurement: Measurement, results: Path, stages: list[dict[str, Any]] | None = None) -> None:
    """Put a measurement into the results, in the place of an earlier one of the same history and checker."""
    document: dict[str, Any] = {"measurements": []}
    if results.exists():
        document = json.loads(results.read_text())
    document |= {
        "cores": os.cpu_count(),
        "driver_memory": DRIVER_MEMORY,
        "bounds": {"trivet": asdict(TRIVET_BOUNDS), "porcupine": asdict(PORCUPINE_BOUNDS)},
    }
    new = asdict(measurement) | ({"stages": stages} if stages else {})
    same = ("checker", "history")
    others = [one for one in document["measurements"] if any(one[name] != new[name] for name in same)]
    document["measurements"] = sorted([*others, new], key=_order)
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(asdict(measurement)), flush=True)


def _order(one: dict[str, Any]) -> tuple[Any, ...]:
    history = one["history"]
    return (
        *(one["checker"], history["format"], history["queues"], history["planted"]),
        *(history["unknown"] > 0, history["operations"], history["unknown"]),
    )


def growth(scratch: Path, sizes: list[int], formats: list[str], results: Path) -> None:
    for operations in sizes:
        for format in formats:
            for queues in (1, 100) if format == "parquet" else (1,):
                for planted in (False, True):
                    history = History(operations, queues, operations // 10_000, planted, format)
                    keep(run_trivet(prepared(scratch, history), history), results)


def compare(scratch: Path, results: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    program = scratch.resolve() / "porcupine-program"
    build(program)
    for operations, unknown in COMPARED:
        words = History(operations, 1, unknown, False, "words")
        keep(run_porcupine(program, prepared(scratch, words), words), results)
        parquet = History(operations, 1, unknown, False, "log-only")
        keep(run_trivet(prepared(scratch, parquet), parquet), results)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path)
    commands = parser.add_subparsers(dest="command", required=True)
    grower = commands.add_parser("growth")
    grower.add_argument("--sizes", default=",".join(map(str, SIZES)), help="joined by commas")
    grower.add_argument("--formats", default="parquet,trace", help="joined by commas")
    maker = commands.add_parser("prepare", help="make the histories of growth and measure nothing")
    maker.add_argument("--sizes", default=",".join(map(str, SIZES)), help="joined by commas")
    maker.add_argument("--formats", default="parquet,trace", help="joined by commas")
    comparer = commands.add_parser("compare")
    clusterer = commands.add_parser("cluster")
    clusterer.add_argument("--sizes", default="1e6,1e7,1e8", help="joined by commas")
    clusterer.add_argument("--places", default="local,cluster", help="joined by commas, in this order")
    for command in (grower, maker, comparer, clusterer):
        command.add_argument("scratch", type=Path)
    chosen = parser.parse_args()
    end_in_order()
    if chosen.command == "compare":
        compare(chosen.scratch, chosen.results or RESULTS)
        return
    sizes = [int(float(size)) for size in chosen.sizes.split(",")]
    if chosen.command == "cluster":
        cluster(chosen.scratch, sizes, chosen.places.split(","), chosen.results or CLUSTER_RESULTS)
        return
    if chosen.command == "growth":
        growth(chosen.scratch, sizes, chosen.formats.split(","), chosen.results or RESULTS)
        return
    for operations in sizes:
        for format in chosen.formats.split(","):
            for queues in (1, 100) if format == "parquet" else (1,):
                for planted in (False, True):
                    prepared(
                        chosen.scratch, History(operations, queues, operations // 10_000, planted, format)
                    )


if __name__ == "__main__":
    main()
