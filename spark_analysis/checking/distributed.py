"""A history of any length, over the cluster: no stage has more than a share of a queue on one task.

The checkers' findings are counted where they are; what comes to the driver is the first few of each kind with the
operations that prove them, and some numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from spark_analysis.checking.columns import found_in, together
from spark_analysis.checking.examples import examples
from spark_analysis.checking.kafka.catalogue import backward_sends, check_catalogue, overwritten
from spark_analysis.checking.kafka.transactions import find_cycles
from spark_analysis.checking.kept import kept
from spark_analysis.checking.proofs import (
    DAMAGES_LISTED,
    EXAMPLES_OF_EACH_KIND,
    REPLICA_FINDINGS_LISTED,
    UNSURE_LISTED,
    Gathered,
    damage_facts,
    facts_of,
)
from spark_analysis.checking.queues.log_model import LogFindings, check_log
from spark_analysis.checking.registers import RegisterFindings, check_offsets
from spark_analysis.checking.replicas.invariants import check_replicas
from spark_analysis.checking.replicas.names import named_events, replica_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from spark_analysis.checking.verdict import Anomaly, Verdict
    from spark_analysis.importing.history import History


def check_distributed(history: History, *, drained: bool = False, sparse: bool = False) -> Verdict:
    """Judge a history; the arguments and the verdict are those of :func:`spark_analysis.checking.check.check`."""
    facts, total = _facts(history)
    damages = history.damage.orderBy("file", "position").limit(DAMAGES_LISTED).collect()
    # Mostly the list that is fetched has all damage. Where it is full there may be more, which one more job counts by
    # kind.
    kinds: Mapping[str, int] = Counter(row["kind"] for row in damages)
    if len(damages) == DAMAGES_LISTED:
        kinds = {row["kind"]: row["count"] for row in history.damage.groupBy("kind").count().collect()}
    facts |= damage_facts(kinds)
    gathered = Gathered(facts, total, damages=damages)
    counts = gathered.counts
    found: list[DataFrame] = []
    doubtful: list[DataFrame] = []
    log = check_log(history.operations, sparse=sparse)
    if log.findings is not None:
        found.append(log.findings)
    if log.unsure is not None:
        doubtful.append(log.unsure)
    offsets: RegisterFindings | None = None
    # Each checker runs only if the history has operations for it: an empty one costs its stages all the same.
    if facts["functions"].keys() & {"commit_offset", "fetch_offset"}:
        offsets = check_offsets(history.operations)
        stale = kept(offsets.found)
        is_unsure = {row["unsure"] for row in stale.groupBy("unsure").count().collect()}
        if False in is_unsure:
            found.append(stale.where("NOT unsure").drop("unsure"))
        if True in is_unsure:
            doubtful.append(stale.where("unsure").drop("unsure"))
    has_polls, has_transactions = "poll" in facts["functions"], facts["transactions"] > 0
    if has_polls or has_transactions:
        catalogue = kept(
            check_catalogue(
                history.operations, log.positions, has_polls=has_polls, has_transactions=has_transactions
            )
        )
        rows = catalogue.groupBy("kind", "allowed").count().collect()
        gathered.allowed.update({row["kind"]: row["count"] for row in rows if row["allowed"]})
        if any(not row["allowed"] for row in rows):
            found.append(catalogue.where("NOT allowed").drop("allowed"))
    # One of several values at one offset is lost if no read returned it from anywhere.
    if log.disputed is not None:
        found.append(overwritten(history.operations, log.disputed))
    if found:
        findings = kept(together(found))
        counts.update({row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()})
        # A client's sends can go backwards only where the order of appends is wrong at all.
        if counts["append-order"] or counts["unexplained-value"]:
            backward = kept(backward_sends(history.operations, log.positions))
            findings = findings.unionByName(backward)
            counts["nonmonotonic-send"] = backward.count()
        gathered.anomalies += examples(findings, history.operations, sorted(counts))
    gathered.add_unseen(log.unseen, lambda: _unseen(log, history.operations), drained=drained)
    if facts["transactions"]:
        gathered.add_circles(find_cycles(history.operations), lambda ops: _rows_of(ops, history.operations))
    if facts["replica_events"]:
        replicas = kept(check_replicas(named_events(history.events, facts["groups"])))
        broken = {row["kind"]: row["count"] for row in replicas.groupBy("kind").count().collect()}
        in_order = replicas.orderBy("kind", "position", "key", "detail").limit(REPLICA_FINDINGS_LISTED)
        first = in_order.select("kind", "key", "position", "detail").collect()
        gathered.add_replicas(broken, (tuple(row) for row in first))
    for frame in doubtful:
        unsure = frame.select("key", "position", "kind").orderBy("key", "position", "kind")
        gathered.add_unsure(tuple(row) for row in unsure.limit(UNSURE_LISTED).collect())
    log.release()
    if offsets is not None:
        offsets.release()
    return gathered.verdict(history.path)


def _rows_of(ops: Sequence[int], operations: DataFrame) -> list[dict[str, Any]]:
    rows = operations.where(sf.col("op").isin(list(ops))).orderBy("op", "function", "key").collect()
    return [row.asDict() for row in rows]


def _unseen(log: LogFindings, operations: DataFrame) -> list[Anomaly]:
    """The first acknowledged values that no reader returned."""
    rows = log.positions.where("acks > 0 AND reads = 0").orderBy("key", "position")
    findings = found_in(rows.limit(EXAMPLES_OF_EACH_KIND), "unseen")
    return examples(findings, operations, ["unseen"])


def _facts(history: History) -> tuple[dict[str, Any], int]:
    """Count the operations of the history; returns :func:`facts_of` them, and how many there are."""
    outcomes: dict[str, dict[str, int]] = defaultdict(dict)
    total, transactions, first, last, is_called = 0, 0, None, None, False
    operations = history.operations
    if "called" not in operations.columns:
        operations = operations.withColumn("called", sf.lit(None).cast("string"))
    # One pass by Spark; what is left to add up here is a row for each function and outcome. An operation without an
    # answer has no end, and counts with its beginning.
    rows = (
        operations.groupBy("function", "outcome")
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.min("invoke_ns").alias("first"),
            sf.max(sf.coalesce("complete_ns", "invoke_ns")).alias("last"),
            sf.count_if(sf.expr("function = 'append' AND offsets IS NOT NULL")).alias("transactions"),
            sf.count("called").alias("called"),
        )
        .collect()
    )
    for row in rows:
        outcomes[row["function"]][row["outcome"]] = row["count"]
        total += row["count"]
        transactions += row["transactions"]
        is_called |= bool(row["called"])
        first = row["first"] if first is None else min(first, row["first"])
        last = row["last"] if last is None else max(last, row["last"])
    called: dict[str, int] = {}
    if is_called:
        name = sf.coalesce("called", sf.concat_ws(" ", "function", "outcome")).alias("name")
        counted = operations.select("op", name).distinct().groupBy("name").count().collect()
        called = {row["name"]: row["count"] for row in counted}
    (names,) = history.operations.agg(
        sf.count_distinct("key").alias("queues"), sf.count_distinct("client").alias("clients")
    ).collect()
    nodes = history.events.where("kind NOT IN ('fault', 'note')").groupBy("group", "node").count().collect()
    groups = sorted({row["group"] or "" for row in nodes})
    return facts_of(
        outcomes,
        called,
        transactions=transactions,
        queues=names["queues"],
        clients=names["clients"],
        first_ns=first,
        last_ns=last,
        groups=groups,
        replica_events={replica_name(row["group"], row["node"], groups): row["count"] for row in nodes},
    ), total
