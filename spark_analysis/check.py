"""The public answer: ``check(history)`` puts the checkers' findings together into one verdict with proofs.

A history that one task holds is judged there (:mod:`spark_analysis.small`), any other by the DataFrames here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from spark_analysis.examples import examples
from spark_analysis.history import History
from spark_analysis.kafka_catalogue import backward_sends, check_catalogue, overwritten
from spark_analysis.kafka_transactions import find_cycles
from spark_analysis.kept import kept
from spark_analysis.log_model import LogFindings, check_log
from spark_analysis.proofs import (
    DAMAGES_LISTED,
    EXAMPLES_OF_EACH_KIND,
    REPLICA_FINDINGS_LISTED,
    UNSURE_LISTED,
    assembled,
    circle_anomalies,
    damage_facts,
    facts_of,
    unsure_line,
)
from spark_analysis.raft_invariants import check_replicas
from spark_analysis.registers import RegisterFindings, check_offsets
from spark_analysis.small import check_in_one_task
from spark_analysis.verdict import Anomaly, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame


def check(history: History, *, drained: bool = False, sparse: bool = False) -> Verdict:
    """Judge a history against the log model, the registers of committed offsets, and Raft's invariants.

    ``drained``: at the end readers have read every queue to its end, so that a value that nobody saw is lost.
    ``sparse``: offsets may hold what no client sees, as Kafka's do with transactions or compaction. The verdict's
    ``facts`` say ``judged_by`` how many tasks.
    """
    verdict, judged_by = check_in_one_task(history, drained=drained, sparse=sparse), "one task"
    if verdict is None:
        verdict, judged_by = check_distributed(history, drained=drained, sparse=sparse), "many tasks"
    return replace(verdict, facts=verdict.facts | {"judged_by": judged_by})


def check_distributed(history: History, *, drained: bool = False, sparse: bool = False) -> Verdict:
    """:func:`check` of a history of any length: no stage has more than a share of a queue on one task."""
    facts, total = _facts(history)
    damages = history.damage.orderBy("file", "position").limit(DAMAGES_LISTED).collect()
    kinds: Mapping[str, int] = Counter(row["kind"] for row in damages)
    if len(damages) == DAMAGES_LISTED:
        kinds = {row["kind"]: row["count"] for row in history.damage.groupBy("kind").count().collect()}
    facts |= damage_facts(kinds)
    found: list[DataFrame] = []
    doubtful: list[DataFrame] = []
    log = check_log(history.operations, sparse=sparse)
    if log.findings is not None:
        found.append(log.findings)
    if log.unsure is not None:
        doubtful.append(log.unsure)
    offsets: RegisterFindings | None = None
    if facts["functions"].keys() & {"commit_offset", "fetch_offset"}:
        offsets = check_offsets(history.operations)
        stale = kept(offsets.found)
        is_unsure = {row["unsure"] for row in stale.groupBy("unsure").count().collect()}
        if False in is_unsure:
            found.append(stale.where("NOT unsure").drop("unsure"))
        if True in is_unsure:
            doubtful.append(stale.where("unsure").drop("unsure"))
    counts: Counter[str] = Counter()
    allowed: Counter[str] = Counter()
    anomalies: list[Anomaly] = []
    has_polls, has_transactions = "poll" in facts["functions"], facts["transactions"] > 0
    if has_polls or has_transactions:
        catalogue = kept(
            check_catalogue(
                history.operations, log.positions, has_polls=has_polls, has_transactions=has_transactions
            )
        )
        rows = catalogue.groupBy("kind", "allowed").count().collect()
        allowed.update({row["kind"]: row["count"] for row in rows if row["allowed"]})
        if any(not row["allowed"] for row in rows):
            found.append(catalogue.where("NOT allowed").drop("allowed"))
    if log.disputed is not None:
        found.append(overwritten(history.operations, log.disputed))
    if found:
        findings = kept(reduce(lambda one, other: one.unionByName(other), found))
        counts.update({row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()})
        if counts["append-order"] or counts["unexplained-value"]:
            backward = kept(backward_sends(history.operations, log.positions))
            findings = findings.unionByName(backward)
            counts["nonmonotonic-send"] = backward.count()
        counts = +counts
        anomalies = examples(findings, history.operations, sorted(counts))
    if log.unseen:
        (counts if drained else allowed)["unseen"] = log.unseen
        if drained:
            anomalies += _unseen(log, history.operations)
    undecided: list[str] = []
    if facts["transactions"]:
        circles = find_cycles(history.operations)
        if circles is None:
            undecided.append("G1c: too many transactions polled from each other")
        counts.update(one.kind for one in circles or ())
        anomalies += circle_anomalies(circles or (), lambda ops: _rows_of(ops, history.operations))
    if facts["replica_events"]:
        replicas = kept(check_replicas(history.events))
        counts.update({row["kind"]: row["count"] for row in replicas.groupBy("kind").count().collect()})
        order = ("kind", "position", "key", "detail")
        for row in replicas.orderBy(*order).limit(REPLICA_FINDINGS_LISTED).collect():
            anomalies.append(Anomaly(row["kind"], row["key"], row["position"], (), row["detail"]))
    unsure = [
        row
        for frame in doubtful
        for row in frame.orderBy("key", "position", "kind").limit(UNSURE_LISTED).collect()
    ]
    log.release()
    if offsets is not None:
        offsets.release()
    undecided += [unsure_line(row["key"], row["kind"], row["position"]) for row in unsure]
    return assembled(history.path, total, counts, allowed, anomalies, undecided, damages, facts)


def _rows_of(ops: Sequence[int], operations: DataFrame) -> list[dict[str, Any]]:
    rows = operations.where(sf.col("op").isin(list(ops))).orderBy("op", "function", "key").collect()
    return [row.asDict() for row in rows]


def _unseen(log: LogFindings, operations: DataFrame) -> list[Anomaly]:
    """The first acknowledged values that no reader returned."""
    nothing = sf.lit(None).cast("bigint")
    findings = (
        log.positions.where("acks > 0 AND reads = 0")
        .orderBy("key", "position")
        .limit(EXAMPLES_OF_EACH_KIND)
        .select(
            "key",
            sf.lit("unseen").alias("kind"),
            "position",
            nothing.alias("lower"),
            nothing.alias("upper"),
        )
    )
    return examples(findings, operations, ["unseen"])


def _facts(history: History) -> tuple[dict[str, Any], int]:
    """What was checked, in numbers."""
    outcomes: dict[str, dict[str, int]] = defaultdict(dict)
    total, transactions, first, last = 0, 0, None, None
    rows = (
        history.operations.groupBy("function", "outcome")
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.min("invoke_ns").alias("first"),
            sf.max(sf.coalesce("complete_ns", "invoke_ns")).alias("last"),
            sf.count_if(sf.expr("function = 'append' AND offsets IS NOT NULL")).alias("transactions"),
        )
        .collect()
    )
    for row in rows:
        outcomes[row["function"]][row["outcome"]] = row["count"]
        total += row["count"]
        transactions += row["transactions"]
        first = row["first"] if first is None else min(first, row["first"])
        last = row["last"] if last is None else max(last, row["last"])
    (names,) = history.operations.agg(
        sf.count_distinct("key").alias("queues"), sf.count_distinct("client").alias("clients")
    ).collect()
    nodes = history.events.where("kind NOT IN ('fault', 'note')").groupBy("node").count().collect()
    return facts_of(
        outcomes,
        transactions=transactions,
        queues=names["queues"],
        clients=names["clients"],
        first_ns=first,
        last_ns=last,
        replica_events={row["node"]: row["count"] for row in nodes},
    ), total
