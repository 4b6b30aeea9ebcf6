"""The verdicts that porcupine's authors publish with their histories are those of ``trivet analyze``.

Nothing of porcupine is kept here: Go fetches the histories, and the tests that say what they come to. By hand, with
time and memory: ``python -m benchmarks.published_verdicts``.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.porcupine_module import GoUnavailableError, Published, published
from broker.tools.cli import run
from spark_analysis.session import AnalysisUnavailableError, require_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def both() -> tuple[Published, Published]:
    try:
        require_environment()
        return published()
    except (AnalysisUnavailableError, GoUnavailableError) as error:
        pytest.skip(str(error))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "format", "counts"),
    [
        (0, "jepsen-etcd", {"linearizable": 23, "violated": 79}),
        (1, "porcupine-kv", {"linearizable": 3, "violated": 3}),
    ],
)
def test_published_verdicts_are_reproduced(
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    both: tuple[Published, Published],
    place: int,
    format: str,
    counts: dict[str, int],
) -> None:
    histories = both[place]
    assert histories.format == format
    assert Counter(histories.verdicts.values()) == counts  # that is what is to be reproduced
    assert run(["analyze", "--format", format, "--json", *map(str, histories.verdicts)]) == 1
    answers = {Path(one["path"]): one for one in json.loads(capsys.readouterr().out)["histories"]}
    assert {path: one["verdict"] for path, one in answers.items()} == histories.verdicts
    assert sum(one["bad_lines"] for one in answers.values()) == 0
