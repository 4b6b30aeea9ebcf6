"""Running aggregates through boundary rows are what one window over the whole sequence would give."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from spark_analysis.checking import sweep
from spark_analysis.checking.sweep import Running, by_quantiles, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WANTED = {
    "least_later": Running("min", "x", backwards=True, inclusive=True),
    "greatest_before": Running("max", "x"),
    "sum_so_far": Running("sum", "x", inclusive=True),
}


def expected(rows: list[tuple[str, int, int | None]]) -> dict[tuple[str, int], tuple[Any, ...]]:
    """The same by looking at every pair of rows."""
    by_key: defaultdict[str, list[tuple[int, int | None]]] = defaultdict(list)
    for key, place, x in rows:
        by_key[key].append((place, x))
    found = {}
    for key, sequence in by_key.items():
        for place, _ in sequence:
            later = [x for other, x in sequence if other >= place and x is not None]
            before = [x for other, x in sequence if other < place and x is not None]
            so_far = [x for other, x in sequence if other <= place and x is not None]
            found[key, place] = (min(later, default=None), max(before, default=None), sum(so_far))
    return found


def random_rows(seed: int) -> list[tuple[str, int, int | None]]:
    rng = random.Random(seed)
    return [
        (key, place, rng.choice([None, rng.randrange(100)]))
        for key in ("a", "b", "c")
        for place in rng.sample(range(1000), rng.choice([1, 40, 120]))
    ]


def test_running_aggregates_cross_buckets(spark: SparkSession) -> None:
    rows = random_rows(1)
    frame = spark.createDataFrame(rows, "key STRING, place INT, x INT").selectExpr(
        "*", "place DIV 64 AS bucket"
    )
    swept = running(frame, ["key"], ["bucket"], ["place"], **WANTED).collect()
    assert {(row["key"], row["place"]): tuple(row[name] for name in WANTED) for row in swept} == expected(
        rows
    )


def test_buckets_by_quantiles_have_like_sizes(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that stand still for long and then burst: ranges of equal width would put nearly all into one bucket."""
    monkeypatch.setattr(sweep, "ROWS_OF_A_BUCKET", 50)
    rows: list[tuple[str, int, int | None]]
    rows = [("a", 10**12 if number == 0 else number, number) for number in range(1000)]
    frame = spark.createDataFrame(rows, "key STRING, place BIGINT, x INT")
    frame = frame.withColumn("bucket", by_quantiles(frame, "place", len(rows)))
    sizes = [row["count"] for row in frame.groupBy("bucket").count().collect()]
    assert len(sizes) > 15
    assert max(sizes) < 100
    swept = running(frame, ["key"], ["bucket"], ["place"], **WANTED).collect()
    assert {row["place"]: tuple(row[name] for name in WANTED) for row in swept} == {
        place: values for (_, place), values in expected(rows).items()
    }
