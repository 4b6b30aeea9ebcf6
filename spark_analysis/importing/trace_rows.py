"""The rows of one part of a trace: records in, rows of schema.RECORDS out, and what cannot be true as damage.

An operation whose invocation and completion are both in the part leaves as one finished row, others as halves. Left out
as damage, with file and byte, are a record of a wrong shape, one whose time is decades away from the others
(:mod:`spark_analysis.importing.moments`), and a completion that does not fit its invocation: that operation has an
unknown outcome. An event of a replica stays, as its place in the file says when it happened.

A number pairs a completion with an invocation and is nothing more: a client that was started again may count from 0
again, in its old file. So an operation is identified by the byte at which its invocation stands, a completion is that
of the latest invocation of its number, and where records may be missing between the two (:data:`LOST_BETWEEN`), one of
them may have been that invocation, so the completion is in doubt.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import IO, Any, Final

from pyspark.sql.datasource import InputPartition

from broker.trace import Damage, TraceFormatError, TraceHeader, parse_event, read_items
from broker.trace.events import MAX_INTEGER, brief
from broker.trace.format import (
    F_APPEND,
    F_COMMIT_OFFSET,
    F_FETCH_OFFSET,
    F_HEAD,
    F_READ,
    F_TAIL,
    FAIL,
    FIRST_FOREIGN_KIND,
    FUNCTION_NAMES,
    INFO,
    INVOKE,
    OK,
)
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import Row
from spark_analysis.importing.lines import UNREAD
from spark_analysis.importing.moments import Period

FILE_SHIFT: Final = 40
"""Places and operation numbers begin at 0 in every file; its own number in the upper bits makes them a history's."""
LOST_BETWEEN: Final = 2
"""Two missing records are enough for an operation's completion and another invocation under its number."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The way from a file's times to the history's, and the times of the file that can be true.

    ``widen_ns`` is the error of ``shift_ns``, by which operations begin earlier and end later.
    """

    shift_ns: int = 0
    widen_ns: int = 0
    period: Period = Period()  # noqa: RUF009 - frozen


@dataclass
class TraceSplit(InputPartition):
    """A range of one file. ``problem`` is the reason why nothing of the file can be used."""

    file: str
    number: int
    start: int
    stop: int
    axis: Axis
    problem: str | None

    def __init__(
        self, file: str, number: int, start: int, stop: int, axis: Axis, problem: str | None = None
    ) -> None:
        super().__init__(None)
        self.file, self.number, self.start, self.stop = file, number, start, stop
        self.axis, self.problem = axis, problem


_NO_EVENT: Final = (None,) * len(schema.EVENT_COLUMNS)
_NO_OPERATION: Final = (None,) * len(schema.OPERATION_COLUMNS)


def read_rows(split: TraceSplit) -> Iterator[Row]:
    """The rows of one split, in the order of schema.RECORDS."""
    if split.problem is not None:
        yield _damage_row(Damage(split.file, 0, split.problem, unread=True))
        return
    with Path(split.file).open("rb") as stream:
        yield from rows_in(stream, split)


def rows_in(stream: IO[bytes], split: TraceSplit) -> Iterator[Row]:
    """The rows of one split of a trace that can be used, read from ``stream``."""
    rows = RowMaker(split)
    items = read_items(stream, split.file, start=split.start, stop=split.stop)
    while True:
        try:
            position, item = next(items)
        except StopIteration:
            break
        except TraceFormatError as error:
            is_empty = not stream.seek(0, SEEK_END)  # its recorder was killed before it wrote anything
            reason = str(error).removeprefix(f"{split.file}: ")
            yield _damage_row(Damage(split.file, 0, reason, unread=not is_empty))
            return
        yield from rows.of(position, item)
    yield from rows.open_halves()


class RowMaker:
    """The rows of a split, made item by item."""

    def __init__(self, split: TraceSplit) -> None:
        axis = split.axis
        self.recorder = ""
        self._of_event: Row = _NO_OPERATION  # but for the group of a replica
        self.lost = 0  # how many records may have been in what could not be read
        self._file, self._base = split.file, split.number << FILE_SHIFT
        self._shift, self._period = axis.shift_ns, axis.period
        self._before, self._after = axis.shift_ns - axis.widen_ns, axis.shift_ns + axis.widen_ns
        self._open: dict[int, tuple[int, list[Any], int]] = {}  # with what had been lost before
        self._given_up: set[int] = set()
        self._latest_ns = (axis.period.low_ns + axis.period.high_ns) // 2

    def of(self, position: int, item: TraceHeader | list[Any] | Damage) -> Sequence[Row]:
        """The rows that are finished with this item of the trace."""
        if type(item) is list:
            return self._of_record(position, item)
        if isinstance(item, TraceHeader):
            self.recorder = item.process
            group = dict(item.attributes).get("group") if item.source == "replica" else None
            self._of_event = tuple(group if name == "group" else None for name in schema.OPERATION_NAMES)
            return ()
        assert isinstance(item, Damage)
        self.lost += 0 if item.cut else LOST_BETWEEN
        return (_damage_row(item),)

    def give_up(self, before_ns: int) -> list[Row]:
        """Return the operations that were invoked before ``before_ns`` and are still open, as ones of unknown outcome;
        each is given up once. Should it complete after all, its row follows under the same identity."""
        waited = [
            begun
            for begun in self._open.values()
            if begun[0] not in self._given_up and begun[1][1] + self._before < before_ns
        ]
        self._given_up.update(begun[0] for begun in waited)
        return [self._unknown(begun, _GIVEN_UP) for begun in waited]

    def oldest_open_ns(self) -> int | None:
        """The invocation of the first of the operations that are open and not given up; None if there is none."""
        times = (item[1] for place, item, _ in self._open.values() if place not in self._given_up)
        oldest = min(times, default=None)
        return None if oldest is None else oldest + self._before

    def _of_record(self, position: int, item: list[Any]) -> Sequence[Row]:
        kind, period = item[0], self._period
        if kind == INVOKE:
            if _is_plain_invocation(item, period) or (problem := _complaint(item, period)) is None:
                number = item[2]
                earlier = self._open.pop(number, None)
                self._open[number] = (position, item, self.lost)
                if earlier is None:
                    return ()
                problem = (
                    f"operation {number} is invoked again; what was open under this number was never answered"
                )
                return self._unknown(earlier, _USED_AGAIN), self._damage(position, problem)
            closed = self._open.pop(item[2], None) if _has_number(item) else None
            if closed is not None:
                return self._unknown(closed, _USED_AGAIN), self._damage(position, problem)
            self.lost += not _has_number(item)
            return (self._damage(position, problem),)
        if kind in (OK, FAIL, INFO):
            problem = None if _is_plain_answer(item, period) else _complaint(item, period)
            if problem is not None:
                self.lost += not _has_number(item)
                return (self._damage(position, problem),)
            begun = self._open.pop(item[2], None)
            if begun is None:
                # Its invocation is in an earlier part, or in what could not be read.
                return (self._completion_half(position, item),) if self.lost < LOST_BETWEEN else ()
            problem = _misfit(begun[1], item)
            if problem is None and self.lost - begun[2] >= LOST_BETWEEN:
                problem = (
                    f"operation {item[2]} completes, or another one with its number that could not be read"
                )
            if problem is None:
                return (self._operation(begun[0], begun[1], item),)
            return self._unknown(begun, _NOT_READ), self._damage(position, problem)
        if kind >= FIRST_FOREIGN_KIND:
            return ()
        problem = _shape_problem(item)
        if problem is not None:
            self.lost += 1
            return (self._damage(position, problem),)
        problem = period.complaint(item[1])
        if problem is None:
            self._latest_ns = item[1]
            return (self._event(position, item),)
        # When an event happened is said by its place in the file, too.
        return self._event(position, item), self._damage(
            position, f"{problem}; the record is taken without it"
        )

    def open_halves(self) -> Iterator[Row]:
        """The invocations whose completion is not in this split."""
        for begun in self._open.values():
            position, item, lost = begun
            in_doubt = self.lost - lost >= LOST_BETWEEN
            yield self._unknown(begun, _NOT_READ) if in_doubt else self._operation(position, item, None)

    def _unknown(self, begun: tuple[int, list[Any], int], reason: str) -> Row:
        """The row of an invocation whose completion is not known and need not be looked for."""
        position, item, _ = begun
        return self._operation(position, item, [INFO, item[1], item[2], reason])

    def _damage(self, position: int, problem: str) -> Row:
        return _damage_row(Damage(self._file, position, problem))

    def _event(self, position: int, item: list[Any]) -> Row:
        at_ns = self._latest_ns + self._shift
        return ("event", self._file, position, *self._of_event, *_event(self.recorder, at_ns, item))

    def _operation(self, position: int, begun: list[Any], ended: list[Any] | None) -> Row:
        """A finished row, or an ``invocation`` half without ``ended``."""
        _, time_ns, operation, client, function, key, argument, group = begun
        offset = first_offset = offsets = values = next_offset = end_offset = reason = None
        filtered = False
        if function == F_APPEND:
            values = argument
        elif function == F_READ:
            offset, filtered = argument
        else:
            offset = argument
        record, op = "operation", self._base + position
        outcome: str | None = "info"
        complete_ns: int | None = None
        # A half has the operation's number as its op: with it, the other half is found.
        if ended is None:
            record, op, outcome = "invocation", self._base + operation, None
        elif ended[0] == OK:
            outcome, complete_ns = "ok", ended[1] + self._after
            result = ended[3]
            key = ended[4] or key
            if function == F_READ:
                next_offset, first_offset, offsets, values, end_offset = _seen(result)
            elif function == F_APPEND:
                first_offset = result
            elif result is not None:
                offset = result
        else:
            reason = ended[3]
            if ended[0] == FAIL:
                outcome, complete_ns = "fail", ended[1] + self._after
        return (
            *(
                record,
                self._file,
                position,
                op,
                client,
                FUNCTION_NAMES[function],
                key,
                group,
            ),
            *(outcome, time_ns + self._before, complete_ns),
            *(offset, filtered, first_offset, offsets, values, next_offset, end_offset, reason),
            *(self.recorder, *_NO_EVENT[1:]),
        )

    def _completion_half(self, position: int, ended: list[Any]) -> Row:
        offset = first_offset = offsets = values = next_offset = end_offset = reason = key = complete_ns = (
            None
        )
        outcome = {OK: "ok", FAIL: "fail", INFO: "info"}[ended[0]]
        # An unknown outcome has no end: the operation may take effect at any time, also after it was given up.
        if outcome != "info":
            complete_ns = ended[1] + self._after
        if outcome == "ok":
            # An append whose queue is the broker's choice has its key from here (docs/trace-format.md).
            result, key = ended[3], ended[4]
            if type(result) is list:
                next_offset, first_offset, offsets, values, end_offset = _seen(result)
            else:
                offset = result
        else:
            reason = ended[3]
        return (
            *(
                "completion",
                self._file,
                position,
                self._base + ended[2],
                None,
                None,
                key,
                None,
                outcome,
                None,
            ),
            *(complete_ns, offset, None, first_offset, offsets, values, next_offset, end_offset, reason),
            *_NO_EVENT,
        )


_USED_AGAIN: Final = "its number was used again"
_GIVEN_UP: Final = "nobody has answered it for long"
_NOT_READ: Final = "its completion is in, or behind, what could not be read"


def _has_number(item: list[Any]) -> bool:
    """True if an invocation or completion at least states its operation's number."""
    return len(item) > 2 and type(item[2]) is int


def _is_plain_invocation(item: list[Any], period: Period) -> bool:
    """The cheap check of the most frequent records; whatever it does not accept gets the full one."""
    if len(item) != 8:
        return False
    _, time_ns, operation, client, function, key, argument, group = item
    return (
        type(time_ns) is int
        and period.low_ns <= time_ns <= period.high_ns
        and type(operation) is int
        and 0 <= operation < 1 << FILE_SHIFT
        and type(client) is str
        and type(function) is int  # to `==` true is 1, too
        and type(key) is str
        and group is None
        and (
            (
                function == F_APPEND
                and type(argument) is list
                and len(argument) == 1
                and type(argument[0]) is str
            )
            or (
                function == F_READ
                and type(argument) is list
                and len(argument) == 2
                and _is_plain_number(argument[0])
                and type(argument[1]) is bool
            )
            or (function == F_TAIL and argument is None)
        )
    )


def _is_plain_answer(item: list[Any], period: Period) -> bool:
    """The cheap check of the most frequent completions; whatever it does not accept gets the full one."""
    if item[0] != OK or len(item) != 5:
        return False
    _, time_ns, operation, result, key = item
    return (
        type(time_ns) is int
        and period.low_ns <= time_ns <= period.high_ns
        and type(operation) is int
        and 0 <= operation < 1 << FILE_SHIFT
        and key is None
        and (
            _is_plain_number(result)
            or (
                type(result) is list
                and len(result) == 4
                and _is_plain_number(result[0])
                and _is_plain_number(result[1])
                and type(result[2]) is list
                and all(type(value) is str for value in result[2])
                and result[3] is None
            )
        )
    )


def _is_plain_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER


def _shape_problem(item: list[Any]) -> str | None:
    try:
        parse_event(item)
    except TraceFormatError as error:
        return str(error)
    return None


def _complaint(item: list[Any], period: Period) -> str | None:
    """Say what is wrong with an invocation or a completion by itself; None if nothing is."""
    try:
        parse_event(item)
    except TraceFormatError as error:
        return str(error)
    if not period.low_ns <= item[1] <= period.high_ns:
        return period.complaint(item[1])
    if item[2] >= 1 << FILE_SHIFT:
        return f"operation id {item[2]} is too large; allowed are 0 to {(1 << FILE_SHIFT) - 1}"
    return None


_RESULTS: Final[dict[int, tuple[type, ...]]] = {
    F_APPEND: (int,),
    F_READ: (list,),
    F_TAIL: (int,),
    F_HEAD: (int,),
    F_COMMIT_OFFSET: (type(None),),
    F_FETCH_OFFSET: (int, type(None)),
}


def _misfit(begun: list[Any], ended: list[Any]) -> str | None:
    """Say why a completion cannot be that of its invocation; None if it can."""
    if ended[1] < begun[1]:
        return f"operation {ended[2]} completes at time {ended[1]}, before its invocation at {begun[1]}"
    if ended[0] == OK and type(ended[3]) not in _RESULTS[begun[4]]:
        return f"{FUNCTION_NAMES[begun[4]]} completes with the result {brief(ended[3])}"
    if ended[0] == OK and (ended[4] or begun[5]).endswith("/"):
        return f"{FUNCTION_NAMES[begun[4]]} completes without saying in which queue of {begun[5]}"
    return None


def _seen(result: list[Any]) -> tuple[int, int | None, list[int] | None, list[str], int | None]:
    """next_offset, first_offset, offsets (None if contiguous), values, end_offset of a read's result."""
    next_offset, offsets, values, end_offset = result
    if not values:
        return next_offset, None, None, values, end_offset
    if type(offsets) is int:
        return next_offset, offsets, None, values, end_offset
    first = offsets[0]
    contiguous = all(offset == first + index for index, offset in enumerate(offsets))
    return next_offset, first, None if contiguous else offsets, values, end_offset


# Where each element of an event record goes: names of schema.EVENT_COLUMNS.
_EVENT_FIELDS: Final = {
    16: ("start", "term", "last_index", "commit_index"),
    17: ("stop",),
    18: ("role", "role", "term", "leader", "last_index", "last_term"),
    19: ("append", "first_index", "last_index", "term", "digest"),
    20: ("truncate", "last_index"),
    21: ("commit", "last_index", "term"),
    22: ("digest", "last_index", "digest"),
    23: ("reset", "first_index"),
    24: ("dispatch", "last_index"),
    32: ("fault", "detail", "targets", "detail"),
    33: ("note", "detail"),
}
_EVENT_PLACE: Final = {name: place for place, name in enumerate(schema.EVENT_NAMES)}


def _event(node: str, time_ns: int, item: list[Any]) -> Row:
    kind, *fields = _EVENT_FIELDS[item[0]]
    row: list[Any] = list(_NO_EVENT)
    row[_EVENT_PLACE["node"]], row[_EVENT_PLACE["kind"]] = node, kind
    row[_EVENT_PLACE["time_ns"]] = time_ns
    for name, value in zip(fields, item[2:], strict=True):
        row[_EVENT_PLACE[name]] = value
    if kind == "fault":
        row[_EVENT_PLACE["detail"]] = f"{item[2]}: {item[4]}" if item[4] else item[2]
    return tuple(row)


def _damage_row(damage: Damage) -> Row:
    row: list[Any] = list(_NO_EVENT)
    row[_EVENT_PLACE["kind"]] = "cut" if damage.cut else UNREAD if damage.unread else "bad"
    row[_EVENT_PLACE["detail"]] = damage.reason
    return ("damage", damage.name, damage.offset, *_NO_OPERATION, *row)
