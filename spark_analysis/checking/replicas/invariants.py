"""Raft's guarantees, judged from what the replicas themselves recorded (figure 3 of the extended Raft paper).

Every check is a grouping, or a sweep along one node's events, whose order is their place in the node's files. A sweep
goes through ranges of a file (:mod:`spark_analysis.checking.sweep`), so that a node's history of any length is spread
over all tasks. Findings are rows (kind, key, position, detail): ``key`` is a node or a term, ``position`` a log index
or a term. Each group is judged by itself, as terms and indexes are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from spark_analysis.checking.columns import together
from spark_analysis.checking.replicas.files import file_columns
from spark_analysis.checking.sweep import Running, running

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Events of 4 MiB of a file, some 10**5, are one bucket of a sweep.
RANGE_BITS: Final = 22


def check_replicas(events: DataFrame) -> DataFrame:
    """Every violated invariant in ``events`` (schema.EVENT_TABLE)."""
    # Histories of others need not name a group, and a sweep takes no null for a key.
    events = events.withColumn("group", sf.coalesce("group", sf.lit("")))
    rules = (
        *(_two_leaders, _backward_terms, _backward_commits, _truncated_commits, _incomplete_leaders),
        *(_mismatched_runs, _mismatched_prefixes),
    )
    return together(rule(events) for rule in rules)


def _two_leaders(events: DataFrame) -> DataFrame:
    """Election safety: at most one leader in a term."""
    return (
        events.where("kind = 'role' AND role = 'leader'")
        .groupBy("group", "term")
        .agg(sf.array_sort(sf.collect_set("node")).alias("nodes"))
        .where(sf.size("nodes") > 1)
        .select(
            sf.lit("two-leaders").alias("kind"),
            sf.concat(sf.lit("term "), sf.col("term").cast("string")).alias("key"),
            sf.col("term").alias("position"),
            sf.concat_ws(" and ", "nodes").alias("detail"),
        )
    )


def _before(events: DataFrame, keys: list[str], **wanted: Running) -> DataFrame:
    """``events`` with running aggregates over the earlier events of the same node, and of the same of ``keys``."""
    return running(
        events.withColumns(file_columns() | {"range": sf.shiftright("position", RANGE_BITS)}),
        ["group", "node", *keys],
        ["stem", "number", "range"],
        ["stem", "number", "position"],
        **wanted,
    )


def _with_disk(events: DataFrame) -> DataFrame:
    """``events`` with how often the node's disk was replaced: a start without a term and an entry is of a new one."""
    is_new = "kind = 'start' AND term = 0 AND last_index = -1"
    return _before(
        events.withColumn("is_new", sf.expr(is_new).cast("int")),
        [],
        disk=Running("sum", "is_new", inclusive=True),
    )


def _of_one_node(rows: DataFrame, kind: str, position: Column, words: str, number: str) -> DataFrame:
    """Findings about the node of each row; the detail is ``words`` and the column ``number``."""
    return rows.select(
        sf.lit(kind).alias("kind"),
        sf.col("node").alias("key"),
        position.alias("position"),
        sf.concat(sf.lit(words), sf.col(number).cast("string")).alias("detail"),
    )


def _backward_terms(events: DataFrame) -> DataFrame:
    """A node's term never decreases, over all lives with one disk: it is durable before any answer."""
    terms = _with_disk(events.where("kind IN ('role', 'start')"))
    backward = _before(terms, ["disk"], earlier=Running("max", "term")).where("term < earlier")
    return _of_one_node(backward, "term-went-back", sf.col("term"), "from term ", "earlier")


def _backward_commits(events: DataFrame) -> DataFrame:
    """The commit index never decreases while a node runs (after a restart it is learned again)."""
    starts = events.where("kind IN ('start', 'commit')").withColumn(
        "starts", (sf.col("kind") == "start").cast("int")
    )
    commits = _before(starts, [], life=Running("sum", "starts")).where("kind = 'commit'")
    earlier = Running("max", "last_index")
    backward = _before(commits, ["life"], earlier=earlier).where("last_index < earlier")
    return _of_one_node(backward, "commit-went-back", sf.col("last_index"), "from index ", "earlier")


def _truncated_commits(events: DataFrame) -> DataFrame:
    """Find entries that a node removed although it had known them committed, in this life or an earlier one with the
    same disk."""
    known = _with_disk(events.where("kind IN ('start', 'commit', 'truncate')")).withColumn(
        "known", sf.when(sf.col("kind") == "commit", sf.col("last_index"))
    )
    truncated = _before(known, ["disk"], committed=Running("max", "known")).where(
        "kind = 'truncate' AND last_index < committed"
    )
    first_removed = sf.col("last_index") + 1
    return _of_one_node(truncated, "committed-truncated", first_removed, "committed up to ", "committed")


def _incomplete_leaders(events: DataFrame) -> DataFrame:
    """Leader completeness: what was committed in an earlier term is in the log of every later leader.

    A log lacks it that is too short, or that ends in a term before one whose leader had committed an entry of its own:
    terms never decrease along a log. Entries behind a leader's log at its election are its own.
    """
    commits = events.where("kind = 'commit'").select("group", "node", "term", "last_index")
    leaders = (
        events.where("kind = 'role' AND role = 'leader'")
        .select("group", "node", "term", "last_index", "last_term")
        .alias("leader")
    )
    elected = leaders.groupBy("group", "node", "term").agg(sf.min("last_index").alias("begin"))
    own = sf.when(sf.col("last_index") > sf.col("begin"), sf.col("last_index"))
    # One row for each term of a group.
    past = (
        commits.join(sf.broadcast(elected), ["group", "node", "term"], "left")
        .groupBy("group", "term")
        .agg(sf.max("last_index").alias("committed"), sf.max(own).alias("own"))
    )
    latest = sf.max(sf.when(sf.col("own").isNotNull(), sf.struct(sf.col("past.term").alias("term"), "own")))
    is_short = sf.col("last_index") < sf.col("committed")
    words = (sf.lit("leader of term "), sf.col("term").cast("string"))
    return (
        leaders.join(
            sf.broadcast(past.alias("past")),
            (sf.col("past.group") == sf.col("leader.group")) & (sf.col("past.term") < sf.col("leader.term")),
        )
        .groupBy("leader.group", "leader.node", "leader.term", "leader.last_index", "leader.last_term")
        .agg(sf.max("committed").alias("committed"), latest.alias("latest"))
        .where(is_short | (sf.col("last_term") < sf.col("latest.term")))
        .select(
            "group",
            sf.lit("leader-incomplete").alias("kind"),
            sf.col("node").alias("key"),
            sf.when(is_short, sf.col("last_index") + 1).otherwise(sf.col("latest.own")).alias("position"),
            sf.when(
                is_short,
                sf.concat(*words, sf.lit("; committed before: "), sf.col("committed").cast("string")),
            )
            .otherwise(
                sf.concat(
                    *words,
                    sf.format_string(
                        "; its log ends with entry %d of term %d; committed before, in term %d: %d",
                        "last_index",
                        "last_term",
                        "latest.term",
                        "latest.own",
                    ),
                )
            )
            .alias("detail"),
        )
        .distinct()
        .drop("group")
    )


def _mismatched_runs(events: DataFrame) -> DataFrame:
    """Log matching: entries of one index and term are the same entries wherever they are (runs with digests)."""
    runs = events.where("kind = 'append' AND digest IS NOT NULL")
    words = sf.concat(sf.lit("entries of term "), sf.col("term").cast("string"))
    return _mismatched(runs, ("term", "first_index", "last_index"), "log-mismatch", "first_index", words)


def _mismatched_prefixes(events: DataFrame) -> DataFrame:
    """State machine safety: committed prefixes of equal length are equal bytes."""
    prefixes, words = events.where("kind = 'digest'"), sf.lit("CRC-32 of the committed bytes differ")
    return _mismatched(prefixes, ("last_index",), "prefix-mismatch", "last_index", words)


def _mismatched(
    stated: DataFrame, thing: tuple[str, ...], kind: str, position: str, detail: Column
) -> DataFrame:
    """Things, each known by these columns, of which several digests were stated."""
    return (
        stated.groupBy("group", *thing)
        .agg(
            sf.min("digest").alias("least"),
            sf.max("digest").alias("greatest"),
            sf.array_sort(sf.collect_set("node")).alias("nodes"),
        )
        .where("least <> greatest")
        .select(
            sf.lit(kind).alias("kind"),
            sf.concat_ws(" and ", "nodes").alias("key"),
            sf.col(position).alias("position"),
            detail.alias("detail"),
        )
    )
