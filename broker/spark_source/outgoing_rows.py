"""Rows as messages: the columns that the sink takes, and what of a row makes it the same row when it comes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from broker.client.message import Message
from broker.spark_source.common_options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SINK_COLUMNS: Final = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "delay_level": ("int",),
    "deliver_at": ("timestamp",),
    "row_id": ("string",),
}
"""Column to the Spark types that it may have (docs/spark.md). All but `body` may be missing or null."""


class RowError(ValueError):
    """A row cannot be a message; the text says which one and why. The same row fails again."""


def check_sink_columns(schema: StructType, topic: str | None) -> None:
    """Check the columns that are to be written. Raises OptionError."""
    for column in schema.fields:
        kinds = SINK_COLUMNS.get(column.name)
        if kinds is None:
            known = ", ".join(SINK_COLUMNS)
            raise OptionError(f"column {column.name} is not one that the sink takes, which are {known}")
        if column.dataType.simpleString() not in kinds:
            raise OptionError(
                f"column {column.name} is {column.dataType.simpleString()}: {' or '.join(kinds)} is wanted"
            )
    names = schema.fieldNames()
    if "body" not in names:
        raise OptionError("there is no column body")
    if ("topic" in names) == (topic is not None):
        raise OptionError("give the option topic or a column topic, one of them")


def messages_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[Message, bytes]]:
    """Yield a message for each row, with its identity: its `row_id`, or else all of it. Raises RowError."""
    columns = {name: _values(batch.column(name)) for name in batch.schema.names}
    absent = [None] * batch.num_rows
    rows = zip(*(columns.get(name, absent) for name in SINK_COLUMNS), strict=True)
    for number, row in enumerate(rows):
        of_row, body, tags, keys, properties, delay_level, deliver_at_us, row_id = row
        to = topic if of_row is None else of_row
        if to is None or not body:
            what = "its topic is null" if to is None else "its body is null or empty"
            raise RowError(f"row {number} of those read together cannot be a message: {what}")
        if isinstance(keys, str):
            keys = keys.split()
        listed = sorted(properties or ())
        if any(value is None for _, value in listed) or None in (keys or ()):
            raise RowError(f"row {number} of those read together: a key or a property's value is null")
        message = Message(
            to,
            body.encode() if isinstance(body, str) else body,
            tags,
            keys or (),
            dict(listed),
            delay_level=delay_level or 0,
            deliver_at_ms=None if deliver_at_us is None else deliver_at_us // 1000,
        )
        yield message, _identity(row_id, (to, body, tags, keys, listed, delay_level, deliver_at_us))


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _identity(row_id: str | None, content: tuple[Any, ...]) -> bytes:
    return msgspec.msgpack.encode((0, row_id) if row_id is not None else (1, content))
