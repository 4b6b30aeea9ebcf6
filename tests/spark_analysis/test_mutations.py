"""Every injected anomaly is caught and no good history is accused; Spark says the same as the reference."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis import schema
from spark_analysis.log_model import check_log
from tests.spark_analysis.brute_force import is_linearizable
from tests.spark_analysis.log_mutations import LOG_MUTATIONS, good_history
from tests.spark_analysis.mutations import score
from tests.spark_analysis.test_log_model import as_row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("kind", "histories", "rows"),
    [("log", 20, 25), ("transactions", 100, 3), ("models", 12, 26), ("raft", 40, 8)],
)
def test_mutation_score(kind: str, histories: int, rows: int) -> None:
    """A small share of what docs/checker.md reports: every mutation gets the answer that it must get."""
    found = score([kind], range(histories))
    assert {row: count for row, count in found.items() if count != histories} == {}
    assert len(found) == rows


@pytest.mark.parametrize("mutation", [None, *LOG_MUTATIONS])
def test_mutations_are_wrong_for_who_tries_every_order(mutation: Callable[..., None] | None) -> None:
    """The score means something only if what is injected is an anomaly, whatever the checker says."""
    judged = 0
    for seed in range(60):
        rng = random.Random(seed)
        history = good_history(rng, 6)
        with suppress(IndexError, ValueError):  # nothing to bend: too few acknowledged appends
            if mutation is not None:
                mutation(rng, history)
            assert is_linearizable(history) == (mutation is None), (seed, history)
            judged += 1
    assert judged >= 40


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
