"""Actors and their invariants: who is in a run, what an invariant is told, and that it can end the run."""

from dataclasses import replace

import pytest

from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.runtime import Runtime
from broker.state.commands import Command, PutTopic
from broker.trace import TraceWriter
from simulation.journal import Violation
from simulation.judges.group_model import CommittedMessage
from simulation.plans.plan import Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.workload import ACTORS
from simulation.workload.actor import Actor
from simulation.workload.context import Context, Invariant
from simulation.workload.names import TOPIC
from simulation.world.building import World
from simulation.world.running import run_world


class Greetings(Invariant):
    """Every greeting that was acknowledged is committed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.sent: list[str] = []
        self.seen: list[str] = []
        self.topics: list[str] = []
        self.nodes: list[str] = []
        self.broken = False

    def committed(self, message: CommittedMessage) -> None:
        if message.property(b"KEYS") == "greeting":
            self.seen.append(message.record.body.decode())

    def applied(self, command: Command, now_ns: int) -> None:
        if isinstance(command, PutTopic):
            self.topics.append(command.config.topic_name)

    def check_node(self, host: object, replica: object) -> None:
        self.nodes.append(type(host).__name__)

    def check_end(self) -> None:
        if self.broken or not self.sent or any(text not in self.seen for text in self.sent):
            raise Violation("greetings", "greeter", "one is missing")


async def greet(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    greetings = context.invariant(Greetings)
    async with Producer(context.name_servers, group="greeters", trace=writer, runtime=runtime) as producer:
        for number in range(20):
            text = f"hello {number}"
            try:
                await producer.send(Message(TOPIC, text.encode(), keys="greeting"))
            except ClientError:
                continue
            greetings.sent.append(text)
            context.journal.did("greeting")
            await runtime.sleep(0.2)


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setitem(ACTORS, "greeter", Actor(greet, invariant=Greetings))
    return replace(draw_swarm_plan(3, seconds=30), faults=())


@pytest.mark.slow
def test_an_invariant_is_told_everything_and_may_end_the_run(plan: Plan) -> None:
    assert "greeter" in plan.actors
    world = World(plan)
    result = run_world(world)
    assert result.violation is None
    greetings = world.invariant(Greetings)
    assert result.work_counts["greeting"] == len(greetings.sent) > 10
    assert TOPIC in greetings.topics
    assert greetings.nodes == ["BrokerHost"] * plan.nodes

    broken = World(plan)
    broken.invariant(Greetings).broken = True
    violation = run_world(broken).violation
    assert violation is not None
    assert violation.invariant == "greetings"


def test_the_swarm_turns_actors_on_by_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [draw_swarm_plan(seed) for seed in range(100)]
    monkeypatch.setitem(ACTORS, "greeter", Actor(greet, share=0.3))
    with_greeter = [draw_swarm_plan(seed) for seed in range(100)]
    share = sum("greeter" in plan.actors for plan in with_greeter)
    assert 10 < share < 60
    # A new actor changes nothing else of what a seed means.
    assert [replace(plan, actors=()) for plan in usual] == [replace(plan, actors=()) for plan in with_greeter]
