"""What nobody acknowledged, on DataFrames: seen values and holes meet the appends of unknown outcome.

Only flagged positions and appends of unknown outcome come here. A queue that asks for more than was attempted is
violated without a look at the details, so what reaches :func:`spark_analysis.unknown.settle`, one task for a queue, is
bounded by twice the number of its attempts.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as sf

from spark_analysis.kept import kept
from spark_analysis.unknown import Attempt, Finding, Hole, Seen, contested, settle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FINDING_COLUMNS: Final = ("key", "kind", "position", "lower", "upper")
# Rows of all tags in one table: seen (position, value, deadline), hole (first position, count, deadline), attempt (one
# value of an append of unknown outcome), shared (an unseen attempt of which only the topic is known).
_TAGGED: Final = ("position", "count", "time_ns", "value", "op", "index", "size")
_SETTLED: Final = "key STRING, kind STRING, position BIGINT, value BIGINT, unsure BOOLEAN"
_UNMATCHED: Final = "unmatched"


@dataclass(frozen=True)
class Explained:
    """As :class:`spark_analysis.log_model.LogFindings`."""

    findings: DataFrame | None
    unsure: DataFrame | None


def explain(operations: DataFrame, flagged: DataFrame, positions: DataFrame, zero_ns: int) -> Explained:
    """Findings about ``flagged`` positions that are unexplained or have holes; their times count from ``zero_ns``."""
    attempts = kept(_attempts(operations))
    deadline = sf.col("latest_ns") + zero_ns
    seen = flagged.where("unexplained").select("key", "position", "value", deadline.alias("time_ns"))
    first_hole = sf.col("position") - sf.col("holes") + 1 - sf.col("known").cast("int")
    holes = flagged.where("holes > 0").select(
        "key", first_hole.alias("position"), sf.col("holes").alias("count"), deadline.alias("time_ns")
    )
    placed, shared, in_dispute = _placed(attempts, seen, holes)
    tagged = [_tagged(seen, "seen"), _tagged(holes, "hole"), _tagged(placed, "attempt"), *shared]
    rows = kept(reduce(lambda one, other: one.unionByName(other), tagged))
    totals = kept(
        rows.groupBy("key")
        .agg(
            sf.coalesce(sf.sum(sf.when(sf.col("tag") == "hole", sf.col("count"))), sf.lit(0)).alias(
                "lacking"
            ),
            sf.min(sf.when(sf.col("tag") == "hole", sf.col("position"))).alias("first_hole"),
            sf.min(sf.when(sf.col("tag") == "hole", sf.col("time_ns"))).alias("deadline"),
            sf.count_if(sf.col("tag").isin("attempt", "shared")).alias("attempted"),
            sf.count_if(sf.col("tag") == "seen").alias("seen"),
        )
        .where("seen > 0 OR lacking > 0")
    )
    asked = totals.agg(
        sf.count_if(sf.expr("lacking > attempted")).alias("hopeless"),
        sf.count_if(sf.expr("seen > attempted")).alias("crowded"),
    ).collect()[0]
    found: list[DataFrame] = []
    settled = kept(_settle(rows, totals))
    if in_dispute is not None:
        settled = settled.unionByName(in_dispute)
    if asked["crowded"]:
        settled = settled.unionByName(_crowded(rows, totals))
    outcome = settled.agg(
        sf.count_if(sf.expr("unsure")).alias("unsure"),
        sf.count_if(sf.col("kind") == _UNMATCHED).alias(_UNMATCHED),
        sf.count(sf.lit(1)).alias("all"),
    ).collect()[0]
    if asked["hopeless"]:
        found.append(
            _findings(
                totals.where("lacking > attempted"),
                sf.lit("unexplained-offset"),
                sf.col("first_hole"),
                sf.col("deadline"),  # of what proves that the queue was longer
            )
        )
    if outcome["all"] > outcome["unsure"] + outcome[_UNMATCHED]:
        certain = settled.where("NOT unsure").where(sf.col("kind") != _UNMATCHED)
        found.append(_findings(certain, sf.col("kind"), sf.col("position")))
    if outcome[_UNMATCHED]:
        found.append(_classified(settled.where(sf.col("kind") == _UNMATCHED), seen, operations, positions))
    doubtful = settled.where("unsure") if outcome["unsure"] else None
    return Explained(
        reduce(lambda one, other: one.unionByName(other), found) if found else None,
        _findings(doubtful, sf.col("kind"), sf.col("position")) if doubtful is not None else None,
    )


def _findings(rows: DataFrame, kind: Column, position: Column, upper: Column | None = None) -> DataFrame:
    nothing = sf.lit(None).cast("bigint")
    return rows.select(
        "key",
        kind.alias("kind"),
        position.alias("position"),
        nothing.alias("lower"),
        (nothing if upper is None else upper).alias("upper"),
    )


def _attempts(operations: DataFrame) -> DataFrame:
    return (
        operations.where("function = 'append' AND outcome = 'info'")
        .select(
            "op",
            "key",
            sf.col("invoke_ns").alias("time_ns"),
            sf.size("values").alias("size"),
            sf.posexplode("values"),
        )
        .select(
            "op", "key", "time_ns", "size", sf.col("pos").alias("index"), sf.xxhash64("col").alias("value")
        )
    )


def _placed(
    attempts: DataFrame, seen: DataFrame, holes: DataFrame
) -> tuple[DataFrame, list[DataFrame], DataFrame | None]:
    """The attempts with their queues, rows for those whose queue nobody knows, and rows of ``_SETTLED`` for those
    that several queues show.

    An append whose queue the broker was to choose belongs to the queue where one of its values was seen, if any was.
    """
    is_homeless = sf.endswith("key", sf.lit("/"))
    homeless = attempts.where(is_homeless).withColumnRenamed("key", "topic")
    if not homeless.limit(1).count():
        return attempts, [], None
    topic = sf.regexp_replace("key", "[^/]*$", "")
    homes = homeless.join(seen.select("key", "value", topic.alias("topic")), ["topic", "value"])
    found = homeless.join(homes.select("op", "key").distinct(), "op").select(*attempts.columns)
    # Of a value with more attempts than places nobody knows which one is somewhere else.
    places = (
        seen.withColumn("topic", topic)
        .join(homeless.select("topic", "value").distinct(), ["topic", "value"], "left_semi")
        .groupBy("topic", "key", "value")
        .agg(sf.count(sf.lit(1)).alias("places"))
    )
    own = attempts.where(~is_homeless).groupBy("key", "value").agg(sf.count(sf.lit(1)).alias("own"))
    needed = (
        places.join(own, ["key", "value"], "left")
        .groupBy("topic", "value")
        .agg(sf.sum(sf.greatest(sf.expr("places - coalesce(own, 0)"), sf.lit(0))).alias("needed"))
    )
    tries = homeless.groupBy("topic", "value").agg(sf.count(sf.lit(1)).alias("tries"))
    settled = needed.join(tries, ["topic", "value"]).where("needed >= tries")
    elsewhere = homeless.join(
        homeless.join(settled, ["topic", "value"], "left_semi").select("op").distinct(), "op", "left_anti"
    )
    shared = elsewhere.join(holes.select("key").distinct().withColumn("topic", topic), "topic").join(
        found.select("op", "key").distinct(), ["op", "key"], "left_anti"
    )
    placed = attempts.where(~is_homeless).unionByName(found)
    several = (
        homes.groupBy("topic", "value").agg(sf.count_distinct("key").alias("queues")).where("queues > 1")
    )
    if not several.limit(1).count():
        return placed, [_tagged(shared.select("key", "time_ns"), "shared")], None
    of_topic = attempts.withColumn("topic", topic).join(
        several.select("topic").distinct(), "topic", "left_semi"
    )
    # Whole batches, as what else is in them matters.
    at_stake = of_topic.join(
        of_topic.join(several, ["topic", "value"], "left_semi").select("op"), "op", "left_semi"
    )
    shown = seen.withColumn("topic", topic).join(several, ["topic", "value"], "left_semi")
    open_keys = holes.select("key").distinct().withColumn("topic", topic)
    rows = _tagged(at_stake, "attempt").unionByName(_tagged(shown, "seen"))
    rows = rows.unionByName(
        _tagged(open_keys.join(several.select("topic").distinct(), "topic", "left_semi"), "hole")
    )
    in_dispute = rows.groupBy(topic.alias("topic")).applyInArrow(_dispute_topic, _SETTLED)
    return placed, [_tagged(shared.select("key", "time_ns"), "shared")], kept(in_dispute)


def _tagged(frame: DataFrame, tag: str) -> DataFrame:
    return frame.select(
        "key",
        sf.lit(tag).alias("tag"),
        *(
            (sf.col(name) if name in frame.columns else sf.lit(None)).cast("bigint").alias(name)
            for name in _TAGGED
        ),
    )


def _settle(rows: DataFrame, totals: DataFrame) -> DataFrame:
    """One task judges one queue that has something to explain, and enough attempts to do so."""
    open_keys = totals.where("lacking <= attempted AND seen <= attempted").select("key")
    return rows.join(open_keys, "key", "left_semi").groupBy("key").applyInArrow(_settle_key, _SETTLED)


def _crowded(rows: DataFrame, totals: DataFrame) -> DataFrame:
    """Where more was seen than attempted: values that stand at more offsets than they have attempts."""
    keys = totals.where("seen > attempted").select("key")
    by_value = (
        rows.where("tag IN ('seen', 'attempt')")
        .join(keys, "key", "left_semi")
        .groupBy("key", "value")
        .agg(
            sf.min("position").alias("position"),
            sf.count_if(sf.col("tag") == "seen").alias("places"),
            sf.count_if(sf.col("tag") == "attempt").alias("attempts"),
        )
        .where("places > attempts")
    )
    kind = sf.when(sf.col("attempts") == 0, sf.lit(_UNMATCHED)).otherwise(sf.lit("duplicate-value"))
    return by_value.select("key", kind.alias("kind"), "position", "value", sf.lit(False).alias("unsure"))


def _settle_key(table: pa.Table) -> pa.Table:
    """:func:`settle` for the rows of one key; seen values that nobody attempted are left to :func:`_classified`."""
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
    attempted = {one.value for one in attempts}
    unmatched = [one for one in seen if one.value not in attempted]
    explicable = [one for one in seen if one.value in attempted]
    findings, unsure = settle(attempts, explicable, holes, shared)
    found: list[tuple[Finding, object, bool]] = [(one, None, False) for one in findings]
    found += [(one, None, True) for one in unsure]
    found += [(Finding(_UNMATCHED, one.position), one.value, False) for one in unmatched]
    return pa.table(
        {
            "key": pa.array([table["key"][0].as_py()] * len(found), pa.string()),
            "kind": pa.array([one.kind for one, _, _ in found], pa.string()),
            "position": pa.array([one.position for one, _, _ in found], pa.int64()),
            "value": pa.array([value for _, value, _ in found], pa.int64()),
            "unsure": pa.array([is_unsure for _, _, is_unsure in found], pa.bool_()),
        }
    )


def _dispute_topic(table: pa.Table) -> pa.Table:
    """:func:`contested` for the rows of one topic."""
    attempts: dict[str, list[Attempt]] = defaultdict(list)
    seen: dict[str, list[Seen]] = defaultdict(list)
    with_holes: list[str] = []
    for row in table.to_pylist():
        match row["tag"]:
            case "attempt":
                attempts[row["key"]].append(
                    Attempt(row["op"], row["index"], row["size"], row["value"], row["time_ns"])
                )
            case "seen":
                seen[row["key"]].append(Seen(row["position"], row["value"], _or_never(row["time_ns"])))
            case _:
                with_holes.append(row["key"])
    key: str = table["key"][0].as_py()
    found = contested(key[: key.rfind("/") + 1], attempts, seen, with_holes)
    return pa.table(
        {
            "key": pa.array([queue for queue, _, _ in found], pa.string()),
            "kind": pa.array([one.kind for _, one, _ in found], pa.string()),
            "position": pa.array([one.position for _, one, _ in found], pa.int64()),
            "value": pa.nulls(len(found), pa.int64()),
            "unsure": pa.array([is_unsure for _, _, is_unsure in found], pa.bool_()),
        }
    )


def _or_never(time_ns: int | None) -> float:
    return float("inf") if time_ns is None else time_ns


def _classified(
    unmatched: DataFrame, seen: DataFrame, operations: DataFrame, positions: DataFrame
) -> DataFrame:
    """Names for seen values that no append acknowledged at that offset, and none of unknown outcome, explains."""
    places = seen.join(unmatched.select("key", "value").distinct(), ["key", "value"], "left_semi")
    values = places.select("value").distinct()
    failed = (
        operations.where("function = 'append' AND outcome = 'fail'")
        .select(sf.explode("values").alias("text"))
        .select(sf.xxhash64("text").alias("value"))
        .join(values, "value", "left_semi")
        .select("value", sf.lit(True).alias("failed"))
        .distinct()
    )
    acknowledged = (
        positions.where("acks > 0")
        .join(values, "value", "left_semi")
        .select("value", sf.lit(True).alias("acknowledged"))
        .distinct()
    )
    kind = (
        sf.when(sf.col("acknowledged"), sf.lit("duplicate-value"))
        .when(sf.col("failed"), sf.lit("aborted-read"))
        .otherwise(sf.lit("phantom-value"))
    )
    named = places.join(failed, "value", "left").join(acknowledged, "value", "left")
    return _findings(named, kind, sf.col("position"), sf.col("time_ns"))
