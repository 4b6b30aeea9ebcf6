"""The public answer: ``check(history)`` puts the checkers' findings together into one verdict with proofs."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.history import History
from spark_analysis.kafka_catalogue import backward_sends, check_polls, overwritten
from spark_analysis.log_model import LogFindings, check_log
from spark_analysis.raft_invariants import check_replicas
from spark_analysis.registers import RegisterFindings, check_offsets
from spark_analysis.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, Anomaly, Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EXAMPLES_OF_EACH_KIND: Final = 10
PROOF_OPERATIONS: Final = 6
MAXIMUM_DAMAGES_LISTED: Final = 20


def check(history: History, *, drained: bool = False) -> Verdict:
    """Judge a history against the log model, the registers of committed offsets, and Raft's invariants.

    ``drained``: at the end readers have read every queue to its end, so that a value that nobody saw is lost.
    """
    facts, total = _facts(history)
    damages = history.damage.orderBy("file", "position").limit(MAXIMUM_DAMAGES_LISTED).collect()
    found: list[DataFrame] = []
    doubtful: list[DataFrame] = []
    log = check_log(history.operations)
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
    polls = _polls(history, log, facts)
    if polls is not None:
        found.append(polls.where("NOT allowed").drop("allowed"))
        rows = polls.where("allowed").groupBy("kind").count().collect()
        allowed.update({row["kind"]: row["count"] for row in rows})
    if log.disputed is not None:
        found.append(overwritten(history.operations, log.disputed))
    if found:
        findings = reduce(lambda one, other: one.unionByName(other), found).cache()
        counts.update({row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()})
        if counts["append-order"]:
            findings = findings.unionByName(backward_sends(history.operations)).cache()
            counts["nonmonotonic-send"] = findings.where("kind = 'nonmonotonic-send'").count()
        counts = +counts
        anomalies = _examples(findings, history.operations, sorted(counts))
        findings.unpersist()
    if log.unseen:
        (counts if drained else allowed)["unseen"] = log.unseen
        if drained:
            anomalies += _unseen(log, history.operations)
    if facts["replica_events"]:
        replicas = check_replicas(history.events).cache()
        counts.update({row["kind"]: row["count"] for row in replicas.groupBy("kind").count().collect()})
        for row in replicas.orderBy("kind", "position").limit(100).collect():
            anomalies.append(Anomaly(row["kind"], row["key"], row["position"], (), row["detail"]))
        replicas.unpersist()
    unsure = [row for frame in doubtful for row in frame.limit(100).collect()]
    if polls is not None:
        polls.unpersist()
    log.release()
    if offsets is not None:
        offsets.found.unpersist()
        offsets.release()
    undecided = tuple(f"{row['key']}: {row['kind']} at {row['position']}" for row in unsure)
    return Verdict(
        history.path,
        VIOLATED if counts else UNDECIDED if undecided else LINEARIZABLE,
        total,
        dict(sorted(counts.items())),
        tuple(anomalies),
        undecided,
        tuple(
            f"{row['file']}: {'line' if row['kind'] == 'line' else 'byte'} {row['position']}: {row['reason']}"
            for row in damages
        ),
        facts,
        dict(sorted(allowed.items())),
    )


def _polls(history: History, log: LogFindings, facts: dict[str, Any]) -> DataFrame | None:
    """Findings about polls with the column ``allowed``; None if there are none."""
    if "poll" not in facts["functions"]:
        return None
    polls = check_polls(history.operations, log.positions).cache()
    return polls if polls.limit(1).count() else None


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
    total, first, last = 0, None, None
    rows = (
        history.operations.groupBy("function", "outcome")
        .agg(
            sf.count(sf.lit(1)).alias("count"),
            sf.min("invoke_ns").alias("first"),
            sf.max(sf.coalesce("complete_ns", "invoke_ns")).alias("last"),
        )
        .collect()
    )
    for row in rows:
        outcomes[row["function"]][row["outcome"]] = row["count"]
        total += row["count"]
        first = row["first"] if first is None else min(first, row["first"])
        last = row["last"] if last is None else max(last, row["last"])
    nodes = history.events.where("kind NOT IN ('fault', 'note')").groupBy("node").count().collect()
    return {
        "functions": {
            function: dict(sorted(counts.items())) for function, counts in sorted(outcomes.items())
        },
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

    A finding about an order names two moments; one about a position is shown with what touches the position.
    """
    first_of_kind = Window.partitionBy("kind").orderBy("key", "position")
    chosen: list[Any] = sorted(
        findings.withColumn("place", sf.row_number().over(first_of_kind))
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
    proofs = (
        operations.where(near)
        .withColumn("of", queue)
        .join(
            sf.broadcast(wanted),
            (sf.col("of") == sf.col("queue")) & sf.when(ordered, begins | ends).otherwise(touches | ends),
        )
        .select("number", (begins | ends).alias("decisive"), sf.struct(*_SHOWN).alias("operation"))
        .groupBy("number")
        .agg(
            sf.slice(
                sf.sort_array(
                    sf.collect_list(sf.struct(~sf.coalesce("decisive", sf.lit(False)), "operation"))
                ),
                1,
                PROOF_OPERATIONS,
            ).alias("found")
        )
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
    "next_offset",
    "end_offset",
    "reason",
)


def _shown(operation: dict[str, Any]) -> dict[str, Any]:
    """An operation as it appears in a proof: without what it does not have, long batches shortened."""
    shown = {name: value for name, value in operation.items() if value is not None}
    values = shown.get("values")
    if values is not None and len(values) > 8:
        shown["values"] = [*values[:8], f"... {len(values) - 8} more"]
    return shown
