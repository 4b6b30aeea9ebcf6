"""A finding is reduced to the faults that it takes, and its report is all that a reader needs to see it again."""

from dataclasses import replace
from pathlib import Path

import pytest

from broker.cli.simulate import simulate
from simulation.plan import Fault, Plan, decode_plan, draw_plan, encode_plan
from simulation.report import describe_finding
from simulation.scheduler import SECOND
from simulation.shrink import shrink
from simulation.world import run_plan
from tests.simulation.planted_bugs import PLANTED

MISTAKE = "failed flush passed over"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Faults that matter among many that do not, and code that makes it matter."""
    PLANTED[MISTAKE].patch(monkeypatch)
    faults = [Fault((5 + number) * SECOND, "name server", number, SECOND, 0.5) for number in range(4)]
    faults += [Fault((5 + number) * SECOND, "wall jump", number, SECOND, 0.5) for number in range(4)]
    # Of all nodes at a time, so that a majority may lack what it acknowledged.
    faults += [
        Fault(7 * SECOND + number // 3 * SECOND // 2, "flush failure", 2 * (number % 3), SECOND, 0.5)
        for number in range(15)
    ]
    faults += [Fault((8 + number) * SECOND, "topics", number, SECOND, 0.5) for number in range(2)]
    drawn = draw_plan(1, seconds=30)
    return replace(
        drawn,
        flush="sync",
        producers=1,
        think_ms=200,
        actors=("producer", "consumer", "auditor", "administrator"),
        faults=tuple(sorted(faults, key=lambda fault: fault.time_ns)),
    )


def test_a_finding_shrinks_to_the_faults_that_it_takes(plan: Plan) -> None:
    found = run_plan(plan)
    assert found.violation is not None
    assert found.violation.invariant == "durability"
    small = shrink(found, runs_max=60)
    assert small.violation is not None
    assert small.violation.invariant == "durability"
    assert len(small.plan.faults) <= 4
    assert {fault.kind for fault in small.plan.faults} == {"flush failure"}
    # What is left is a plan like any other: it survives its file, and breaks the same way.
    again = run_plan(decode_plan(encode_plan(small.plan)))
    assert again.violation is not None
    assert again.trace_digest == small.trace_digest


def test_a_report_names_the_faults_the_end_and_every_node(plan: Plan) -> None:
    found = run_plan(plan)
    text = describe_finding(found, "trivet simulate --replay here.json")
    assert "durability (group)" in text
    assert "FAULT flush failure" in text
    assert all(f"\n{node}: " in text for node in ("n0", "n1", "n2"))
    assert text.endswith("again: trivet simulate --replay here.json")


def test_a_replayed_plan_gives_the_finding_again(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(plan))
    assert simulate(replay=path, out=tmp_path, shrink=False) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seed 1\n")
    assert "durability" in printed
    assert (tmp_path / "seed-1.json").exists()
    assert (tmp_path / "n0.trace").stat().st_size > 0
