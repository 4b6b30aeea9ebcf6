"""A file that takes the place of another, durably and at once, for those that have no `Disk`.

Whoever looks, after a crash as well, finds the old file or the new one, whole: what is in the new one is on the disk
before its name is, and the directory is flushed last, as it says which of the two it is. What fails is raised.
"""

import io
import os
from pathlib import Path
from typing import IO

from log.files.private_files import FILE_MODE, open_file


def replace_file(path: Path, new: Path, data: bytes) -> None:
    """Writes `data` to `new`, for nobody but this user, which takes the place of `path`. Raises OSError."""
    with io.BufferedWriter(open_file(new, "wb")) as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(data)
        put_in_place(file, new, path)


def put_in_place(file: IO[bytes], new: Path, path: Path) -> None:
    """Has `new`, which `file` has written, take the place of `path`. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Makes a file or the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
