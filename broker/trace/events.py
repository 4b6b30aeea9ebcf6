"""The events of a trace as frozen objects, and the strict check of each record that is read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from broker.trace.format import (
    APPEND,
    COMMIT,
    DIGEST,
    DISPATCH,
    F_APPEND,
    F_COMMIT_OFFSET,
    F_FETCH_OFFSET,
    F_READ,
    FAIL,
    FAULT,
    FIRST_FOREIGN_KIND,
    FUNCTION_NAMES,
    INFO,
    INVOKE,
    NOTE,
    OK,
    RESET,
    ROLE,
    START,
    STOP,
    TRUNCATE,
    TraceFormatError,
)


@dataclass(frozen=True, slots=True)
class Invoke:
    """An operation began.

    ``argument``: values (append), (offset, filtered) (read), offset (commit_offset), else None.
    """

    time_ns: int
    operation: int
    process: str
    function: str
    key: str
    argument: tuple[str, ...] | tuple[int, bool] | int | None
    group: str | None


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of a read: ``values[i]`` at ``offsets[i]``; see :meth:`TraceWriter.ok_read`."""

    next_offset: int
    offsets: tuple[int, ...]
    values: tuple[str, ...]
    end: int | None


@dataclass(frozen=True, slots=True)
class Ok:
    """An operation completed with ``result`` (offset, :class:`ReadResult` or None).

    ``key`` is given if it was known only now.
    """

    time_ns: int
    operation: int
    result: int | ReadResult | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """An operation certainly had no effect."""

    time_ns: int
    operation: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class Info:
    """An operation's outcome is unknown."""

    time_ns: int
    operation: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """See :meth:`TraceWriter.start`."""

    time_ns: int
    term: int
    last_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class NodeStopped:
    """See :meth:`TraceWriter.stop`."""

    time_ns: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """See :meth:`TraceWriter.role`."""

    time_ns: int
    role: str
    term: int
    leader: str | None
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class EntriesAppended:
    """See :meth:`TraceWriter.append`."""

    time_ns: int
    first_index: int
    last_index: int
    term: int
    digest: int | None


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """See :meth:`TraceWriter.truncate`."""

    time_ns: int
    last_index: int


@dataclass(frozen=True, slots=True)
class CommitAdvanced:
    """See :meth:`TraceWriter.commit`."""

    time_ns: int
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class PrefixDigest:
    """See :meth:`TraceWriter.digest`."""

    time_ns: int
    index: int
    digest: int


@dataclass(frozen=True, slots=True)
class LogReset:
    """See :meth:`TraceWriter.reset`."""

    time_ns: int
    first_index: int


@dataclass(frozen=True, slots=True)
class Dispatched:
    """See :meth:`TraceWriter.dispatch`."""

    time_ns: int
    index: int


@dataclass(frozen=True, slots=True)
class Fault:
    """See :meth:`TraceWriter.fault`."""

    time_ns: int
    name: str
    targets: tuple[str, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class Note:
    """See :meth:`TraceWriter.note`."""

    time_ns: int
    text: str


# Other languages read these into signed 64-bit integers, and the sum of two must fit these too.
# Times may be negative: a clock's zero is arbitrary.
MAX_INTEGER: Final = 2**62
MIN_TIME_NS: Final = -(2**62)

ClientEvent = Invoke | Ok | Fail | Info
ReplicaEvent = (
    NodeStarted
    | NodeStopped
    | RoleChanged
    | EntriesAppended
    | LogTruncated
    | CommitAdvanced
    | PrefixDigest
    | LogReset
    | Dispatched
)
TraceEvent = ClientEvent | ReplicaEvent | Fault | Note


@dataclass(frozen=True, slots=True)
class Damage:
    """A place where a trace could not be read.

    ``cut``: the file ends inside a record, as after a crash of the recorder. ``unread``: nothing behind it was read.
    """

    name: str
    offset: int
    reason: str
    cut: bool = False
    unread: bool = False

    def __str__(self) -> str:
        return f"{self.name}: byte {self.offset}: {self.reason}"


def brief(value: object, characters: int = 60) -> str:
    """Returns the beginning of a value's text, for complaints about it. It never fails, whatever the value is."""
    try:
        return repr(value)[:characters]
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in thousands of lists
        return f"a huge {type(value).__name__}"


def parse_event(record: Sequence[Any]) -> TraceEvent | None:
    """Returns the event that a decoded record states, None if its kind is somebody else's.

    Raises :class:`TraceFormatError`.
    """
    kind = record[0]
    if kind >= FIRST_FOREIGN_KIND:
        return None
    shape = _SHAPES.get(kind)
    if shape is None:
        raise TraceFormatError(f"unknown record kind {brief(kind)}")
    if len(record) != len(shape.types) + 1:
        raise TraceFormatError(f"record kind {kind} has {len(record)} elements, not {len(shape.types) + 1}")
    values = list(record[1:])
    minimum = -1 if START <= kind < FAULT else 0  # a replica's log may be empty: index -1
    for position, (allowed, value) in enumerate(zip(shape.types, values, strict=True), 1):
        if type(value) not in allowed:
            raise TraceFormatError(f"record kind {kind}: element {position} is {brief(value)}")
        least = MIN_TIME_NS if position == 1 else minimum
        if type(value) is int and not least <= value <= MAX_INTEGER:
            raise TraceFormatError(
                f"record kind {kind}: element {position} is {brief(value)}; allowed are {least} to {MAX_INTEGER}"
            )
    if kind == INVOKE:
        values[3], values[5] = _function_and_argument(values[3], values[5], values[6])
    elif kind == OK and type(values[2]) is list:
        values[2] = _read_result(values[2])
    elif kind == FAULT:
        values[2] = _texts(values[2])
    event: TraceEvent = shape.event(*values)
    return event


@dataclass(frozen=True, slots=True)
class _Shape:
    event: Callable[..., TraceEvent]
    types: tuple[tuple[type, ...], ...]


_INT, _TEXT, _LIST = (int,), (str,), (list,)
_OPTIONAL_TEXT: tuple[type, ...] = (str, type(None))
_OPTIONAL_INT: tuple[type, ...] = (int, type(None))
_SHAPES: Final[dict[int, _Shape]] = {
    INVOKE: _Shape(Invoke, (_INT, _INT, _TEXT, _INT, _TEXT, (int, list, type(None)), _OPTIONAL_TEXT)),
    OK: _Shape(Ok, (_INT, _INT, (int, list, type(None)), _OPTIONAL_TEXT)),
    FAIL: _Shape(Fail, (_INT, _INT, _OPTIONAL_TEXT)),
    INFO: _Shape(Info, (_INT, _INT, _OPTIONAL_TEXT)),
    START: _Shape(NodeStarted, (_INT, _INT, _INT, _INT)),
    STOP: _Shape(NodeStopped, (_INT,)),
    ROLE: _Shape(RoleChanged, (_INT, _TEXT, _INT, _OPTIONAL_TEXT, _INT, _INT)),
    APPEND: _Shape(EntriesAppended, (_INT, _INT, _INT, _INT, _OPTIONAL_INT)),
    TRUNCATE: _Shape(LogTruncated, (_INT, _INT)),
    COMMIT: _Shape(CommitAdvanced, (_INT, _INT, _INT)),
    DIGEST: _Shape(PrefixDigest, (_INT, _INT, _INT)),
    RESET: _Shape(LogReset, (_INT, _INT)),
    DISPATCH: _Shape(Dispatched, (_INT, _INT)),
    FAULT: _Shape(Fault, (_INT, _TEXT, _LIST, _TEXT)),
    NOTE: _Shape(Note, (_INT, _TEXT)),
}


def _function_and_argument(function: int, argument: Any, group: str | None) -> tuple[str, Any]:
    name = FUNCTION_NAMES.get(function)
    if name is None:
        raise TraceFormatError(f"unknown function {brief(function)}")
    if function == F_APPEND:
        argument = _texts(argument)
        if not argument:
            raise TraceFormatError("an append of no values")
    elif function == F_READ:
        if (
            type(argument) is not list
            or [type(part) for part in argument] != [int, bool]
            or not 0 <= argument[0] <= MAX_INTEGER
        ):
            raise TraceFormatError(f"a read's argument is {brief(argument)}, not [offset, filtered]")
        argument = tuple(argument)
    elif function == F_COMMIT_OFFSET:
        if type(argument) is not int:
            raise TraceFormatError(f"a committed offset is {brief(argument)}")
    elif argument is not None:
        raise TraceFormatError(f"{name} takes no argument, not {brief(argument)}")
    # Consumer groups have offsets and nothing else: a group beside another function says that the writer was wrong.
    if (function in (F_COMMIT_OFFSET, F_FETCH_OFFSET)) != (group is not None):
        raise TraceFormatError(f"{name} with group {brief(group)}")
    return name, argument


def _read_result(result: list[Any]) -> ReadResult:
    def wrong() -> NoReturn:
        raise TraceFormatError(f"a read's result is {brief(result, 100)}, not [next, offsets, values, end]")

    if len(result) != 4 or type(result[0]) is not int or type(result[3]) not in _OPTIONAL_INT:
        wrong()
    next_offset, offsets, values, end = result
    for number in (next_offset, end or 0, *(offsets if type(offsets) is list else [offsets])):
        if type(number) is not int or not 0 <= number <= MAX_INTEGER:
            wrong()
    texts = _texts(values)
    if type(offsets) is int:
        offsets = range(offsets, offsets + len(texts))
    elif (
        type(offsets) is not list
        or len(offsets) != len(texts)
        or any(type(one) is not int for one in offsets)
    ):
        wrong()
    return ReadResult(next_offset, tuple(offsets), texts, end)


def _texts(values: Any) -> tuple[str, ...]:
    if type(values) is not list or any(type(value) is not str for value in values):
        raise TraceFormatError(f"not a list of texts: {brief(values)}")
    return tuple(values)
