"""`trivet chaos` as its users call it: a short run that holds, one that is interrupted, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.tools.chaos.schedule import draw_schedule

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LIMIT_S = 600.0
"""Ends a test that hangs."""
PAUSES_FIRST = 62
"""A seed whose first fault comes soon and stops a node for some seconds."""


@contextlib.contextmanager
def chaos(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Running; at the end, or when the time is up, it is gone."""
    command = [sys.executable, "-m", "trivet", "chaos", "--dir", str(directory), "--no-analysis", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        if process.poll() is None:
            process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Its narration up to the line with these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it ended without {words!r}")


def processes_of(directory: Path) -> list[str]:
    """Command lines of living processes that name the directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(directory) in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


def test_a_short_run_holds(tmp_path: Path) -> None:
    with chaos(tmp_path / "run", "--minutes", "0.25", "--seed", "1", "--json") as process:
        output, narration = process.communicate()
    assert process.returncode == 0, narration
    summary = json.loads(output)
    assert narration.startswith("seed 1\n")
    assert summary["seed"] == 1
    assert summary["finding"] is None
    assert sum(summary["fired"].values()) > 3
    assert summary["acknowledged"] > 100
    assert summary["entries_compared"] > summary["acknowledged"]
    traces = sorted(path.name for path in (tmp_path / "run" / "traces").iterdir())
    assert {"driver.trace", "n0.trace", "n1.trace", "n2.trace", "producer.trace"} <= set(traces)
    assert processes_of(tmp_path) == []


@pytest.mark.in_turn
def test_several_groups_on_machines_that_are_killed_hold(tmp_path: Path) -> None:
    with chaos(tmp_path / "run", "--groups", "2", "--kills", "3", "--seed", "3", "--json") as process:
        output, narration = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, narration
    summary = json.loads(output)
    assert (summary["groups"], summary["finding"]) == (2, None)
    assert summary["entries_compared"] > summary["acknowledged"] > 0
    # Each group's history has its own replicas, and what all clients saw.
    traces = tmp_path / "run" / "traces"
    assert summary["traces"] == [str(traces / "broker-a"), str(traces / "broker-b")]
    assert {"n0.trace", "producer.trace"} <= {path.name for path in (traces / "broker-a").iterdir()}
    assert {"n100.trace", "producer.trace"} <= {path.name for path in (traces / "broker-b").iterdir()}
    # A machine goes with its nodes of both groups.
    (killed,) = [re.findall(r"\bn(\d+)", line) for line in narration.splitlines() if "kill 1, " in line]
    assert sorted(int(node) for node in killed if int(node) < 100) == sorted(
        int(node) - 100 for node in killed if int(node) >= 100
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    first = draw_schedule(PAUSES_FIRST, 30 * 60)[0]
    assert first.kind == "pause"
    assert first.duration_s > 5
    with chaos(tmp_path / "run", "--minutes", "30", "--seed", str(PAUSES_FIRST)) as process:
        read_until(process, "brokers behind proxies serve")
        with chaos(tmp_path / "run", "--minutes", "1") as second:
            assert "another chaos runs there" in second.communicate()[1]
        assert second.returncode == 2
        read_until(process, "pause")  # a node stands still: it must be woken before it can be ended
        process.send_signal(signal.SIGINT)
        output, narration = process.communicate()
    assert process.returncode == 130, narration
    assert processes_of(tmp_path) == []
    assert "everything is being stopped" in narration
    assert "traces  interrupted: nothing was judged" in output
    assert "never possible" not in output
    assert f"again  trivet analyze {tmp_path / 'run' / 'traces'}\n" in output
    assert f"repeat  trivet chaos --minutes 30 --seed {PAUSES_FIRST} --nodes 3 --flush async" in output
    assert output.endswith("result  interrupted\n")


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with chaos(tmp_path, "--minutes", "1") as process:
        _, complaint = process.communicate()
    assert process.returncode == 2
    assert "has files that no chaos left there" in complaint
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with chaos(tmp_path / "file") as process:
        _, complaint = process.communicate()
    assert process.returncode == 2
    assert (
        complaint == f"trivet: --dir {tmp_path / 'file'}: is no directory that can be used: Not a directory\n"
    )


@pytest.mark.parametrize("options", [["--groups", "0"], ["--groups", "9", "--nodes", "5"]])
def test_impossible_numbers_of_groups(tmp_path: Path, options: list[str]) -> None:
    with chaos(tmp_path / "run", *options) as process:
        _, complaint = process.communicate()
    assert process.returncode == 2
    assert "--groups" in complaint


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "100000"])
def test_impossible_lengths(tmp_path: Path, minutes: str) -> None:
    with chaos(tmp_path / "run", f"--minutes={minutes}") as process:
        _, complaint = process.communicate()
    assert process.returncode == 2
    assert "--minutes" in complaint


@pytest.mark.in_turn
def test_kills_one_after_the_other_are_measured_and_lose_nothing(tmp_path: Path) -> None:
    with chaos(tmp_path / "run", "--kills", "5", "--seed", "3", "--json") as process:
        output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    summary = json.loads(output)
    assert summary["finding"] is None
    assert sum(summary["gaps"]["kills"].values()) == 5
    assert len(summary["gaps"]["leader_ms"]) == summary["gaps"]["kills"]["leader"]
    assert summary["entries_compared"] > summary["acknowledged"] > 0
