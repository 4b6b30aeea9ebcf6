"""Files and directories for nobody but the user of this process, whatever its umask allows.

A store holds every message, a trace what clients sent and read, a settings file the secret of a group. What is there
already keeps its mode: who has opened it to others may have had a reason, and is told of a secret in it
(`mode_open_to_others`).
"""

import io
import os
import stat
from pathlib import Path
from typing import Final, Literal

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


def make_directories(directory: Path) -> None:
    """Makes a directory, and those above it that are missing. Raises OSError, also where a file is in the way."""
    if directory.is_dir():
        return
    if directory.parent != directory:
        make_directories(directory.parent)
    try:
        directory.mkdir(DIRECTORY_MODE)
    except FileExistsError:
        if not directory.is_dir():
            raise


def open_file(path: Path, mode: Literal["ab", "wb"]) -> io.FileIO:
    """Opens a file without a buffer, to be extended (`ab`) or written anew (`wb`). Raises OSError."""
    return io.FileIO(path, mode, opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def write_file(path: Path, data: bytes) -> None:
    """Writes a file anew, which is for nobody else then, even if it was before. Raises OSError."""
    with io.BufferedWriter(open_file(path, "wb")) as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(data)


def mode_open_to_others(path: str | Path) -> str | None:
    """Returns a file's mode, such as 0644, if others than its owner may read it; None if not, or if there is none."""
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return None
    return f"{mode:04o}" if mode & (stat.S_IRGRP | stat.S_IROTH) else None
