"""From trace files to verdicts: good and bad histories, split files, cut files, several recorders, replicas."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.trace import TraceHeader, TraceWriter
from spark_analysis.checking.verdict import LINEARIZABLE, VIOLATED, Verdict
from spark_analysis.importing.history import load_parquet
from spark_analysis.main import FAILED, WRONG_USAGE, Asked, analyze
from spark_analysis.telling.report import write_report
from tests.spark_analysis.generator import Workload, write_good_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Judge = Callable[[Path], Verdict]


@pytest.fixture
def judge(spark: SparkSession, tmp_path: Path) -> Judge:
    from spark_analysis.checking.check import check
    from spark_analysis.importing.history import load_trace

    return lambda path: check(load_trace(spark, str(path), tmp_path / "parquet"))


def recorder(
    path: Path, source: str = "client", clock: str = "c", zero: int = 0, error: int = 0
) -> TraceWriter:
    stream = path.open("wb", buffering=0)
    header = TraceHeader(source, path.stem, clock, zero, error)  # type: ignore[arg-type]
    return TraceWriter(stream.write, header)


@pytest.mark.spark
@pytest.mark.slow
def test_a_good_history_cut_and_split(judge: Judge, spark: SparkSession, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    write_good_history(Workload(3000, queues=3, unknown=30), buffer.write)
    path = tmp_path / "good.trace"
    path.write_bytes(buffer.getvalue()[:-7])
    verdict = judge(path)
    assert verdict.verdict == LINEARIZABLE, verdict
    assert verdict.operations == 3000
    assert len(verdict.damage) == 1
    assert "cut" in verdict.damage[0]


@pytest.mark.spark
@pytest.mark.slow
def test_a_stale_read_between_two_recorders_is_proved(
    judge: Judge, spark: SparkSession, tmp_path: Path
) -> None:
    """Two processes of one machine and a third of another, whose clock is far off but honestly so."""
    history = tmp_path / "history"
    history.mkdir()
    one, two = recorder(history / "one.trace"), recorder(history / "two.trace")
    other = recorder(history / "three.trace", clock="elsewhere", zero=1_000_000, error=5)
    append = one.invoke_append(1000, "producer", "orders/2", ["u-1"])
    one.ok_append(2000, append, 0)
    stale = two.invoke_read(3000, "consumer", "orders/2", 0)
    two.ok_read(4000, stale, 0, 0, [])
    # 1000 to 1500 on the others' axis, so concurrent with the append
    fine = other.invoke_tail(-999_000, "distant", "orders/2")
    other.ok_tail(-998_500, fine, 0)
    for writer in (one, two, other):
        writer.flush()
    verdict = judge(history)
    assert verdict.verdict == VIOLATED
    assert verdict.counts == {"stale-read": 1}
    (anomaly,) = verdict.anomalies
    assert (anomaly.key, anomaly.position) == ("orders/2", 0)
    assert [row["client"] for row in anomaly.proof] == ["producer", "consumer"]
    loaded = load_parquet(spark, str(history), f"{tmp_path}/parquet/records")
    page = write_report(verdict, loaded, tmp_path / "report" / "history.html").read_text()
    assert "Violated" in page
    assert '<li class="broken">reads agree' in page
    assert page.count("<svg") == 2  # the proof, the run
    assert "append @0" in page  # the operation that the read should have seen, on its bar
    # Nothing is loaded from anywhere.
    assert not re.findall(r"(?:src|href)=", page.replace('xlink:href="#', ""))


@pytest.mark.spark
@pytest.mark.slow
def test_the_terminal_calls_clients_as_the_report_does(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By who recorded them; the number of one of several does not depend on which others are shown."""
    history = tmp_path / "history"
    history.mkdir()
    shop, crowd = recorder(history / "shop.trace"), recorder(history / "crowd.trace")
    for number in range(3):
        crowd.ok_tail(20 + number, crowd.invoke_tail(10 + number, f"visitor-{number}", "other/0"), 0)
    shop.ok_append(2000, shop.invoke_append(1000, "client@7", "orders/2", ["u-1"]), 0)
    crowd.ok_read(4000, crowd.invoke_read(3000, "visitor-2", "orders/2", 0), 0, 0, [])
    for writer in (shop, crowd):
        writer.flush()
    assert analyze(Asked([history], report=tmp_path / "reports")) == 1
    shown = capsys.readouterr().out
    page = (tmp_path / "reports" / "history.html").read_text()
    for text in (shown, page):
        assert "shop was told that message u-1 stands at offset 0" in text
        assert "crowd #3 asked for offset 0 and was told that nothing is there" in text
    assert "client@7" not in shown
    assert "<td>crowd #3</td><td><code>visitor-2</code></td>" in page
    assert analyze(Asked([history], json_output=True)) == 1
    assert '"client": "client@7"' in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("range_bits", [22, 4])
def test_what_replicas_recorded_is_judged(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, range_bits: int
) -> None:
    """Whether a node's events are one range of its file or, each of them, several."""
    monkeypatch.setattr("spark_analysis.checking.replicas.invariants.RANGE_BITS", range_bits)
    history = tmp_path / "history"
    history.mkdir()
    a, b = recorder(history / "n0.trace", "replica"), recorder(history / "n1.trace", "replica")
    a.start(1, 1, 0, 0)
    a.role(2, "leader", 2, "n0", 0, 0)
    a.append(3, 1, 4, 2, 111)
    a.commit(4, 4, 2)
    a.commit(5, 3, 2)
    a.digest(6, 4, 777)
    a.truncate(7, 2)
    b.start(1, 1, 0, 0)
    b.append(2, 1, 4, 2, 222)
    b.digest(3, 4, 778)
    b.role(4, "leader", 2, "n1", 4, 2)
    b.role(5, "leader", 3, "n1", 3, 2)
    b.role(6, "follower", 1, None, 4, 2)
    for writer in (a, b):
        writer.flush()
    verdict = judge(history)
    assert verdict.verdict == VIOLATED
    assert verdict.counts == {
        "commit-went-back": 1,
        "committed-truncated": 1,
        "leader-incomplete": 1,
        "log-mismatch": 1,
        "prefix-mismatch": 1,
        "term-went-back": 1,
        "two-leaders": 1,
    }


@pytest.mark.parametrize(
    ("make", "options", "complaint"),
    [
        (None, {}, "no such file"),
        ("pipe", {}, "is neither a file nor a directory; write what comes from there to a file first"),
        ("pipe", {"format": "jsonl"}, "is neither a file nor a directory"),
        ("directory of directories", {}, "no \\*.trace files"),
        ("packed", {"format": "jsonl"}, "is packed .gzip.; unpack it first"),
        ("[", {"format": "jsonl"}, "is a JSON array; wanted is one JSON object a line"),
        (' [\n  {"f": 1},', {"format": "jsonl", "model": "register"}, "is a JSON array; wanted is one JSON"),
        ('\ufeff[{"f": 1}]', {"format": "jsonl"}, "is a JSON array; wanted is one JSON object a line"),
        ("directory", {}, "no .trace files|no \\*.trace files"),
        ("a run's directory", {}, "no \\*.trace files in this directory, but in .*/x/traces"),
        ("file", {"format": "xml"}, "known are trace"),
        ("file", {"model": "tree"}, "known are"),
    ],
)
def test_wrong_usage_is_explained(
    make: str | None,
    options: dict[str, str],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "x"
    if make == "directory":
        path.mkdir()
    elif make == "pipe":
        os.mkfifo(path)
    elif make == "a run's directory":
        (path / "traces").mkdir(parents=True)
        (path / "traces" / "n0.trace").touch()
    elif make == "directory of directories":
        (path / "x.trace").mkdir(parents=True)
    elif make is not None:
        path.write_bytes(gzip.compress(b"") if make == "packed" else make.encode() if "[" in make else b"")
    assert analyze(Asked([path], **options)) == WRONG_USAGE  # type: ignore[arg-type]
    assert re.search(complaint, capsys.readouterr().err)


@pytest.mark.parametrize("option", ["report", "to_parquet"])
def test_a_place_that_cannot_be_written_is_told_before_the_analysis(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(b"")
    monkeypatch.setattr("spark_analysis.main.start_session", lambda *_, **__: pytest.fail("too late"))
    assert analyze(Asked([path], **{option: path / "below"})) == WRONG_USAGE  # type: ignore[arg-type]
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--{option.replace('_', '-')} {path}/below: cannot be written: Not a directory" in error


def test_nowhere_for_temporary_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("spark_analysis.main.tempfile.gettempdir", nowhere)
    path = tmp_path / "x.trace"
    path.write_bytes(b"")
    assert analyze(Asked([path])) == WRONG_USAGE
    assert "No usable temporary directory found in ['/tmp']; TMPDIR" in capsys.readouterr().err


def test_a_session_that_does_not_start_is_no_violation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise RuntimeError("Could not parse Master URL: 'nonsense'")

    monkeypatch.setattr("spark_analysis.main.start_session", nothing)
    path = tmp_path / "x.trace"
    path.write_bytes(b"")
    assert analyze(Asked([path], master="nonsense")) == FAILED
    assert "no verdict" in capsys.readouterr().err


def test_a_missing_java_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    path = tmp_path / "x.trace"
    path.write_bytes(b"")
    assert analyze(Asked([path], spark_wanted=True)) == WRONG_USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Java 17" in error
    assert "install" in error


KEYED = """\
{:process 0, :type :invoke, :f :write, :value 3}
{:process 0, :type :ok, :f :write, :value 3}
{:process 1, :type :invoke, :f :read, :value nil}
{:process 1, :type :ok, :f :read, :value 4}
"""
LOG = """\
{"time": 1, "process": 0, "type": "invoke", "f": "append", "key": "a/0", "value": ["x"]}
{"time": 2, "process": 0, "type": "ok", "f": "append", "key": "a/0", "value": 0}
{"time": 3, "process": 1, "type": "invoke", "f": "read", "key": "a/0", "value": 0}
{"time": 4, "process": 1, "type": "ok", "f": "read", "key": "a/0", "value": []}
nonsense
"""


def test_a_short_history_is_judged_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_analysis.main.start_session", lambda *_, **__: pytest.fail("not wanted"))
    monkeypatch.setattr("spark_analysis.main.is_at_hand", lambda: False)
    keyed, log = tmp_path / "keyed.edn", tmp_path / "log.jsonl"
    keyed.write_text(KEYED)
    log.write_text(LOG)
    assert analyze(Asked([keyed], format="knossos", report=tmp_path)) == 1
    printed = capsys.readouterr()
    assert "2 operations (2 answered) on 1 key, judged by the model cas-register" in printed.out
    assert "4 was there, which nobody had written" in " ".join(printed.out.split())  # wherever its lines end
    assert "without Spark; --spark" in printed.err
    page = (tmp_path / "keyed.edn.html").read_text()
    assert "Violated" in page
    assert "Together they have no order." in page
    assert analyze(Asked([log], format="jsonl", json_output=True, report=tmp_path)) == 1
    (history,) = json.loads(capsys.readouterr().out)["histories"]
    assert (history["counts"], history["bad_lines"]) == ({"stale-read": 1}, 1)
    assert history["judged_by"] == "this process"
    assert "Violated" in (tmp_path / "log.jsonl.html").read_text()


@pytest.mark.parametrize(
    ("damage", "exit_code", "unread"),
    [(b"", 0, 0), (b"\x83\x01", 0, 0), (b"\xff", 3, 1), (b"\xff" + bytes(20), 3, 1)],
    ids=["none", "cut", "damaged", "records behind it"],
)
def test_a_trace_that_is_not_read_to_its_end_is_no_linearizable_one(
    damage: bytes, exit_code: int, unread: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.trace"
    writer = recorder(path)
    writer.ok_append(2000, writer.invoke_append(1000, "producer", "orders/2", ["u-1"]), 0)
    writer.flush()
    with path.open("ab") as stream:
        stream.write(damage)
    assert analyze(Asked([path], json_output=True, report=tmp_path)) == exit_code
    (history,) = json.loads(capsys.readouterr().out)["histories"]
    assert (history["verdict"], history["unread"]) == ("undecided" if unread else LINEARIZABLE, unread)
    assert any("nothing was read behind a damaged place" in one for one in history["undecided"]) is bool(
        unread
    )


def test_a_heap_that_is_too_small_is_told_before_java_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_analysis.session.require_environment", lambda: None)
    monkeypatch.setattr("spark_analysis.main.is_at_hand", lambda: False)
    (tmp_path / "x.trace").write_bytes(b"")
    for memory, complaint in (("512m", "a heap of 512m is too small"), ("lots", "give a size such as 4g")):
        monkeypatch.setenv("TRIVET_SPARK_MEMORY", memory)
        assert analyze(Asked([tmp_path / "x.trace"], spark_wanted=True)) == WRONG_USAGE
        assert complaint in capsys.readouterr().err


def test_java_out_of_memory_is_told_as_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, **__: object) -> None:
        raise RuntimeError("An error occurred: java.lang.OutOfMemoryError: Java heap space")

    monkeypatch.setattr("spark_analysis.main.start_session", start)
    (tmp_path / "x.trace").write_bytes(b"")
    assert analyze(Asked([tmp_path / "x.trace"], spark_wanted=True)) == FAILED
    error = capsys.readouterr().err
    assert "ran out of memory" in error
    assert "TRIVET_SPARK_MEMORY=4g" in error
    assert "no verdict" in error


def test_a_witness_is_a_file_that_explains_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its appends, read in the order of the file, are the queue; nobody is told why there is none but on stderr."""
    trace, file = tmp_path / "good.trace", tmp_path / "witness.jsonl"
    with trace.open("wb") as stream:
        write_good_history(Workload(400, queues=2, unknown=20), stream.write)
    assert analyze(Asked([trace], witness=file)) == 0
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    lengths = {"generated/0": 0, "generated/1": 0}
    for step in steps:
        if step["function"] == "append":
            assert step["offset"] == lengths[step["key"]]
            lengths[step["key"]] += 1
        elif step["function"] == "tail":
            assert step["offset"] == lengths[step["key"]]
    assert min(lengths.values()) > 50
    assert {"commit_offset", "fetch_offset"} <= {step["function"] for step in steps}

    knossos = tmp_path / "cas.edn"
    # What the model cannot judge is a bad line here, too.
    knossos.write_text(
        "{:process 2, :type :invoke, :f :cas, :value 5}\n{:process 2, :type :ok, :f :cas, :value 5}\n"
        "{:process 0, :type :invoke, :f :cas, :value [1 2]}\n{:process 1, :type :invoke, :f :write, :value 1}\n"
        "{:process 0, :type :ok, :f :cas, :value [1 2]}\n{:process 1, :type :ok, :f :write, :value 1}\n"
    )
    assert analyze(Asked([knossos], format="knossos", witness=file)) == 0
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["function"], one["line"]) for one in told] == [("write", 4), ("cas", 3)]

    file.unlink()
    bad = tmp_path / "bad.edn"
    bad.write_text(
        "{:process 0, :type :invoke, :f :read, :value nil}\n{:process 0, :type :ok, :f :read, :value 1}\n"
    )
    assert analyze(Asked([bad], format="knossos", witness=file)) == 1
    assert "witness: none, the history is violated" in capsys.readouterr().err
    assert not file.exists()
    assert analyze(Asked([bad, knossos], format="knossos", witness=file)) == WRONG_USAGE
    assert analyze(Asked([bad], format="knossos", witness=tmp_path)) == WRONG_USAGE
    assert "--witness" in capsys.readouterr().err


@pytest.mark.spark
def test_spark_gives_a_witness_of_a_history_that_it_has_judged(spark: SparkSession, tmp_path: Path) -> None:
    trace, file = tmp_path / "good.trace", tmp_path / "witness.jsonl"
    with trace.open("wb") as stream:
        write_good_history(Workload(60, queues=1), stream.write)
    assert analyze(Asked([trace], witness=file, spark_wanted=True)) == 0
    by_spark = file.read_text()
    assert by_spark.count("\n") > 50
