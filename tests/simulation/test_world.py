"""The simulator on the unbroken code: seeds that hold, determinism, and that every kind of fault is exercised."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulation.plan import FAULT_KINDS, decode_plan, draw_plan, encode_plan
from simulation.report import describe_finding
from simulation.scheduler import SECOND
from simulation.world import run_plan

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [2, 7, 15, 20, 28, 33])
def test_a_seed_holds(seed: int) -> None:
    result = run_plan(draw_plan(seed, seconds=30))
    assert result.violation is None, describe_finding(result, f"trivet simulate --seed {seed} --seconds 30")
    assert result.acknowledged > 0
    assert result.read > 0


def test_five_nodes_hold() -> None:
    result = run_plan(draw_plan(11, seconds=30, nodes=5))
    assert result.violation is None, describe_finding(
        result, "trivet simulate --seed 11 --nodes 5 --seconds 30"
    )


def test_a_seed_gives_the_same_traces_in_every_process() -> None:
    digests = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(_ROOT)}
        command = [sys.executable, "-m", "simulation", "13", "30", "3"]
        done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=True)
        digests.append(done.stdout)
    assert digests[0] == digests[1] != ""


def test_another_seed_gives_other_traces() -> None:
    plan = replace(draw_plan(92, seconds=30), faults=(), end_ns=8 * SECOND)
    one, other = (run_plan(replace(plan, seed=seed)) for seed in (92, 58))
    assert one.trace_digest != other.trace_digest


def test_plans_survive_their_file_and_cover_all_kinds() -> None:
    drawn: dict[str, None] = {}
    for seed in range(60):
        plan = draw_plan(seed, seconds=60)
        assert decode_plan(encode_plan(plan)) == plan
        drawn.update(dict.fromkeys(fault.kind for fault in plan.faults))
        assert all(fault.time_ns + fault.duration_ns <= plan.calm_ns for fault in plan.faults)
    assert sorted(drawn) == sorted(FAULT_KINDS)
