"""Appends that nobody acknowledged, on DataFrames: values that were seen and holes meet the appends of unknown outcome.

Only flagged positions and appends of unknown outcome come here. A queue that needs more appends than were attempted is
violated without a look at the details. So the rows that reach
:func:`spark_analysis.checking.queues.unknown_appends.settle`, one task for a queue, are at most twice the number of its
attempts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as sf

from spark_analysis.checking.columns import found_in, together
from spark_analysis.checking.kept import kept
from spark_analysis.checking.queues.attempt_queues import (
    SETTLED,
    Settled,
    placed,
    read_tagged,
    tagged,
    with_free,
)
from spark_analysis.checking.queues.unknown_appends import settle
from spark_analysis.importing.arrow import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UNMATCHED: Final = "unmatched"


@dataclass(frozen=True)
class Explained:
    """Findings and undecided places, with the columns of
    :class:`spark_analysis.checking.queues.log_model.LogFindings`."""

    findings: DataFrame | None
    unsure: DataFrame | None


def explain(operations: DataFrame, flagged: DataFrame, positions: DataFrame, zero_ns: int) -> Explained:
    """Judge the ``flagged`` positions that are unexplained or have holes. Their times count from ``zero_ns``."""
    deadline = sf.col("latest_ns") + zero_ns
    seen = flagged.where("unexplained").select("key", "position", "value", deadline.alias("time_ns"))
    first_hole = sf.col("position") - sf.col("holes") + 1 - sf.col("known").cast("int")
    holes = flagged.where("holes > 0").select(
        "key", first_hole.alias("position"), sf.col("holes").alias("count"), deadline.alias("time_ns")
    )
    attempts = placed(operations, seen, holes)
    tables = [tagged(seen, "seen"), tagged(holes, "hole"), *attempts.rows]
    rows = kept(together(tables))
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
    settled = kept(_settle(rows, totals, attempts.free))
    if attempts.disputed is not None:
        settled = settled.unionByName(attempts.disputed)
    if asked["crowded"]:
        settled = settled.unionByName(_crowded(rows, totals))
    outcome = settled.agg(
        sf.count_if(sf.expr("unsure")).alias("unsure"),
        sf.count_if(sf.col("kind") == _UNMATCHED).alias(_UNMATCHED),
        sf.count(sf.lit(1)).alias("all"),
    ).collect()[0]
    if asked["hopeless"]:
        found.append(
            found_in(
                totals.where("lacking > attempted"),
                "unexplained-offset",
                "first_hole",
                upper=sf.col("deadline"),  # of what proves that the queue was longer
            )
        )
    if outcome["all"] > outcome["unsure"] + outcome[_UNMATCHED]:
        certain = settled.where("NOT unsure").where(sf.col("kind") != _UNMATCHED)
        found.append(found_in(certain, sf.col("kind")))
    if outcome[_UNMATCHED]:
        found.append(_classified(settled.where(sf.col("kind") == _UNMATCHED), seen, operations, positions))
    doubtful = settled.where("unsure") if outcome["unsure"] else None
    return Explained(
        together(found) if found else None,
        found_in(doubtful, sf.col("kind")) if doubtful is not None else None,
    )


def _settle(rows: DataFrame, totals: DataFrame, free: DataFrame | None) -> DataFrame:
    """One task judges one queue that has something to explain, and enough attempts to do so."""
    open_keys = totals.where("lacking <= attempted AND seen <= attempted").select("key")
    rows = rows.join(open_keys, "key", "left_semi")
    if free is not None:
        rows = with_free(rows, free)
    return rows.groupBy("key").applyInArrow(_settle_key, SETTLED)


def _crowded(rows: DataFrame, totals: DataFrame) -> DataFrame:
    """Find values that stand at more offsets than they have attempts, in queues where more was seen than attempted."""
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
    """Apply :func:`settle` to the rows of one key. Seen values that nobody attempted are left to
    :func:`_classified`."""
    rows, key = read_tagged(table), table["key"][0].as_py()
    attempts = rows.attempts[key]
    attempted = {one.value for one in attempts}
    explicable = [one for one in rows.seen[key] if one.value in attempted]
    findings, unsure = settle(attempts, explicable, rows.holes[key], rows.shared[key])
    return arrow_table(
        [
            *(Settled(key, one.kind, one.position, None, False) for one in findings),
            *(Settled(key, one.kind, one.position, None, True) for one in unsure),
            *(
                Settled(key, _UNMATCHED, one.position, one.value, False)
                for one in rows.seen[key]
                if one.value not in attempted
            ),
        ],
        SETTLED,
    )


def _classified(
    unmatched: DataFrame, seen: DataFrame, operations: DataFrame, positions: DataFrame
) -> DataFrame:
    """Name the kinds of seen values that no append explains, neither one acknowledged at that offset nor one of unknown
    outcome."""
    # Only the few values that nobody explains are looked for elsewhere, so that no join is as long as the history.
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
    return found_in(named, kind, upper=sf.col("time_ns"))
