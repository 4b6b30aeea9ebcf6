"""Other futures of a run: a child of the process goes on with them, and its plan replays them without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.tools.cli import simulation_batch
from broker.tools.cli.futures import Futures
from broker.tools.cli.simulate import OfABatch, simulate
from broker.tools.cli.simulation_batch import Batch
from simulation.plans.plan import Fault, Fork, Limits, Plan, decode_plan, encode_plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.randomness import branch, stream
from simulation.scheduler import SECOND, Scheduler
from simulation.world.building import World
from simulation.world.running import Result, run_plan, run_world


def _short_plan() -> Plan:
    return replace(
        draw_swarm_plan(0, seconds=30),
        actors=("administrator", "producer", "consumer"),
        faults=tuple(Fault(at * SECOND, "rivals", 1, 0, 0.5) for at in range(5, 9)),
        limits=replace(Limits(), snapshot_entries=20),
    )


@pytest.mark.slow
def test_a_future_replays_and_leaves_its_run_as_it_is() -> None:
    def outcome(result: Result, cpu_s: float) -> tuple[bytes, str, int, bool]:
        return encode_plan(result.plan), result.trace_digest, result.events, cpu_s > 0

    plan = _short_plan()
    futures = Futures({"a start without term or vote"}, 2, outcome)
    result = run_world(World(plan), None, futures.explore)
    futures.ended(result)
    assert result.plan == plan
    assert result.trace_digest == run_plan(plan).trace_digest
    assert len(futures.outcomes) == 2
    assert len({digest for _, digest, _, _ in futures.outcomes} | {result.trace_digest}) == 3
    for encoded, digest, events, took_time in futures.outcomes:
        future = decode_plan(encoded)
        (fork,) = future.forks
        assert took_time
        assert [fault for fault in future.faults if fault.time_ns <= fork.time_ns] == [
            fault for fault in plan.faults if fault.time_ns <= fork.time_ns
        ]
        replayed = run_plan(future)
        assert (replayed.trace_digest, replayed.events) == (digest, events)


def test_a_state_is_met_once() -> None:
    futures = Futures({"known"}, 0, lambda result, cpu_s: None)
    assert [futures.explore(state) for state in ("known", "new", "new")] == [None] * 3
    assert futures.new_states == ["new"]


def test_a_stream_goes_on_as_another_with_all_that_branched_off() -> None:
    def drawn(goes_on: str) -> list[float]:
        root = stream("root")
        child = branch(root)
        grandchild = branch(child)
        if goes_on:
            root.go_on_as(goes_on)
        return [one.random() for one in (root, child, grandchild, branch(grandchild))]

    assert drawn("a") == drawn("a")
    every = drawn("") + drawn("a") + drawn("b")
    assert len(set(every)) == len(every)


def test_a_run_stands_behind_the_event_that_it_is_told() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    for number in range(4):
        scheduler.at(number, seen.append, number)
    scheduler.pause_behind = 2
    assert not scheduler.run_until(10)
    assert (seen, scheduler.now_ns) == ([0, 1], 1)
    assert scheduler.run_until(10)
    assert (seen, scheduler.now_ns) == ([0, 1, 2, 3], 10)


@pytest.mark.parametrize(
    "forks", [(Fork(0, 0, 1),), (Fork(3, -1, 1),), (Fork(3, SECOND, 1), Fork(3, SECOND, 2))]
)
def test_forks_that_no_run_makes_are_refused(forks: tuple[Fork, ...]) -> None:
    with pytest.raises(ValueError, match="out of the range"):
        decode_plan(encode_plan(replace(_short_plan(), forks=forks)))


@pytest.mark.slow
def test_a_batch_tells_of_futures_and_keeps_their_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A finding that only a future has fails the batch, and its plan is kept beside that of the seed."""
    from simulation.plans import seeds

    monkeypatch.setattr(seeds, "plan_of_seed", lambda *_, **__: _short_plan())
    monkeypatch.setattr(simulation_batch, "_seen", set())
    original = simulation_batch._outcome

    def outcome(result: Result, cpu_s: float, directory: Path) -> simulation_batch._Outcome:
        if result.plan.forks:
            from simulation.journal import Violation

            result.violation = Violation("planted", "n0", "in a future")
        return original(result, cpu_s, directory)

    monkeypatch.setattr(simulation_batch, "_outcome", outcome)
    batch = Batch(range(1), 30, None, 1, tmp_path, futures_max=1)
    batch._take(simulation_batch._run_seed(0, 30, None, str(tmp_path), 1))
    batch._print_totals(1.0)
    printed = capsys.readouterr().out
    assert "seed 0: planted (n0)" in printed
    assert "1 other futures from them, 1 findings" in printed
    (path,) = tmp_path.iterdir()
    (fork,) = decode_plan(path.read_bytes()).forks
    assert path.name == f"seed-0-future-{fork.event}.json"
    assert [bool(one.finding) for one in batch._futures()] == [True]
    assert not batch.outcomes[0].finding


def test_a_batch_that_is_to_reach_all_marks_fails_without_one(tmp_path: Path) -> None:
    outcome = simulation_batch._Outcome(0, "", "", "", 40.0, 1.0, False, {}, {}, {})
    batch = Batch(range(1), 40, None, 1, tmp_path, [outcome])
    assert batch._never_reached()
    assert not batch._must_reach_all()
    batch.wants_all_marks = True
    assert batch._must_reach_all()


def test_futures_are_for_batches() -> None:
    from broker.tools.cli.errors import CommandError

    for seeds, options in (
        (None, OfABatch(futures=1)),
        (None, OfABatch(all_marks=True)),
        ("0-1", OfABatch(futures=0)),
    ):
        with pytest.raises(CommandError):
            simulate(seeds=seeds, of_a_batch=options)
