"""`trivet analyze` as a user calls it, on traces of simulated runs: mistakes are found, and nothing where none are.

Also what the command promises to scripts: one JSON object and nothing else on standard output, with the keys that
docs/report.md names, and its exit codes.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation.plan import Plan, draw_plan
from simulation.world import run_plan
from spark_analysis.main import FAILED, WRONG_USAGE
from spark_analysis.session import AnalysisUnavailableError, require_environment
from spark_analysis.verdict import EXIT_CODES
from tests.spark_analysis.planted_traces import write_planted, write_traces

ROOT = Path(__file__).parents[2]


def plain_plan(seed: int) -> Plan:
    """A seed's own."""
    return draw_plan(seed, seconds=40)


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as its output counts to the byte."""
    return subprocess.run(
        [sys.executable, "-m", "trivet", "analyze", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


def documented(table: str) -> set[str]:
    """The keys in the first table of docs/report.md behind some words."""
    text = (ROOT / "docs/report.md").read_text(encoding="utf-8").split(table, 1)[1]
    rows = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert rows is not None
    return {name for row in rows[0].splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.spark
@pytest.mark.slow
def test_planted_mistakes_are_judged_violated(tmp_path: Path) -> None:
    try:
        require_environment()
    except AnalysisUnavailableError as error:
        pytest.skip(str(error))
    paths = {
        "": write_traces(run_plan(plain_plan(5), keep_traces=True), tmp_path / "no-mistake"),
        "phantom-offset": write_planted("offsets rewound", plain_plan, tmp_path, seen_by_clients=True),
        "torn-read": write_planted("unit at the wrong place", plain_plan, tmp_path, seen_by_clients=True),
        # A node without its term starts as with a new disk, which is no mistake to see in its events.
        "stale-offset": write_planted("commit by one disk", plain_plan, tmp_path, seen_by_clients=True),
    }
    done = analyze(*paths.values(), "--json", "--report", tmp_path / "reports", "--master", "local[2]")
    assert done.returncode == 1, done.stderr
    histories: list[dict[str, Any]] = json.loads(done.stdout)["histories"]
    assert done.stdout.count("\n") == 1
    for (kind, path), history in zip(paths.items(), histories, strict=True):
        assert history["path"] == str(path)
        assert history["verdict"] == ("violated" if kind else "linearizable"), history["counts"]
        assert not kind or kind in history["counts"], history["counts"]
        page = (tmp_path / "reports" / f"{path.name}.html").read_text(encoding="utf-8")
        assert f"<h1>{history['verdict'].capitalize()}</h1>" in page
        assert not kind or f"<code>{kind}</code>" in page
        assert page.count("<svg") >= (2 if kind else 1)  # the proof, the run
        assert history.keys() <= documented('exactly one object, `{"histories"')
        for anomaly in history["anomalies"]:
            assert anomaly.keys() == documented("An anomaly:")
            assert anomaly["kind"] in history["counts"]


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
        (("--model", "stack", __file__), "known are"),
        ((str(ROOT / "docs"),), "no *.trace files"),
    ],
)
def test_wrong_usage_prints_nothing_for_scripts(arguments: tuple[str, ...], complaint: str) -> None:
    done = analyze(*arguments, "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
