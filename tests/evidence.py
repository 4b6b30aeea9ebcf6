"""The ends of the logs of real processes, for the report of a test that has failed.

Continuous integration keeps nothing but what a report says. So it says, of every log file below a folder, the lines
that complain and the last ones, each cut, and all of them together short enough that the traceback stays in sight.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

LINES_OF_A_FILE = 24
COLUMNS = 240
FILES_OF_A_FOLDER = 12
READ_BYTES = 256 * 1024
"""How much of a file's end is looked at."""

_IS_LOG = re.compile(r"\.log(\.\d+)?$")
_COMPLAINS = re.compile(r"error|exception|fail|warn|timeout|refused|lost", re.IGNORECASE)


def log_ends(folder: Path) -> Iterator[tuple[str, str]]:
    """Title and text of each log file below the folder that says anything, those written last first."""
    found = []
    for path in folder.rglob("*"):
        try:
            if _IS_LOG.search(path.name) and path.is_file() and path.stat().st_size:
                found.append((-path.stat().st_mtime_ns, path))
        except OSError:
            continue  # it went meanwhile: a server still runs
    found.sort()
    for _, path in found[:FILES_OF_A_FOLDER]:
        yield str(path.relative_to(folder.parent)), "\n".join(telling_lines(end_of(path)))


def end_of(path: Path) -> list[str]:
    """The lines at the end of a file; none if it has gone."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - READ_BYTES, 0))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def telling_lines(lines: Sequence[str], limit: int = LINES_OF_A_FILE) -> list[str]:
    """At most `limit` of the lines, in order: half of them the last ones that complain, the others the last of all."""
    complaints = [number for number, line in enumerate(lines) if _COMPLAINS.search(line)]
    chosen = set(complaints[-(limit // 2) :])
    for number in range(len(lines) - 1, -1, -1):
        if len(chosen) == limit:
            break
        chosen.add(number)
    told = [lines[number][:COLUMNS] for number in sorted(chosen)]
    return told if len(told) == len(lines) else [f"({len(told)} of {len(lines)} lines)", *told]
