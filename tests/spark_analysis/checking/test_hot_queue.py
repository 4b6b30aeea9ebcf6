"""One queue that has everything, spread over all tasks: from the operations to the proofs no stage puts it on one.

The shares are measured on the stages that ran, whatever the plan looks like. That the measure does see a window over
a whole queue is shown in test_log_model.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_analysis.checking.distributed import check_distributed
from spark_analysis.checking.verdict import LINEARIZABLE, VIOLATED
from spark_analysis.importing import schema
from spark_analysis.importing.history import History, no_events
from tests.spark_analysis.stages import last_stage, task_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTITIONS: Final = 8
ROUNDS: Final = 1500
LARGEST_SHARE: Final = 0.35
"""Of a stage's rows on one task: an eighth if all were equal; buckets are dealt out by hash, so some get twice that."""
UNKNOWN_EVERY: Final = 50


@pytest.fixture
def partitioned(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """Small buckets, so that a small history has many, and eight tasks for every shuffle."""
    monkeypatch.setattr("spark_analysis.checking.queues.log_model.BUCKET_BITS", 5)
    monkeypatch.setattr("spark_analysis.checking.sweep.ROWS_OF_A_BUCKET", 32)
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
    }
    before = {name: spark.conf.get(name) for name in settings}
    for name, setting in settings.items():
        spark.conf.set(name, setting)
    yield spark
    for name, former in before.items():
        spark.conf.set(name, former or "")


def operation(op: int, function: str, begin: int, **columns: Any) -> tuple[Any, ...]:
    row: dict[str, Any] = dict.fromkeys(schema.OPERATION_NAMES)
    row |= {"op": op, "client": f"client-{op % 7}", "function": function, "key": "hot/0", "outcome": "ok"}
    row |= {"invoke_ns": begin, "complete_ns": begin + 5, "filtered": False, **columns}
    return tuple(row[name] for name in schema.OPERATION_NAMES)


def rounds(*, stale: bool) -> list[tuple[Any, ...]]:
    """In each round a value is appended and read, the end asked, a position stored and fetched.

    One append in fifty has an unknown outcome and took effect. ``stale``: no read finds anything.
    """
    rows = []
    for number in range(ROUNDS):
        op, begin, value = 5 * number, 100 * number, [f"v{number}"]
        unknown = {"outcome": "info", "complete_ns": None} if number % UNKNOWN_EVERY == 0 else {}
        place = {} if unknown else {"first_offset": number}
        rows.append(operation(op, "append", begin, values=value, **place, **unknown))
        seen = {} if stale else {"first_offset": number}
        found = [] if stale else value
        reached = number if stale else number + 1
        rows.append(
            operation(op + 1, "read", begin + 10, offset=number, values=found, next_offset=reached, **seen)
        )
        rows.append(operation(op + 2, "tail", begin + 20, offset=number + 1))
        rows.append(operation(op + 3, "commit_offset", begin + 30, group="g", offset=number + 1))
        rows.append(operation(op + 4, "fetch_offset", begin + 40, group="g", offset=number + 1))
    return rows


@pytest.mark.parametrize("stale", [pytest.param(False, marks=pytest.mark.in_turn), True])
def test_no_stage_of_a_whole_check_puts_the_queue_on_one_task(partitioned: SparkSession, stale: bool) -> None:
    spark = partitioned
    rows = rounds(stale=stale)
    operations = spark.createDataFrame(rows, schema.OPERATIONS).repartition(PARTITIONS).cache()
    operations.count()
    nothing = spark.createDataFrame([], "file STRING, position BIGINT, kind STRING, reason STRING")
    after = last_stage(spark)
    verdict = check_distributed(History("hot", operations, no_events(spark), nothing))
    if stale:
        assert verdict.verdict == VIOLATED
        assert verdict.counts["stale-read"] > 0.9 * ROUNDS
    else:
        assert verdict.verdict == LINEARIZABLE, verdict
    operations.unpersist()
    # A stage of fewer rows has no need of many tasks; one that reads what another has kept in memory counts blocks.
    large = [records for records in task_records(spark, after) if sum(records) >= ROUNDS]
    assert len(large) >= 3
    for records in large:
        assert len(records) >= PARTITIONS
        assert max(records) <= LARGEST_SHARE * sum(records), records
