"""The exact log checker over DataFrames; docs/checker.md has the argument, reference.py the same rules in plain
Python.

Shape of the computation (n operations, one queue or many):

1. Every acknowledged or observed value, and every stated end, becomes a row (key, axis, position) with the invocation
   before which that position cannot have been appended (``lower``) or the completion after which it must have been
   (``upper``). Rows of one position are combined by a hash aggregation, on the mappers first: a million polls at the
   end of an idle queue shrink to one row before anything is sent.
2. Positions are cut into buckets of 65,536. Inside a bucket a window gives the smallest ``upper`` of this and all
later
   positions; a bucket's minimum goes to the buckets before it through a table with one row per bucket, broadcast
   back. So one queue of any length uses every task, and no stage sees a whole queue: the windows are partitioned by
   (key, axis, bucket), and what is partitioned by key alone holds one row per bucket or per append of unknown
   outcome.
3. A position is wrong if ``lower`` is after that minimum, if it has two acknowledgements or two different values.
   Positions that were seen but not acknowledged, and those that must exist and that nobody knows, go to
   :func:`spark_analysis.unknown.settle` together with the appends of unknown outcome, key by key; their number is
   bounded by the number of unknown appends, whatever more there is is a violation without looking.

Values are compared by their 64-bit hash (two given different values agree with probability 2**-64).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.unknown import Attempt, Hole, Seen, settle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BUCKET_BITS: Final = 16
LOG_AXIS, HEAD_AXIS = (
    0,
    1,
)  # positions of the log itself, and of its first kept offset, which only moves forward
FUNCTIONS: Final = ("append", "read", "tail", "head")


@dataclass(frozen=True)
class LogFindings:
    """``findings`` and ``unsure``: (key, kind, position, lower, upper); None where there is nothing."""

    findings: DataFrame | None
    unsure: DataFrame | None
    held: tuple[DataFrame, ...]

    def release(self) -> None:
        """Free what is kept on the executors' disks."""
        for frame in self.held:
            frame.unpersist()


def check_log(operations: DataFrame) -> LogFindings:
    """Judge every queue of ``operations`` (schema.OPERATIONS).

    What has to be looked at more closely is counted first (one row comes to the driver), so that a good history pays
    for no query that can only come back empty.
    """
    acknowledged = operations.where(sf.col("outcome") == "ok").where(sf.col("function").isin(*FUNCTIONS))
    positions = _positions(acknowledged).persist(StorageLevel.DISK_ONLY)
    flagged = (
        _bounded(positions)
        .where("acks > 1 OR different OR lower > latest OR (axis = 0 AND (unexplained OR holes > 0))")
        .persist(StorageLevel.DISK_ONLY)
    )
    held = [positions, flagged]
    found = flagged.agg(
        sf.count_if(sf.expr("acks > 1 OR different")).alias("disputed"),
        sf.count_if(sf.expr("lower > latest")).alias("disordered"),
        sf.count_if(sf.expr("axis = 0 AND (unexplained OR holes > 0)")).alias("unknown"),
    ).collect()[0]
    torn = _torn_reads(acknowledged)
    findings = [torn] if torn.limit(1).count() else []
    unsure = None
    if found["disputed"] or found["disordered"]:
        wrong = _wrong(flagged)
        findings.append(name_orders(wrong, operations) if found["disordered"] else wrong)
    if found["unknown"]:
        settled, unmatched = _settle(operations, flagged)
        settled = settled.persist(StorageLevel.DISK_ONLY)
        held.append(settled)
        outcome = settled.agg(
            sf.count_if(sf.expr("unsure")).alias("unsure"), sf.count_if(sf.expr("NOT unsure")).alias("wrong")
        ).collect()[0]
        if outcome["wrong"]:
            findings.append(settled.where("NOT unsure").drop("unsure"))
        if outcome["unsure"]:
            unsure = settled.where("unsure").drop("unsure")
        if unmatched.limit(1).count():
            findings.append(_classified(unmatched, operations, positions))
    together = reduce(lambda one, other: one.unionByName(other), findings) if findings else None
    return LogFindings(together, unsure, tuple(held))


def _wrong(flagged: DataFrame) -> DataFrame:
    """The findings that a position shows by itself."""
    is_disordered = sf.col("lower") > sf.col("latest")
    order = sf.when(sf.col("axis") == HEAD_AXIS, sf.lit("backward-head")).otherwise(sf.lit("order"))
    kinds = sf.array(
        sf.when(sf.col("acks") > 1, sf.lit("duplicate-offset")),
        sf.when(sf.col("different"), sf.lit("inconsistent-offset")),
        sf.when(is_disordered, order),
    )
    return flagged.select(
        "key",
        sf.explode(sf.array_compact(kinds)).alias("kind"),
        "position",
        "lower",
        sf.col("latest").alias("upper"),
    )


def _torn_reads(acknowledged: DataFrame) -> DataFrame:
    """Reads whose own answer cannot be a part of any list, whatever the others saw."""
    count = sf.size("values")
    last = sf.when(sf.col("offsets").isNull(), sf.col("first_offset") + count - 1).otherwise(
        sf.element_at("offsets", -1)
    )
    gaps = sf.expr("exists(sequence(1, size(offsets) - 1), i -> offsets[i] <= offsets[i - 1])")
    whole = sf.col("first_offset").eqNullSafe(sf.col("offset")) & (
        sf.col("offsets").isNull() | (last - sf.col("first_offset") + 1 == count) & ~gaps
    )
    ascending = (sf.col("first_offset") >= sf.col("offset")) & (
        sf.col("offsets").isNull() | (sf.size("offsets") < 2) | ~gaps
    )
    own_end = sf.col("end_offset").isNotNull() & sf.when(count > 0, last >= sf.col("end_offset")).otherwise(
        (sf.col("next_offset") <= sf.col("offset")) & (sf.col("offset") < sf.col("end_offset"))
    )
    shape = (
        sf.when(count == 0, False).when(sf.coalesce("filtered", sf.lit(False)), ~ascending).otherwise(~whole)
    )
    return (
        acknowledged.where(sf.col("function") == "read")
        .where(shape | own_end)
        .select(
            "key",
            sf.lit("torn-read").alias("kind"),
            sf.coalesce("first_offset", "offset").alias("position"),
            sf.col("invoke_ns").alias("lower"),
            sf.col("complete_ns").alias("upper"),
        )
    )


def _positions(acknowledged: DataFrame) -> DataFrame:
    """One row per key, axis and position that anybody said something about (step 1)."""
    is_append = sf.col("function") == "append"
    valued = (
        acknowledged.where(sf.col("function").isin("append", "read"))
        .select(
            "key", "function", "invoke_ns", "complete_ns", "first_offset", "offsets", sf.posexplode("values")
        )
        .select(
            "key",
            sf.lit(LOG_AXIS).alias("axis"),
            sf.coalesce(sf.get("offsets", sf.col("pos")), sf.col("first_offset") + sf.col("pos")).alias(
                "position"
            ),
            sf.when(is_append, sf.col("invoke_ns")).alias("lower"),
            sf.col("complete_ns").alias("upper"),
            sf.xxhash64("col").alias("value"),
            is_append.cast("int").alias("acks"),
        )
    )

    def statement(axis: int, position: Column, lower: Column, upper: Column) -> Column:
        return sf.struct(
            sf.lit(axis).alias("axis"), position.alias("position"), lower.alias("lower"), upper.alias("upper")
        )

    nothing = sf.lit(None).cast("bigint")
    begin, end = sf.col("invoke_ns"), sf.col("complete_ns")

    def ends_at(position: Column) -> list[Column]:
        return [
            statement(LOG_AXIS, position, begin, nothing),
            statement(LOG_AXIS, position - 1, nothing, end),
        ]

    offset = sf.col("offset")
    is_empty = (sf.size("values") == 0) & (sf.col("next_offset") <= offset)
    has_end = sf.col("end_offset").isNotNull()
    observed = sf.when(sf.col("function") == "tail", sf.array(*ends_at(offset)))
    observed = observed.when(
        sf.col("function") == "head",
        sf.array(
            statement(LOG_AXIS, offset - 1, nothing, end),
            statement(HEAD_AXIS, offset, begin, nothing),
            statement(HEAD_AXIS, offset - 1, nothing, end),
        ),
    )
    empty_read = statement(LOG_AXIS, offset, begin, nothing)
    observed = observed.when(is_empty & has_end, sf.array(empty_read, *ends_at(sf.col("end_offset"))))
    observed = observed.when(is_empty, sf.array(empty_read)).when(
        has_end, sf.array(*ends_at(sf.col("end_offset")))
    )
    stated = (
        acknowledged.where(
            sf.col("function").isin("tail", "head") | (sf.col("function") == "read") & (is_empty | has_end)
        )
        .select("key", sf.inline(observed))
        .where(sf.col("position") >= 0)
        .withColumn("value", nothing)
        .withColumn("acks", sf.lit(0))
    )
    return (
        valued.unionByName(stated)
        .withColumn("bucket", sf.shiftright("position", BUCKET_BITS))
        .groupBy("key", "axis", "bucket", "position")
        .agg(
            sf.max("lower").alias("lower"),
            sf.min("upper").alias("upper"),
            sf.min("value").alias("value"),
            sf.max("value").alias("other_value"),
            sf.sum("acks").alias("acks"),
        )
    )


def _bounded(positions: DataFrame) -> DataFrame:
    """Adds ``latest``:

    the earliest completion that needs this or a later position; ``holes`` before and at it (step 2).
    """
    inside = Window.partitionBy("key", "axis", "bucket")
    buckets = positions.groupBy("key", "axis", "bucket").agg(
        sf.min("upper").alias("bucket_upper"),
        sf.max("position").alias("bucket_last"),
        sf.max(sf.when(sf.col("upper").isNotNull(), sf.col("position"))).alias("bucket_needed"),
    )
    along = Window.partitionBy("key", "axis").orderBy("bucket")
    back = Window.partitionBy("key", "axis").orderBy(sf.desc("bucket"))
    edges = buckets.select(
        "key",
        "axis",
        "bucket",
        sf.min("bucket_upper").over(back.rowsBetween(Window.unboundedPreceding, -1)).alias("later_upper"),
        sf.max("bucket_last").over(along.rowsBetween(Window.unboundedPreceding, -1)).alias("earlier_last"),
        sf.max("bucket_needed").over(Window.partitionBy("key", "axis")).alias("last_needed"),
    )
    ascending = inside.orderBy("position")
    descending = inside.orderBy(sf.desc("position")).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = sf.col("value").isNotNull()
    reach = sf.col("position") - sf.coalesce("previous", "earlier_last", sf.lit(-1)) - known.cast("int")
    return (
        positions.withColumn("later", sf.min("upper").over(descending))
        .withColumn("previous", sf.lag("position").over(ascending))
        .join(sf.broadcast(edges), ["key", "axis", "bucket"])
        .select(
            "key",
            "axis",
            "position",
            "lower",
            sf.least("later", "later_upper").alias("latest"),
            "value",
            "acks",
            (known & (sf.col("value") != sf.col("other_value"))).alias("different"),
            (known & (sf.col("acks") == 0)).alias("unexplained"),
            known.alias("known"),
            sf.when(sf.col("position") <= sf.col("last_needed"), reach).otherwise(0).alias("holes"),
        )
    )


_SETTLED: Final = "key STRING, kind STRING, position BIGINT, lower BIGINT, upper BIGINT, unsure BOOLEAN"


def _settle(operations: DataFrame, flagged: DataFrame) -> tuple[DataFrame, DataFrame]:
    """What the appends of unknown outcome leave over, key by key;

    and seen values that no unknown append can explain.
    """
    topic = sf.regexp_replace("key", "[^/]*$", "")
    attempts = (
        operations.where("function = 'append' AND outcome = 'info'")
        .select("op", "key", "invoke_ns", sf.size("values").alias("size"), sf.posexplode("values"))
        .select(
            "op", "key", "invoke_ns", "size", sf.col("pos").alias("index"), sf.xxhash64("col").alias("value")
        )
    )
    seen = flagged.where("axis = 0 AND unexplained")
    homeless = attempts.where(sf.endswith("key", sf.lit("/")))
    # An attempt whose queue the broker was to choose belongs to the queue where its value was seen, if it was.
    found = homeless.withColumnRenamed("key", "topic").join(
        seen.select("key", "value").distinct().withColumn("topic", topic), ["topic", "value"]
    )
    placed = attempts.where(~sf.endswith("key", sf.lit("/"))).unionByName(found.select(*attempts.columns))
    explained = seen.join(placed.select("key", "value").distinct(), ["key", "value"], "left_semi")
    unmatched = seen.join(placed.select("key", "value").distinct(), ["key", "value"], "left_anti")
    holes = flagged.where("axis = 0 AND holes > 0")
    shared = (
        homeless.join(found.select("op").distinct(), "op", "left_anti")
        .withColumnRenamed("key", "topic")
        .join(holes.select("key").distinct().withColumn("topic", topic), "topic")
    )
    nothing = sf.lit(None).cast("bigint")

    def tagged(frame: DataFrame, tag: str, **columns: Column) -> DataFrame:
        names = ("position", "count", "time_ns", "value", "op", "index", "size")
        return frame.select(
            "key", sf.lit(tag).alias("tag"), *(columns.get(n, nothing).cast("bigint").alias(n) for n in names)
        )

    attempt_columns = {name: sf.col(name) for name in ("value", "op", "index", "size")} | {
        "time_ns": sf.col("invoke_ns")
    }
    first_hole = sf.col("position") - sf.col("holes") + 1 - sf.col("known").cast("int")
    rows = (
        tagged(
            explained, "seen", position=sf.col("position"), time_ns=sf.col("latest"), value=sf.col("value")
        )
        .unionByName(
            tagged(holes, "hole", position=first_hole, count=sf.col("holes"), time_ns=sf.col("latest"))
        )
        .unionByName(tagged(placed, "attempt", **attempt_columns))
        .unionByName(tagged(shared, "shared", time_ns=sf.col("invoke_ns")))
    )
    # Attempts of queues without anything to explain need no look; a queue that lacks more than was attempted is wrong
    # already, and must not bring its millions of holes into one task.
    totals = rows.groupBy("key").agg(
        sf.sum(sf.when(sf.col("tag") == "hole", sf.col("count"))).alias("lacking"),
        sf.min(sf.when(sf.col("tag") == "hole", sf.col("position"))).alias("first_hole"),
        sf.count(sf.when(sf.col("tag").isin("attempt", "shared"), 1)).alias("attempted"),
        sf.count(sf.when(sf.col("tag").isin("seen", "hole"), 1)).alias("asked"),
    )
    hopeless = totals.where("lacking > attempted")
    hopeless_rows = hopeless.select(
        "key",
        sf.lit("unexplained-offset").alias("kind"),
        sf.col("first_hole").alias("position"),
        nothing.alias("lower"),
        nothing.alias("upper"),
        sf.lit(False).alias("unsure"),
    )
    open_keys = totals.where("asked > 0 AND coalesce(lacking, 0) <= attempted").select("key")
    settled = rows.join(open_keys, "key", "left_semi").groupBy("key").applyInArrow(_settle_key, _SETTLED)
    return settled.unionByName(hopeless_rows), unmatched


def _settle_key(table: pa.Table) -> pa.Table:
    """:func:`settle` for the rows of one key."""
    attempts: list[Attempt] = []
    seen: list[Seen] = []
    holes: list[Hole] = []
    shared: list[int] = []
    for row in table.to_pylist():
        match row["tag"]:
            case "attempt":
                attempts.append(Attempt(row["op"], row["index"], row["size"], row["value"], row["time_ns"]))
            case "seen":
                seen.append(Seen(row["position"], row["value"], _or_never(row["time_ns"])))
            case "hole":
                last = row["position"] + row["count"] - 1
                holes.append(Hole(row["position"], last, _or_never(row["time_ns"])))
            case "shared":
                shared.append(row["time_ns"])
    findings, unsure = settle(attempts, seen, holes, shared)
    key = table["key"][0].as_py()
    rows = [(one, False) for one in findings] + [(one, True) for one in unsure]
    return pa.table(
        {
            "key": pa.array([key] * len(rows), pa.string()),
            "kind": pa.array([one.kind for one, _ in rows], pa.string()),
            "position": pa.array([one.position for one, _ in rows], pa.int64()),
            "lower": pa.nulls(len(rows), pa.int64()),
            "upper": pa.nulls(len(rows), pa.int64()),
            "unsure": pa.array([is_unsure for _, is_unsure in rows], pa.bool_()),
        }
    )


def _or_never(time_ns: int | None) -> float:
    return float("inf") if time_ns is None else time_ns


def _classified(unmatched: DataFrame, operations: DataFrame, positions: DataFrame) -> DataFrame:
    """Names for seen values that no acknowledged append at that offset and no unknown append explains."""
    failed = (
        operations.where("function = 'append' AND outcome = 'fail'")
        .select(sf.explode("values").alias("text"))
        .select(sf.xxhash64("text").alias("value"), sf.lit(True).alias("failed"))
        .distinct()
    )
    elsewhere = positions.where("acks > 0").select("value", sf.lit(True).alias("acknowledged"))
    acknowledged = elsewhere.join(unmatched.select("value").distinct(), "value", "left_semi").distinct()
    return (
        unmatched.join(failed, "value", "left")
        .join(acknowledged, "value", "left")
        .select(
            "key",
            sf.when(sf.col("acknowledged"), sf.lit("duplicate-value"))
            .when(sf.col("failed"), sf.lit("aborted-read"))
            .otherwise(sf.lit("phantom-value"))
            .alias("kind"),
            "position",
            sf.lit(None).cast("bigint").alias("lower"),
            sf.col("latest").alias("upper"),
        )
    )


def name_orders(findings: DataFrame, operations: DataFrame) -> DataFrame:
    """Findings of kind "order" under the name that the operation which began too late gives them."""
    orders = findings.where("kind = 'order'")
    begun = (
        operations.where("outcome = 'ok'")
        .select("key", sf.col("invoke_ns").alias("lower"), "function")
        .groupBy("key", "lower")
        .agg(sf.max("function").alias("began"))
    )
    ended = (
        operations.where("outcome = 'ok'")
        .select("key", sf.col("complete_ns").alias("upper"), "function")
        .groupBy("key", "upper")
        .agg(sf.min("function").alias("ended"))
    )
    named = (
        orders.join(begun, ["key", "lower"], "left")
        .join(ended, ["key", "upper"], "left")
        .withColumn(
            "kind",
            sf.when(sf.col("began") == "tail", sf.lit("stale-tail"))
            .when(sf.col("began") == "read", sf.lit("stale-read"))
            .when(sf.col("ended") == "append", sf.lit("append-order"))
            .otherwise(sf.lit("premature-read")),
        )
        .select(*findings.columns)
    )
    return findings.where("kind <> 'order'").unionByName(named)
