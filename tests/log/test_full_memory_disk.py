"""A store on a file system in memory that is full: a start finds room, or says which file has none.

There even reading what was never stored takes a page, and where there is none the system ends the process (SIGBUS).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NAMESPACE = ["unshare", "--map-root-user", "--mount"]


@pytest.fixture(scope="module", autouse=True)
def _namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path_factory.mktemp("mounted"))]
        subprocess.run([*NAMESPACE, *mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system lets nobody mount a file system for itself")


@pytest.mark.parametrize("stop", ["in order", "by a crash", "behind a checkpoint", "without a checkpoint"])
@pytest.mark.parametrize("left_bytes", [0, 1 << 13, 1 << 16, 1 << 22])
def test_a_start_without_room_goes_on_or_names_the_file(tmp_path: Path, stop: str, left_bytes: int) -> None:
    child = [sys.executable, "-m", "tests.log.full_memory_disk", str(tmp_path), stop, str(left_bytes)]
    done = subprocess.run([*NAMESPACE, *child], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert words[:3] == ["opened", "clean", "300"] or (
        words[0] == "full" and done.stdout.endswith("No space left on device\n")
    ), done.stdout
    if left_bytes == 1 << 22:
        assert words[0] == "opened"
