"""The checker on DataFrames agrees with the plain reference:

hundreds of small histories at once, a queue for each.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis import schema
from spark_analysis.log_model import check_log
from spark_analysis.reference import LINEARIZABLE, UNDECIDED, VIOLATED, Operation, check_queue
from tests.spark_analysis.histories import random_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def as_row(one: Operation, number: int, key: str) -> tuple[Any, ...]:
    """The operation as a row of schema.OPERATIONS."""
    values = list(one.values) if one.function in ("append", "read") else None
    offsets = list(one.offsets) if one.offsets else None
    return (
        *(number, "client", one.function, key, None, one.outcome, one.invoke_ns, one.complete_ns, one.offset),
        *(one.filtered, one.first_offset, offsets, values, one.next_offset, one.end_offset, None),
    )


def test_spark_and_the_reference_agree(spark: SparkSession) -> None:
    expected: dict[str, str] = {}
    rows: list[tuple[Any, ...]] = []
    kinds: list[dict[str, Any]] = [{"batches": False}, {"batches": False, "values": 3}, {}, {"values": 4}]
    for seed in range(400):
        history = random_history(random.Random(seed), **kinds[seed % 4])
        key = f"topic-{seed}/0"
        expected[key] = check_queue(history)[0]
        rows += [as_row(one, len(rows) + number, key) for number, one in enumerate(history)]
    found = check_log(spark.createDataFrame(rows, schema.OPERATIONS))
    assert found.findings is not None
    assert found.unsure is not None
    wrong = {row["key"] for row in found.findings.select("key").collect()}
    unsure = {row["key"] for row in found.unsure.select("key").collect()}
    found.release()
    got = {
        key: VIOLATED if key in wrong else UNDECIDED if key in unsure else LINEARIZABLE for key in expected
    }
    assert got == expected
    assert set(got.values()) == {VIOLATED, UNDECIDED, LINEARIZABLE}


def test_one_queue_over_many_buckets(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boundary rows carry the order, the gaps and the need for offsets from bucket to bucket."""
    monkeypatch.setattr("spark_analysis.log_model.BUCKET_BITS", 1)
    expected: dict[str, str] = {}
    rows: list[tuple[Any, ...]] = []
    for seed in range(400):
        history = random_history(random.Random(10_000 + seed), size=14, batches=False)
        key = f"topic-{seed}/0"
        expected[key] = check_queue(history)[0]
        rows += [as_row(one, len(rows) + number, key) for number, one in enumerate(history)]
    found = check_log(spark.createDataFrame(rows, schema.OPERATIONS))
    assert found.findings is not None
    wrong = {row["key"] for row in found.findings.select("key").collect()}
    found.release()
    assert wrong == {key for key, verdict in expected.items() if verdict == VIOLATED}


def test_no_stage_puts_a_queue_on_one_task(spark: SparkSession) -> None:
    """Every exchange of the hot path is by position or bucket, never by queue alone, but for one row a bucket."""
    from spark_analysis.log_model import _bounded, _positions

    empty = spark.createDataFrame([], schema.OPERATIONS)
    plan = _bounded(_positions(empty))._jdf.queryExecution().executedPlan().toString()
    partitionings: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for line in plan.splitlines():
        if "Exchange hashpartitioning(" in line:
            columns = line.split("hashpartitioning(")[1].split(")")[0].split(", ")[:-1]
            partitionings[tuple(column.split("#")[0] for column in columns)] += 1
    assert partitionings[("key", "axis", "bucket", "position")] >= 1
    assert partitionings[("key", "axis", "bucket")] >= 1
    by_queue = [
        line for line in plan.splitlines() if "hashpartitioning(key" in line and "bucket#" not in line
    ]
    assert len(by_queue) <= 1  # the table of bucket edges
    if by_queue:
        place = plan.splitlines().index(by_queue[0])
        below = plan.splitlines()[place + 1]
        assert "bucket_upper" in below  # what goes through it is already one row for each bucket
