"""Digests of the state: equal on all nodes of a group, and different where the state is."""

from __future__ import annotations

from broker.remoting.codes import RequestCode
from broker.remoting.steps import finished
from broker.replica import digests
from broker.replica.digests import STEPS
from broker.state.commands import CommitOffsets, DeleteTopic, PutTopic
from broker.state.metadata import Metadata
from broker.state.stored_offsets import StoredOffsets
from broker.state.topic_rules import topic_config
from broker.state.writing import ROWS_AT_ONCE
from tests.broker.harness import Group


def digest_of(metadata: Metadata) -> int:
    """Sums up a state in one go, as it is now: queues are left out, which a start goes through once more."""
    return finished(digests._summed(metadata, ROWS_AT_ONCE))


def newest(group: Group, node_id: str) -> tuple[int, int]:
    return group.node(node_id).replica.applied.digests.newest[STEPS[0]]


def fill(group: Group) -> None:
    """Commands among messages, until the next sum of the smallest step is due and behind it."""
    client = group.connect(group.leader)
    replica = group.node(group.leader).replica
    until = replica.applied.digests.next_index(replica.applied_index) + 5
    number = 0
    while replica.store.log.last_index < until:
        number += 1
        client.send("T", b"x" * 100)
        if not number % 100:
            client.create_topic(f"T{replica.applied_index}")
        if not number % 50:
            fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": number}
            client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    group.converge()
    group.advance(digests.REST_NS / 1e9)


def test_all_nodes_have_the_same_digest_and_so_has_one_that_was_away(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T")
    client.pull("T", "G", 0)
    fill(group)
    assert len({newest(group, node_id) for node_id in group.members}) == 1
    first = newest(group, group.leader)
    away = group.follower
    group.kill(away)
    fill(group)
    group.restart(away)
    group.converge()
    assert newest(group, away) == first, "it has gone through the log once more"
    group.advance(digests.REST_NS / 1e9)
    fill(group)
    assert len({newest(group, node_id) for node_id in group.members}) == 1
    assert newest(group, away)[0] == first[0] + 2 * STEPS[0]
    assert newest(group, away)[1] != first[1]


def test_a_state_that_differs_has_another_digest() -> None:
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T")
    client.pull("T", "G", 0)
    client.send("T", b"one")
    fields = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 1}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    group.advance(10)
    replica = group.node("n0").replica
    before = digest_of(replica.metadata)
    assert digest_of(replica.metadata) == before < 1 << 53
    replica.metadata.offsets["G", "T"][0] += 1
    assert digest_of(replica.metadata) != before


def test_what_an_earlier_release_has_in_another_order_has_the_same_digest() -> None:
    """0.1.0 wrote offsets as they came, by group and topic; now a group stands where its first offset came, even when
    that is gone. Nodes that began with different snapshots of it told of a drift that was none."""
    replayed = Metadata()
    for topic in ("T1", "T2"):
        replayed.apply(PutTopic(topic_config(topic, 1), 0))
    for group, topic in (("A", "T1"), ("B", "T2"), ("A", "T2")):
        replayed.apply(CommitOffsets(((group, topic, 0, 7),)))
    replayed.apply(DeleteTopic("T1", 0))
    assert list(replayed.offsets) == [("A", "T2"), ("B", "T2")]
    loaded = Metadata.restore(replayed.snapshot())
    loaded.offsets = StoredOffsets([("B", "T2", {0: 7}), ("A", "T2", {0: 7})])
    assert loaded == replayed
    assert digest_of(loaded) == digest_of(replayed)
