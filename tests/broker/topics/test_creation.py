"""The limits on topics and consumer groups hold while what is created is deleted at the same time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from broker.node.group_limit import GroupLimit
from broker.remoting.bodies import SubscriptionGroupConfig
from broker.requests.errors import TooManyError
from broker.settings.tables import LimitSettings
from broker.state.commands import Command, DeleteGroup, DeleteTopic, PutGroup, PutTopic
from broker.state.metadata import Metadata
from broker.state.topic_rules import topic_config
from broker.topics.creation import Creations

LIMIT = 3


class Leader:
    """Applies what was proposed when it is told to."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self._under_way: list[tuple[Command, Callable[[Any], None]]] = []

    def propose_command(
        self, command: Command, done: Callable[[Any], None], lost: Callable[[], None] = lambda: None
    ) -> None:
        self._under_way.append((command, done))

    def apply_next(self) -> None:
        command, done = self._under_way.pop(0)
        done(self.metadata.apply(command))

    def apply_all(self) -> None:
        while self._under_way:
            self.apply_next()


class Rig:
    def __init__(self) -> None:
        self.leader = Leader()
        limits = LimitSettings(max_topics=LIMIT, max_groups=LIMIT, max_queues=8 * LIMIT)
        live: Any = SimpleNamespace(current=SimpleNamespace(limits=limits))
        leadership: Any = self.leader
        self.creations = Creations(leadership, live, GroupLimit(leadership, live))

    def put_topic(self, name: str, queues: int = 8, *, if_absent: bool = False) -> None:
        command = PutTopic(topic_config(name, queues), 0, if_absent=if_absent)
        self.creations.propose([command], lambda _: None, lambda: None)

    def put_group(self, name: str) -> None:
        command = PutGroup(SubscriptionGroupConfig(group_name=name), 0)
        self.creations.propose([command], lambda _: None, lambda: None)

    def delete(self, command: Command) -> None:
        self.leader.propose_command(command, lambda _: None)


@pytest.mark.parametrize("if_absent", [False, True])
def test_a_topic_that_is_made_anew_keeps_its_place(if_absent: bool) -> None:
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.put_topic(name, 1)
    rig.leader.apply_all()
    rig.delete(DeleteTopic("a", 0))
    rig.put_topic("a", 1, if_absent=if_absent)
    rig.put_topic("a", 1, if_absent=if_absent)
    rig.leader.apply_next()
    assert "a" not in rig.leader.metadata.topics
    with pytest.raises(TooManyError, match=f"there are {LIMIT} topics"):
        rig.put_topic("d", 1)
    rig.put_topic("a", 1)
    rig.leader.apply_all()
    assert list(rig.leader.metadata.topics) == ["b", "c", "a"]
    rig.delete(DeleteTopic("a", 0))
    rig.leader.apply_all()
    rig.put_topic("d", 1)  # nothing is left of what was under way


@pytest.mark.parametrize("if_absent", [False, True])
def test_so_do_its_queues(if_absent: bool) -> None:
    rig = Rig()
    rig.put_topic("a", 16)
    rig.put_topic("b", 8)
    rig.leader.apply_all()
    rig.delete(DeleteTopic("a", 0))
    rig.put_topic("a", 16, if_absent=if_absent)
    rig.leader.apply_next()
    with pytest.raises(TooManyError, match="the topics have 24 queues, 1 more"):
        rig.put_topic("c", 1)
    rig.leader.apply_all()
    assert rig.leader.metadata.queue_count == 24


def test_a_consumer_group_that_is_made_anew_keeps_its_place() -> None:
    rig = Rig()
    for name in ("a", "b", "c"):
        rig.put_group(name)
    rig.leader.apply_all()
    rig.delete(DeleteGroup("a", True, 0))
    rig.put_group("a")
    rig.leader.apply_next()
    with pytest.raises(TooManyError, match=f"there are {LIMIT} consumer groups"):
        rig.put_group("d")
    rig.leader.apply_all()
    assert list(rig.leader.metadata.groups) == ["b", "c", "a"]
    rig.delete(DeleteGroup("a", True, 0))
    rig.leader.apply_all()
    rig.put_group("d")
