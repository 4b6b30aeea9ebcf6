"""Whoever watches a node hears of what it takes in hand, before that is done and without changing it."""

from __future__ import annotations

import pytest

from broker.node.relayed_clients import RelayedClients
from broker.offsets.commits import OffsetCommits
from broker.peers.protocol import Forward
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader
from broker.requests.connection import RelayedConnection
from broker.sending.send_processor import SendProcessor
from log.formats.batch import BatchItem, encode_batch
from raft.messages import AppendRequest, Message
from tests.broker.harness import Group


class Seen:
    """What the clients of other nodes have asked, by what became of it, with the requests' opaques."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.handled: list[int] = []

    def comes(self, source: str, frame: Forward) -> None:
        self.came.append(source)

    def is_handled(self, client: RelayedConnection, command: RemotingCommand) -> None:
        assert client.node in self.came
        self.handled.append(command.code)


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    group.connect().create_topic("T", 2)
    group.converge()
    return group


def test_sends_are_heard_of_before_they_are_stored_and_a_batch_once(group: Group) -> None:
    node, client = group.node(group.leader), group.connect()
    log, ends = node.replica.store.log, list[int]()

    def stores(command: RemotingCommand, header: SendHeader) -> None:
        assert header.topic == "T"
        ends.append(log.end_position)

    node.part(SendProcessor).observer = stores
    before = log.end_position
    assert client.send("T", b"x").queue_offset == 0
    between = log.end_position
    client.send("T", encode_batch([BatchItem(0, b"one", b""), BatchItem(0, b"two", b"")]), batch=True)
    assert ends == [before, between]
    assert before < between < log.end_position


def test_requests_of_other_nodes_clients_are_heard_of(group: Group) -> None:
    seen = group.node(group.leader).part(RelayedClients).observer = Seen()
    group.connect(group.follower).send("T", b"x")
    group.connect(group.leader).send("T", b"x")
    assert seen.came == [group.follower]
    assert len(seen.handled) == 1


def test_words_are_heard_of_before_they_are_sent(group: Group) -> None:
    words: list[Message] = []
    replica = group.node(group.leader).replica
    replica.watch_words(words.append)
    assert group.connect(group.leader).send("T", b"x").queue_offset == 0
    targets = {word.target for word in words if isinstance(word, AppendRequest)}
    assert targets == set(group.members) - {group.leader}


def test_a_node_has_one_part_of_a_class_and_none_of_others(group: Group) -> None:
    node = group.node(group.leader)
    commits = node.part(OffsetCommits)
    assert node.part(OffsetCommits) is commits
    with pytest.raises(KeyError):
        node.part(Group)
    with pytest.raises(AssertionError, match="two parts of the class OffsetCommits"):
        node.add(commits)
