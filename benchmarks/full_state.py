"""A group that holds as much as its limits allow, for `longest_turns`: topics, groups, offsets, locks, members."""

from __future__ import annotations

from typing import Final

from broker.node.consumer_group import RegisteredClient
from broker.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
)
from broker.remoting.codes import LanguageCode
from broker.state.commands import CommitOffsets, LockQueues, PutGroup, PutTopic
from broker.state.metadata import Metadata
from tests.broker.harness import Group

TOPICS: Final = 80_000
GROUPS: Final = 10_000
MEMBERS: Final = 10_000
WIDE_GROUP: Final = "wide"
"""A consumer group of `MEMBERS` clients that has offsets in `OFFSETS_OF_WIDE` topics."""
OFFSETS_OF_WIDE: Final = 50_000
LOCKS: Final = 50_000


def topic_name(number: int) -> str:
    return f"a-topic-with-a-long-name-{number:06}"


def group_name(number: int) -> str:
    return f"a-group-with-a-long-name-{number:06}"


def fill_tables(metadata: Metadata, group_ms: int) -> None:
    """Applies what tens of thousands of requests would have brought."""
    attributes = {"+message.type": "NORMAL"}
    for number in range(TOPICS):
        metadata.apply(PutTopic(TopicConfig(topic_name=topic_name(number), attributes=attributes), group_ms))
    for number in range(GROUPS):
        metadata.apply(PutGroup(SubscriptionGroupConfig(group_name=group_name(number)), group_ms))
    metadata.apply(PutGroup(SubscriptionGroupConfig(group_name=WIDE_GROUP), group_ms))
    many = [(group_name(number % GROUPS), topic_name(number % TOPICS), 0, 0) for number in range(50_000)]
    many += [(WIDE_GROUP, topic_name(number), 0, 0) for number in range(OFFSETS_OF_WIDE)]
    metadata.apply(CommitOffsets(tuple(many)))
    queues = tuple((topic_name(number), 0) for number in range(LOCKS))
    metadata.apply(LockQueues(WIDE_GROUP, "c0", queues, group_ms, 60_000))


def fill_registry(group: Group) -> None:
    """Enters the members, each of its own connection, into the leader's table of clients."""
    member = group.members[group.leader]
    node = member.alive
    subscription = SubscriptionData(topic=topic_name(0), sub_string="*", sub_version=1)
    for number in range(MEMBERS):
        session = group.accept(group.leader, Deaf(), "10.2.0.1", 1 + number)
        client = RegisteredClient(session.connection, f"10.2.0.1@{number}", LanguageCode.JAVA, 400)
        heartbeat = HeartbeatData(client_id=client.client_id)
        for name in (WIDE_GROUP, group_name(number)):
            heartbeat.consumer_data_set.append(
                ConsumerData(group_name=name, subscription_data_set=[subscription])
            )
        heartbeat.producer_data_set.append(ProducerData("producers"))
        node.registry.heartbeat(client, heartbeat, group.now_ns)


class Deaf:
    """The end of a client that does not look at what it is sent."""

    def receive(self, data: bytes) -> None:
        """Takes bytes from the node."""

    def close(self) -> None:
        """The node has closed the connection."""

    lost = close
