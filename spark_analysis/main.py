"""``trivet analyze``: histories in, verdicts out. The command line, in ``broker.tools.cli``, calls this."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import traceback
import uuid
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_analysis.checking.models import MODELS
from spark_analysis.checking.verdict import (
    EXIT_CODES,
    LINEARIZABLE,
    Verdict,
    corrected_for_gaps,
    worst,
)
from spark_analysis.importing.formats import DEFAULT_MODELS
from spark_analysis.importing.storage import place_of
from spark_analysis.session import (
    MEMORY_HINT,
    AnalysisUnavailableError,
    has_session,
    is_at_hand,
    is_submitted,
    quiet_interrupts,
    settle_interrupts,
    start_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from spark_analysis.checking.search import Budget
    from spark_analysis.importing.history import History
    from spark_analysis.importing.history_rows import HistoryRows
    from spark_analysis.telling.stories.words import Operation

    Around = Mapping[int, Sequence[Operation]]

WRONG_USAGE: Final = 2
_SIGNS_OF_LITTLE_MEMORY: Final = (
    *("java.lang.OutOfMemoryError", "GC overhead limit exceeded", "must be at least 471859200"),
    *("SparkOutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY"),
)
FAILED: Final = 4
SMALL_BYTES: Final = 16 << 20
LIGHT_BYTES: Final = 32 << 20  # some 10^5 operations as JSON lines, and several times as many in a trace
# A shuffle of the checker carries about as many bytes as a compressed history has; a task sorts its part in memory.
PARTITION_BYTES: Final = 32 << 20
PARQUET_FACTOR: Final = 2  # how many times larger a trace is than the same history in Parquet
MOST_PARTITIONS: Final = 2000
FORMATS: Final = ("trace", "parquet", "jsonl", "jepsen-etcd", "porcupine-kv", "knossos")
LOG_MODEL: Final = "log"
SPARSE_LOG_MODEL: Final = "sparse-log"  # a log whose offsets may hold what no client sees
LOG_MODELS: Final = (LOG_MODEL, SPARSE_LOG_MODEL)
RECORDS: Final = "records"  # the directory of a kept history that has its rows


class UsageError(ValueError):
    """Options or paths that cannot be used; the message says what is allowed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An analysis that is asked for: what is judged, by what, and what is made of it."""

    paths: Sequence[Path]
    """Each is a history of its own: a file, or a directory whose ``*.trace`` files form it."""
    _: KW_ONLY
    format: str = "trace"
    model: str = LOG_MODEL
    master: str | None = None
    report: Path | None = None
    """The directory for reports."""
    json_output: bool = False
    to_parquet: Path | None = None
    """The directory in which the histories are kept as Parquet (docs/trace-schema.md)."""
    scratch: str | None = None
    """The place of intermediate files, a directory or any URL that Spark can write; executors on other machines must
    reach it as well as the paths."""
    drained: bool = False
    """In the end readers have read every queue to its end, so that an acknowledged message that nobody saw is an
    anomaly."""
    budget: Budget | None = None
    """The bounds on a search; None for the usual ones."""
    spark_wanted: bool = False
    """Short histories are for Spark, too."""
    until_ns: int | None = None
    """Logs are judged by what had happened by then, on the history's clock."""
    witness: Path | None = None
    """The file for an order that explains the one history of ``paths``, if it is linearizable."""

    def checked(self) -> Asked:
        """Return the same with the model that is meant. Raise UsageError for what cannot be, or not be written."""
        model = _check_usage(self.paths, self.format, self.model, keeps=self.to_parquet is not None)
        _check_places(self.report, self.to_parquet, self.witness)
        if self.witness is not None and len(self.paths) > 1:
            raise UsageError(f"--witness {self.witness}: takes one PATH")
        return replace(self, model=model)

    def needs_spark(self, size: int) -> bool:
        """Tell whether Spark is to judge histories of so many bytes: they may be long, or something is asked for that
        only Spark can do, or there is a session already."""
        return (
            self.spark_wanted
            or self.format == "parquet"
            or size >= LIGHT_BYTES
            or is_submitted()
            or (self.master, self.to_parquet, self.scratch) != (None, None, None)
            or is_at_hand()
        )


def analyze(asked: Asked) -> int:
    """Judge each path as a history of its own, and print the verdicts.

    Short histories are judged in this process, all others in one Spark session, this process's own if it has one.
    Returns the exit code: 0 all linearizable, 1 one violated, 3 none violated but one undecided, 2 wrong usage
    (explained on standard error), 4 the analysis itself failed.
    """
    with nullcontext() if has_session() else quiet_interrupts():
        return _analyze(asked)


def _analyze(asked: Asked) -> int:
    try:
        asked = asked.checked()
        size = _total_bytes(asked.paths) * (PARQUET_FACTOR if asked.format == "parquet" else 1)
        if not asked.needs_spark(size) and (judged := _without_spark(asked)) is not None:
            print("trivet: judged in this process, without Spark; --spark asks it instead", file=sys.stderr)
            return _told(judged, json_output=asked.json_output)
        partitions = None if size < PARTITION_BYTES else min(MOST_PARTITIONS, 8 + size // PARTITION_BYTES)
        # A session that was there before (a notebook's, a test's) is used, and left as it is.
        is_ours = not has_session()
        spark = start_session(
            asked.master, small=size < SMALL_BYTES, shuffle_partitions=partitions, tell=_tell_waiting
        )
    except (UsageError, AnalysisUnavailableError) as error:
        print(f"trivet: {error}", file=sys.stderr)
        return WRONG_USAGE
    except Exception:
        return _failed(asked.master)
    if is_ours:
        settle_interrupts()
    try:
        if asked.model in LOG_MODELS:
            judged = _judge_logs(spark, asked, is_short=size < SMALL_BYTES, is_ours=is_ours)
        else:
            judged = _judge_keyed(spark, asked)
    except Exception:
        return _failed()
    finally:
        if is_ours:
            spark.stop()
    return _told(judged, json_output=asked.json_output)


def _tell_waiting(what: str) -> None:
    print(f"trivet: {what}", file=sys.stderr, flush=True)


def _judge_logs(
    spark: SparkSession, asked: Asked, *, is_short: bool, is_ours: bool
) -> list[tuple[Verdict, Around]]:
    """Judge each path as the history of a log, one after the other. Writes the reports. ``is_ours``: nobody else uses
    the session."""
    from spark_analysis.checking.check import check

    judged: list[tuple[Verdict, Around]] = []
    for path, name in zip(asked.paths, distinct_names(asked.paths), strict=True):
        with _place(spark, asked.to_parquet, asked.scratch, name) as place:
            # Files would cost more than the check of a short history; a scratch directory is wanted by somebody.
            in_memory = asked.to_parquet is None and asked.scratch is None and is_short
            is_kept = asked.to_parquet is not None
            history = _load(spark, path, asked.format, place, in_memory=in_memory, is_kept=is_kept)
            whole = history
            if asked.until_ns is not None:
                history = whole.until(asked.until_ns)
            found = check(history, drained=asked.drained, sparse=asked.model == SPARSE_LOG_MODEL)
            if asked.until_ns is not None:
                found = found.judged_until(asked.until_ns, whole.operations.count() - found.operations)
            verdict = corrected_for_gaps(found)
            judged.append((verdict, {}) if asked.json_output else _to_show(verdict, history))
            _report(verdict, history, asked.report, name)
            _write_witness(asked, verdict, history)
            if is_ours:
                spark.catalog.clearCache()
    return judged


def _without_spark(asked: Asked) -> list[tuple[Verdict, Around]] | None:
    """Judge short histories in this process; None if one of them is too long for that. Writes the reports."""
    from spark_analysis.light import judge_keyed, judge_log

    judged: list[tuple[Verdict, HistoryRows | None]] = []
    # Rows are made by the hundred thousand, and none is garbage before
    # the end: looking for some takes a quarter of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for path in asked.paths:
            if asked.model in LOG_MODELS:
                found = judge_log(
                    path,
                    asked.format,
                    drained=asked.drained,
                    sparse=asked.model == SPARSE_LOG_MODEL,
                    until_ns=asked.until_ns,
                )
                if found is None:
                    return None
                judged.append(found)
            else:
                judged.append((judge_keyed(path, asked.format, asked.model, asked.budget), None))
    finally:
        if was_enabled:
            gc.enable()
    for (verdict, history), name in zip(judged, distinct_names(asked.paths), strict=True):
        _report(verdict, history, asked.report, name)
    _write_witness(asked, *judged[0])
    return [(verdict, {}) if history is None else _to_show(verdict, history) for verdict, history in judged]


def _told(to_show: Sequence[tuple[Verdict, Around]], *, json_output: bool) -> int:
    """Print the verdicts; returns the exit code."""
    verdicts = [verdict for verdict, _ in to_show]
    if json_output:
        print(json.dumps({"histories": [verdict.as_json() for verdict in verdicts]}))
    else:
        from spark_analysis.telling.console import print_verdicts

        print_verdicts(verdicts, around=[around for _, around in to_show])
    return EXIT_CODES[worst([verdict.verdict for verdict in verdicts])]


def _failed(master: str | None = None) -> int:
    """Report an unexpected end; returns its exit code, as it must not look like the verdict "violated", which is exit
    code 1. ``master`` is the one that a session was just being started with."""
    text = traceback.format_exc()
    print(text, file=sys.stderr, end="")
    reason = "failed"
    if any(sign in text for sign in _SIGNS_OF_LITTLE_MEMORY):
        reason = f"ran out of memory: Java's heap is too small; {MEMORY_HINT}"
    elif master is not None and "stopped SparkContext" in text:
        reason = f"could not begin: no Spark master answers at {master}"
    print(f"trivet: the analysis {reason}; no verdict", file=sys.stderr)
    return FAILED


def _check_places(report: Path | None, to_parquet: Path | None, witness: Path | None) -> None:
    """Raise UsageError if files cannot be written where they are wanted: better now than when the verdict is there."""
    if witness is not None and witness.is_dir():
        raise UsageError(f"--witness {witness}: is a directory; name a file")
    beside = None if witness is None else witness.parent
    for option, directory in (("--report", report), ("--to-parquet", to_parquet), ("--witness", beside)):
        if directory is not None:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=directory):
                    pass
            except OSError as error:
                raise UsageError(f"{option} {directory}: cannot be written: {error.strerror}") from None
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UsageError(f"{error.strerror}; TMPDIR names another one") from None


def _check_usage(paths: Sequence[Path], format: str, model: str, *, keeps: bool) -> str:
    """Check the options, and return the model to use: "log" stands for a format's own where the format is not about
    logs."""
    # All that can be seen without reading a history is said now: Java alone takes seconds to start.
    if not paths:
        raise UsageError("no PATH given: name a trace file or a directory of *.trace files")
    if format not in FORMATS:
        raise UsageError(f"--format {format}: unknown; known are {', '.join(FORMATS)}")
    known = (*LOG_MODELS, *MODELS)
    if model not in known:
        raise UsageError(f"--model {model}: unknown; known are {', '.join(known)}")
    if format in ("trace", "parquet") and model not in LOG_MODELS:
        raise UsageError(f"--model {model}: a trace is judged by the model log")
    if model == SPARSE_LOG_MODEL and format not in ("trace", "parquet", "jsonl"):
        raise UsageError(f"--model {model}: histories of format {format} are not about logs")
    if model == LOG_MODEL and format not in ("trace", "parquet", "jsonl"):
        model = DEFAULT_MODELS[format]
    if keeps and model not in LOG_MODELS:
        raise UsageError(
            f"--to-parquet: keeps histories of logs; one of the model {model} is read from its own file only"
        )
    for path in paths:
        if (complaint := unreadable(path)) is not None:
            raise UsageError(complaint)
        if format == "parquet":
            if not (path / RECORDS).is_dir():
                raise UsageError(f"{path}: not a directory that --to-parquet has made: it has no {RECORDS}")
            _check_columns(path / RECORDS)
            continue
        if path.is_dir() and not any(file.is_file() for file in path.glob("*.trace")):
            raise UsageError(f"{path}: no *.trace files in this directory{_traces_below(path)}")
        if path.is_dir() and format != "trace":
            raise UsageError(f"{path}: is a directory; name the files of format {format}")
        if path.is_file() and (packed := _packed_by(path)) is not None:
            raise UsageError(f"{path}: is packed ({packed}); unpack it first")
        if format == "jsonl" and path.is_file() and _is_array(path):
            raise UsageError(
                f"{path}: is a JSON array; wanted is one JSON object a line, as `jq -c '.[]'` makes of it"
            )
    return model


def unreadable(path: Path) -> str | None:
    """Say why nothing can be read at a path, whatever the format; None if it is a file or a directory."""
    if not path.exists():
        return f"{path}: no such file or directory"
    if not path.is_file() and not path.is_dir():
        # An analysis reads more than once, and whoever opens a pipe waits until somebody writes to it.
        return f"{path}: is neither a file nor a directory; write what comes from there to a file first"
    return None


def _traces_below(path: Path) -> str:
    """Where the traces may be that somebody looks for, as part of a sentence: runs keep theirs in ``traces``."""
    below = path / "traces"
    return f", but in {below}" if any(file.is_file() for file in below.glob("*.trace")) else ""


_PACKED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ": "xz",
}


def _packed_by(path: Path) -> str | None:
    """The program that must unpack a file before anything in it can be read."""
    with path.open("rb") as stream:
        beginning = stream.read(max(map(len, _PACKED)))
    return next((name for mark, name in _PACKED.items() if beginning.startswith(mark)), None)


def _is_array(path: Path) -> bool:
    """True if a file begins with a JSON array of objects, or an empty one: every line of it would be a bad one."""
    with path.open("rb") as stream:
        beginning = stream.read(4096).removeprefix(b"\xef\xbb\xbf").split(maxsplit=2)
    start = b"".join(beginning[:2])
    return start == b"[" or start.startswith((b"[{", b"[]"))


def _check_columns(records: Path) -> None:
    """Raise UsageError for rows of others that lack a column, which Spark would silently take for null, or have another
    type in it."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    from spark_analysis.importing import schema
    from spark_analysis.importing.arrow import ARROW_TYPES

    try:
        rows = ds.dataset(records, format="parquet", partitioning="hive")
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{records}: no Parquet that can be read: {str(error).splitlines()[0]}") from error
    given = rows.schema
    for name, kind, _ in schema.RECORD_COLUMNS if rows.files else ():
        if name not in given.names:
            raise UsageError(f"{records}: has no column {name} (docs/trace-schema.md)")
        found = given.field(name).type
        stored = found.value_type if pa.types.is_dictionary(found) else found  # Spark sees what it stands for
        if name != "record" and stored != ARROW_TYPES[kind]:
            raise UsageError(f"{records}: column {name} is of the type {found}, not {ARROW_TYPES[kind]}")


def _total_bytes(paths: Sequence[Path]) -> int:
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file())


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """A file name for each path: its own, or with a number behind it where an earlier path has the same."""
    names: list[str] = []
    for path in paths:
        name = wanted = path.resolve().name or "history"
        number = 1
        while name in names:
            number += 1
            name = f"{wanted}-{number}"
        names.append(name)
    return names


@contextmanager
def _place(spark: SparkSession, to_parquet: Path | None, scratch: str | None, name: str) -> Iterator[str]:
    """The URL of the directory for one history's Parquet, removed afterwards unless the user wants to keep it."""
    if to_parquet is not None:
        yield place_of(to_parquet / name)
        return
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="trivet-analyze-", ignore_cleanup_errors=True) as directory:
            yield place_of(Path(directory))
        return
    base = scratch.rstrip("/") if "://" in scratch else place_of(Path(scratch))
    place = f"{base}/trivet-analyze-{uuid.uuid4().hex}"
    try:
        yield place
    finally:
        context = spark.sparkContext
        # In Python, PySpark cannot delete what is on the file systems that Spark knows.
        java, java_context = context._jvm, context._jsc  # noqa: SLF001 - the ways to Hadoop's own calls
        assert java is not None
        directory = java.org.apache.hadoop.fs.Path(place)
        directory.getFileSystem(java_context.hadoopConfiguration()).delete(directory, True)


def _load(
    spark: SparkSession, path: Path, format: str, place: str, *, in_memory: bool, is_kept: bool
) -> History:
    """Read one history. ``in_memory``: it is short, and no file of it need be kept. ``is_kept``: ``place`` is the
    user's."""
    from spark_analysis.importing.history import (
        History,
        keep_records,
        load_parquet,
        load_trace,
        no_events,
        read_trace,
    )
    from spark_analysis.importing.json_lines import load_json_lines

    # Executors run in directories of their own: they are given no relative path.
    if format == "trace":
        history = read_trace(spark, str(path.resolve())) if in_memory else None
        return replace(history or load_trace(spark, str(path.resolve()), place), path=str(path))
    if format == "parquet":
        return load_parquet(spark, str(path), place_of(path / RECORDS), f"{place}/joined")
    if not is_kept:
        operations, damage = load_json_lines(spark, str(path.resolve()), place)
        return History(str(path), operations, no_events(spark), damage)
    with tempfile.TemporaryDirectory(prefix="trivet-analyze-", ignore_cleanup_errors=True) as parts:
        operations, damage = load_json_lines(spark, str(path.resolve()), place_of(Path(parts)))
        keep_records(operations, damage, f"{place}/{RECORDS}")
    return load_parquet(spark, str(path), f"{place}/{RECORDS}")


def _judge_keyed(spark: SparkSession, asked: Asked) -> list[tuple[Verdict, Around]]:
    """Judge each path by another model; a file that is named twice is judged once. Writes the reports."""
    from spark_analysis.checking.keyed import judge_files

    files = list(dict.fromkeys(str(path.resolve()) for path in asked.paths))
    found = judge_files(spark, files, asked.format, asked.model, asked.budget)
    by_file = dict(zip(files, found, strict=True))
    verdicts = [
        corrected_for_gaps(replace(by_file[str(path.resolve())], path=str(path))) for path in asked.paths
    ]
    for verdict, name in zip(verdicts, distinct_names(asked.paths), strict=True):
        _report(verdict, None, asked.report, name)
    _write_witness(asked, verdicts[0], None)
    return [(verdict, {}) for verdict in verdicts]


def _to_show(verdict: Verdict, history: History | HistoryRows) -> tuple[Verdict, Around]:
    """A verdict for a terminal, its clients with their names; and the operations around the anomalies that are
    shown."""
    from spark_analysis.importing.history_rows import HistoryRows
    from spark_analysis.telling.names import named, names_of, operations_of, with_names
    from spark_analysis.telling.report.small_data import names_of_rows, windows_of_rows
    from spark_analysis.telling.report.windows import windows_of

    if isinstance(history, HistoryRows):
        windows, ask = windows_of_rows(verdict.anomalies, history), partial(names_of_rows, history)
    else:
        windows, ask = windows_of(verdict.anomalies, history), partial(names_of, history)
    operations = [one for window in windows.values() for one in window.operations]
    names = ask([*operations_of(verdict.anomalies), *operations])
    around = {
        place: tuple(named(one, names) for one in window.operations) for place, window in windows.items()
    }
    return with_names(verdict, names), around


def _report(
    verdict: Verdict, history: History | HistoryRows | None, directory: Path | None, name: str
) -> None:
    if directory is not None:
        from spark_analysis.telling.report import write_report

        target = write_report(verdict, history, directory / f"{name}.html")
        print(f"report: {target}", file=sys.stderr)


def _write_witness(asked: Asked, verdict: Verdict, history: History | HistoryRows | None) -> None:
    """Write the order that explains the one history, if that is asked for, or say on standard error why there is
    none."""
    if asked.witness is None:
        return
    from spark_analysis.importing.history_rows import HistoryRows
    from spark_analysis.light import MOST_ROWS
    from spark_analysis.telling.witness_file import write_keyed_witness, write_log_witness

    if verdict.verdict != LINEARIZABLE:
        print(f"witness: none, the history is {verdict.verdict}", file=sys.stderr)
        return
    # A verdict comes without the order that explains it: that is looked for now, in this process.
    if history is None:
        is_written = write_keyed_witness(
            asked.witness, asked.paths[0], asked.format, asked.model, asked.budget
        )
    elif isinstance(history, HistoryRows):
        is_written = write_log_witness(
            asked.witness, history.operations, sparse=asked.model == SPARSE_LOG_MODEL
        )
    elif verdict.operations > MOST_ROWS:
        print(f"witness: none, of histories of more than {MOST_ROWS} operations", file=sys.stderr)
        return
    else:
        rows = [row.asDict() for row in history.operations.collect()]
        is_written = write_log_witness(asked.witness, rows, sparse=asked.model == SPARSE_LOG_MODEL)
    told = str(asked.witness) if is_written else "none: the search for one took too long"
    print(f"witness: {told}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(analyze(Asked([Path(argument) for argument in sys.argv[1:]])))
