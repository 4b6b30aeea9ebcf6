"""The traces of a directory, or one file, while they are being written: rows as they come, and the moment up to which
everything has been read.

Recorders hold records back for a moment (``settle_ns`` at most), and write nothing where nothing happens. So a file
that has grown within that time is complete up to its latest record less that time, and one that has not is complete up
to now; the history is complete up to the least of these, its *cut*. What such a file holds behind its last whole record
is told as damage of the kind "cut" when it stops holding the others back, and read if it becomes whole after all.

What is known of a file when it is first seen (its number, and the way from its clock to the history's, which is the
clock of the first file) stays, whatever files come later.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from math import inf
from os import SEEK_END
from pathlib import Path
from typing import Any, Final

from broker.trace import Damage, TraceFormatError, TraceHeader, TraceTail
from broker.trace.format import FIRST_FOREIGN_KIND
from spark_analysis.importing import schema
from spark_analysis.importing.moments import Period
from spark_analysis.importing.trace_reader import axes_of, beginning_of, trace_files
from spark_analysis.importing.trace_rows import Axis, RowMaker, TraceSplit

Place = dict[str, dict[str, Any]]
_NAMES: Final = tuple(name for name, _, _ in schema.RECORD_COLUMNS)


@dataclass(eq=False)
class _File:
    name: str
    number: int
    tail: TraceTail
    axis: Axis
    problem: str | None = None
    """The reason why nothing of it can be used; None if it can."""
    latest_ns: int | None = None
    grown_at_ns: int = 0
    cut: Damage | None = None
    """The record that it ends in the middle of, once that was told."""
    size_bytes: int = 0
    is_behind: bool = False
    rows: RowMaker = field(init=False)

    def __post_init__(self) -> None:
        self.rows = RowMaker(TraceSplit(self.name, self.number, 0, 1, self.axis))

    @property
    def damage(self) -> Damage | None:
        """The damage at the place to which it was read."""
        return self.tail.damage or self.cut

    def passed(self, time_ns: object) -> None:
        if type(time_ns) is int and self.axis.period.complaint(time_ns) is None:
            # Not the greatest: a single time that is damaged, and too late, must not stand for all that follow.
            self.latest_ns = time_ns


def axis_of(numbers: Sequence[int]) -> Axis:
    """The axis that these numbers of a :data:`Place` stand for."""
    shift_ns, widen_ns, low_ns, high_ns = numbers
    return Axis(shift_ns, widen_ns, Period(low_ns, high_ns))


def _latest(file: _File) -> int:
    assert file.latest_ns is not None
    return file.latest_ns + file.axis.shift_ns


def _reached(file: _File) -> float:
    return -inf if file.latest_ns is None else _latest(file)


_Item = tuple[_File, int, TraceHeader | list[Any] | Damage]


@dataclass
class FollowedTraces:
    """The files at ``path``. ``settle_ns``: recorders hold no record back for longer. ``most_bytes`` of all files are
    read in one go, where that is more than a record of each."""

    path: str
    settle_ns: int
    most_bytes: int | None = None
    _files: dict[str, _File] = field(default_factory=dict)
    _grown_at_ns: int | None = None
    _headless: dict[str, int] = field(default_factory=dict)
    """The files that have bytes and no header yet, and since when."""

    def read(self, now_ns: int) -> Iterator[dict[str, Any]]:
        """The rows (schema.RECORDS) of what has been written since the last call, an operation when it completes.

        Of much it is a piece (:attr:`is_behind`). ``now_ns`` is this process's monotonic time. Raises OSError for a
        file that can be read no more, or has lost what was read of it.
        """
        for file, position, item in self._items(now_ns, None):
            for row in file.rows.of(position, item):
                yield dict(zip(_NAMES, row, strict=True))

    def pass_over(self, now_ns: int, sizes: Mapping[str, int] | None = None) -> None:
        """Advance as :meth:`read` does without making rows; with ``sizes`` only in the files that it names, up to these
        bytes."""
        for _ in self._items(now_ns, sizes):
            pass

    def _items(self, now_ns: int, sizes: Mapping[str, int] | None) -> Iterator[_Item]:
        for file in self._find_new(now_ns, sizes):
            if file.problem is not None:
                yield file, 0, Damage(file.name, 0, file.problem, unread=True)
        slowest_ns = inf
        for file in sorted(self._files.values(), key=_reached):
            # What others have recorded later waits until the files that are behind have come as far. These are read
            # first, as only that tells if there is more of them to be read.
            if file.problem is None and _reached(file) <= slowest_ns + self.settle_ns:
                yield from self._read(file, now_ns, sizes)
                if file.is_behind and file.latest_ns is not None:
                    slowest_ns = min(slowest_ns, _reached(file))

    def _read(self, file: _File, now_ns: int, sizes: Mapping[str, int] | None) -> Iterator[_Item]:
        tail, begin = file.tail, file.tail.position
        with Path(file.name).open("rb") as stream:
            size = stream.seek(0, SEEK_END)
            if size < begin:
                raise OSError(f"{file.name} has shrunk to {size} bytes, {begin} of which had been read")
            if sizes is not None:
                size = min(size, sizes.get(file.name, 0))
            if size < begin:
                return
            if self.most_bytes is not None:
                tail.piece_bytes = max(1, self.most_bytes // len(self._files))
            has_grown = size > file.size_bytes
            for position, item in tail.read(stream, size):
                has_grown = True
                if isinstance(item, list) and item[0] < FIRST_FOREIGN_KIND and len(item) > 1:
                    file.passed(item[1])
                yield file, position, item
        has_moved = tail.position > begin
        # Where nothing was read there is no whole record, however much is there.
        file.is_behind = has_moved and tail.is_behind(size)
        if has_grown:
            file.size_bytes, file.grown_at_ns, self._grown_at_ns = size, now_ns, now_ns
        if has_moved or tail.damage is not None:
            file.cut = None
        elif file.cut is None and size > begin and now_ns - file.grown_at_ns > self.settle_ns:
            reason = f"the trace was cut inside a record ({size - begin} bytes left)"
            file.cut = Damage(file.name, begin, reason, cut=True)
            yield file, begin, file.cut

    @property
    def is_behind(self) -> bool:
        """True if much has been written that was not read yet."""
        return any(file.is_behind for file in self._files.values())

    def cut_ns(self, now_ns: int) -> int | None:
        """The moment up to which everything has been read, on the history's axis; None if nothing has."""
        files = [file for file in self._files.values() if file.problem is None]
        known = [file for file in files if file.latest_ns is not None]
        growing = [file for file in files if file.is_behind or now_ns - file.grown_at_ns <= self.settle_ns]
        if not known or self._headless or any(file.latest_ns is None for file in growing):
            return None
        # All that was held back is written where nothing grows; whatever is still to be recorded comes later.
        cut_ns = min(map(_latest, growing)) - self.settle_ns if growing else max(map(_latest, known)) + 1
        # The clock of the latest record may be fast by its error, that of the next one slow, which is widened by it.
        return cut_ns - 3 * max(file.axis.widen_ns for file in known)

    def give_up(self, before_ns: int) -> Iterator[dict[str, Any]]:
        """Return the operations that were invoked before ``before_ns`` and are still open, as ones of unknown outcome,
        each once."""
        for file in self._files.values():
            for row in file.rows.give_up(before_ns):
                yield dict(zip(_NAMES, row, strict=True))

    def oldest_open_ns(self) -> int | None:
        """The invocation of the first operation that is open and not given up."""
        times = [file.rows.oldest_open_ns() for file in self._files.values()]
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    @property
    def place(self) -> Place:
        """How far the files were read, as JSON; :meth:`go_on` begins there."""
        return {
            file.name: {
                "number": file.number,
                "bytes": file.tail.position,
                "damage": None if file.damage is None else file.damage.reason,
                "is_cut": file.cut is not None,
                "problem": file.problem,
                "latest_ns": file.latest_ns,
                "axis": [file.axis.shift_ns, file.axis.widen_ns, *astuple(file.axis.period)],
            }
            for file in self._files.values()
        }

    def go_on(self, place: Place, now_ns: int) -> None:
        """Begin where another reader's :attr:`place` stood, as if all files had grown just now. Operations that were
        open there are not known any more."""
        for name, told in place.items():
            damage, cut = damage_of(name, told)
            tail = TraceTail(name, position=told["bytes"], damage=damage)
            axis, problem, latest_ns = axis_of(told["axis"]), told["problem"], told["latest_ns"]
            self._files[name] = _File(name, told["number"], tail, axis, problem, latest_ns, now_ns, cut)

    def quiet_ns(self, now_ns: int) -> int:
        """Nanoseconds since a file last grew."""
        return 0 if self._grown_at_ns is None else now_ns - self._grown_at_ns

    def _find_new(self, now_ns: int, sizes: Mapping[str, int] | None) -> list[_File]:
        try:
            names = trace_files(self.path)
        except FileNotFoundError:
            return []
        problems = {
            name: _header_problem(name)
            for name in names
            if name not in self._files and (Path(name).stat().st_size if sizes is None else sizes.get(name))
        }
        # A recorder writes its header first, and at once; until then nothing is known about the file's times.
        self._headless = {
            name: since_ns
            for name, (_, may_change) in problems.items()
            if may_change and now_ns - (since_ns := self._headless.get(name, now_ns)) <= self.settle_ns
        }
        new = [name for name in problems if name not in self._headless]
        if not new:
            return []
        files = [beginning_of(name) for name in (*self._files, *new)]
        # Recorders of one clock may state its zero differently, and are on one axis.
        shifts = {
            one.header.clock: file.axis.shift_ns
            for one, file in zip(files, self._files.values(), strict=False)
            if one.header is not None and file.problem is None
        }
        for one, axis in list(zip(files, axes_of(files), strict=True))[len(self._files) :]:
            number, tail = len(self._files), TraceTail(one.name)
            if one.header is None or isinstance(axis, str):
                problem = axis if isinstance(axis, str) else problems[one.name][0]
                self._files[one.name] = _File(one.name, number, tail, Axis(), problem)
            else:
                axis = replace(axis, shift_ns=shifts.get(one.header.clock, axis.shift_ns))
                self._files[one.name] = _File(one.name, number, tail, axis, grown_at_ns=now_ns)
        return list(self._files.values())[-len(new) :]


def _header_problem(name: str) -> tuple[str | None, bool]:
    """Say why a file does not begin with a header, and whether that may still change: not all of one is there."""
    with Path(name).open("rb") as stream:
        try:
            if next(TraceTail(name).read(stream), None) is not None:
                return None, False
        except TraceFormatError as error:
            return str(error).removeprefix(f"{name}: "), False
    return "no trace header at its beginning", True


def damage_of(name: str, told: Mapping[str, Any]) -> tuple[Damage | None, Damage | None]:
    """What the :data:`Place` of a file says about the place where it ends: damage behind which only a header goes on,
    or a record that is not whole yet."""
    if told["damage"] is None:
        return None, None
    damage = Damage(name, told["bytes"], told["damage"], cut=told["is_cut"])
    return (None, damage) if damage.cut else (damage, None)
