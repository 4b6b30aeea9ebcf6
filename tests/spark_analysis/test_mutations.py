"""Every injected anomaly is caught and no good history is accused; Spark says the same as the reference."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis import schema
from spark_analysis.log_model import check_log
from tests.spark_analysis.mutations import LOG_MUTATIONS, good_history, score
from tests.spark_analysis.test_log_model import as_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_mutation_score() -> None:
    found = score(60)
    assert set(found.values()) == {60}, found


@pytest.mark.spark
@pytest.mark.slow
def test_mutation_score_in_spark(spark: SparkSession) -> None:
    rows: list[tuple[Any, ...]] = []
    bent: set[str] = set()
    for seed in range(5):
        rng = random.Random(seed)
        history = good_history(rng, 60)
        for number, mutation in enumerate([None, *LOG_MUTATIONS]):
            key = f"{'good' if mutation is None else mutation.__name__}/{seed}"
            copy = list(history)
            if mutation is not None:
                mutation(rng, copy)
                bent.add(key)
            rows += [as_row(one, len(rows) + number, key) for one in copy]
    found = check_log(spark.createDataFrame(rows, schema.OPERATIONS))
    assert found.findings is not None
    assert {row["key"] for row in found.findings.select("key").collect()} == bent
    found.release()
