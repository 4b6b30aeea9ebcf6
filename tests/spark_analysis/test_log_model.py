"""The checker on DataFrames agrees with the plain reference:

hundreds of small histories at once, a queue for each.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis import schema
from spark_analysis.log_model import check_log
from spark_analysis.reference import LINEARIZABLE, UNDECIDED, VIOLATED, Operation, check_queue
from tests.spark_analysis.histories import random_history
from tests.spark_analysis.stages import last_stage, task_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def as_row(one: Operation, number: int, key: str) -> tuple[Any, ...]:
    """The operation as a row of schema.OPERATIONS."""
    values = list(one.values) if one.function not in ("tail", "head") else None
    offsets = list(one.offsets) if one.offsets else None
    return (
        *(
            number,
            one.client,
            one.function,
            key,
            None,
            one.outcome,
            one.invoke_ns,
            one.complete_ns,
            one.offset,
        ),
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


def one_queue(appends: int) -> list[tuple[Any, ...]]:
    """A queue that one client fills and another reads, value by value."""
    rows = []
    for offset in range(appends):
        begin, value = 100 * offset, (f"v{offset}",)
        append = Operation(2 * offset, "append", "ok", begin, begin + 10, first_offset=offset, values=value)
        read = Operation(
            *(2 * offset + 1, "read", "ok", begin + 20, begin + 30, offset, offset, value),
            next_offset=offset + 1,
        )
        rows += [as_row(append, 2 * offset, "hot/0"), as_row(read, 2 * offset + 1, "hot/0")]
    return rows


def test_no_stage_puts_a_queue_on_one_task(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue, many buckets: no task of any stage reads more than its share of the queue's rows."""
    monkeypatch.setattr("spark_analysis.log_model.BUCKET_BITS", 5)
    settings = {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, setting in settings.items():
        spark.conf.set(name, setting)
    try:
        appends = 4096
        rows = spark.createDataFrame(one_queue(appends), schema.OPERATIONS).repartition(8)
        after = last_stage(spark)
        found = check_log(rows)
        assert found.findings is None
        assert found.unseen == 0
        found.release()
        large = [records for records in task_records(spark, after) if sum(records) >= appends // 2]
        assert len(large) >= 4  # the operations twice, positions by position, positions by bucket
        assert max(max(records) / sum(records) for records in large) < 0.3
        # The measure does see a window over a whole queue.
        after = last_stage(spark)
        along = Window.partitionBy("key").orderBy("invoke_ns")
        rows.withColumn("place", sf.row_number().over(along)).agg(sf.max("place")).collect()
        assert max(max(records) / max(1, sum(records)) for records in task_records(spark, after)) == 1
    finally:
        for name, former in before.items():
            spark.conf.set(name, former or "")
