"""``trivet analyze --to-parquet DIR`` and back: the same answer, and what others wrote is looked at first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.checker_histories import good_history, parts_of_one_queue, write_parquet
from spark_analysis.checking.small import check_rows
from spark_analysis.importing import schema
from spark_analysis.importing.arrow import ARROW_TYPES
from spark_analysis.main import WRONG_USAGE, Asked, _check_usage, analyze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STALE_AND_A_BAD_LINE = """\
{"time": 1, "process": "p", "type": "invoke", "f": "append", "key": "t/0", "value": "a"}
{"time": 2, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": 0}
{"time": 3, "process": "c", "type": "invoke", "f": "read", "key": "t/0", "value": 0}
{"time": 4, "process": "c", "type": "ok", "f": "read", "key": "t/0", "value": []}
no operation
"""


SEVERAL_CLIENTS_OF_ONE_NAME = """\
{"time": 1, "process": "p", "type": "invoke", "f": "append", "key": "t/0", "value": "a"}
{"time": 2, "process": "p", "type": "invoke", "f": "append", "key": "t/0", "value": "b"}
{"time": 3, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": 0}
{"time": 4, "process": "p", "type": "ok", "f": "append", "key": "t/0", "value": 1}
{"time": 5, "process": "c", "type": "invoke", "f": "read", "key": "t/0", "value": 0}
{"time": 6, "process": "c", "type": "ok", "f": "read", "key": "t/0", "value": [[0, "a"], [1, "b"]]}
"""


@pytest.mark.spark
@pytest.mark.slow
def test_json_lines_are_kept_and_judged_again(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever characters the paths have: to Hadoop some of them mean something."""
    path = tmp_path / "stale #1.jsonl"
    path.write_text(STALE_AND_A_BAD_LINE)
    (tmp_path / "several.jsonl").write_text(SEVERAL_CLIENTS_OF_ONE_NAME)
    paths = [path, tmp_path / "several.jsonl"]
    kept = tmp_path / "kept 100%20 [1]{a,b}*?"

    def answer(paths: list[Path], **options: Any) -> list[dict[str, Any]]:
        code = analyze(Asked(paths, json_output=True, **options))
        assert code == 1
        told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["histories"]
        return [{name: value for name, value in one.items() if name != "path"} for one in told]

    first = answer(paths, format="jsonl", to_parquet=kept)
    assert [one["verdict"] for one in first] == ["violated", "undecided"]
    assert [one["bad_lines"] for one in first] == [1, 2]
    assert [one["mispaired"] for one in first] == [0, 1]
    assert answer([kept / path.name for path in paths], format="parquet") == first
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        [kept.name, *(path.name for path in paths)]
    )
    assert answer(paths[:1], format="jsonl", scratch=str(tmp_path / "scratch [2]")) == first[:1]
    assert not list((tmp_path / "scratch [2]").iterdir())


@pytest.mark.parametrize(("format", "model"), [("jsonl", "register"), ("knossos", "log")])
def test_what_is_searched_is_not_kept(
    format: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that is said, where nothing would be written."""
    path = tmp_path / "x"
    path.touch()
    options = {"format": format, "model": model}
    assert analyze(Asked([path], to_parquet=tmp_path / "kept", **options)) == WRONG_USAGE  # type: ignore[arg-type]
    assert "--to-parquet: keeps histories of logs" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_parquet_of_the_benchmark_is_accepted(tmp_path: Path) -> None:
    """Every column is there; texts may be stored as numbers of a dictionary, too, which Spark does not see."""
    write_parquet(good_history(200, 2, 3), tmp_path / "kept")
    assert _check_usage([tmp_path / "kept"], "parquet", "log", keeps=False) == "log"
    (part,) = (tmp_path / "kept").rglob("*.parquet")
    table = pq.read_table(part, partitioning=None)
    pq.write_table(table.set_column(5, "key", table["key"].dictionary_encode()), part)
    assert pa.types.is_dictionary(pq.read_schema(part).field("key").type)
    assert _check_usage([tmp_path / "kept"], "parquet", "log", keeps=False) == "log"


def test_parquet_of_others_must_have_the_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = {name: pa.array([], ARROW_TYPES[kind]) for name, kind, _ in schema.RECORD_COLUMNS}
    wrong = {
        "has no column invoke_ns": {name: one for name, one in columns.items() if name != "invoke_ns"},
        "column invoke_ns is of the type string": columns | {"invoke_ns": pa.array([], pa.string())},
    }
    for complaint, table in wrong.items():
        directory = tmp_path / "kept" / "records" / "record=operation"
        directory.mkdir(parents=True)
        pq.write_table(pa.table(table), directory / "part.parquet")
        assert analyze(Asked([tmp_path / "kept"], format="parquet")) == WRONG_USAGE
        assert complaint in capsys.readouterr().err
        shutil.rmtree(tmp_path / "kept")
    directory.mkdir(parents=True)
    (directory / "part.parquet").write_text("not Parquet")
    assert analyze(Asked([tmp_path / "kept"], format="parquet")) == WRONG_USAGE
    assert "no Parquet that can be read" in capsys.readouterr().err


def test_a_history_that_is_made_in_parts_is_one_good_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured with a hundred million operations: here 10,000, in parts of 1,500."""
    monkeypatch.setattr("benchmarks.checker_histories.OPERATIONS_OF_A_PART", 1_500)
    before = 0
    for part in parts_of_one_queue(10_000, 20):
        write_parquet(part, tmp_path / str(before), before)
        before += len(part.kind)
    files = [str(path) for path in tmp_path.rglob("*.parquet")]
    rows = [
        row | {"record": "operation"} for file in files for row in pq.ParquetFile(file).read().to_pylist()
    ]
    verdict = check_rows("", rows)
    assert (verdict.operations, verdict.verdict) == (10_000, "linearizable"), verdict.counts
    assert verdict.facts["queues"] == 1
    assert verdict.facts["functions"]["append"]["info"] == 20
    assert len({row["op"] for row in rows}) == 10_000
