"""Directories that commands fill, one process at a time; and the verdict on the traces in them.

``demo`` and ``chaos`` begin with an empty one, and replace only what an earlier run of theirs left. ``cluster`` goes on
with what is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
import sys
from pathlib import Path
from typing import NamedTuple, TextIO

from broker.tools.cli.errors import USAGE, CommandError

UNDECIDED = 3

_held: list[TextIO] = []
"""Kept open, as a lock ends with its file."""

_VERDICTS = {0: "holds", 1: "VIOLATED", UNDECIDED: "undecided"}


def prepare_directory(directory: Path, command: str) -> None:
    """An empty directory with a mark that says whose it is; nothing that somebody else put there is deleted."""
    marker = directory / f".trivet-{command}"
    try:
        if marker.exists() and not _take(marker):
            raise CommandError(f"--dir {directory}: another {command} runs there", USAGE)
        if directory.exists():
            if not marker.exists() and any(directory.iterdir()):
                raise CommandError(
                    f"--dir {directory}: has files that no {command} left there; choose another", USAGE
                )
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        marker.touch()
        _take(marker)
    except OSError as error:
        raise CommandError(
            f"--dir {directory}: is no directory that can be used: {error.strerror}", USAGE
        ) from error


def reuse_directory(directory: Path, command: str) -> None:
    """The directory with what is in it, for this process alone as long as it runs."""
    directory.mkdir(parents=True, exist_ok=True)
    marker = directory / f".trivet-{command}"
    marker.touch()
    if not _take(marker):
        raise CommandError(f"--dir {directory}: another {command} runs there", USAGE)


def _take(marker: Path) -> bool:
    """Whether this process has the directory for itself, from now on and until it ends."""
    file = marker.open()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    _held.append(file)
    return True


def log_clients_to(path: Path) -> None:
    """What this process's clients warn of (lost connections, mostly, of which a run has many) goes to a file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    clients = logging.getLogger("trivet.client")
    clients.addHandler(handler)
    clients.propagate = False


class Judgement(NamedTuple):
    """Spark's word on a run: the exit code (0, 1 or 3), the verdict, and where the report is."""

    code: int
    verdict: str
    report: str | None


def judge_traces(directory: Path, *, keep_stdout: bool = False) -> Judgement:
    """Ask Spark about ``directory/traces``; what it prints goes to stderr with `keep_stdout`."""
    from broker.tools.cli.analysis import analyze

    report = directory / "report"
    with contextlib.redirect_stdout(sys.stderr) if keep_stdout else contextlib.nullcontext():
        try:
            code = analyze(directory / "traces", report=report)
        except CommandError as error:
            print(f"trivet: {error}", file=sys.stderr)
            code = UNDECIDED
    code = code if code in _VERDICTS else UNDECIDED
    return Judgement(
        code, _VERDICTS[code], str(report) if report.is_dir() and any(report.iterdir()) else None
    )
