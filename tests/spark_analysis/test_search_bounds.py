"""The bounds of a search from the command line to its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_analysis.verdict import UNDECIDED
from tests.spark_analysis.test_search import analyzed, write_exploding

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_search_out_of_its_bounds_is_undecided(tmp_path: Path) -> None:
    write_exploding(tmp_path / "hard", 30)
    bounds = ("--search-memory", "1", "--search-seconds", "600")
    assert analyzed("jsonl", "fifo-queue", [tmp_path / "hard"], *bounds) == (3, [UNDECIDED])
