"""The public answer: ``check(history)`` puts the checkers' findings together into one verdict with proofs.

A history that one task holds is judged there (:mod:`spark_analysis.small`), any other by the DataFrames here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.history import History
from spark_analysis.kafka_catalogue import backward_sends, check_catalogue, overwritten
from spark_analysis.kafka_transactions import find_cycles
from spark_analysis.kept import kept
from spark_analysis.log_model import LogFindings, check_log
from spark_analysis.proofs import (
    DAMAGES_LISTED,
    EXAMPLES_OF_EACH_KIND,
    PROOF_OPERATIONS,
    REGISTERS,
    REPLICA_FINDINGS_LISTED,
    SHOWN,
    UNSURE_LISTED,
    VALUED,
    assembled,
    circle_anomalies,
    damage_facts,
    damage_line,
    shown,
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
        anomalies = _examples(findings, history.operations, sorted(counts))
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
    return assembled(
        history.path, total, counts, allowed, anomalies, undecided, map(damage_line, damages), facts
    )


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
    return _examples(findings, operations, ["unseen"])


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
    return {
        "functions": {
            function: dict(sorted(counts.items())) for function, counts in sorted(outcomes.items())
        },
        "transactions": transactions,
        "queues": names["queues"],
        "clients": names["clients"],
        "first_ns": first,
        "seconds": ((last or 0) - (first or 0)) / 1e9,
        "replica_events": {
            row["node"]: row["count"] for row in sorted(nodes, key=lambda row: str(row["node"]))
        },
    }, total


def _examples(findings: DataFrame, operations: DataFrame, kinds: list[str]) -> list[Anomaly]:
    """The first few findings of each kind with the operations that touch them.

    A finding about an order names two moments; one about a position is shown with what touches the position, each
    with the ``value`` that it says is there.
    """
    first_of_kind = Window.partitionBy("kind").orderBy("key", "position", "lower", "upper")
    disputed = sf.col("kind").isin("duplicate-offset", "inconsistent-offset")
    chosen: list[Any] = sorted(
        findings.withColumns({name: sf.when(~disputed, sf.col(name)) for name in ("lower", "upper")})
        .withColumn("place", sf.row_number().over(first_of_kind))
        .where(sf.col("place") <= EXAMPLES_OF_EACH_KIND)
        .collect(),
        key=lambda row: (kinds.index(row["kind"]), row["place"]),
    )
    wanted = findings.sparkSession.createDataFrame(
        [
            (number, row["key"], row["position"], row["lower"], row["upper"])
            for number, row in enumerate(chosen)
        ],
        "number INT, queue STRING, at BIGINT, lower BIGINT, upper BIGINT",
    )
    count = sf.greatest(sf.coalesce(sf.size("values"), sf.lit(1)), sf.lit(1))
    first = sf.coalesce("first_offset", "offset")
    last = sf.coalesce(sf.element_at("offsets", -1), sf.col("first_offset") + count - 1, sf.col("offset"))
    touches = sf.col("at").between(first, last)
    index = sf.when(
        touches,
        sf.coalesce(
            sf.array_position("offsets", sf.col("at")) - 1, sf.col("at") - sf.col("first_offset")
        ).cast("int"),
    )
    begins = sf.col("invoke_ns") == sf.col("lower")
    ends = sf.col("complete_ns") == sf.col("upper")
    queue = sf.when(sf.col("function").isin(*REGISTERS), sf.concat_ws(" ", "key", "group")).otherwise(
        sf.col("key")
    )
    ordered = sf.col("lower").isNotNull()
    # Comparisons with constants first: the join pairs every operation of a queue with every finding about it.
    moments = [row["lower"] for row in chosen if row["lower"] is not None]
    limits = [row["upper"] for row in chosen if row["upper"] is not None]
    places = sorted(
        {row["position"] for row in chosen if row["lower"] is None and row["position"] is not None}
    )
    near = reduce(
        lambda one, other: one | other,
        (sf.lit(place).between(first, last) for place in places),
        sf.col("invoke_ns").isin(moments) | sf.col("complete_ns").isin(limits),
    )
    # What decides first; then, of each value that was seen there, its append before its readers.
    first_of_value = Window.partitionBy("number", "value").orderBy(
        "minor", sf.col("function") != "append", "invoke_ns", "op"
    )
    proofs = (
        operations.where(near)
        .withColumn("of", queue)
        .join(
            sf.broadcast(wanted),
            (sf.col("of") == sf.col("queue")) & sf.when(ordered, begins | ends).otherwise(touches | ends),
        )
        .withColumn("value", sf.get("values", sf.when(sf.col("function").isin(*VALUED), index)))
        .withColumn("minor", ~sf.coalesce(begins | ends, sf.lit(False)))
        .withColumn("place", sf.row_number().over(first_of_value))
        .where(sf.col("place") <= PROOF_OPERATIONS)
        .select("number", sf.struct("minor", "place", sf.struct(*SHOWN).alias("operation")).alias("found"))
        .groupBy("number")
        .agg(sf.slice(sf.sort_array(sf.collect_list("found")), 1, PROOF_OPERATIONS).alias("found"))
        .collect()
    )
    by_number = {row["number"]: [entry["operation"] for entry in row["found"]] for row in proofs}
    return [
        Anomaly(
            row["kind"],
            row["key"],
            row["position"],
            tuple(shown(operation.asDict()) for operation in by_number.get(number, [])),
        )
        for number, row in enumerate(chosen)
    ]
