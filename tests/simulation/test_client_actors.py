"""Actors whose clients send back, ask and answer, do not wait, are sent elsewhere, configure name servers or change
settings: without faults all of it gets somewhere."""

from dataclasses import replace

import pytest

from simulation.findings.report import describe_finding
from simulation.plans.plan import Fault
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.workload.reset_rules import TOPIC as RESET_TOPIC
from simulation.workload.retry import Retries
from simulation.world.building import World
from simulation.world.running import run_plan, run_world


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actor", "work"),
    [
        ("courier", {"parcel accepted": 20, "retry delivered": 20, "dead letter": 1}),
        ("correspondent", {"letter answered": 20}),
        ("resetter", {"reset acknowledged": 8, "member sent elsewhere": 15, "reset followed": 15}),
        (
            "configurer",
            {
                "key put": 20,
                "key deleted": 5,
                "name server asked for keys and values": 20,
                "write permission wiped": 4,
                "route without write permission": 4,
                "queues read without write permission": 2,
                "newcomer's message stored": 10,
                "resident may send": 10,
            },
        ),
        (
            "warden",
            {
                "topic's permission set": 5,
                "group's switch set": 5,
                "settings asked for": 20,
                "pull refused": 2,
                "message of a restricted topic read": 10,
            },
        ),
        ("writer", {"portion done": 100, "message of a portion skipped": 100}),
        (
            "reporter",
            {
                "offset reported one way": 20,
                "offset reported with a pull": 20,
                "report found stored": 10,
                "last report stored": 1,
            },
        ),
        (
            "waverer",
            {
                "transaction decided twice": 40,
                "transaction decided late": 5,
                "transaction decided otherwise": 40,
            },
        ),
        ("postponer", {"crowd of one time": 3, "postponed message delivered": 100}),
        ("poster", {"note sent one way": 20, "note stored": 40, "outbox message stored": 10}),
    ],
)
def test_actors_get_somewhere(actor: str, work: dict[str, int]) -> None:
    plan = replace(draw_swarm_plan(1, seconds=45), faults=(), actors=("administrator", "operator", actor))
    result = run_plan(plan)
    assert result.violation is None
    for kind, at_least in work.items():
        assert result.work_counts[kind] >= at_least, kind


def test_without_faults_each_request_makes_one_copy() -> None:
    """Members leave, and a delivery may come again: its listener fails again. Nothing else stores a message twice."""
    plan = replace(draw_swarm_plan(2, seconds=40), faults=(), actors=("administrator", "operator", "courier"))
    world = World(plan)
    assert run_world(world).violation is None
    sent_back = [stage for stage in world.invariant(Retries).stages.values() if stage.requests]
    assert len(sent_back) > 20
    assert all(stage.copies == stage.requests for stage in sent_back)


@pytest.mark.slow
def test_a_reader_without_a_stored_offset_begins_where_the_queue_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers name no offset to a new consumer group once retention took a queue's first messages."""
    plan = replace(
        draw_swarm_plan(1, seconds=40),
        data_file_bytes=16 * 1024,
        producers=2,
        think_ms=100,
        queues=2,
        actors=("producer", "resetter"),
        faults=(Fault(10 * SECOND, "retention", 0, SECOND, 0.1),),
    )
    world = World(plan)
    newcomer = world.clients[-1]
    start = newcomer.start
    monkeypatch.setattr(newcomer, "start", lambda: None)
    begins: list[int] = []

    def come() -> None:
        leader = world.members.leader()
        assert leader is not None
        assert leader.process is not None
        queues = leader.process.node.replica.store.queues
        for queue_id in range(plan.queues):
            queue = queues.get(RESET_TOPIC, queue_id)
            assert queue is not None
            begins.append(queue.min_offset)
        start()

    world.scheduler.at(17 * SECOND, come)
    result = run_world(world)
    assert result.violation is None, describe_finding(result, "this test")
    assert min(begins) > 0
    assert result.work_counts["message read after resets"] > 100
