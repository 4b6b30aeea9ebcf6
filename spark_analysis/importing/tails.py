"""The traces of a directory, or one file, while they are being written: rows as they come, and the moment up to which
everything has been read.

Recorders hold records back for a moment (``settle_ns`` at most), and write nothing where nothing happens. So a file
that has grown within that time is complete up to its latest record less that time, and one that has not is complete up
to now; the history is complete up to the least of these, its *cut*.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

from broker.trace import TraceFormatError, TraceTail
from broker.trace.format import FIRST_FOREIGN_KIND
from spark_analysis.importing import schema
from spark_analysis.importing.trace_reader import axes_of, beginning_of, trace_files
from spark_analysis.importing.trace_rows import Axis, RowMaker, TraceSplit

_NAMES: Final = tuple(name for name, _, _ in schema.RECORD_COLUMNS)


@dataclass(eq=False)
class _File:
    tail: TraceTail
    rows: RowMaker
    axis: Axis
    latest_ns: int | None = None
    grown_at_ns: int = 0
    is_bad: bool = False
    is_behind: bool = False

    def passed(self, time_ns: object) -> None:
        if type(time_ns) is int and self.axis.period.complaint(time_ns) is None:
            self.latest_ns = time_ns if self.latest_ns is None else max(time_ns, self.latest_ns)


def _latest(file: _File) -> int:
    assert file.latest_ns is not None
    return file.latest_ns + file.axis.shift_ns


@dataclass
class FollowedTraces:
    """The files at ``path``. ``settle_ns``: recorders hold no record back for longer."""

    path: str
    settle_ns: int
    _files: dict[str, _File] = field(default_factory=dict)
    _grown_at_ns: int | None = None

    def read(self, now_ns: int) -> Iterator[dict[str, Any]]:
        """The rows (schema.RECORDS) of what has been written since the last call, an operation when it completes.

        Of much it is a piece (:attr:`is_behind`). ``now_ns`` is this process's monotonic time.
        """
        self._find_new(now_ns)
        # What others have recorded later waits until the files that are behind have come as far.
        begun = [file for file in self._files.values() if file.latest_ns is not None]
        slowest_ns = min((_latest(file) for file in begun if file.is_behind), default=None)
        early = (
            [] if slowest_ns is None else [one for one in begun if _latest(one) > slowest_ns + self.settle_ns]
        )
        for name, file in self._files.items():
            if file.is_bad or file in early:
                continue
            has_grown = False
            with Path(name).open("rb") as stream:
                try:
                    for position, item in file.tail.read(stream):
                        has_grown = True
                        if isinstance(item, list) and item[0] < FIRST_FOREIGN_KIND and len(item) > 1:
                            file.passed(item[1])
                        for row in file.rows.of(position, item):
                            yield dict(zip(_NAMES, row, strict=True))
                except TraceFormatError:
                    file.is_bad = True  # the analysis of the whole recording says why
                file.is_behind = not file.is_bad and file.tail.is_behind(stream.seek(0, SEEK_END))
            if has_grown:
                file.grown_at_ns = self._grown_at_ns = now_ns

    @property
    def is_behind(self) -> bool:
        """True if much has been written that was not read yet."""
        return any(file.is_behind for file in self._files.values())

    def cut_ns(self, now_ns: int) -> int | None:
        """The moment up to which everything has been read, on the history's axis; None if nothing has."""
        known = [file for file in self._files.values() if file.latest_ns is not None]
        growing = [file for file in known if file.is_behind or now_ns - file.grown_at_ns <= self.settle_ns]
        if growing:
            return min(map(_latest, growing)) - self.settle_ns
        # All that was held back is written; whatever is still to be recorded comes later.
        return max(map(_latest, known)) + 1 if known else None

    def give_up(self, before_ns: int) -> Iterator[dict[str, Any]]:
        """Operations that have been open since before then, as such of unknown outcome, each once."""
        for file in self._files.values():
            for row in file.rows.give_up(before_ns):
                yield dict(zip(_NAMES, row, strict=True))

    def oldest_open_ns(self) -> int | None:
        """The invocation of the first operation that is open and not given up."""
        times = [file.rows.oldest_open_ns() for file in self._files.values()]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def quiet_ns(self, now_ns: int) -> int:
        """For how long no file has grown."""
        return 0 if self._grown_at_ns is None else now_ns - self._grown_at_ns

    def _find_new(self, now_ns: int) -> None:
        try:
            names = trace_files(self.path)
        except FileNotFoundError:
            return
        # A recorder writes its header first; until then nothing is known about the file's times.
        begun = {name for name in names if name not in self._files and beginning_of(name).header is not None}
        if not begun:
            return
        axes = axes_of([beginning_of(name) for name in names])
        for name, axis in zip(names, axes, strict=True):
            if name in begun and not isinstance(axis, str):
                split = TraceSplit(name, len(self._files), 0, 1, axis)
                self._files[name] = _File(TraceTail(name), RowMaker(split), axis, grown_at_ns=now_ns)
