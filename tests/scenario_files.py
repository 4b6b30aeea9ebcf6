"""Scenario files: commands of a small language, each followed by what it caused, indented.

Lines that begin with # are comments, of which the first ones say what must hold and why. A test executes the commands
again and compares the whole file; with `--rewrite-scenarios` it writes the file anew instead. A rewritten file must be
read before it is committed: it is the expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import pytest

Execute = Callable[[str], list[str]]
"""Executes one command and returns what it caused, a line each."""

INDENT = "    "


def transcript(text: str, execute: Execute) -> str:
    """Executes a file's commands and returns the file with what they cause now."""
    written: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        written.append(line)
        if line and not line.startswith("#"):
            written += [INDENT + caused for caused in execute(line)]
    return "\n".join(written) + "\n"


def compare(path: Path, execute: Execute, request: pytest.FixtureRequest) -> None:
    """Fails if the commands of a file cause something else than what the file says, or rewrites it if asked to."""
    text = path.read_text()
    assert text.startswith("# "), f"{path.name} does not begin with what must hold and why"
    now = transcript(text, execute)
    assert now.count("\n" + INDENT) >= 1, f"{path.name} causes nothing"
    if request.config.getoption("--rewrite-scenarios"):
        path.write_text(now)
    else:
        assert now == text


def assert_all_there(folder: Path, names: Collection[str]) -> None:
    """The folder has the files of these names and no others: one that is missing would be a test that never fails."""
    assert sorted(path.stem for path in folder.glob("*.txt")) == sorted(names)
