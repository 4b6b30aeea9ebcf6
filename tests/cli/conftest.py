"""Running the command line as a user does: in a process of its own, and inside this one where that is enough."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import structlog

from broker.tools.cli import run

RUN_LIMIT_S = 300.0


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    exit_code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line on stderr; fails the test if there is none, more than one, or a traceback."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("trivet: ")
        return lines[0]


class CommandLine:
    """Calls `broker.tools.cli.run`, and catches what it prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        try:
            exit_code = run(list(arguments))
        except SystemExit as ended:
            exit_code = ended.code if isinstance(ended.code, int) else 1
        captured = self._capsys.readouterr()
        return Outcome(exit_code, captured.out, captured.err)


@pytest.fixture
def trivet(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in this process."""
    return CommandLine(capsys)


def run_process(arguments: Sequence[str], *, stdin: bytes = b"") -> Outcome:
    """``python -m trivet ARGUMENTS`` to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "trivet", *arguments],
        input=stdin,
        capture_output=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A server's command says where this process logs; the next test's servers are others."""
    configured = structlog.get_config()
    yield
    structlog.configure(**configured)
