"""`trivet simulate` as a command: what it refuses, and how a batch checks that it is deterministic."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest

from simulation.machines.client_runtime import ClientRuntime
from tests.cli.conftest import CommandLine


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seed", "x"), '--seed: unable to convert "x"'),
        (("--seeds", "5-3"), "--seeds '5-3': needs the form A-B with A not above B"),
        (("--seeds", "7"), "needs the form A-B"),
        (("--seeds", f"0-{10**20}"), "numbers of at most 18 digits"),
        (("--seed", "1", "--seeds", "1-2"), "exclude each other"),
        (("--nodes", "4"), "Choose from: 3, 5"),
        (("--seconds", "29"), "--seconds 29: at least 30"),
        (("--seconds", "86401"), "at most 86400"),
        (("--seeds", "1-2", "--jobs", "0"), "--jobs 0: at least 1, and at most 1024"),
        (("--seeds", "1-2", "--jobs", "1000000000"), "at most 1024"),
        (("--seed", "1", "--jobs", "2"), "--jobs 2: a batch can be spread over processes"),
        (("--replay", "plan.json", "--seconds", "40"), "--replay runs the plan as it is"),
        (("--replay", "plan.json", "--nodes", "5"), "--replay runs the plan as it is"),
        (("--replay", "nothing.json"), "--replay nothing.json: No such file or directory"),
        (("--shrink-runs", "0"), "--shrink-runs must be at least 1"),
        (("--shrink-seconds", "nan"), "--shrink-seconds at least 0"),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(
    trivet: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = trivet("simulate", *arguments)
    assert outcome.exit_code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b'{"seed": 1', b"\xff\x00", b"[]", b"{}"])
def test_a_damaged_plan_is_refused(trivet: CommandLine, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(damage)
    outcome = trivet("simulate", "--replay", str(path))
    assert outcome.exit_code == 2
    assert f"--replay {path}: not a plan: " in outcome.err


def test_where_nothing_can_be_written_is_told_before_the_run(trivet: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = [(tmp_path / "file", "File exists"), (tmp_path / "file" / "out", "Not a directory")]
    if Path("/proc/self").is_dir():
        places.append((Path("/proc/self"), ""))  # there, and nobody can make a file in it
    for place, why in places:
        outcome = trivet("simulate", "--seed", "1", "--out", str(place))
        assert outcome.exit_code == 2
        assert f"--out {place}: {why}" in outcome.err
        assert outcome.out == ""


def test_a_batch_where_no_finding_could_be_kept_does_not_begin(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "simulation-findings").touch()
    outcome = trivet("simulate", "--seeds", "1-2")
    assert outcome.exit_code == 2
    assert "simulation-findings (--out DIR names another place for findings): File exists" in outcome.err


@pytest.mark.slow
def test_a_seed_runs_again_over_the_same_code_wherever_the_batch_was_begun(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A working directory with another checkout in it is not what has run first."""
    (tmp_path / "simulation").mkdir()
    (tmp_path / "simulation" / "__init__.py").touch()
    (tmp_path / "simulation" / "__main__.py").write_text("print('other code')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "2")  # what a rerun of seed 1 would take
    outcome = trivet("simulate", "--seeds", "1-1", "--seconds", "30")
    assert outcome.exit_code == 0, outcome.out + outcome.err
    assert "1 run again in another process, 0 of them with another trace" in outcome.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["simulation"]


def test_a_terminal_is_told_how_far_a_long_run_is(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no sign of life for minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sleep = ClientRuntime.sleep
    waited: list[bool] = []

    def take_long() -> None:
        if not waited:
            waited.append(True)
            time.sleep(1.2)

    async def watched(self: ClientRuntime, seconds: float) -> None:
        take_long()
        await sleep(self, seconds)

    monkeypatch.setattr(ClientRuntime, "sleep", watched)
    outcome = trivet("simulate", "--seed", "2", "--seconds", "30")
    assert outcome.exit_code == 0
    assert re.search(r"\r +[0-9.]+ s  [0-9]+ of 30 s simulated", outcome.err)
    assert outcome.err.endswith("\r"), "the line is taken away"


def test_an_interrupt_is_no_error_of_whoever_was_at_work(
    trivet: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a client's task runs ended the run with the finding that a client failed."""
    monkeypatch.chdir(tmp_path)
    sleep = ClientRuntime.sleep
    calls = 0

    async def interrupted(self: ClientRuntime, seconds: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 20:
            signal.raise_signal(signal.SIGINT)
        await sleep(self, seconds)

    monkeypatch.setattr(ClientRuntime, "sleep", interrupted)
    # As in a process of its own: a Spark session, which other tests may have begun in this one, sets its own handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        outcome = trivet("simulate", "--seed", "2", "--seconds", "30")
        after = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls >= 20
    assert (outcome.exit_code, outcome.out) == (130, "seed 2\n")
    said = r"trivet: seed 2: interrupted at [0-9]+ of 30 s simulated; nothing wrong was found until then"
    assert re.fullmatch(said, outcome.complaint)
    assert after is signal.default_int_handler
    assert list(tmp_path.iterdir()) == []
