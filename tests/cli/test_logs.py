"""A server's log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")

LOGS = """
import structlog
from broker.tools.cli.logs import configure_logs
configure_logs("info")
for number in range(2000):
    structlog.get_logger("test").info("line", number=number)
print("it lives")
"""


@pytest.mark.skipif(not FULL.exists(), reason="it needs a file that takes nothing")
def test_lines_that_cannot_be_written_are_lost_and_nothing_else() -> None:
    """The disk is full, or who read them is gone: a server must not fail of that, in the middle of anything."""
    with FULL.open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", LOGS],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            timeout=60,
            check=False,
        )
    assert ran.stdout == "it lives\n"
