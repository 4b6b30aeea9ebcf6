"""Spark's own status store, asked about the tasks of the stages that ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def last_stage(spark: SparkSession) -> int:
    """The highest stage id so far, or -1."""
    return max((stage.stageId() for stage in _stages(spark)), default=-1)


def task_records(spark: SparkSession, after: int) -> list[list[int]]:
    """For each stage that ran after stage ``after``: the records that each of its tasks read."""
    context = spark.sparkContext._jsc.sc()
    found = []
    for stage in _stages(spark):
        if stage.stageId() <= after or str(stage.status()) != "COMPLETE":
            continue
        tasks = context.statusStore().taskList(stage.stageId(), stage.attemptId(), 10_000)
        records = []
        for place in range(tasks.size()):
            metrics = tasks.apply(place).taskMetrics().get()
            records.append(metrics.inputMetrics().recordsRead() + metrics.shuffleReadMetrics().recordsRead())
        found.append(records)
    return found


def _stages(spark: SparkSession) -> list[Any]:
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    no_quantiles = gateway.new_array(gateway.jvm.double, 0)
    listed = context.statusStore().stageList(None, False, False, no_quantiles, None)
    return [listed.apply(place) for place in range(listed.size())]
