"""Messages as Arrow, column by column; a column that was not asked for is never decoded.

The types are those of Spark's own conversion of the schema, since Spark compares them field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.client.message import MessageView
from broker.spark_source.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "topic": "STRING",
    "broker": "STRING",
    "queue": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "born_timestamp": "TIMESTAMP",
    "tags": "STRING",
    "keys": "ARRAY<STRING>",
    "body": "BINARY",
    "properties": "MAP<STRING, STRING>",
    "message_id": "STRING",
}
"""The schema (docs/spark.md): column to Spark type."""
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

_FILLERS: Final[dict[str, Callable[[Sequence[MessageView]], list[Any]]]] = {
    "topic": lambda messages: [message.queue.topic for message in messages],
    "broker": lambda messages: [message.queue.broker_name for message in messages],
    "queue": lambda messages: [message.queue.queue_id for message in messages],
    "offset": lambda messages: [message.head.queue_offset for message in messages],
    "timestamp": lambda messages: [message.head.store_timestamp * 1000 for message in messages],
    "born_timestamp": lambda messages: [message.head.born_timestamp * 1000 for message in messages],
    "tags": lambda messages: [message.tags for message in messages],
    "keys": lambda messages: [message.keys for message in messages],
    "body": lambda messages: [message.body for message in messages],
    "properties": lambda messages: [list(message.properties.items()) for message in messages],
    "message_id": lambda messages: [message.message_id for message in messages],
}


def check_columns(schema: StructType) -> None:
    """Raises OptionError for a schema of the user's that has columns which do not exist, or with other types."""
    from pyspark.sql.types import _parse_datatype_string

    known = {field.name: field.dataType for field in _parse_datatype_string(SCHEMA).fields}  # type: ignore[attr-defined]
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            raise OptionError(f"schema: {field.simpleString()} is no column; columns are {SCHEMA}")


def to_batch(messages: Sequence[MessageView], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of the columns that the schema names. Raises DamagedMessage for a body that cannot be unpacked."""
    arrays = [pa.array(_FILLERS[field.name](messages), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
