"""Worlds with two groups: what a seed means, and what the judges see between groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker.client.message import MessageQueue
from simulation.findings.report import describe_finding
from simulation.journal import Violation
from simulation.plans.plan import CHOREOGRAPHIES, Plan, decode_plan, encode_plan
from simulation.plans.seeds import dense_seed, plan_of_seed
from simulation.plans.swarm import draw_swarm_plan
from simulation.workload.keep import Keys
from simulation.world.building import World
from simulation.world.running import run_plan, run_world
from spark_analysis.light import judge_log
from tests.spark_analysis.planted_traces import write_traces


def two_groups(seed: int) -> Plan:
    """The seed's plan, with two groups."""
    return draw_swarm_plan(seed, seconds=30, groups=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4])
def test_two_groups_come_together_again(seed: int) -> None:
    world = World(two_groups(seed))
    result = run_world(world)
    assert result.violation is None, describe_finding(result, "this test")
    assert all(group.judge.acknowledged and group.judge.read for group in world.groups)
    assert result.work_counts["key sent to its queue"]


@pytest.mark.slow
def test_the_analysis_judges_each_group_by_itself(tmp_path: Path) -> None:
    traces = write_traces(run_plan(two_groups(1), keep_traces=True), tmp_path / "run")
    judged = judge_log(traces, "trace")
    assert judged is not None
    verdict, _ = judged
    assert verdict.counts == {}, "both groups have a leader of term 1 and an entry 0"
    assert len(verdict.facts["groups"]) == 2


@pytest.mark.slow
def test_a_plan_with_two_groups_survives_its_file_and_runs_the_same_again() -> None:
    plan = replace(two_groups(2), calm_ns=8_000_000_000, end_ns=16_000_000_000)
    plan = replace(plan, faults=tuple(fault for fault in plan.faults if fault.time_ns < plan.calm_ns))
    again = decode_plan(encode_plan(plan))
    assert again == plan
    assert run_plan(again).trace_digest == run_plan(plan).trace_digest


def test_a_share_of_the_seeds_has_two_groups_and_all_others_are_what_they_were() -> None:
    plans = [draw_swarm_plan(seed) for seed in range(200)]
    two = [plan for plan in plans if plan.groups == 2]
    assert 10 < len(two) < 60
    for plan in two:
        of_first = tuple(fault for fault in plan.faults if fault.group == 0)
        assert of_first == draw_swarm_plan(plan.seed, groups=1).faults
    assert {fault.group for plan in two for fault in plan.faults} == {0, 1}
    assert len({fault.kind for plan in two for fault in plan.faults if fault.group}) > 20


def test_a_share_of_the_dense_plans_has_two_groups_and_each_has_its_own_faults() -> None:
    plans = [plan_of_seed(dense_seed(number), seconds=40) for number in range(200)]
    two = [plan for plan in plans if plan.groups == 2]
    assert 8 < len(two) < 40
    assert all("keeper" in plan.actors and "founder" not in plan.actors for plan in two)
    assert sum(any(fault.group == 1 for fault in plan.faults) for plan in two) > len(two) // 2
    for plan in two:
        assert decode_plan(encode_plan(plan)) == plan
        of_each = [{fault.kind for fault in plan.faults if fault.group == group} for group in (0, 1)]
        assert of_each[1] <= of_each[0]
        assert not of_each[1] & {"membership", "client kill", *CHOREOGRAPHIES}


def test_a_message_that_may_be_stored_in_two_groups_is_seen() -> None:
    """Though no log has it twice: what each group knows is in order."""
    world = World(two_groups(1))
    for group, outcome in zip(world.groups, ("info", "ok"), strict=True):
        group.judge.outcomes["t", "key"] = [outcome]
    with pytest.raises(Violation, match="may be stored in broker-a and in broker-b"):
        world.judges.check_outcomes()
    world.groups[0].judge.outcomes["t", "key"] = ["fail"]
    world.judges.check_outcomes()


def test_a_key_in_two_queues_is_seen() -> None:
    world = World(two_groups(1))
    keys = world.invariant(Keys)
    keys.stored("one", "key", MessageQueue("t", "broker-a", 0))
    keys.stored("another", "key", MessageQueue("t", "broker-a", 0))
    with pytest.raises(Violation, match="all routes had all groups"):
        keys.stored("another", "key", MessageQueue("t", "broker-b", 0))
