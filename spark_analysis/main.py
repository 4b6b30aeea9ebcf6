"""``trivet analyze``: histories in, verdicts out. The command line lives in ``broker.cli``; this is what it calls."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_analysis.importers import DEFAULT_MODELS
from spark_analysis.models import MODELS
from spark_analysis.session import AnalysisUnavailableError, start_session
from spark_analysis.verdict import EXIT_CODES, LINEARIZABLE, UNDECIDED, VIOLATED, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from spark_analysis.history import History

WRONG_USAGE: Final = 2
FAILED: Final = 4
SMALL_BYTES: Final = 64 << 20
FORMATS: Final = ("trace", "jsonl", "jepsen-etcd", "porcupine-kv", "knossos")
LOG_MODEL: Final = "log"


class UsageError(ValueError):
    """The user asked for something that cannot be; the message says what is allowed."""


def analyze(
    paths: Sequence[Path],
    *,
    format: str = "trace",
    model: str = "log",
    master: str | None = None,
    report: Path | None = None,
    json_output: bool = False,
    to_parquet: Path | None = None,
) -> int:
    """Judge each path as a history of its own, in one Spark session, and print the verdicts.

    A path is a file, or a directory whose ``*.trace`` files form one history. Returns the exit code: 0 all
    linearizable, 1 one violated, 3 none violated but one undecided, 2 wrong usage (explained on standard error), 4
    the analysis itself failed.
    """
    try:
        model = _check_usage(paths, format, model)
        spark = start_session(master, small=_total_bytes(paths) < SMALL_BYTES)
    except (UsageError, AnalysisUnavailableError) as error:
        print(f"trivet analyze: {error}", file=sys.stderr)
        return WRONG_USAGE
    try:
        if model == LOG_MODEL:
            verdicts = [_judge(spark, path, format, to_parquet, report) for path in paths]
        else:
            from spark_analysis.keyed import judge_files

            verdicts = judge_files(spark, [str(path.resolve()) for path in paths], format, model)
            for verdict in verdicts:
                _report(verdict, None, report)
    except Exception:  # an unexpected end must not look like the verdict "violated", which is exit code 1
        traceback.print_exc()
        print("trivet analyze: the analysis failed; no verdict", file=sys.stderr)
        return FAILED
    finally:
        spark.stop()
    if json_output:
        print(json.dumps({"histories": [verdict.as_json() for verdict in verdicts]}))
    else:
        from spark_analysis.console import print_verdicts

        print_verdicts(verdicts)
    names = {verdict.verdict for verdict in verdicts}
    worst = VIOLATED if VIOLATED in names else UNDECIDED if UNDECIDED in names else LINEARIZABLE
    return EXIT_CODES[worst]


def _check_usage(paths: Sequence[Path], format: str, model: str) -> str:
    """The model to use: "log" stands for a format's own where the format is not about logs."""
    if not paths:
        raise UsageError("no PATH given: name a trace file or a directory of *.trace files")
    if format not in FORMATS:
        raise UsageError(f"--format {format}: unknown; known are {', '.join(FORMATS)}")
    known = (LOG_MODEL, *MODELS)
    if model not in known:
        raise UsageError(f"--model {model}: unknown; known are {', '.join(known)}")
    if format == "trace" and model != LOG_MODEL:
        raise UsageError(f"--model {model}: a trace is judged by the model log")
    if model == LOG_MODEL and format not in ("trace", "jsonl"):
        model = DEFAULT_MODELS[format]
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: no such file or directory")
        if path.is_dir() and not any(path.glob("*.trace")):
            raise UsageError(f"{path}: no *.trace files in this directory")
        if path.is_dir() and format != "trace":
            raise UsageError(f"{path}: is a directory; name the files of format {format}")
    return model


def _total_bytes(paths: Sequence[Path]) -> int:
    files = [file for path in paths for file in (path.iterdir() if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files)


def _judge(
    spark: SparkSession, path: Path, format: str, to_parquet: Path | None, report: Path | None
) -> Verdict:
    from spark_analysis.check import check
    from spark_analysis.history import History, load_trace, no_events
    from spark_analysis.json_lines import load_json_lines

    kept = to_parquet is not None
    directory = (
        to_parquet / path.name if to_parquet is not None else Path(tempfile.mkdtemp(prefix="trivet-analyze-"))
    )
    try:
        where = directory.resolve().as_uri()
        if format == "trace":
            history = load_trace(spark, str(path), where)
        else:
            operations, damage = load_json_lines(spark, str(path.resolve()), where)
            history = History(str(path), operations, no_events(spark), damage)
        verdict = check(history)
        _report(verdict, history, report)
        return verdict
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)


def _report(verdict: Verdict, history: History | None, directory: Path | None) -> None:
    if directory is not None:
        from spark_analysis.report import write_report

        print(f"report: {write_report(verdict, history, directory)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(analyze([Path(argument) for argument in sys.argv[1:]]))
