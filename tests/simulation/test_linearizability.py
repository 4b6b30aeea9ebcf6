"""The checker of client histories has the last word on runs, and would find what the judge within them finds."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from simulation.judges.client_judge import ClientJudge
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_plan, run_world
from spark_analysis.checking.plain import check_traces
from tests.simulation.planted_bugs import PLANTED


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 9, 21])
def test_what_clients_were_told_is_linearizable(seed: int) -> None:
    verdicts = []

    def judge(traces: Mapping[str, bytes]) -> str:
        verdicts.append(check_traces(traces))
        return ""

    result = run_plan(draw_swarm_plan(seed, seconds=30), judge_history=judge)
    assert result.violation is None
    assert verdicts[0].verdict == "linearizable"
    assert (verdicts[0].anomalies, verdicts[0].damage) == ((), ())
    assert verdicts[0].operations > result.acknowledged // 2 > 0


def test_a_word_against_the_history_is_a_finding() -> None:
    plan = replace(draw_swarm_plan(5, seconds=30), faults=(), actors=("producer",), end_ns=8 * SECOND)
    violation = run_plan(plan, judge_history=lambda traces: "no").violation
    assert violation is not None
    assert (violation.invariant, violation.detail) == ("linearizability", "no")


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "first"), [("offsets rewound", 0), ("offset rewind after failover", 1)])
def test_it_finds_what_the_judge_within_the_run_would(
    monkeypatch: pytest.MonkeyPatch, mistake: str, first: int
) -> None:
    """`first` is the seed that finds it now: those before it are whole runs that find nothing."""
    PLANTED[mistake].patch(monkeypatch)
    for name in ("offset_was", "offset_stored", "was_read", "ended_at"):
        monkeypatch.setattr(ClientJudge, name, lambda *_: None)
    for seed in (*range(first, 12), *range(first)):
        world = World(draw_swarm_plan(seed, seconds=30), keep_traces=True)
        result = run_world(world)
        traces = {name: data for name, data in result.traces.items() if name in world.traces.histories}
        if check_traces(traces).verdict == "violated":
            return
    pytest.fail("not found")
