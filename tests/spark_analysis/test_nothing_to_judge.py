"""A history without a single answer contradicts nothing; still it is no sign that anything works: exit code 3."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.trace import TraceHeader, TraceWriter
from spark_analysis.checking.verdict import LINEARIZABLE, UNDECIDED, VIOLATED, Verdict, corrected_for_gaps
from spark_analysis.main import Asked, analyze
from spark_analysis.telling.report import render
from spark_analysis.telling.report.tables import ReportData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING = "no operations were recorded: there was nothing to judge"
INVOKED = '{"time": 1, "process": "p", "type": "invoke", "f": "append", "key": "t/0", "value": "a"}\n'
REFUSED = INVOKED + '{"time": 2, "process": "p", "type": "fail", "f": "append", "key": "t/0"}\n'
STORED = INVOKED + '{"time": 2, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": 0}\n'
WRITE = "INFO  jepsen.util - 0\t:invoke\t:write\t3\n"


def judged(
    capsys: pytest.CaptureFixture[str], directory: Path, files: dict[str, str], format: str
) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, verdicts, and what a terminal shows."""
    paths = []
    for name, text in files.items():
        paths.append(directory / name)
        paths[-1].write_text(text)
    code = analyze(Asked(paths, format=format, json_output=True))
    answers: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["histories"]
    assert analyze(Asked(paths, format=format)) == code
    return code, answers, capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.slow
def test_json_lines_without_an_answer(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"empty": "", "blank": "\n \n", "refused": REFUSED, "unknown": INVOKED}
    code, answers, shown = judged(capsys, tmp_path, files, "jsonl")
    assert code == 3
    unanswered = "none of the 1 operations was answered: there was nothing to judge"
    assert [one["undecided"] for one in answers] == [[NOTHING], [NOTHING], [unanswered], [unanswered]]
    assert {one["verdict"] for one in answers} == {UNDECIDED}
    assert shown.count(f"undecided: {NOTHING}") == 2
    code, (answer,), shown = judged(capsys, tmp_path, {"stored": STORED}, "jsonl")
    assert (code, answer["verdict"], answer["undecided"]) == (0, LINEARIZABLE, [])


@pytest.mark.spark
@pytest.mark.slow
def test_searched_histories_without_an_answer(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As porcupine's log of a cluster that never started, of which its authors publish no verdict."""
    files = {"empty": "", "unknown": WRITE, "answered": WRITE + WRITE.replace("invoke", "ok")}
    code, answers, _ = judged(capsys, tmp_path, files, "jepsen-etcd")
    assert code == 3
    assert [one["verdict"] for one in answers] == [UNDECIDED, UNDECIDED, LINEARIZABLE]
    assert answers[0]["undecided"] == [NOTHING]
    assert [one["answered"] for one in answers] == [0, 0, 1]


@pytest.mark.spark
@pytest.mark.slow
def test_traces_of_replicas_alone(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What replicas recorded is judged; what clients saw is not."""
    stream = io.BytesIO()
    writer = TraceWriter(stream.write, TraceHeader("replica", "n0", "c", 0))
    writer.start(1, 1, 0, 0)
    writer.flush()
    (tmp_path / "n0.trace").write_bytes(stream.getvalue())
    assert analyze(Asked([tmp_path], json_output=True)) == 3
    (answer,) = json.loads(capsys.readouterr().out)["histories"]
    assert answer["undecided"][0].startswith("no operations of clients were recorded: only the replicas")
    writer.commit(2, 4, 2)
    writer.commit(3, 3, 2)
    writer.flush()
    (tmp_path / "n0.trace").write_bytes(stream.getvalue())
    assert analyze(Asked([tmp_path], json_output=True)) == 1
    (answer,) = json.loads(capsys.readouterr().out)["histories"]
    assert (answer["verdict"], answer["counts"]) == (VIOLATED, {"commit-went-back": 1})


def test_the_page_says_so() -> None:
    facts = {"functions": {}, "replica_events": {}, "queues": 0, "clients": 0, "seconds": 0.0}
    verdict = corrected_for_gaps(Verdict("x", LINEARIZABLE, 0, {}, (), facts=facts))
    page = render(verdict, ReportData())
    assert "<h1>Undecided</h1>" in page
    assert f"There is no answer: {NOTHING}." in page
