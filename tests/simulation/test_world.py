"""The simulator on the unbroken code: seeds that hold, determinism, and that every kind of fault is exercised."""

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from broker.client.message import MessageQueue
from simulation.faults.stage import Stage
from simulation.findings.report import describe_finding
from simulation.plans.plan import FAULT_KINDS, Fault, decode_plan, encode_plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND, Scheduler
from simulation.workload.context import Context
from simulation.world.running import run_plan

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (7, 15, 20, 28, 33))]
)
def test_a_seed_holds(seed: int) -> None:
    result = run_plan(draw_swarm_plan(seed, seconds=30))
    assert result.violation is None, describe_finding(result, f"trivet simulate --seed {seed} --seconds 30")
    assert result.acknowledged > 0
    assert result.read > 0


@pytest.mark.slow
def test_five_nodes_hold() -> None:
    result = run_plan(draw_swarm_plan(11, seconds=30, nodes=5))
    assert result.violation is None, describe_finding(
        result, "trivet simulate --seed 11 --nodes 5 --seconds 30"
    )


@pytest.mark.slow
def test_the_end_waits_for_no_node_that_was_removed() -> None:
    """A removed node has only what was committed until then: the wait took its whole second, and load went on."""
    plan = replace(draw_swarm_plan(6, seconds=40), flush="async")
    result = run_plan(plan)
    assert result.violation is None
    assert any("FAULT membership removed" in line for line in result.transcript)
    assert result.simulated_ns < plan.end_ns + SECOND // 10, "what a follower has yet to apply is under way"


@pytest.mark.slow
def test_a_seed_gives_the_same_traces_in_every_process() -> None:
    digests = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(_ROOT)}
        command = [sys.executable, "-m", "simulation", "13", "30", "3"]
        done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=True)
        digests.append(done.stdout)
    assert digests[0] == digests[1] != ""


@pytest.mark.slow
def test_a_run_leaves_nothing_in_memory() -> None:
    """Not even one that ends while brokers have yet to answer sends: a batch of a thousand seeds took two gigabytes."""
    before = _schedulers()
    run_plan(draw_swarm_plan(10, seconds=30))
    assert _schedulers() == before


def _schedulers() -> int:
    gc.collect()
    return sum(isinstance(one, Scheduler) for one in gc.get_objects())


@pytest.mark.slow
def test_another_seed_gives_other_traces() -> None:
    plan = replace(draw_swarm_plan(92, seconds=30), faults=(), end_ns=8 * SECOND)
    one, other = (run_plan(replace(plan, seed=seed)) for seed in (92, 58))
    assert one.trace_digest != other.trace_digest


def test_a_message_that_no_consumer_got_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though offsets went past it: what only looks at how far a group has come does not see it."""
    consumed = Context.consumed

    def consumed_but_one(self: Context, queue: MessageQueue, offset: int) -> None:
        if offset != 3:
            consumed(self, queue, offset)

    monkeypatch.setattr(Context, "consumed", consumed_but_one)
    plan = replace(
        draw_swarm_plan(92, seconds=30), faults=(), actors=("producer", "consumer", "administrator")
    )
    result = run_plan(replace(plan, calm_ns=4 * SECOND, end_ns=18 * SECOND))
    assert result.violation is not None
    assert result.violation.invariant == "liveness"
    assert "never read, 3 first" in result.violation.detail


def test_plans_survive_their_file_and_cover_all_kinds() -> None:
    drawn: dict[str, None] = {}
    for seed in range(60):
        plan = draw_swarm_plan(seed, seconds=60)
        assert decode_plan(encode_plan(plan)) == plan
        drawn.update(dict.fromkeys(fault.kind for fault in plan.faults))
        assert all(fault.time_ns + fault.duration_ns <= plan.calm_ns for fault in plan.faults)
    assert sorted(drawn) == sorted(FAULT_KINDS)


def test_a_mistake_of_the_simulator_is_a_finding_with_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the end of a batch that does not even say which seed it was."""

    def inject(stage: Stage, fault: Fault) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr("simulation.world.running.inject", inject)
    result = run_plan(replace(draw_swarm_plan(92, seconds=30), actors=(), end_ns=10 * SECOND))
    assert result.violation is not None
    assert result.violation.invariant == "the simulator fails"
    assert "nobody thought of this" in describe_finding(result, "trivet simulate --seed 92")


@pytest.mark.parametrize("actors", [("clerk",), ("producer",), ()])
def test_a_plan_that_was_shrunk_to_few_actors_holds_once_the_mistake_is_mended(
    actors: tuple[str, ...],
) -> None:
    plan = replace(
        draw_swarm_plan(0, seconds=30), faults=(), actors=actors, calm_ns=4 * SECOND, end_ns=18 * SECOND
    )
    result = run_plan(plan)
    assert result.violation is None, describe_finding(result, "no command")
