"""``spark.read.format("trivet_trace")``: CBOR traces as one wide table (schema.RECORDS), decoded once, in
parallel.

Large files are split at their repeated headers. An operation whose invocation and completion fall into the
same split, that is nearly every one, leaves the reader as one finished row; the few others come as halves of
record type ``invocation`` and ``completion``, which :mod:`spark_analysis.history` joins. Times are brought to
one axis here: files of another clock than the first file's are shifted by their wall clocks and their
operations widened by the stated error.
"""

from __future__ import annotations

import errno
import glob
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broker.trace import Damage, TraceFormatError, TraceHeader, parse_event, read_items
from broker.trace.events import MAX_INTEGER
from broker.trace.format import FAIL, FUNCTION_NAMES, INFO, INVOKE, OK, TRACE_SUFFIX
from spark_analysis import schema

SPLIT_BYTES: Final = 32 << 20
BATCH_ROWS: Final = 8192
# Operation ids count from 0 in every file; the file's number in the upper bits makes them unique in the
# history.
FILE_SHIFT: Final = 40

Row = tuple[Any, ...]


def trace_files(path: str) -> list[str]:
    """The files of one history, absolute: a file itself, each ``*.trace`` of a directory, or of what a glob matches.

    Sorted. Absolute, because executors run in directories of their own. Raises FileNotFoundError if there is none.
    """
    matches = [path] if Path(path).exists() else sorted(glob.glob(path))  # noqa: PTH207 - a user's pattern
    places = [Path(match) for match in matches]
    found: list[str] = []
    for place in places:
        files = sorted(place.glob(f"*{TRACE_SUFFIX}")) if place.is_dir() else [place]
        found += [str(file.resolve()) for file in files]
    if not found:
        raise FileNotFoundError(
            errno.ENOENT, f"no trace file, and no directory or glob with *{TRACE_SUFFIX}", path
        )
    return list(dict.fromkeys(found))


@dataclass
class TraceSplit(InputPartition):
    """A range of one file, with what brings its times and operation ids to the history's."""

    file: str
    number: int
    start: int
    stop: int
    shift_ns: int
    widen_ns: int

    def __init__(self, file: str, number: int, start: int, stop: int, shift_ns: int, widen_ns: int) -> None:
        super().__init__(None)
        self.file, self.number, self.start, self.stop = file, number, start, stop
        self.shift_ns, self.widen_ns = shift_ns, widen_ns


class TraceDataSource(DataSource):
    """Options: ``path`` (from ``load``: a file, a directory of ``*.trace``, or a glob), ``splitBytes``."""

    @classmethod
    def name(cls) -> str:
        return "trivet_trace"

    def schema(self) -> str:
        return schema.RECORDS

    def reader(self, schema: StructType) -> DataSourceReader:
        return TraceReader(self.options)


class TraceReader(DataSourceReader):
    """Plans splits from file sizes and headers on the driver; decodes on the executors."""

    def __init__(self, options: Any) -> None:
        self._path: str = options["path"]
        self._split_bytes = int(options.get("splitBytes", SPLIT_BYTES))

    def partitions(self) -> list[InputPartition]:
        files = trace_files(self._path)
        headers: dict[str, TraceHeader | None] = {}
        for file in files:
            with Path(file).open("rb") as stream:
                try:
                    headers[file] = next(
                        item for _, item in read_items(stream, file) if isinstance(item, TraceHeader)
                    )
                except TraceFormatError:
                    headers[file] = None  # its reader reports it as damage
        zero_wall_ns: dict[str, int] = {}
        for header in headers.values():
            if header is not None:
                known = zero_wall_ns.get(header.clock, header.zero_wall_ns)
                zero_wall_ns[header.clock] = min(known, header.zero_wall_ns)
        reference = next(iter(zero_wall_ns), "")
        splits: list[InputPartition] = []
        for number, (file, header) in enumerate(headers.items()):
            shift_ns = widen_ns = 0
            if header is not None and header.clock != reference:
                shift_ns = zero_wall_ns[header.clock] - zero_wall_ns[reference]
                widen_ns = header.clock_error_ns
            size = max(1, Path(file).stat().st_size)
            for start in range(0, size, self._split_bytes):
                stop = min(size, start + self._split_bytes)
                splits.append(TraceSplit(file, number, start, stop, shift_ns, widen_ns))
        return splits

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TraceSplit)
        rows: list[Row] = []
        for row in read_rows(partition):
            rows.append(row)
            if len(rows) >= BATCH_ROWS:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)


_ARROW_TYPES: Final = {
    "BIGINT": pa.int64(),
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "ARRAY<STRING>": pa.list_(pa.string()),
}
_COLUMNS: Final = schema.RECORD_COLUMNS
_ARROW_SCHEMA: Final = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind, _ in _COLUMNS])


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, _ARROW_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


_NO_EVENT: Final = (None,) * len(schema.EVENT_COLUMNS)
_NO_OPERATION: Final = (None,) * len(schema.OPERATION_COLUMNS)


def read_rows(split: TraceSplit) -> Iterator[Row]:
    """The rows of one split, in the order of schema.RECORDS."""
    file, base = split.file, split.number << FILE_SHIFT
    shift, widen = split.shift_ns, split.widen_ns
    before, after = shift - widen, shift + widen
    open_operations: dict[int, tuple[int, list[Any]]] = {}
    node = ""
    with Path(file).open("rb") as stream:
        items = read_items(stream, file, start=split.start, stop=split.stop)
        while True:
            try:
                position, item = next(items)
            except StopIteration:
                break
            except TraceFormatError as error:
                yield _damage_row(Damage(file, 0, str(error).removeprefix(f"{file}: ")))
                return
            if type(item) is not list:
                if isinstance(item, TraceHeader):
                    node = item.process
                else:
                    assert isinstance(item, Damage)
                    yield _damage_row(item)
                continue
            kind = item[0]
            problem = None
            if kind == INVOKE:
                if _is_plain_invocation(item) or (problem := _complaint(item)) is None:
                    open_operations[item[2]] = (position, item)
                    continue
            elif kind in (OK, FAIL, INFO):
                if (problem := _complaint(item)) is None:
                    begun = open_operations.pop(item[2], None)
                    if begun is None:
                        yield _completion_half(file, position, base, after, item)
                    else:
                        yield _operation(file, begun[0], base, before, after, begun[1], item)
                    continue
            elif (problem := _complaint(item)) is None:
                event = parse_event(item)
                if event is not None:
                    yield ("event", file, position, *_NO_OPERATION, *_event(node, shift, item))
                continue
            yield _damage_row(Damage(file, position, problem))
    for position, item in open_operations.values():
        yield _operation(file, position, base, before, after, item, None)


def _is_plain_invocation(item: list[Any]) -> bool:
    """The cheap check of the most frequent records; whatever it does not accept gets the full one."""
    if len(item) != 8:
        return False
    _, time_ns, operation, client, function, key, argument, group = item
    return (
        type(time_ns) is int
        and 0 <= time_ns <= MAX_INTEGER
        and type(operation) is int
        and 0 <= operation < 1 << FILE_SHIFT
        and type(client) is str
        and type(key) is str
        and group is None
        and (
            (function == 1 and type(argument) is list and len(argument) == 1 and type(argument[0]) is str)
            or (function == 3 and argument is None)
        )
    )


def _complaint(item: list[Any]) -> str | None:
    try:
        parse_event(item)
    except TraceFormatError as error:
        return str(error)
    if item[0] in (INVOKE, OK, FAIL, INFO) and item[2] >= 1 << FILE_SHIFT:
        return f"operation id {item[2]} is too large"
    return None


def _operation(
    file: str, position: int, base: int, before: int, after: int, begun: list[Any], ended: list[Any] | None
) -> Row:
    """A finished row, or an ``invocation`` half if the completion is not in this split."""
    _, time_ns, operation, client, function, key, argument, group = begun
    offset = first_offset = offsets = values = next_offset = end_offset = reason = None
    filtered = False
    if function == 1:
        values = argument
    elif function == 2:
        offset, filtered = argument
    else:
        offset = argument
    record: str = "operation"
    outcome: str | None = "info"
    complete_ns: int | None = None
    if ended is None:
        record, outcome = "invocation", None
    elif ended[0] == OK:
        outcome, complete_ns = "ok", ended[1] + after
        result = ended[3]
        key = ended[4] or key
        if type(result) is list:
            next_offset, first_offset, offsets, values, end_offset = _seen(result)
        elif function == 1:
            first_offset = result
        elif result is not None:
            offset = result
    else:
        reason = ended[3]
        if ended[0] == FAIL:
            outcome, complete_ns = "fail", ended[1] + after
    name = FUNCTION_NAMES[function]
    return (
        *(
            record,
            file,
            position,
            base + operation,
            client,
            name,
            key,
            group,
            outcome,
            time_ns + before,
            complete_ns,
        ),
        *(offset, filtered, first_offset, offsets, values, next_offset, end_offset, reason),
        *_NO_EVENT,
    )


def _completion_half(file: str, position: int, base: int, after: int, ended: list[Any]) -> Row:
    offset = first_offset = offsets = values = next_offset = end_offset = reason = key = complete_ns = None
    outcome = {OK: "ok", FAIL: "fail", INFO: "info"}[ended[0]]
    if outcome != "info":
        complete_ns = ended[1] + after
    if outcome == "ok":
        result, key = ended[3], ended[4]
        if type(result) is list:
            next_offset, first_offset, offsets, values, end_offset = _seen(result)
        else:
            offset = result
    else:
        reason = ended[3]
    return (
        *("completion", file, position, base + ended[2], None, None, key, None, outcome, None, complete_ns),
        *(offset, None, first_offset, offsets, values, next_offset, end_offset, reason),
        *_NO_EVENT,
    )


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


def _event(node: str, shift: int, item: list[Any]) -> Row:
    kind, *fields = _EVENT_FIELDS[item[0]]
    row: list[Any] = list(_NO_EVENT)
    row[_EVENT_PLACE["node"]], row[_EVENT_PLACE["kind"]] = node, kind
    row[_EVENT_PLACE["time_ns"]] = item[1] + shift
    for name, value in zip(fields, item[2:], strict=True):
        row[_EVENT_PLACE[name]] = value
    if kind == "fault":
        row[_EVENT_PLACE["detail"]] = f"{item[2]}: {item[4]}" if item[4] else item[2]
    return tuple(row)


def _damage_row(damage: Damage) -> Row:
    row: list[Any] = list(_NO_EVENT)
    row[_EVENT_PLACE["kind"]] = "cut" if damage.cut else "bad"
    row[_EVENT_PLACE["detail"]] = damage.reason
    return ("damage", damage.name, damage.offset, *_NO_OPERATION, *row)
