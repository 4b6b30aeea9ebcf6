"""`trivet analyze` as a user calls it, on traces of simulated runs: mistakes are found, and nothing where none are.

Also what the command promises to scripts: one JSON object and nothing else on standard output, with the keys that
docs/report.md names, and its exit codes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cbor2
import pytest

from broker.tools.cli import run
from broker.trace.format import INVOKE
from simulation.plans.swarm import draw_swarm_plan
from simulation.world.running import run_plan
from spark_analysis.checking.verdict import EXIT_CODES, REPLICA_ANOMALIES
from spark_analysis.light import judge_log
from spark_analysis.main import FAILED, WRONG_USAGE
from spark_analysis.telling.report import write_report
from tests.spark_analysis.planted_traces import Case, write_planted, write_traces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def documented(table: str) -> set[str]:
    """The keys in the first table of docs/report.md behind some words."""
    text = (ROOT / "docs/report.md").read_text(encoding="utf-8").split(table, 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows is not None
    return {name for row in rows[0].splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


CASES = (
    Case("commit by one disk", ("inconsistent-offset", "premature-read", "leader-incomplete"), first_seed=52),
    Case("commit by one disk", ("stale-tail", "leader-incomplete"), first_seed=82),
    Case("term and vote not saved", ("duplicate-offset", "append-order", "log-mismatch"), first_seed=1),
    Case("double vote", ("two-leaders",), rivals=True),
    Case("commit beyond what is agreed", ("committed-truncated",), first_seed=1),
    Case("answer with a message left out", ("torn-read",)),
    Case("offsets rewound", ("phantom-offset",), first_seed=1),
    Case("offset rewind after failover", ("stale-offset",), first_seed=10),
    Case("duplicate on retry where none is promised", ("aborted-read",), first_seed=4),
)


def test_kinds_that_clients_and_replicas_see() -> None:
    """The cases below are of many kinds: what is seen in none of them is seen through Spark in made histories only."""
    kinds = {kind for case in CASES for kind in case.kinds}
    assert len(kinds - {*REPLICA_ANOMALIES}) >= 8
    assert len(kinds & {*REPLICA_ANOMALIES}) >= 4


def write_good(directory: Path) -> tuple[Path, str]:
    """Traces of a run without a mistake, and what is wrong with the one record whose time cannot be true."""
    traces = write_traces(
        run_plan(draw_swarm_plan(5, seconds=40), keep_traces=True), directory / "no-mistake"
    )
    file = traces / "producer0.1.trace"
    place = file.stat().st_size
    with file.open("ab") as stream:
        stream.write(cbor2.dumps([INVOKE, 1 << 61, 1 << 30, "late", 3, "events/broker-a:0", None, None]))
    return traces, f"{file}: byte {place}: time {1 << 61} is 73 years after most others; allowed are "


def assert_same_without_spark(paths: list[Path], histories: list[dict[str, Any]], directory: Path) -> None:
    """The same verdicts, and the same pages byte by byte, from a process that asks no Spark."""
    for path, told in zip(paths, histories, strict=True):
        judged = judge_log(path, "trace")
        assert judged is not None
        verdict, history = judged
        expected = told | {"judged_by": "this process"}
        assert json.loads(json.dumps(verdict.as_json())) == expected
        page = write_report(verdict, history, directory / "without-spark" / f"{path.name}.html")
        by_spark = (directory / "reports" / f"{path.name}.html").read_text()
        who = "Judged by the process of the command, without Spark."
        assert page.read_text() == by_spark.replace("One task of Spark judged it.", who), path.name


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(CASES[:1], id="and none"),
        *(pytest.param((case,), marks=pytest.mark.hunt, id=case.name) for case in CASES[1:]),
    ],
)
def test_planted_mistakes_are_judged_violated(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], cases: tuple[Case, ...]
) -> None:
    """In the session that other tests use, too: most of the time would be Spark's start."""
    paths = [write_planted(case, tmp_path) for case in cases]
    kinds_wanted = [case.kinds for case in cases]
    damages = [""] * len(cases)
    if cases == CASES[:1]:
        good, damage = write_good(tmp_path)
        paths, kinds_wanted, damages = [good, *paths], [(), *kinds_wanted], [damage, *damages]
    code = run(["analyze", *map(str, paths), "--json", "--report", str(tmp_path / "reports")])
    printed = capsys.readouterr()
    assert code == 1, printed.err
    histories: list[dict[str, Any]] = json.loads(printed.out)["histories"]
    assert_same_without_spark(paths, histories, tmp_path)
    assert printed.out.count("\n") == 1
    assert [history["path"] for history in histories] == [str(path) for path in paths]
    for kinds, damage, path, history in zip(kinds_wanted, damages, paths, histories, strict=True):
        assert history["verdict"] == ("violated" if kinds else "linearizable"), (path, history["counts"])
        assert history["counts"].keys() >= {*kinds}, path
        page = (tmp_path / "reports" / f"{path.name}.html").read_text(encoding="utf-8")
        assert f"<h1>{history['verdict'].capitalize()}</h1>" in page
        assert all(f"<code>{kind}</code>" in page for kind in kinds)
        assert page.count("<svg") >= 1 + len(kinds)  # a proof of each, the run
        assert history.keys() <= documented('exactly one object, `{"histories"')
        for anomaly in history["anomalies"]:
            assert anomaly.keys() == documented("An anomaly:")
            assert anomaly["kind"] in history["counts"]
        (*_, bad) = history["damage"] or ("",)
        assert bad.startswith(damage) if damage else not bad
        assert history["bad_lines"] == len(history["damage"]) == bool(damage)


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d) \|", text, re.MULTILINE)}
    assert codes == {*EXIT_CODES.values(), WRONG_USAGE, FAILED}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "PATH"),
        (("/nowhere.trace",), "no such file"),
        (("--format", "xml", __file__), "known are trace"),
        (("--model", "tree", __file__), "known are"),
        ((str(ROOT / "docs"),), "no *.trace files"),
    ],
)
def test_wrong_usage_prints_nothing_for_scripts(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", *arguments, "--json"]) == WRONG_USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err
    assert "Traceback" not in printed.err
