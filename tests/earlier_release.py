"""The code of the release before this one, from its commit in this repository, for tests of upgrades."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

EARLIER_COMMIT = "975d3b633d8c12f3585ff8a573d9fc1346062760"
"""The last one of release 0.1.0."""
ROOT = Path(__file__).parents[1]


def unpack_earlier_release(directory: Path) -> Path:
    """Writes the code into the directory, to go on PYTHONPATH; skips the test where the checkout lacks the commit."""
    archive = subprocess.run(
        ["git", "archive", EARLIER_COMMIT, "raft", "log", "broker", "trivet.py"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        pytest.skip(f"the earlier release is not in this checkout: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory
