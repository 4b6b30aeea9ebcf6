"""Rows as Arrow tables, with the columns that a DDL of Spark names: tasks return these to Spark."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final

import pyarrow as pa

Row = tuple[Any, ...]

BATCH_ROWS: Final = 8192
ARROW_TYPES: Final = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "STRING": pa.string(),
    "BOOLEAN": pa.bool_(),
    "BINARY": pa.binary(),
    "ARRAY<BIGINT>": pa.list_(pa.int64()),
    "ARRAY<STRING>": pa.list_(pa.string()),
}


@cache
def _schema(ddl: str) -> pa.Schema:
    columns = (column.split() for column in ddl.split(", "))
    return pa.schema([(name.strip("`"), ARROW_TYPES[kind]) for name, kind in columns])


def arrow_table(rows: Sequence[Row], ddl: str) -> pa.Table:
    """The rows, of which there may be none, as a table with the columns of ``ddl``."""
    schema = _schema(ddl)
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def arrow_batches(rows: Iterable[Row], ddl: str) -> Iterator[pa.RecordBatch]:
    """The rows in batches with the columns of ``ddl``."""
    left = iter(rows)
    while batch := list(islice(left, BATCH_ROWS)):
        yield from arrow_table(batch, ddl).to_batches()
