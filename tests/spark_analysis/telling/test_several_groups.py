"""A history of several broker groups whose nodes have the same names: each node of each group is one of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.tools.cli import run
from broker.trace import TraceHeader, TraceWriter
from broker.trace.format import Source
from spark_analysis.checking.small import MOST_ROWS_SETTING
from spark_analysis.light import judge_log
from spark_analysis.telling.report import write_report
from spark_analysis.telling.report.lanes import Band, no_leader
from spark_analysis.telling.report.parts import role_bands
from spark_analysis.telling.report.svg import Axis
from spark_analysis.telling.report.tables import TracedEvent
from tests.spark_analysis.telling.test_figures import check_nothing_overlaps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MS = 1_000_000
GROUPS = ("broker-a", "broker-b")


def write_groups(directory: Path) -> Path:
    """Two groups of n0, n1 and n2 each. In broker-a n0 leads until it is killed, and a reader of its queue is told too
    little. In broker-b n1 leads, n2 is behind, and in term 3 two nodes lead; then n1 is in term 2 again."""
    directory.mkdir()
    writers = {}

    def writer(name: str, source: Source, process: str, **attributes: str) -> TraceWriter:
        file = (directory / f"{name}.trace").open("wb")
        header = TraceHeader(source, process, "boot", 1, attributes=tuple(attributes.items()))
        made = TraceWriter(file.write, header)
        writers[made] = file
        return made

    a, b = ([writer(f"{group}-n{n}", "replica", f"n{n}", group=group) for n in range(3)] for group in GROUPS)
    for number, node in enumerate((*a, *b)):
        node.start((90 + number) * MS, 0, -1, -1)
        node.role((100 + number) * MS, "follower", 0, None, -1, 0)
    a[0].role(200 * MS, "leader", 1, "n0", -1, 0)
    b[1].role(230 * MS, "leader", 1, "n1", -1, 0)
    for at in range(40):
        for n, node in enumerate(a):
            if n or at < 20:
                node.commit((300 + at * 40 + n) * MS, at, 1 if at < 20 else 2)
        for n, node in enumerate(b):
            node.commit((305 + at * 40 + n) * MS, 1000 + at * 10 - 5 * (n == 2), 1)
        if at == 20:
            a[1].role(1300 * MS, "leader", 2, "n1", 60, 1)
    a[0].start(1700 * MS, 1, 19, 19)
    for leader in (b[0], b[2]):
        leader.role(1500 * MS, "leader", 3, "n0", 2000, 1)
    b[1].role(1510 * MS, "follower", 3, "n0", 2000, 1)
    b[1].role(1520 * MS, "follower", 2, "n0", 2000, 1)
    driver = writer("driver", "driver", "driver")
    driver.fault(1100 * MS, "kill", ["broker-a/n0"], "SIGKILL")
    client = writer("client", "client", "client")
    for queue in ("orders/broker-a:0", "orders/broker-b:0"):
        for offset in range(30):
            at_ns = (320 + offset * 50) * MS
            sent = client.invoke_append(at_ns, "producer", queue, [f"{queue}-{offset}"])
            client.ok_append(at_ns + 8 * MS, sent, offset)
            read = client.invoke_read(at_ns + 20 * MS, "consumer", queue, offset)
            found = [] if (queue, offset) == ("orders/broker-a:0", 18) else [f"{queue}-{offset}"]
            client.ok_read(at_ns + 22 * MS, read, offset + len(found), offset, found)
    for one, file in writers.items():
        one.flush()
        file.close()
    return directory


def rows_of(svg: str) -> dict[str, list[str]]:
    """The tooltips of each lane of replicas: what is drawn in it."""
    lanes: dict[str, list[str]] = {}
    for about in re.findall(r"<g><title>([^<]*)</title><rect[^>]*class=\"role-", svg):
        lane, _, role = about.partition(": ")
        lanes.setdefault(lane, []).append(role)
    return lanes


def page_of(directory: Path) -> tuple[str, dict[str, Any]]:
    judged = judge_log(write_groups(directory / "groups"), "trace")
    assert judged is not None
    verdict, history = judged
    page = write_report(verdict, history, directory / "page.html").read_text(encoding="utf-8")
    return page, verdict.as_json()


def test_each_node_of_each_group_has_a_lane_of_its_own(tmp_path: Path) -> None:
    page, _ = page_of(tmp_path)
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for svg in drawings:
        check_nothing_overlaps(svg)
    roles = rows_of(drawings[-1])
    assert sorted(roles) == [f"{group}/n{n}" for group in GROUPS for n in range(3)]
    # Each one's name stands whole before its lane.
    assert all(f">{name}</text>" in drawings[-1] for name in roles)
    assert roles["broker-a/n0"] == ["leader term 1", "down", "follower"]
    assert roles["broker-a/n1"] == ["follower", "leader term 2"]
    assert roles["broker-b/n0"] == ["follower", "leader term 3"]
    assert roles["broker-b/n1"] == ["leader term 1", "follower"]
    # How far a replica is behind is behind its own group: terms and indices are a group's own.
    assert page.count("Replica lag, broker-a") == page.count("Replica lag, broker-b") == 1
    assert "what 6 replicas recorded" in page


def test_findings_name_the_group(tmp_path: Path) -> None:
    page, verdict = page_of(tmp_path)
    assert verdict["counts"] == {"stale-read": 1, "term-went-back": 1, "two-leaders": 1}
    assert verdict["groups"] == [*GROUPS]
    assert sorted(verdict["replica_events"]) == [f"{group}/n{n}" for group in GROUPS for n in range(3)]
    found = {one["kind"]: (one["key"], one["detail"]) for one in verdict["anomalies"]}
    assert found["two-leaders"] == ("term 3", "broker-b/n0 and broker-b/n2")
    assert found["term-went-back"] == ("broker-b/n1", "from term 3")
    assert "broker-b/n0 and broker-b/n2 were both leader in term 3." in page
    # What shows it are events of that group.
    assert "broker-b/n0 became leader in term 3" in page
    assert "broker-b/n1 became follower in term 2" in page


def test_the_names_in_one_group_are_short(tmp_path: Path) -> None:
    traces = write_groups(tmp_path / "groups")
    for path in traces.glob("broker-a-*"):
        path.unlink()
    judged = judge_log(traces, "trace")
    assert judged is not None
    assert judged[0].facts["groups"] == ["broker-b"]
    assert [*judged[0].facts["replica_events"]] == ["n0", "n1", "n2"]
    page = write_report(*judged, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "broker-b/n" not in page
    assert "Replica lag<" in page


def kill(target: str) -> TracedEvent:
    return TracedEvent("driver", "fault", 5_000 * MS, detail="kill", targets=(target,))


@pytest.mark.parametrize(
    ("target", "down"),
    [("n0", {"a/n0", "b/n0"}), ("b/n0", {"b/n0"}), ("n1", {"b/n1"}), ("group", {"a/n0", "b/n0", "b/n1"})],
)
def test_a_fault_is_done_to_nodes_of_this_name(target: str, down: set[str]) -> None:
    """A driver that knows of one group alone names a node as that group does."""
    starts = [
        TracedEvent(f"{group}/{node}", "start", MS, term=0, group=group)
        for group, node in (("a", "n0"), ("b", "n0"), ("b", "n1"))
    ]
    bands = role_bands([*starts, kill(target)], 9.0, 0)
    assert {band.node for band in bands if band.role == "down"} == down


def test_a_time_without_a_leader_is_of_the_group_that_has_none() -> None:
    bands = [
        *(Band("a/n0", "leader", 0, 4, group="a"), Band("a/n1", "leader", 6, 10, group="a")),
        *(Band("b/n0", "leader", 0, 8, group="b"), Band("c/n0", "leader", 0, 10, group="c")),
    ]
    titles = re.findall(r"<title>([^<]*)</title>", no_leader(bands, Axis(0, 10), 0, 10))
    assert titles == ["no leader of a", "no leader of b"]
    alone = [band for band in bands if band.group == "a"]
    assert re.findall(r"<title>([^<]*)</title>", no_leader(alone, Axis(0, 10), 0, 10)) == ["no leader"]


def test_only_the_group_of_a_queue_explains_a_wait_for_it(tmp_path: Path) -> None:
    """broker-a has no leader when its reader is told too little, which explains nothing of what broker-b does."""
    page, _ = page_of(tmp_path)
    proof = page[page.index("<h2>The proof") :]
    drawing = proof[: proof.index("</svg>")]
    assert "<title>no leader of broker-a</title>" in drawing
    assert "no leader of broker-b" not in drawing
    assert "a yellow ground is a time without a leader" in proof


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("rows_max", ["0", "50000"])
def test_spark_says_and_draws_the_same(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rows_max: str,
) -> None:
    page, _ = page_of(tmp_path)
    monkeypatch.setenv(MOST_ROWS_SETTING, rows_max)
    traces = str(tmp_path / "groups")
    assert run(["analyze", traces, "--spark", "--report", str(tmp_path)]) == 1, capsys.readouterr().err
    by_spark = (tmp_path / "groups.html").read_text(encoding="utf-8")
    who = r"Judged by the process of the command, without Spark\.|(One task|Many tasks) of Spark judged .*\."
    assert re.sub(who, "", by_spark) == re.sub(who, "", page)
