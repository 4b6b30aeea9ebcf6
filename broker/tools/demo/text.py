"""Real text that is at hand on any machine: the standard library sources of the running Python."""

import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

LINES_WANTED = 24_000


def lines_of(file: Path) -> list[bytes]:
    """Every line of a file with its end, so that an empty line is a message too and nothing is lost."""
    with file.open("rb") as source:
        return list(source)


def library_lines() -> list[bytes]:
    """The first lines of the standard library, file by file in the order of their names."""
    return list(islice(_library(), LINES_WANTED))


def _library() -> Iterator[bytes]:
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        with file.open("rb") as source:
            yield from source
