"""The public answer: ``check(history)`` puts the checkers' findings together into one verdict with proofs."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.history import History
from spark_analysis.kafka_catalogue import backward_sends, check_catalogue, overwritten
from spark_analysis.kafka_transactions import Cycle, find_cycles
from spark_analysis.log_model import LogFindings, check_log
from spark_analysis.raft_invariants import check_replicas
from spark_analysis.registers import RegisterFindings, check_offsets
from spark_analysis.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, Anomaly, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

EXAMPLES_OF_EACH_KIND: Final = 10
PROOF_OPERATIONS: Final = 6
MAXIMUM_DAMAGES_LISTED: Final = 20


def check(history: History, *, drained: bool = False, sparse: bool = False) -> Verdict:
    """Judge a history against the log model, the registers of committed offsets, and Raft's invariants.

    ``drained``: at the end readers have read every queue to its end, so that a value that nobody saw is lost.
    ``sparse``: offsets may hold what no client sees, as Kafka's do with transactions or compaction.
    """
    facts, total = _facts(history)
    damages = history.damage.orderBy("file", "position").limit(MAXIMUM_DAMAGES_LISTED).collect()
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
        stale = offsets.found.cache()
        if stale.limit(1).count():
            found.append(stale.where("NOT unsure").drop("unsure"))
            doubtful.append(stale.where("unsure").drop("unsure"))
    counts: Counter[str] = Counter()
    allowed: Counter[str] = Counter()
    anomalies: list[Anomaly] = []
    catalogue = _catalogue(history, log, facts)
    if catalogue is not None:
        found.append(catalogue.where("NOT allowed").drop("allowed"))
        rows = catalogue.where("allowed").groupBy("kind").count().collect()
        allowed.update({row["kind"]: row["count"] for row in rows})
    if log.disputed is not None:
        found.append(overwritten(history.operations, log.disputed))
    if found:
        findings = reduce(lambda one, other: one.unionByName(other), found).cache()
        counts.update({row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()})
        if counts["append-order"] or counts["unexplained-value"]:
            findings = findings.unionByName(backward_sends(history.operations, log.positions)).cache()
            counts["nonmonotonic-send"] = findings.where("kind = 'nonmonotonic-send'").count()
        counts = +counts
        anomalies = _examples(findings, history.operations, sorted(counts))
        findings.unpersist()
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
        anomalies += _circles(circles or [], history.operations)
    if facts["replica_events"]:
        replicas = check_replicas(history.events).cache()
        counts.update({row["kind"]: row["count"] for row in replicas.groupBy("kind").count().collect()})
        for row in replicas.orderBy("kind", "position").limit(100).collect():
            anomalies.append(Anomaly(row["kind"], row["key"], row["position"], (), row["detail"]))
        replicas.unpersist()
    unsure = [row for frame in doubtful for row in frame.limit(100).collect()]
    if catalogue is not None:
        catalogue.unpersist()
    log.release()
    if offsets is not None:
        offsets.found.unpersist()
        offsets.release()
    undecided += [f"{row['key']}: {row['kind']} at {row['position']}" for row in unsure]
    return Verdict(
        history.path,
        VIOLATED if counts else UNDECIDED if undecided else LINEARIZABLE,
        total,
        dict(sorted(counts.items())),
        tuple(anomalies),
        tuple(undecided),
        tuple(
            f"{row['file']}: {'line' if row['kind'] == 'line' else 'byte'} {row['position']}: {row['reason']}"
            for row in damages
        ),
        facts,
        dict(sorted(allowed.items())),
    )


def _catalogue(history: History, log: LogFindings, facts: dict[str, Any]) -> DataFrame | None:
    """Findings about polls and transactions with the column ``allowed``; None if there are none."""
    has_polls, has_transactions = "poll" in facts["functions"], facts["transactions"] > 0
    if not has_polls and not has_transactions:
        return None
    findings = check_catalogue(
        history.operations, log.positions, has_polls=has_polls, has_transactions=has_transactions
    ).cache()
    return findings if findings.limit(1).count() else None


def _circles(circles: Sequence[Cycle], operations: DataFrame) -> list[Anomaly]:
    """The first few of each kind, shortest first, with the rows of their transactions in the order of the circle."""
    chosen: list[Cycle] = []
    for one in sorted(circles, key=lambda one: (one.kind, len(one.ops))):
        if sum(other.kind == one.kind for other in chosen) < EXAMPLES_OF_EACH_KIND:
            chosen.append(one)
    ops = sorted({op for one in chosen for op in one.ops[:PROOF_OPERATIONS]})
    rows = operations.where(sf.col("op").isin(ops)).orderBy("op", "function", "key").collect() if ops else []
    anomalies = []
    for one in chosen:
        proof = [row.asDict() for op in one.ops[:PROOF_OPERATIONS] for row in rows if row["op"] == op]
        shown = [_shown({name: row.get(name) for name in _SHOWN}) for row in proof]
        detail = " -> ".join(f"operation {op}" for op in one.ops[:PROOF_OPERATIONS])
        anomalies.append(Anomaly(one.kind, proof[0]["key"], None, tuple(shown), detail))
    return anomalies


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
    nodes = history.events.where("kind NOT IN ('fault', 'note')").groupBy("node").count().collect()
    return {
        "functions": {
            function: dict(sorted(counts.items())) for function, counts in sorted(outcomes.items())
        },
        "transactions": transactions,
        "queues": history.operations.select("key").distinct().count(),
        "clients": history.operations.select("client").distinct().count(),
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
    first_of_kind = Window.partitionBy("kind").orderBy("key", "position")
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
    queue = sf.when(
        sf.col("function").isin("commit_offset", "fetch_offset"), sf.concat_ws(" ", "key", "group")
    ).otherwise(sf.col("key"))
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
        .withColumn("value", sf.get("values", sf.when(sf.col("function").isin(*_VALUED), index)))
        .withColumn("minor", ~sf.coalesce(begins | ends, sf.lit(False)))
        .withColumn("place", sf.row_number().over(first_of_value))
        .where(sf.col("place") <= PROOF_OPERATIONS)
        .select("number", sf.struct("minor", "place", sf.struct(*_SHOWN).alias("operation")).alias("found"))
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
            tuple(_shown(operation.asDict()) for operation in by_number.get(number, [])),
        )
        for number, row in enumerate(chosen)
    ]


_SHOWN: Final = (
    "invoke_ns",
    "op",
    "client",
    "function",
    "outcome",
    "complete_ns",
    "offset",
    "first_offset",
    "values",
    "value",
    "next_offset",
    "end_offset",
    "reason",
)
_VALUED: Final = ("append", "read", "poll")


def _shown(operation: dict[str, Any]) -> dict[str, Any]:
    """An operation as it appears in a proof: without what it does not have, long batches shortened."""
    shown = {name: value for name, value in operation.items() if value is not None}
    values = shown.get("values")
    if values is not None and len(values) > 8:
        shown["values"] = [*values[:8], f"... {len(values) - 8} more"]
    return shown
