"""The bounds of a search from the command line to its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_analysis.checking.verdict import UNDECIDED
from tests.spark_analysis.checking.test_search import analyzed, write_exploding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_search_out_of_its_bounds_is_undecided(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_exploding(tmp_path / "hard", 30)
    bounds = ("--search-memory", "1", "--search-seconds", "600")
    assert analyzed(capsys, "jsonl", "fifo-queue", [tmp_path / "hard"], *bounds) == (3, [UNDECIDED])
