"""Anomalies of consumers and producers, under the names of Jepsen's Kafka workload (jepsen.tests.kafka).

The exact checker asks whether one list explains every answer. A consumer that polls promises more: it moves along the
queue by itself, so what it gets next is what follows. These rules judge that; docs/checker.md has the table of names,
what proves each, and what is allowed for a consumer that subscribed, whom a rebalance may move in either direction.

Rules, after Jepsen's, with the queue's *known* positions (those at which anybody saw or was acknowledged a value)
numbered in order, its version order:

* between two polls of one client on one queue the number rises by one: more is ``poll-skip``, less is
  ``nonmonotonic-poll``; an assignment without the queue in between, or a seek in it, makes it a new beginning;
* between two values of one poll alike: ``int-poll-skip``, ``int-nonmonotonic-poll``, whatever the mode;
* between two values that one transaction sent to a queue alike: ``int-send-skip``, which is normal, as others may send
  in between, and ``int-nonmonotonic-send``, which is not;
* an acknowledged value between the first and the last offset polled from its queue which nobody got: ``lost-write``;
  also one at whose offset another value was seen, if it was seen nowhere;
* a client's append that began after an earlier one of its own had ended has a lower offset: ``nonmonotonic-send``;
* a transaction polled what it sent itself: ``precommitted-read``. Cycles of transactions are found by
  :mod:`spark_analysis.checking.kafka.transactions`.

Each client and queue is swept in ranges of time or position, never by one task (:mod:`spark_analysis.checking.sweep`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.checking.columns import found_in, nothing, together
from spark_analysis.checking.kept import kept
from spark_analysis.checking.sweep import Running, by_quantiles, running

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ASSIGNMENTS: Final = ("assign", "subscribe", "seek")
ALLOWED_FOR_SUBSCRIBERS: Final = ("poll-skip", "nonmonotonic-poll")
ALLOWED_FOR_ALL: Final = ("int-send-skip",)


def check_catalogue(
    operations: DataFrame, positions: DataFrame, *, has_polls: bool, has_transactions: bool
) -> DataFrame:
    """Findings about polls and transactions: (key, kind, position, lower, upper, allowed).

    ``positions``: of the log's axis, (key, queue, bucket, position, value, acks, reads). ``lower`` is when the later
    poll began and ``upper`` when the earlier one ended; of a finding about one operation, its own.
    """
    polls = operations.where("function = 'poll' AND outcome = 'ok' AND first_offset IS NOT NULL").select(
        *("op", "client", "key", "invoke_ns", "complete_ns", "first_offset", "offsets"),
        sf.coalesce(
            sf.element_at("offsets", -1), sf.col("first_offset") + sf.size("values").cast("bigint") - 1
        ).alias("last_offset"),
    )
    pairs: list[DataFrame] = []
    others: list[DataFrame] = []
    if has_polls:
        # Who subscribes may be given other queues between two polls, and go on elsewhere: that is allowed.
        subscribers = operations.where("function = 'subscribe' AND outcome <> 'fail'")
        subscribers = subscribers.select("client", sf.lit(True).alias("allowed")).distinct()
        between = _between_polls(polls, operations).join(subscribers, "client", "left")
        pairs.append(
            between.select(*_PAIR[:5], sf.lit("").alias("prefix"), sf.lit("poll").alias("noun"), _PAIR[-1])
        )
        pairs.append(_inside(polls, "poll"))
        others.append(_unpolled(polls, positions))
    if has_transactions:
        pairs.append(_inside(operations.where("function = 'append' AND outcome = 'ok'"), "send"))
        others.append(precommitted(operations))
    return together([_by_distance(together(pairs), positions), *others])


_PAIR: Final = ("key", "earlier", "later", "lower", "upper", "allowed")


def _between_polls(polls: DataFrame, operations: DataFrame) -> DataFrame:
    """(client, key, earlier, later, lower, upper): where each poll began after where the one before had ended."""
    changes = operations.where(sf.col("function").isin(*ASSIGNMENTS)).where(sf.col("outcome") != "fail")
    resets = (
        polls.select("client", "key")
        .distinct()
        .join(changes.select("op", "client", "function", "invoke_ns", "values"), "client")
        # A seek of this queue, or an assignment without it: the next poll may begin anywhere.
        .where("array_contains(coalesce(values, array()), key) = (function = 'seek')")
        .select("op", "client", "key", "invoke_ns")
        .withColumns(dict.fromkeys(("complete_ns", "first_offset", "last_offset"), nothing()))
    )
    steps = polls.drop("offsets").unionByName(resets)
    stands = sf.struct("invoke_ns", "op", "last_offset", "complete_ns")
    steps = kept(steps.withColumn("stands", stands))
    steps = steps.withColumn("bucket", by_quantiles(steps, "invoke_ns", steps.count()))
    swept = running(steps, ["client", "key"], ["bucket"], ["stands"], before=Running("max", "stands"))
    return swept.where("first_offset IS NOT NULL AND before.last_offset IS NOT NULL").select(
        "client",
        "key",
        sf.col("before.last_offset").alias("earlier"),
        sf.col("first_offset").alias("later"),
        sf.col("invoke_ns").alias("lower"),
        sf.col("before.complete_ns").alias("upper"),
    )


def _inside(rows: DataFrame, noun: str) -> DataFrame:
    """The neighbours inside one row that states each value's offset."""
    return (
        rows.where("offsets IS NOT NULL")
        .select("*", sf.posexplode("offsets").alias("place", "earlier"))
        .select(
            "key",
            "earlier",
            sf.get("offsets", sf.col("place") + 1).alias("later"),
            sf.col("invoke_ns").alias("lower"),
            sf.col("complete_ns").alias("upper"),
            sf.lit(False).alias("allowed"),
            sf.lit("int-").alias("prefix"),
            sf.lit(noun).alias("noun"),
        )
        .where("later IS NOT NULL")
    )


def _by_distance(pairs: DataFrame, positions: DataFrame) -> DataFrame:
    """The pairs of offsets that do not follow each other among the known positions of their queue."""
    backwards = pairs.where("later <= earlier").withColumn("what", sf.concat(sf.lit("nonmonotonic-"), "noun"))
    gaps = pairs.where("later > earlier + 1")
    counted = positions.withColumn("known", sf.col("value").isNotNull().cast("int"))
    ranks = running(
        counted, ["key"], ["bucket"], ["position"], rank=Running("sum", "known", inclusive=True)
    ).select("key", "position", "rank")
    skips = (
        gaps.join(
            ranks.select("key", sf.col("position").alias("earlier"), sf.col("rank").alias("one")),
            ["key", "earlier"],
        )
        .join(
            ranks.select("key", sf.col("position").alias("later"), sf.col("rank").alias("other")),
            ["key", "later"],
        )
        .where("other > one + 1")
        .withColumn("what", sf.concat("noun", sf.lit("-skip")))
    )
    kind = sf.concat("prefix", "what")
    wrong = backwards.unionByName(skips.select(*backwards.columns))
    allowed = sf.coalesce("allowed", sf.lit(False)) | kind.isin(*ALLOWED_FOR_ALL)
    return found_in(wrong, kind, "later", sf.col("lower"), sf.col("upper"), allowed=allowed)


def precommitted(operations: DataFrame) -> DataFrame:
    """Transactions that polled what they sent themselves, whether or not they committed.

    A value that another operation may have put there shows nothing, unless it stands where the own one does.
    """
    appends = operations.where("function = 'append'")
    sent = appends.select("*", sf.posexplode("values").alias("place", "value")).select(
        "op",
        "key",
        "outcome",
        "value",
        sf.when(sf.col("outcome") == "ok", _place_of_value()).alias("position"),
    )
    # Values that an operation polled and that it also sent to the same queue.
    polled = (
        operations.where("function IN ('poll', 'read')")
        .join(appends.select("op", "key"), ["op", "key"], "left_semi")
        .select("*", sf.posexplode("values").alias("place", "value"))
        .withColumn("position", _place_of_value())
        .join(sent, ["op", "key", "value"], "left_semi")
    )
    # The operations that may have put such a value there; those that failed certainly did not.
    senders = (
        sent.where("outcome <> 'fail'")
        .join(polled, ["key", "value"], "left_semi")
        .groupBy("key", "value")
        .agg(sf.min("op").alias("first_sender"), sf.max("op").alias("last_sender"))
    )
    own = sent.select("op", "key", "value", "position").distinct().withColumn("is_own", sf.lit(True))
    wrong = (
        polled.join(senders, ["key", "value"], "left")
        .join(own, ["op", "key", "value", "position"], "left")
        .where("is_own OR first_sender IS NULL OR (first_sender = op AND last_sender = op)")
    )
    lower, upper = sf.col("invoke_ns"), sf.col("complete_ns")
    return found_in(wrong, "precommitted-read", lower=lower, upper=upper, allowed=sf.lit(False))


def _place_of_value() -> Column:
    """The offset of the value at ``place`` of its row."""
    return sf.coalesce(sf.get("offsets", sf.col("place")), sf.col("first_offset") + sf.col("place"))


def _unpolled(polls: DataFrame, positions: DataFrame) -> DataFrame:
    spans = polls.groupBy("key").agg(
        sf.min(sf.least("first_offset", sf.array_min("offsets"))).alias("first_polled"),
        sf.max(sf.greatest("last_offset", sf.array_max("offsets"))).alias("last_polled"),
    )
    passed = positions.where("acks > 0 AND reads = 0").join(spans, "key")
    lost = passed.where("position BETWEEN first_polled AND last_polled")
    return found_in(lost, "lost-write", allowed=sf.lit(False))


def overwritten(operations: DataFrame, disputed: DataFrame) -> DataFrame:
    """Lost writes among ``disputed`` (key, position), offsets of several values: acknowledged there, seen nowhere."""
    answered = operations.where("outcome = 'ok' AND first_offset IS NOT NULL")
    acknowledged = (
        answered.where("function = 'append'")
        .select("key", "offsets", "first_offset", sf.posexplode("values").alias("place", "text"))
        .select("key", _place_of_value().alias("position"), sf.xxhash64("text").alias("value"))
        .join(disputed.select("key", "position").distinct(), ["key", "position"], "left_semi")
    )
    returned = (
        answered.where("function IN ('read', 'poll')")
        .select("key", sf.explode("values").alias("text"))
        .select("key", sf.xxhash64("text").alias("value"))
    )
    return found_in(acknowledged.join(returned, ["key", "value"], "left_anti"), "lost-write").distinct()


def backward_sends(operations: DataFrame, positions: DataFrame) -> DataFrame:
    """Appends that began after an append of the same client had ended at a higher offset of the same queue.

    An append of unknown outcome stands where its value was seen, if nothing was acknowledged there.
    """
    appends = operations.where("function = 'append'")
    acknowledged = appends.where("outcome = 'ok' AND first_offset IS NOT NULL")
    ended = acknowledged.select(
        *("client", "key"),
        sf.col("complete_ns").alias("time_ns"),
        sf.lit(1).alias("is_end"),
        sf.struct(
            sf.coalesce(sf.array_max("offsets"), sf.col("first_offset") + sf.size("values") - 1).alias(
                "offset"
            ),
            "complete_ns",
        ).alias("reached"),
        nothing().alias("position"),
    )
    seen = positions.where("acks = 0 AND value IS NOT NULL").select("key", "position", "value")
    attempts = appends.where("outcome = 'info'").select(
        *("op", "client", "key", "invoke_ns"), sf.explode("values").alias("text")
    )
    is_alone = sf.count(sf.lit(1)).over(Window.partitionBy("key", "text")) == 1
    placed = (
        attempts.withColumn("is_alone", is_alone)
        .where("is_alone")
        .withColumn("value", sf.xxhash64("text"))
        .join(seen, ["key", "value"])
    )
    begun = (
        acknowledged.select(
            *("client", "key", "invoke_ns"),
            sf.coalesce(sf.array_min("offsets"), "first_offset").alias("position"),
        )
        .unionByName(placed.select("client", "key", "invoke_ns", "position"))
        .select(
            *("client", "key"),
            sf.col("invoke_ns").alias("time_ns"),
            sf.lit(0).alias("is_end"),
            sf.lit(None).cast("struct<offset: bigint, complete_ns: bigint>").alias("reached"),
            "position",
        )
    )
    # At one moment beginnings come first: only what ended strictly earlier precedes.
    steps = ended.unionByName(begun)
    steps = steps.withColumn("bucket", by_quantiles(steps, "time_ns", steps.count()))
    swept = running(
        steps, ["client", "key"], ["bucket"], ["time_ns", "is_end"], highest=Running("max", "reached")
    )
    backward = swept.where("is_end = 0 AND position < highest.offset")
    lower, upper = sf.col("time_ns"), sf.col("highest.complete_ns")
    return found_in(backward, "nonmonotonic-send", lower=lower, upper=upper)
