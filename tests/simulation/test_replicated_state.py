"""What nodes make of their log is the same, and what is kept of a topic goes with it: each breach has its own check."""

from __future__ import annotations

from typing import Any

import pytest

from broker.remoting.bodies import TopicConfig
from broker.state.commands import (
    BeginPortion,
    CommitOffsets,
    DeleteTopic,
    DeliverDelayed,
    ForgetOffsets,
    PutTopic,
    ResetOffsets,
)
from broker.state.metadata import Metadata
from simulation.journal import Violation
from simulation.judges.replicated_state import OF_TOPICS, ORDERS, SAME, ReplicatedState
from simulation.scheduler import SECOND
from tests.simulation import stand_ins


class Group:
    """Two nodes that have applied as much: a topic with an offset, an order and a writer's portion."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.judge = ReplicatedState(lambda: self.now_ns)
        self.nodes: dict[str, Any] = {}
        for name in ("n0", "n1"):
            self.starts(name, Metadata(), 3)
        for command in (
            PutTopic(TopicConfig(topic_name="T"), 1),
            CommitOffsets((("readers", "T", 0, 5),)),
            ResetOffsets((("readers", "T", 1, 7),)),
            BeginPortion("T", "writer", 1, 0, 1),
        ):
            self.apply(command)

    def starts(self, name: str, metadata: Metadata, index: int) -> None:
        """A process has this state behind that entry."""
        node = stand_ins.applied(index, metadata=metadata)
        self.nodes[name] = node
        self.judge.started(name, node)

    def apply(self, command: Any) -> None:
        """Both nodes apply a command, and have a turn some time later."""
        self.now_ns += SECOND
        for node in self.nodes.values():
            node.metadata.apply(command)
            node.index += 1
        for name in self.nodes:
            self.judge.turned(name)


@pytest.fixture
def group() -> Group:
    return Group()


def test_what_is_deleted_with_its_topic_may_come_again(group: Group) -> None:
    for command in (
        DeleteTopic("T", 2),
        PutTopic(TopicConfig(topic_name="T"), 3),
        ResetOffsets((("readers", "T", 0, 0),)),
        ForgetOffsets((("readers", "T", 0, 0),)),
    ):
        group.apply(command)


@pytest.mark.parametrize("what", ["offset", "order", "portion"])
def test_nothing_outlives_its_topic(group: Group, what: str) -> None:
    group.apply(DeleteTopic("T", 2))
    metadata = group.nodes["n0"].metadata
    if what == "offset":
        metadata.offsets.put("readers", "T", 0, 5)
    elif what == "order":
        metadata.parked.offsets.put("readers", "T", 1, 7)
    else:
        metadata.writers.begin("T", "writer", 1, 0, 1)
    with pytest.raises(Violation, match=OF_TOPICS):
        group.judge.turned("n0")


def test_an_order_without_a_position_is_seen(group: Group) -> None:
    group.nodes["n0"].metadata.offsets.remove("readers", "T", 1)
    with pytest.raises(Violation, match=ORDERS):
        group.judge.turned("n0")


def test_a_process_that_starts_is_looked_at_though_it_has_as_much_as_the_one_before(group: Group) -> None:
    node = group.nodes["n0"]
    node.metadata.topics["U"] = node.metadata.topics.pop("T")
    group.now_ns -= 1
    group.judge.turned("n0")
    group.judge.started("n0", node)
    with pytest.raises(Violation, match=OF_TOPICS):
        group.judge.turned("n0")


def test_nodes_that_have_applied_the_same_have_the_same_state(group: Group) -> None:
    group.apply(DeliverDelayed(3, 17, 2, 8))
    state = Metadata.restore(group.nodes["n0"].metadata.snapshot())
    group.starts("n1", state, group.nodes["n0"].index)
    group.judge.turned("n1")
    state.delays.clear()
    group.judge.turned("n1")  # it was looked at just now
    group.now_ns += SECOND
    with pytest.raises(Violation, match=SAME):
        group.judge.turned("n1")


def test_a_node_that_is_behind_or_gone_is_not_compared(group: Group) -> None:
    behind = Metadata()
    group.starts("n1", behind, group.nodes["n0"].index - 1)
    group.judge.turned("n1")
    group.now_ns += SECOND
    group.judge.turned("n0")
    group.judge.stopped("n0")
    group.nodes["n1"].index += 1
    group.now_ns += SECOND
    group.judge.turned("n1")
