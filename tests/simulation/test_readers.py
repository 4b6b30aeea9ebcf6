"""Plain readers, members of broadcast groups and askers: without faults all of their work gets done."""

from dataclasses import replace

import pytest

from simulation.plans.plan import Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.running import run_plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actor", "work"),
    [
        ("puller", {"message pulled": 50, "puller's offset stored": 5, "puller sought": 1}),
        ("receiver", {"broadcast message received": 100}),
        (
            "inquirer",
            {
                "begin of a queue asked": 3,
                "offset searched by time": 10,
                "messages found by key": 5,
                "message viewed by its id": 2,
            },
        ),
    ],
)
def test_readers_get_somewhere(actor: str, work: dict[str, int]) -> None:
    # The log loses its head once; nothing else goes wrong.
    faults = (Fault(10 * SECOND, "retention", 0, SECOND, 0.1),)
    plan = replace(draw_swarm_plan(1, seconds=40), faults=faults, actors=("producer", "administrator", actor))
    plan = replace(plan, data_file_bytes=16 * 1024, think_ms=300)
    result = run_plan(plan)
    assert result.violation is None, str(result.violation)
    assert result.fault_counts["retention"] >= plan.nodes
    for kind, at_least in work.items():
        assert result.work_counts[kind] >= at_least, f"{kind}: {result.work_counts}"
