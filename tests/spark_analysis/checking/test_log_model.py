"""The log checker on DataFrames puts no queue on one task; what it finds is compared in test_agreement.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as sf

from spark_analysis.checking.queues.knowledge import Operation
from spark_analysis.checking.queues.log_model import check_log
from spark_analysis.importing import schema
from tests.spark_analysis.crowds import as_row
from tests.spark_analysis.stages import last_stage, task_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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
    monkeypatch.setattr("spark_analysis.checking.queues.log_model.BUCKET_BITS", 5)
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
