"""The verdicts that porcupine's authors publish with their histories are those of ``trivet analyze``.

Nothing of porcupine is kept here: Go fetches the histories, and the tests that say what they come to. By hand, with
time and memory: ``python -m benchmarks.published_verdicts``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.porcupine_module import GoUnavailableError, Published, published
from spark_analysis.session import AnalysisUnavailableError, require_environment

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 540.0
"""Ends a test that hangs; nothing depends on how long anything takes."""


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
    both: tuple[Published, Published], place: int, format: str, counts: dict[str, int]
) -> None:
    histories = both[place]
    assert histories.format == format
    assert Counter(histories.verdicts.values()) == counts  # that is what is to be reproduced
    command = [sys.executable, "-m", "trivet", "analyze", "--format", format, "--json"]
    done = subprocess.run(
        [*command, *map(str, histories.verdicts)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    answers = {Path(one["path"]): one for one in json.loads(done.stdout)["histories"]}
    assert {path: one["verdict"] for path, one in answers.items()} == histories.verdicts
    assert sum(one["bad_lines"] for one in answers.values()) == 0
