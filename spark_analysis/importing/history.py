"""One history in Spark: its operations, what its replicas and drivers recorded, and where it could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_analysis.importing import schema
from spark_analysis.importing.storage import pattern_of
from spark_analysis.importing.trace_reader import TraceReader, read_batches
from spark_analysis.importing.trace_rows import FILE_SHIFT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_analysis.importing.trace_rows import TraceSplit


@dataclass(frozen=True)
class History:
    """One history.

    ``operations``: schema.OPERATIONS, of JSON lines also ``called`` (:mod:`.json_lines`); ``events``:
    schema.EVENT_TABLE; ``damage``: (file, position, kind, reason).
    ``recorders``: (client, recorder, invoke_ns) of each operation, None where the recording does not say which process
    recorded which client.
    """

    path: str
    operations: DataFrame
    events: DataFrame
    damage: DataFrame
    recorders: DataFrame | None = None

    def until(self, moment_ns: int) -> History:
        """The history up to a moment: what began later is left out, and what ended later has an unknown outcome."""
        from pyspark.sql import functions as sf

        is_open = sf.col("complete_ns").isNotNull() & (sf.col("complete_ns") > moment_ns)
        columns = {}
        for name, kind, _ in schema.OPERATION_COLUMNS:
            if name in schema.unanswered("append"):
                told = sf.lit("info") if name == "outcome" else sf.lit(None).cast(kind)
                columns[name] = sf.when(is_open, told).otherwise(sf.col(name))
        is_answer = is_open & (sf.col("function") != "append")
        columns["values"] = sf.when(is_answer, sf.lit(None)).otherwise(sf.col("values"))
        return replace(
            self, operations=self.operations.where(sf.col("invoke_ns") <= moment_ns).withColumns(columns)
        )


def load_trace(spark: SparkSession, path: str, directory: Path | str) -> History:
    """Decode the traces at ``path`` once into Parquet under ``directory`` and read the history from there.

    Parquet because every later stage reads a few columns, several times; ``directory`` must be reachable from all
    executors (any URL that Spark can write).
    """
    parquet = f"{directory}/records"
    records = trace_records(spark, TraceReader({"path": path}).partitions())
    records.write.mode("overwrite").partitionBy("record").parquet(parquet)
    return load_parquet(spark, path, parquet)


def read_trace(spark: SparkSession, path: str) -> History | None:
    """Decode the traces at ``path`` once, and keep the rows in memory; None if a file is read in several parts.

    Meant for traces so short that writing and reading files would cost more than all the rest.
    """
    from pyspark.sql import functions as sf

    parts = TraceReader({"path": path}).partitions()
    if len({part.file for part in parts}) < len(parts):
        return None
    records = trace_records(spark, parts).persist()
    # Where a file is one part, a half is an operation that nobody ever answered.
    operations = records.where("record in ('operation', 'invocation')")
    whole = operations.withColumns(
        {
            "outcome": sf.coalesce("outcome", sf.lit("info")),
            "op": sf.when(sf.col("record") == "invocation", _identity()).otherwise(sf.col("op")),
        }
    )
    return _history(path, records, whole.select(*schema.OPERATION_NAMES), _damage(records))


def trace_records(spark: SparkSession, parts: Sequence[TraceSplit]) -> DataFrame:
    """Read traces as ``spark.read.format("trivet_trace")`` does, but plan in this process, as Spark would start three
    Python processes for that."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_batches(parts[number])

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, schema.RECORDS)


def load_parquet(spark: SparkSession, path: str, parquet: str, joined: str | None = None) -> History:
    """A history from what :func:`load_trace` has written; halves of operations are joined once, into ``joined``."""

    records = spark.read.schema(schema.RECORDS).parquet(pattern_of(parquet))
    whole = records.where("record = 'operation'").select(*schema.OPERATION_NAMES)
    damage = _damage(records)
    halves = records.where("record in ('invocation', 'completion')")
    if halves.limit(1).count():
        unread = damage
        damage = damage.unionByName(doubtful_completions(halves, unread))
        joined = joined or f"{parquet}-joined"
        join_halves(halves, unread).write.mode("overwrite").parquet(joined)
        whole = whole.unionByName(spark.read.schema(schema.OPERATIONS).parquet(pattern_of(joined)))
    return _history(path, records, whole, damage)


def history_of(records: DataFrame) -> History:
    """A history from all rows of its traces (schema.RECORDS), as ``spark.read.format("trivet_trace")`` gives them.

    Nothing is kept: rows come anew, and halves of operations are joined anew, whenever the history is asked."""
    unread = _damage(records)
    halves = records.where("record in ('invocation', 'completion')")
    whole = records.where("record = 'operation'").select(*schema.OPERATION_NAMES)
    damage = unread.unionByName(doubtful_completions(halves, unread))
    return _history("", records, whole.unionByName(join_halves(halves, unread)), damage)


def keep_records(operations: DataFrame, damage: DataFrame, parquet: str) -> None:
    """Write the history of another format so that :func:`load_parquet` reads it."""
    from pyspark.sql import functions as sf

    whole = operations.select(*schema.OPERATION_NAMES).withColumn("record", sf.lit("operation"))
    bad = damage.withColumn("record", sf.lit("damage")).withColumnRenamed("reason", "detail")
    rows = no_records(operations.sparkSession)
    for one in (whole, bad):
        rows = rows.unionByName(one, allowMissingColumns=True)
    rows.write.mode("overwrite").partitionBy("record").parquet(parquet)


_PLACED: Final = ("file", "position")


def _damage(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    return records.where("record = 'damage'").select(*_PLACED, "kind", sf.col("detail").alias("reason"))


def _history(path: str, records: DataFrame, operations: DataFrame, damage: DataFrame) -> History:
    from pyspark.sql import functions as sf

    events = records.where("record = 'event'").select(*schema.EVENT_TABLE_NAMES)
    begun = records.where("record in ('operation', 'invocation')")
    recorders = begun.select("client", sf.col("node").alias("recorder"), "invoke_ns")
    return History(path, operations, events, damage, recorders)


def join_halves(halves: DataFrame, damage: DataFrame) -> DataFrame:
    """Join operations whose invocation and completion the reader met in different splits. One without completion has an
    unknown outcome.

    A completion belongs to the latest invocation before it with its number. A completion without an invocation states
    nothing that could be judged (its invocation was in damaged bytes), and neither does one that
    :func:`doubtful_completions` returns. ``damage``: (file, position, kind, reason) of what could not be read.
    """
    from pyspark.sql import functions as sf

    is_append = sf.col("begun.function") == "append"
    is_read = sf.col("begun.function") == "read"
    # Both halves have the same columns, and which of the two counts depends on the function (docs/trace-schema.md): a
    # read asks at an offset and is told values, an append brings values and is told the offset of the first one. An
    # assignment brings its keys as values.
    chosen = {
        "op": _identity("begun"),
        "key": sf.coalesce(sf.nullif(sf.col("ended.key"), sf.lit("")), "begun.key"),
        "outcome": sf.coalesce("ended.outcome", sf.lit("info")),
        "complete_ns": sf.col("ended.complete_ns"),
        "offset": sf.when(is_read, sf.col("begun.offset")).otherwise(
            sf.when(~is_append, sf.coalesce("ended.offset", "begun.offset"))
        ),
        "first_offset": sf.when(is_append, sf.col("ended.offset")).otherwise(sf.col("ended.first_offset")),
        "offsets": sf.col("ended.offsets"),
        "values": sf.coalesce("begun.values", "ended.values"),
        "next_offset": sf.col("ended.next_offset"),
        "end_offset": sf.col("ended.end_offset"),
        "reason": sf.col("ended.reason"),
    }
    fitting = _paired(halves, damage).withColumn("ended", sf.when(sf.col("doubt").isNull(), sf.col("ended")))
    return fitting.select(
        *(chosen.get(name, sf.col(f"begun.{name}")).alias(name) for name in schema.OPERATION_NAMES)
    )


def doubtful_completions(halves: DataFrame, damage: DataFrame) -> DataFrame:
    """The completions that :func:`join_halves` leaves out, as damage."""
    from pyspark.sql import functions as sf

    return (
        _paired(halves, damage)
        .where("doubt IS NOT NULL")
        .select("ended.file", "ended.position", sf.lit("bad").alias("kind"), sf.col("doubt").alias("reason"))
    )


_DAMAGE_RANGE_BITS: Final = 22
"""Damage is looked at in ranges of 4 MiB of a file, however much of it there is."""


def _paired(halves: DataFrame, damage: DataFrame) -> DataFrame:
    """Pair each invocation with the completion behind it: columns (begun, ended, doubt).

    Invocations and completions are the two halves of operations, and come in records of their own. ``ended`` is the
    next half in the file that has the number of the operation; null if that is another invocation, or if there is none.

    ``doubt`` says why ``ended`` may not be the completion of ``begun``; null where it is. Bytes that could not be read
    between the two may have held that completion, and the invocation of another operation under the same number.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    half = sf.struct("record", "file", "position", *schema.OPERATION_NAMES)
    in_file = Window.partitionBy("op").orderBy("position")
    pairs = (
        halves.select(half.alias("begun"), sf.lead(half).over(in_file).alias("next"))
        .where("begun.record = 'invocation'")
        .select("begun", sf.when(sf.col("next.record") == "completion", sf.col("next")).alias("ended"))
    )
    ranges = damage.groupBy("file", sf.shiftright("position", _DAMAGE_RANGE_BITS).alias("range")).agg(
        sf.min("position").alias("first"), sf.max("position").alias("last")
    )
    is_between = (
        (sf.col("file") == sf.col("begun.file"))
        & (sf.col("last") > sf.col("begun.position"))
        & (sf.col("first") < sf.col("ended.position"))
    )
    interrupted = (
        pairs.join(ranges, is_between, "left_semi")
        .select("begun.file", "begun.position")
        .withColumn("is_interrupted", sf.lit(True))
    )
    number = sf.shiftrightunsigned(sf.shiftleft("begun.op", 64 - FILE_SHIFT), 64 - FILE_SHIFT)
    # An unknown outcome has no time of completion.
    doubt = (
        sf.when(
            sf.expr("ended.complete_ns < begun.invoke_ns"),
            sf.expr(
                "format_string('%s completes at time %d, before its invocation at %d', "
                "begun.function, ended.complete_ns, begun.invoke_ns)"
            ),
        )
        .when(
            # As `halves._answers` has it.
            sf.expr(
                "ended.outcome = 'ok' AND ("
                "isnotnull(ended.offset) <> (begun.function IN ('append', 'tail', 'head')) "
                "AND begun.function NOT IN ('read', 'fetch_offset') OR "
                "isnotnull(ended.next_offset) <> (begun.function = 'read') AND begun.function <> 'poll')"
            ),
            sf.format_string("operation %d completes with what is no answer to %s", number, "begun.function"),
        )
        .when(
            sf.expr("ended.outcome = 'ok' AND endswith(coalesce(nullif(ended.key, ''), begun.key), '/')"),
            sf.format_string(
                "%s completes without saying in which queue of %s", "begun.function", "begun.key"
            ),
        )
        .when(
            sf.expr("is_interrupted AND ended IS NOT NULL"),
            sf.format_string(
                "operation %d completes, or another one with its number that could not be read", number
            ),
        )
    )
    return pairs.join(
        interrupted,
        (sf.col("file") == sf.col("begun.file")) & (sf.col("position") == sf.col("begun.position")),
        "left",
    ).select("begun", "ended", doubt.alias("doubt"))


def _identity(half: str = "") -> Column:
    """The ``op`` of the operation that an invocation begins; the ``op`` of a half is its number in the file."""
    from pyspark.sql import functions as sf

    prefix = f"{half}." if half else ""
    file = sf.shiftleft(sf.shiftright(f"{prefix}op", FILE_SHIFT), FILE_SHIFT)
    return file + sf.col(f"{prefix}position")


def no_records(spark: SparkSession) -> DataFrame:
    """A table of records without rows."""
    return spark.createDataFrame([], schema.RECORDS)


def no_events(spark: SparkSession) -> DataFrame:
    """The replica events of a history that has none."""
    return spark.createDataFrame([], schema.EVENT_TABLE)
