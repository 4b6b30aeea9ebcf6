"""JSON lines of the log model: any system's appends, reads and tails, for the exact checker (docs/importing.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_analysis import schema
from spark_analysis.importers import BadLine, Line, paired, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load_json_lines(spark: SparkSession, path: str, directory: Path | str) -> tuple[DataFrame, DataFrame]:
    """Operations (schema.OPERATIONS) and damage of a JSON lines history for the log model, kept as Parquet."""
    from pyspark.sql import functions as sf

    files = spark.createDataFrame([(path,)], "path STRING")
    columns = schema.OPERATIONS + ", bad STRING, number BIGINT"

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(0).to_pylist():
                yield from _read_log_lines(name)

    files.mapInArrow(read, columns).write.mode("overwrite").parquet(f"{directory}/operations")
    rows = spark.read.schema(columns).parquet(f"{directory}/operations")
    damage = rows.where("bad IS NOT NULL").select(
        sf.lit(path).alias("file"),
        sf.col("number").alias("position"),
        sf.lit("line").alias("kind"),
        sf.col("bad").alias("reason"),
    )
    return rows.where("bad IS NULL").select(*schema.OPERATION_NAMES), damage


def _read_log_lines(path: str) -> Iterator[pa.RecordBatch]:
    arrow = {"BIGINT": pa.int64(), "STRING": pa.string(), "BOOLEAN": pa.bool_()}
    arrow |= {"ARRAY<BIGINT>": pa.list_(pa.int64()), "ARRAY<STRING>": pa.list_(pa.string())}
    kinds = [arrow[kind] for _, kind, _ in schema.OPERATION_COLUMNS] + [pa.string(), pa.int64()]
    names = [*schema.OPERATION_NAMES, "bad", "number"]
    rows: list[tuple[Any, ...]] = []

    def batch() -> pa.RecordBatch:
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    with Path(path).open(encoding="utf-8", errors="replace") as text:
        for row in log_operations(parse("jsonl", text)):
            if isinstance(row, BadLine):
                rows.append((*[None] * len(schema.OPERATION_NAMES), row.reason, row.number))
            else:
                rows.append((*row, None, None))
            if len(rows) >= 8192:
                yield batch()
                rows = []
    if rows:
        yield batch()


def log_operations(lines: Iterator[Line | BadLine]) -> Iterator[tuple[Any, ...] | BadLine]:
    """Rows of schema.OPERATIONS from JSON lines; see docs/importing.md for the values of each function."""
    number = 0
    for operation in paired(lines):
        if isinstance(operation, BadLine):
            yield operation
            continue
        yield _log_row(number, *operation)
        number += 1


def _log_row(number: int, begun: Line, ended: Line | None) -> tuple[Any, ...] | BadLine:
    outcome = "info" if ended is None else ended.kind
    key = (ended.key if ended is not None else "") or begun.key
    row: dict[str, Any] = dict.fromkeys(schema.OPERATION_NAMES)
    row |= {"op": number, "client": begun.process, "function": begun.function, "key": key, "outcome": outcome}
    row |= {"group": begun.group, "invoke_ns": begun.time_ns, "filtered": False}
    row["complete_ns"] = ended.time_ns if ended is not None and outcome != "info" else None
    asked, told = begun.value, ended.value if ended is not None and outcome == "ok" else None
    try:
        _FILLERS[begun.function](row, asked, told, outcome == "ok")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        return BadLine(begun.number, f"{begun.function} with {asked!r:.60} -> {told!r:.60}: {error!r}")
    return tuple(row.values())


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no offset")
    return value


def _fill_append(row: dict[str, Any], asked: Any, told: Any, is_ok: bool) -> None:
    row["values"] = [str(value) for value in (asked if isinstance(asked, list) else [asked])]
    if is_ok:
        row["first_offset"] = _integer(told)


def _fill_read(row: dict[str, Any], asked: Any, told: Any, is_ok: bool) -> None:
    row["offset"] = _integer(asked)
    if is_ok:
        pairs = [(_integer(offset), str(value)) for offset, value in told]
        offsets = [offset for offset, _ in pairs]
        row["values"] = [value for _, value in pairs]
        row["first_offset"] = offsets[0] if offsets else None
        row["next_offset"] = offsets[-1] + 1 if offsets else asked
        if any(offset != offsets[0] + index for index, offset in enumerate(offsets)):
            row["offsets"] = offsets


def _fill_statement(row: dict[str, Any], _asked: Any, told: Any, is_ok: bool) -> None:
    row["offset"] = _integer(told) if is_ok else None


def _fill_commit(row: dict[str, Any], asked: Any, _told: Any, _is_ok: bool) -> None:
    row["offset"] = _integer(asked)
    row["group"] = row["group"] or ""


def _fill_fetch(row: dict[str, Any], _asked: Any, told: Any, is_ok: bool) -> None:
    row["offset"] = _integer(told) if is_ok and told is not None else None
    row["group"] = row["group"] or ""


_FILLERS: Final[dict[str, Callable[[dict[str, Any], Any, Any, bool], None]]] = {
    "append": _fill_append,
    "read": _fill_read,
    "tail": _fill_statement,
    "head": _fill_statement,
    "commit_offset": _fill_commit,
    "fetch_offset": _fill_fetch,
}
