"""The record of what was changed through the console, by whom and from where: a line of JSON before each change, and
one behind it.

The first is written before the change is made, and if it cannot be written the change is not made. The second says how
it went; a change whose second line is missing was under way when the console ended.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from log.files.private_files import open_file

_STANDARD_ERROR: Final = 2


class AuditError(OSError):
    """A line could not be written; nothing was changed."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was ordered. ``number`` counts the changes of this process, and is in both lines of each."""

    number: int
    action: str
    account: str
    """The access key; "" of whoever has not signed in."""
    source: str
    """The address that the browser connects from."""
    parameters: Mapping[str, object]


class AuditLog:
    """The lines, in a file or on stderr. Raises AuditError for a file that cannot be opened."""

    def __init__(self, path: Path | None, wall_ns: Callable[[], int]) -> None:
        self._wall_ns = wall_ns
        self._path = path
        self._changes = 0
        try:
            self._file = None if path is None else open_file(path, "ab")
        except OSError as error:
            raise AuditError(error.errno, error.strerror, str(path)) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def begin(self, action: str, account: str, source: str, parameters: Mapping[str, object]) -> Change:
        """Write that a change is to be made. Raises AuditError: then it must not be."""
        self._changes += 1
        change = Change(
            number=self._changes, action=action, account=account, source=source, parameters=parameters
        )
        self._write(change, "begun", "")
        return change

    def end(self, change: Change, outcome: str, detail: str) -> None:
        """Write how it went: ``done``, ``in part`` if broker groups did not answer, ``failed``, or ``unknown`` if it
        may have been done. A line that cannot be written is lost, as the change is made."""
        try:
            self._write(change, outcome, detail)
        except AuditError as error:
            print(f"trivet: the audit log lost how change {change.number} went: {error}", file=sys.stderr)

    def _write(self, change: Change, outcome: str, detail: str) -> None:
        fields: dict[str, object] = {
            "at_ms": self._wall_ns() // 1_000_000,
            "change": change.number,
            "process": os.getpid(),
            "outcome": outcome,
            "action": change.action,
            "account": change.account,
            "source": change.source,
            "parameters": change.parameters,
        }
        if detail:
            fields["detail"] = detail
        line = msgspec.json.encode(fields) + b"\n"
        # One call for a whole line: those of two consoles with one file do not mix.
        try:
            written = os.write(_STANDARD_ERROR, line) if self._file is None else self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes written")
        except OSError as error:
            raise AuditError(
                error.errno, error.strerror or str(error), str(self._path or "stderr")
            ) from error
