"""The newest reports of the simulator and the analysis, in the directory that the console was given.

They are shown apart from the page (`HEADERS`): a report runs no scripts, reaches nothing, and is no page of ours.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import trio

from broker.console.asking import Question
from broker.console.parameters import Nothing
from broker.console.seats import Seat
from broker.operations.errors import NotThere

KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".json": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
LISTED_MAX: Final = 200
LOOKED_AT_MAX: Final = 20_000
DEPTH_MAX: Final = 5
BYTES_MAX: Final = 16 * 1024 * 1024
HEADERS: Final = {
    "content-security-policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'self'"
}


class ReportLine(msgspec.Struct, frozen=True, kw_only=True):
    """A report's file, by its path below the directory."""

    path: str
    size: int
    at_ms: int


class ReportList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest reports; ``left_out`` older ones are there."""

    directory: str
    reports: list[ReportLine]
    left_out: int


async def list_reports(seat: Seat, parameters: Nothing) -> ReportList:
    """Return the newest reports. Raises NotThere without a directory."""
    directory = _directory(seat.options.reports)
    return await trio.to_thread.run_sync(_list, directory, abandon_on_cancel=True)


async def read_report(directory: Path | None, path: str) -> tuple[bytes, str]:
    """Return a report's contents and their media type. Raises NotThere for whatever is not in the list's reach."""
    return await trio.to_thread.run_sync(_read, _directory(directory), path, abandon_on_cancel=True)


def _directory(directory: Path | None) -> Path:
    if directory is None:
        raise NotThere("no directory of reports was given: start the console with --reports")
    return directory


def _list(directory: Path) -> ReportList:
    found = sorted(_reports(directory), key=lambda line: (-line.at_ms, line.path))
    return ReportList(
        directory=str(directory), reports=found[:LISTED_MAX], left_out=max(0, len(found) - LISTED_MAX)
    )


def _reports(directory: Path) -> Iterator[ReportLine]:
    looked_at = 0
    for at, directories, files in os.walk(directory):
        place = Path(at).relative_to(directory)
        directories[:] = [name for name in directories if len(place.parts) < DEPTH_MAX - 1 and name[0] != "."]
        for name in files:
            looked_at += 1
            if looked_at > LOOKED_AT_MAX:
                return
            if Path(name).suffix in KINDS:
                try:
                    state = Path(at, name).stat()
                except OSError:  # deleted meanwhile, or a link to nothing
                    continue
                yield ReportLine(
                    path=str(place / name), size=state.st_size, at_ms=state.st_mtime_ns // 1_000_000
                )


def _read(directory: Path, path: str) -> tuple[bytes, str]:
    root = directory.resolve()
    try:
        file = (root / path).resolve()
        if not file.is_relative_to(root) or file.suffix not in KINDS or not file.is_file():
            raise NotThere(f"no report {path!r}")
        with file.open("rb") as opened:
            content = opened.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise NotThere(f"report {path!r}: {error}") from None
    if len(content) > BYTES_MAX:
        raise NotThere(f"report {path!r} has more than {BYTES_MAX >> 20} MiB: look at it where it lies")
    return content, KINDS[file.suffix]


ROUTES = (Question("/api/reports", Nothing, list_reports),)
