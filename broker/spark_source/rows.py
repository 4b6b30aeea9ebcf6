"""Messages as Arrow, column by column; a column that was not asked for is never decoded.

The types are those to which Spark itself converts the schema, since Spark compares them field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.client.message import MessageView
from broker.remoting import property_names
from broker.spark_source.common_options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "topic": "string",
    "broker": "string",
    "queue": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "born_timestamp": "timestamp",
    "tags": "string",
    "keys": "array<string>",
    "body": "binary",
    "properties": "map<string,string>",
    "message_id": "string",
}
"""The schema (docs/spark.md): column to Spark type."""
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

_Filler = Callable[[Sequence[MessageView]], list[Any]]

_FROM_FIELDS: Final[dict[str, _Filler]] = {
    "topic": lambda messages: [message.queue.topic for message in messages],
    "broker": lambda messages: [message.queue.broker_name for message in messages],
    "queue": lambda messages: [message.queue.queue_id for message in messages],
    "offset": lambda messages: [message.head.queue_offset for message in messages],
    "timestamp": lambda messages: [message.head.store_timestamp * 1000 for message in messages],
    "born_timestamp": lambda messages: [message.head.born_timestamp * 1000 for message in messages],
    "tags": lambda messages: [message.tags for message in messages],
    "keys": lambda messages: [message.keys for message in messages],
    "body": lambda messages: [message.body for message in messages],
    "message_id": lambda messages: [message.message_id for message in messages],
}
# Where all properties are decoded anyway, a look into their dict is cheaper than a search in the bytes.
_FROM_PROPERTIES: Final[dict[str, _Filler]] = {
    "tags": lambda messages: [message.properties.get(property_names.TAGS) for message in messages],
    "keys": lambda messages: [
        message.properties.get(property_names.KEYS, "").split() for message in messages
    ],
    "properties": lambda messages: [list(message.properties.items()) for message in messages],
    "message_id": lambda messages: [
        message.properties.get(property_names.UNIQ_KEY) or message.offset_message_id for message in messages
    ],
}


def check_columns(schema: StructType) -> None:
    """Check the user's schema. Raises OptionError for columns that do not exist or have other types."""
    for field in schema.fields:
        if COLUMNS.get(field.name) != field.dataType.simpleString():
            raise OptionError(f"schema: {field.simpleString()} is no column; columns are {SCHEMA}")


def to_batch(messages: Sequence[MessageView], schema: pa.Schema) -> pa.RecordBatch:
    """Return the messages as a batch with the schema's columns. Raises DamagedMessage for a body that is damaged."""
    fillers = _FROM_FIELDS | _FROM_PROPERTIES if "properties" in schema.names else _FROM_FIELDS
    arrays = [pa.array(fillers[field.name](messages), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
