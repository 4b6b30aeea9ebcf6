"""Appends of unknown outcome and the queues that they may stand in, as rows of the table that tasks settle.

An append whose queue the broker was to choose (its key is ``topic/``) belongs to the queue where one of its values was
seen, if any was. Where several queues show values of it, they may want the same attempt (docs/checker.md, "Appends that
leave the queue to the broker"); where none does, it may have filled a hole anywhere in the topic.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as sf

from spark_analysis.checking.kept import kept
from spark_analysis.checking.queues.attempts import Attempt, Hole, Seen
from spark_analysis.checking.queues.unknown_appends import contested, served, wanted_by
from spark_analysis.importing.arrow import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rows of all tags in one table: seen (position, value, deadline), hole (first position, count, deadline), attempt (one
# value of an append of unknown outcome), shared (an unseen attempt of which only the topic is known).
_TAGGED: Final = ("position", "count", "time_ns", "value", "op", "index", "size")
TAGGED: Final = "key STRING, tag STRING, " + ", ".join(f"`{name}` BIGINT" for name in _TAGGED)
SETTLED: Final = "key STRING, kind STRING, position BIGINT, value BIGINT, unsure BOOLEAN"


@dataclass(frozen=True)
class Placed:
    """The appends of unknown outcome ("attempts"), each with the queues in which it may stand.

    ``rows`` are tagged rows (above): ``attempt`` where the queue is known; where only the topic is, a ``shared`` row in
    each queue of it that has holes. ``disputed`` has the columns ``SETTLED``, and a row for each append that several
    queues may have. ``free`` are appends of one value of which only the topic is known (as its key), and whose value
    no queue shows. Both are None where the queues of all appends are known.
    """

    rows: tuple[DataFrame, ...]
    disputed: DataFrame | None
    free: DataFrame | None


def placed(operations: DataFrame, seen: DataFrame, holes: DataFrame) -> Placed:
    """Assign the appends of unknown outcome among ``operations`` to the queues that they may stand in."""
    attempts = kept(_attempts(operations))
    is_homeless = sf.endswith("key", sf.lit("/"))
    homeless = attempts.where(is_homeless).withColumnRenamed("key", "topic")
    if not homeless.limit(1).count():
        return Placed((tagged(attempts, "attempt"),), None, None)
    topic = sf.regexp_replace("key", "[^/]*$", "")
    homes = homeless.join(seen.select("key", "value", topic.alias("topic")), ["topic", "value"])
    found = homeless.join(homes.select("op", "key").distinct(), "op").select(*attempts.columns)
    own = attempts.where(~is_homeless)
    elsewhere = homeless.join(_settled_ops(homeless, own, seen.withColumn("topic", topic)), "op", "left_anti")
    shared = elsewhere.join(holes.select("key").distinct().withColumn("topic", topic), "topic").join(
        found.select("op", "key").distinct(), ["op", "key"], "left_anti"
    )
    rows = tagged(own.unionByName(found), "attempt"), tagged(shared.select("key", "time_ns"), "shared")
    # An append that several queues may have, by the same value or by different ones of a batch.
    in_several = homes.groupBy("op").agg(sf.count_distinct("key").alias("queues")).where("queues > 1")
    several = homeless.join(in_several, "op", "left_semi").select("topic", "value").distinct()
    free = homeless.where("size = 1").join(homes.select("op"), "op", "left_anti")
    return Placed(
        rows,
        _disputed(attempts, seen, holes, several) if several.limit(1).count() else None,
        free.withColumnRenamed("topic", "key"),
    )


def with_free(rows: DataFrame, free: DataFrame) -> DataFrame:
    """Add to the tagged ``rows`` of queues an ``attempt`` for each of the ``free`` appends that is needed there, if
    :func:`served` finds one for every offset that is wanted."""
    wanted = rows.groupBy("key").applyInArrow(_wanted_by_key, TAGGED)
    found = (
        wanted.unionByName(tagged(free, "attempt"))
        .groupBy(sf.regexp_replace("key", "[^/]*$", "").alias("topic"))
        .applyInArrow(_serve_topic, TAGGED)
    )
    return rows.unionByName(found)


def _wanted_by_key(table: pa.Table) -> pa.Table:
    """Apply :func:`wanted_by` to the rows of one queue; each offset that is wanted is a hole."""
    rows, key = read_tagged(table), table["key"][0].as_py()
    wanted = wanted_by(rows.attempts[key], rows.seen[key], rows.holes[key])
    return arrow_table([(key, "hole", 0, 1, deadline, None, None, None, None) for deadline in wanted], TAGGED)


def _serve_topic(table: pa.Table) -> pa.Table:
    """Apply :func:`served` to the offsets that the queues of one topic want, and its free appends."""
    rows = read_tagged(table)
    wanted = {key: [one.deadline_ns for one in holes] for key, holes in rows.holes.items()}
    free = [one for listed in rows.attempts.values() for one in listed]
    return arrow_table(
        [
            (key, "attempt", None, None, one.invoke_ns, one.value, one.op, one.index, one.size)
            for key, one in served(free, wanted)
        ],
        TAGGED,
    )


def _attempts(operations: DataFrame) -> DataFrame:
    """A row for each value."""
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


def _settled_ops(homeless: DataFrame, own: DataFrame, seen: DataFrame) -> DataFrame:
    """The appends without a queue that certainly stand where their value is seen, because every attempt with that value
    is needed there.

    Of a value with more attempts than places nobody knows which attempt is somewhere else.
    """
    places = (
        seen.join(homeless.select("topic", "value").distinct(), ["topic", "value"], "left_semi")
        .groupBy("topic", "key", "value")
        .agg(sf.count(sf.lit(1)).alias("places"))
    )
    of_queue = own.groupBy("key", "value").agg(sf.count(sf.lit(1)).alias("own"))
    needed = (
        places.join(of_queue, ["key", "value"], "left")
        .groupBy("topic", "value")
        .agg(sf.sum(sf.greatest(sf.expr("places - coalesce(own, 0)"), sf.lit(0))).alias("needed"))
    )
    tries = homeless.groupBy("topic", "value").agg(sf.count(sf.lit(1)).alias("tries"))
    settled = needed.join(tries, ["topic", "value"]).where("needed >= tries")
    return homeless.join(settled, ["topic", "value"], "left_semi").select("op").distinct()


def _disputed(attempts: DataFrame, seen: DataFrame, holes: DataFrame, several: DataFrame) -> DataFrame:
    """Apply :func:`contested` to ``several``, the values of appends that more than one queue may have."""
    topic = sf.regexp_replace("key", "[^/]*$", "")
    topics = several.select("topic").distinct()
    of_topic = attempts.withColumn("topic", topic).join(topics, "topic", "left_semi")
    # Whole batches, as what else is in them matters.
    at_stake = of_topic.join(
        of_topic.join(several, ["topic", "value"], "left_semi").select("op"), "op", "left_semi"
    )
    shown = seen.withColumn("topic", topic).join(several, ["topic", "value"], "left_semi")
    open_keys = holes.select("key").distinct().withColumn("topic", topic)
    rows = tagged(at_stake, "attempt").unionByName(tagged(shown, "seen"))
    rows = rows.unionByName(tagged(open_keys.join(topics, "topic", "left_semi"), "hole"))
    return kept(rows.groupBy(topic.alias("topic")).applyInArrow(_dispute_topic, SETTLED))


def _dispute_topic(table: pa.Table) -> pa.Table:
    """Apply :func:`contested` to the rows of one topic."""
    rows = read_tagged(table)
    key: str = table["key"][0].as_py()
    found = contested(key[: key.rfind("/") + 1], rows.attempts, rows.seen, rows.holes)
    disputed = [Settled(queue, one.kind, one.position, None, is_unsure) for queue, one, is_unsure in found]
    return arrow_table(disputed, SETTLED)


# ---- rows ----------------------------------------------------------------------------------------------------------


def tagged(frame: DataFrame, tag: str) -> DataFrame:
    """Give the rows of ``frame`` the columns of the one table, and a tag."""
    return frame.select(
        "key",
        sf.lit(tag).alias("tag"),
        *(
            (sf.col(name) if name in frame.columns else sf.lit(None)).cast("bigint").alias(name)
            for name in _TAGGED
        ),
    )


@dataclass(frozen=True)
class TaggedRows:
    """Rows of the one table, by key."""

    attempts: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    holes: dict[str, list[Hole]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def read_tagged(table: pa.Table) -> TaggedRows:
    """Read rows that :func:`tagged` has written. A hole without a count is one of which only the queue is known."""
    rows = TaggedRows()
    for row in table.to_pylist():
        key, position, time_ns = row["key"], row["position"], row["time_ns"]
        deadline_ns = float("inf") if time_ns is None else time_ns
        match row["tag"]:
            case "attempt":
                rows.attempts[key].append(
                    Attempt(row["op"], row["index"], row["size"], row["value"], time_ns)
                )
            case "seen":
                rows.seen[key].append(Seen(position, row["value"], deadline_ns))
            case "hole":
                first, count = position or 0, row["count"] or 0
                rows.holes[key].append(Hole(first, first + count - 1, deadline_ns))
            case _:
                rows.shared[key].append(time_ns)
    return rows


class Settled(NamedTuple):
    """A row of ``SETTLED``."""

    key: str
    kind: str
    position: int
    value: object
    unsure: bool
