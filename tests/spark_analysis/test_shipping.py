"""The analysis on executors that are processes of their own and have nothing of this project: it ships itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from benchmarks.standalone_cluster import standalone_cluster
from broker.trace import TraceHeader, TraceWriter
from spark_analysis.checking.small import MOST_ROWS_SETTING
from spark_analysis.main import distinct_names
from spark_analysis.session import AnalysisUnavailableError, require_environment

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 600.0
"""Ends a test that hangs; nothing depends on how long anything takes."""
_OF_FEW_ROWS = [
    *("--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", "spark.sql.codegen.wholeStage=false", "--conf", "spark.sql.codegen.factoryMode=NO_CODEGEN"),
]
SHORT = {
    "PYSPARK_SUBMIT_ARGS": " ".join([*_OF_FEW_ROWS, "pyspark-shell"]),
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
}
"""In compilers, and in partitions without a row, most of the time would be spent: this is about what is shipped."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables under which executors run a Python that has the third-party packages only."""
    try:
        require_environment()
    except AnalysisUnavailableError as error:
        pytest.skip(str(error))
    isolated = tmp_path / "isolated"
    venv.create(isolated, with_pip=False)
    libraries = Path(sysconfig.get_path("purelib", vars={"base": str(isolated)}))
    # Of a directory named in a .pth file the .pth files are not read: not the one of an editable installation.
    (libraries / "third_party.pth").write_text(sysconfig.get_path("purelib"))
    python = str(isolated / "bin" / "python")
    removed = ("PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in removed},
        "PYSPARK_PYTHON": python,
        **SHORT,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
    }
    found = subprocess.run(
        [python, "-c", "import pyspark, spark_analysis"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'spark_analysis'" in found.stderr, "the executors' Python has the project"
    return environment


def write_stale_read(path: Path) -> None:
    with path.open("wb") as stream:
        writer = TraceWriter(stream.write, TraceHeader("client", "c", "clock", 0))
        append = writer.invoke_append(1000, "producer", "orders/0", ["u-1"])
        writer.ok_append(2000, append, 0)
        read = writer.invoke_read(3000, "consumer", "orders/0", 0)
        writer.ok_read(4000, read, 0, 0, [])
        writer.flush()


def answer_of(command: list[str], environment: dict[str, str], directory: Path) -> tuple[int, dict[str, Any]]:
    """The exit code of an analysis run in ``directory``, and what it printed: by itself the answer and nothing else."""
    done = subprocess.run(
        command,
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
    assert done.stdout.count("\n") == 1 or command[0].endswith("spark-submit"), done.stdout
    return done.returncode, json.loads(lines[-1])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.in_turn
def test_executors_in_processes_of_their_own_judge_a_trace(
    environment: dict[str, str], tmp_path: Path
) -> None:
    write_stale_read(tmp_path / "stale.trace")
    command = [sys.executable, "-m", "trivet", "analyze", "stale.trace", "--json"]
    code, answer = answer_of(
        [*command, "--master", "local-cluster[2,1,1024]", "--scratch", "scratch"],
        # However short it is, it is judged by all executors.
        {**environment, "PYTHONPATH": str(_ROOT), MOST_ROWS_SETTING: "0"},
        tmp_path,
    )
    (history,) = answer["histories"]
    assert code == 1
    assert history["path"] == "stale.trace"
    assert history["counts"] == {"stale-read": 1}
    assert [operation["client"] for operation in history["anomalies"][0]["proof"]] == ["producer", "consumer"]
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.in_turn
def test_a_standalone_cluster_judges_by_search_under_spark_submit(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """``spark-submit trivet.py analyze`` with the unchanged program; one file named twice is judged once."""
    (tmp_path / "register.edn").write_text(
        "{:process 0, :type :invoke, :f :write, :value 1}\n"
        "{:process 0, :type :ok, :f :write, :value 1}\n"
        "{:process 1, :type :invoke, :f :read, :value nil}\n"
        "{:process 1, :type :ok, :f :read, :value 2}\n"
    )
    import pyspark

    home = Path(pyspark.__file__).parent
    with standalone_cluster(tmp_path, environment) as master:
        submit = [
            str(home / "bin" / "spark-submit"),
            "--master",
            master,
            "--conf",
            "spark.cores.max=1",
            *_OF_FEW_ROWS,
        ]
        program = [str(_ROOT / "trivet.py"), "analyze", "register.edn", "register.edn"]
        code, answer = answer_of(
            [*submit, *program, "--format", "knossos", "--json"],
            {**environment, "SPARK_HOME": str(home)},
            tmp_path,
        )
    assert code == 1
    assert [(one["path"], one["verdict"], one["operations"]) for one in answer["histories"]] == [
        ("register.edn", "violated", 2)
    ] * 2


def test_histories_of_the_same_name_get_files_of_their_own() -> None:
    paths = [Path("a/x.trace"), Path("b/x.trace"), Path("x.trace-2"), Path("x.trace")]
    assert distinct_names(paths) == ["x.trace", "x.trace-2", "x.trace-2-2", "x.trace-3"]
