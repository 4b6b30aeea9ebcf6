"""What ``demo`` and ``chaos`` share: a directory that a run fills and the next replaces, and its traces' verdict."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from broker.cli.errors import USAGE, CommandError

UNDECIDED = 3

_VERDICTS = {0: "holds", 1: "VIOLATED", UNDECIDED: "undecided"}


def prepare_directory(directory: Path, command: str) -> None:
    """An empty directory with a mark that says whose it is; nothing that somebody else put there is deleted."""
    marker = directory / f".trivet-{command}"
    if directory.exists():
        if not marker.exists() and any(directory.iterdir()):
            raise CommandError(
                f"--dir {directory}: has files that no {command} left there; choose another", USAGE
            )
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    marker.touch()


class Judgement(NamedTuple):
    """Spark's word on a run: the exit code (0, 1 or 3), the verdict, and where the report is."""

    code: int
    verdict: str
    report: str | None


def judge_traces(directory: Path, *, keep_stdout: bool = False) -> Judgement:
    """Ask Spark about ``directory/traces``; what it prints goes to stderr with `keep_stdout`."""
    from broker.cli.analysis import analyze

    report = directory / "report"
    with contextlib.redirect_stdout(sys.stderr) if keep_stdout else contextlib.nullcontext():
        try:
            code = analyze(directory / "traces", report=report)
        except CommandError as error:
            print(f"trivet: {error}", file=sys.stderr)
            code = UNDECIDED
    code = code if code in _VERDICTS else UNDECIDED
    return Judgement(code, _VERDICTS[code], str(report) if report.exists() else None)
