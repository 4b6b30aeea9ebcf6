"""What is written is for the user of the process alone, also where the umask would let everyone read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from log.files.mmap_disk import MmapDisk
from log.files.private_files import make_directories, mode_open_to_others, open_file, write_file


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes_below(directory: Path) -> dict[str, str]:
    """The mode of each file and directory that others may do anything with."""
    found = {}
    for path in (directory, *directory.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            found[str(path.relative_to(directory))] = f"{mode:04o}"
    return found


def test_a_store_is_private(tmp_path: Path) -> None:
    disk = MmapDisk(tmp_path / "above" / "store")
    lock = disk.lock()
    disk.open("commitlog/data/0", 4096, create=True).close()
    disk.write_durably("config/deep/state", b"x")
    lock.release()
    assert modes_below(tmp_path / "above") == {}


def test_what_others_may_read_is_told_and_written_anew_for_the_owner(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("before, and longer")
    file.chmod(0o644)
    assert mode_open_to_others(file) == "0644"
    write_file(file, b"a secret")
    assert (mode_open_to_others(file), file.read_bytes()) == (None, b"a secret")
    assert mode_open_to_others(tmp_path / "none") is None


def test_a_directory_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o755)
    make_directories(shared / "own")
    open_file(shared / "own" / "file", "ab").close()
    assert modes_below(tmp_path / "shared") == {".": "0755"}
    with pytest.raises(FileExistsError):
        make_directories(shared / "own" / "file")
