"""Histories of other systems over the cluster: parsed file by file, judged by search, each key of each history by
itself.

One Spark job judges any number of files. What travels between parsing and judging is the operations themselves, keyed
by (file, key), values as JSON. A key is one task's work and stays within a budget; one with more operations
than a task should hold is undecided without being sent to any. So the hardest key costs its own verdict and no other.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_analysis.checking.models import MODELS, Model
from spark_analysis.checking.proofs import PROOF_OPERATIONS, damage_facts
from spark_analysis.checking.search import Budget, SearchResult
from spark_analysis.checking.verdict import UNDECIDED, VIOLATED, Anomaly, Verdict, worst
from spark_analysis.importing.arrow import Row, arrow_batches, arrow_table
from spark_analysis.importing.calls import Call, KeyedCall, calls
from spark_analysis.importing.formats import parse
from spark_analysis.importing.frozen import as_json, freeze
from spark_analysis.importing.lines import KEEP_WHAT_IS_NO_UTF8, BadLine, kind_of_damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_OPERATIONS_OF_A_KEY: Final = 200_000
BAD_LINES_LISTED: Final = 20
_CALLS: Final = (
    "path STRING, key STRING, op BIGINT, client STRING, function STRING, argument STRING, result STRING, "
    "invoke_ns BIGINT, complete_ns BIGINT, bad STRING, damage STRING"
)
_JUDGED: Final = (
    "path STRING, key STRING, verdict STRING, operations BIGINT, answered BIGINT, configurations BIGINT, "
    "linearized BIGINT, stuck STRING, bound STRING, because STRING"
)


def judge_files(
    spark: SparkSession, paths: Sequence[str], format: str, model_name: str, budget: Budget | None = None
) -> list[Verdict]:
    """Judge each file as a history of its own; returns the verdicts in the order of ``paths``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    model, within = MODELS[model_name], budget or Budget()
    files = list(paths)
    tasks = min(len(files), max(1, spark.sparkContext.defaultParallelism * 2))

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from arrow_batches(_read_file(files[number], format, model), _CALLS)

    def judge(table: pa.Table) -> pa.Table:
        return _judge_key(table, model, within)

    rows = spark.range(0, len(files), 1, tasks).mapInArrow(read, _CALLS).cache()
    good = rows.where("damage IS NULL")
    # Lines that could not be read have a kind of damage and no key, all others a key and no damage.
    sizes = rows.groupBy("path", "key", "damage").count()
    told = sizes.where((sf.col("count") > MOST_OPERATIONS_OF_A_KEY) | sf.col("damage").isNotNull()).collect()
    huge = [row for row in told if row["damage"] is None]
    bad_count: dict[str, dict[str, int]] = defaultdict(dict)
    for row in told:
        if row["damage"] is not None:
            bad_count[row["path"]][row["damage"]] = row["count"]
    judged: list[Any] = [_unjudged(row["path"], row["key"], row["count"]) for row in huge]
    if huge:
        named = spark.createDataFrame([(row["path"], row["key"]) for row in huge], "path STRING, key STRING")
        good = good.join(sf.broadcast(named), ["path", "key"], "left_anti")
    judged += good.groupBy("path", "key").applyInArrow(judge, _JUDGED).collect()
    # A few of each file, so that the damage of one file does not hide that of another.
    in_file = Window.partitionBy("path").orderBy("at")
    listed = (
        rows.where("damage IS NOT NULL")
        .select("path", "bad", sf.monotonically_increasing_id().alias("at"))
        .withColumn("place", sf.row_number().over(in_file))
        .where(sf.col("place") <= BAD_LINES_LISTED)
        .orderBy("path", "place")
    )
    bad = listed.collect() if bad_count else []
    rows.unpersist()
    return [_verdict(path, judged, bad, bad_count.get(path, {}), model_name) for path in paths]


def judge_file_here(path: str, format: str, model_name: str, budget: Budget | None) -> Verdict:
    """Judge a file as :func:`judge_files` does, in this process and without Spark."""
    model, within = MODELS[model_name], budget or Budget()
    names = [column.split()[0] for column in _CALLS.split(", ")]
    keys: dict[str, list[Row]] = defaultdict(list)
    bad: list[dict[str, Any]] = []
    bad_count: Counter[str] = Counter()
    for row in _read_file(path, format, model):
        one = dict(zip(names, row, strict=True))
        if one["damage"] is None:
            keys[one["key"]].append(row)
        else:
            bad.append(one)
            bad_count[one["damage"]] += 1
    judged: list[Any] = []
    for key, rows in keys.items():
        if len(rows) > MOST_OPERATIONS_OF_A_KEY:
            judged.append(_unjudged(path, key, len(rows)))
        else:
            judged += _judge_key(arrow_table(rows, _CALLS), model, within).to_pylist()
    return _verdict(path, judged, bad, bad_count, model_name)


def _read_file(path: str, format: str, model: Model) -> Iterator[Row]:
    """Rows of ``_CALLS`` from the lines of one file."""
    with Path(path).open(encoding="utf-8", errors=KEEP_WHAT_IS_NO_UTF8) as text:
        for one in calls(format, parse(format, text)):
            if isinstance(one, KeyedCall):
                problem = complaint_of(model, one.call)
                if problem is not None:
                    one = BadLine(one.number, problem)
            if isinstance(one, BadLine):
                damage = kind_of_damage(one.reason, is_cut=one.is_cut)
                yield (path, *[None] * 8, f"line {one.number}: {one.reason}", damage)
            else:
                call = one.call
                yield (
                    *(path, one.key if model.by_key else "", call.op, one.process, call.function),
                    *(as_json(call.argument), as_json(call.result), call.invoke_ns, call.complete_ns),
                    *(None, None),
                )


def complaint_of(model: Model, call: Call) -> str | None:
    """Say why the model cannot judge a call; None if it can, which is so for every call of the right shape."""
    if call.function not in model.functions:
        return f"{model.name} has no function {call.function!r}"
    try:
        hash((call.argument, call.result))
        model.step(model.initial, call.function, call.argument, call.result, call.complete_ns is not None)
    except (TypeError, ValueError, LookupError):
        return f"{model.name}: {call.function} of {call.argument!r:.60} with the result {call.result!r:.60}"
    return None


def _unjudged(path: str, key: str, operations: int) -> dict[str, Any]:
    """The row of a key that is not sent to any task."""
    return {
        "path": path,
        "key": key,
        "verdict": UNDECIDED,
        "operations": operations,
        "answered": operations,  # nobody has counted how many are
        "configurations": 0,
        "linearized": 0,
        "stuck": None,
        "bound": "operations",
        "because": None,
    }


def decide_within(budget: Budget, model: Model, calls: Sequence[Call]) -> SearchResult:
    """Decide the calls of one key, a search for them within the budget."""
    limit = time.monotonic() + budget.seconds
    return model.decide(
        calls,
        maximum_configurations=budget.configurations,
        maximum_bytes=budget.memory_bytes,
        is_over=lambda: time.monotonic() > limit,
    )


def _judge_key(table: pa.Table, model: Model, budget: Budget) -> pa.Table:
    rows = table.to_pylist()
    listed = [
        Call(
            row["op"],
            row["function"],
            freeze(json.loads(row["argument"])),
            freeze(json.loads(row["result"])),
            row["invoke_ns"],
            row["complete_ns"],
        )
        for row in rows
    ]
    result = decide_within(budget, model, listed)
    # The proof: what excludes every order; or the last operation of the longest linearization, and the first few that
    # cannot follow it.
    by_op = {row["op"]: row for row in rows}
    stuck = (
        json.dumps([by_op[op] for op in (*result.prefix[-1:], *result.stuck)[:PROOF_OPERATIONS]])
        if result.verdict == VIOLATED
        else None
    )
    answered = sum(call.complete_ns is not None for call in listed)
    row = (
        *(rows[0]["path"], rows[0]["key"], result.verdict, len(rows), answered),
        *(result.configurations, len(result.prefix), stuck, result.bound),
        result.because,
    )
    return arrow_table([row], _JUDGED)


def _verdict(
    path: str, judged: list[Any], bad: list[Any], bad_count: Mapping[str, int], model_name: str
) -> Verdict:
    # Spark returns the keys in any order; a verdict on the same history is to read the same each time.
    mine = sorted((row for row in judged if row["path"] == path), key=lambda row: str(row["key"]))
    anomalies = tuple(
        Anomaly(
            "not-linearizable",
            row["key"],
            None,
            tuple(_shown(operation) for operation in json.loads(row["stuck"])),
            row["because"]
            or f"after {row['linearized']} of {row['operations']} operations in an order that the model allows: "
            "the last one, and what cannot follow",
        )
        for row in mine
        if row["verdict"] == VIOLATED
    )
    undecided = tuple(
        f"{row['key']}: {row['operations']} operations are more than a search is begun with"
        if row["bound"] == "operations"
        else f"{row['key']}: the search was given up after {row['configurations']} configurations ({row['bound']})"
        for row in mine
        if row["verdict"] == UNDECIDED
    )
    listed = tuple(f"{path}: {row['bad']}" for row in bad if row["path"] == path)[:BAD_LINES_LISTED]
    return Verdict(
        path,
        worst([row["verdict"] for row in mine]),
        sum(row["operations"] for row in mine),
        {"not-linearizable": len(anomalies)} if anomalies else {},
        anomalies,
        undecided,
        listed,
        {
            "model": model_name,
            "keys": len(mine),
            "answered": sum(row["answered"] for row in mine),
        }
        | damage_facts(bad_count),
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in ("client", "function", "invoke_ns", "complete_ns")}
    return shown | {"argument": json.loads(row["argument"]), "result": json.loads(row["result"])}
