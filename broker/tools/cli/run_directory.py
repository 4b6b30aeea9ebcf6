"""Directories that commands fill, one process at a time; and the verdict on the traces in them.

``demo`` and ``chaos`` begin with an empty one, and replace only what an earlier run of theirs left. ``cluster`` goes on
with what is there.
"""

import contextlib
import fcntl
import logging
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from broker.tools.cli.errors import USAGE, CommandError
from log.files.private_files import FILE_MODE, make_directories

UNDECIDED = 3

_held: list[TextIO] = []
"""Open files that lock the directories of this process; to close one would release its lock."""

_VERDICTS = {0: "holds", 1: "VIOLATED", UNDECIDED: "undecided"}


def prepare_directory(directory: Path, command: str) -> None:
    """Make the directory empty, with a mark that says whose it is. Files that somebody else put there are never
    deleted.

    Raises CommandError.
    """
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
        make_directories(directory)
        marker.touch(FILE_MODE)
        _take(marker)
    except OSError as error:
        raise _unusable(directory, error) from error


def reuse_directory(directory: Path, command: str) -> None:
    """Take the directory with its files for this process alone, as long as it runs. Raises CommandError."""
    marker = directory / f".trivet-{command}"
    try:
        make_directories(directory)
        marker.touch(FILE_MODE)
        is_ours = _take(marker)
    except OSError as error:
        raise _unusable(directory, error) from error
    if not is_ours:
        raise CommandError(f"--dir {directory}: another {command} runs there", USAGE)


def _unusable(directory: Path, error: OSError) -> CommandError:
    return CommandError(f"--dir {directory}: is no directory that can be used: {error.strerror}", USAGE)


def _take(marker: Path) -> bool:
    """Take the directory for this process alone, until it ends; returns False if another process has it."""
    file = marker.open()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return False
    _held.append(file)
    return True


def log_clients_to(path: Path) -> None:
    """Write the warnings of this process's clients (lost connections, mostly, of which a run has many) to a file."""
    path.touch(FILE_MODE)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    clients = logging.getLogger("trivet.client")
    clients.addHandler(handler)
    clients.propagate = False


class Judgement(NamedTuple):
    """The analysis' verdict on a run: the exit code (0, 1 or 3), the word for it, and the report's path."""

    code: int
    verdict: str
    report: str | None


def judge_traces(
    directory: Path, histories: Sequence[Path] = (), *, spark: bool = False, keep_stdout: bool
) -> Judgement:
    """Judge ``directory/traces``, or the given histories below it, with Spark if they are long or ``spark`` is set.

    With ``keep_stdout`` all that is printed goes to stderr.
    """
    from broker.tools.cli.analysis import analyze

    report = directory / "report"
    with contextlib.redirect_stdout(sys.stderr) if keep_stdout else contextlib.nullcontext():
        try:
            code = analyze(*(histories or [directory / "traces"]), report=report, spark=spark)
        except CommandError as error:
            print(f"trivet: {error}", file=sys.stderr)
            code = UNDECIDED
    code = code if code in _VERDICTS else UNDECIDED
    return Judgement(
        code, _VERDICTS[code], str(report) if report.is_dir() and any(report.iterdir()) else None
    )
