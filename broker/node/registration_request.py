"""The registration of a node with name servers, as RocketMQ's `BrokerController` does it.

The leader that serves registers under id 0, which takes writes; a follower under its number plus one. There is no
registration before the node knows a leader: a route that names a node of no role helps nobody. The data version's
state version is the term, so that name servers which look at it believe the newer leader. Its counter rises with the
topics and with what the broker permits: a name server takes the topics of a broker that it knows only at a new version.
"""

import msgspec

from broker.node.node import Node
from broker.remoting.addresses import join_address, split_address
from broker.remoting.bodies import TopicConfig, TopicConfigTable
from broker.remoting.codes import Permission, RequestCode
from broker.remoting.command import OWN_VERSION, RemotingCommand, request
from broker.remoting.name_server_headers import BrokerIdentityHeader, RegisterBrokerHeader
from broker.remoting.register_body import RegisterBrokerBody, body_crc
from broker.remoting.route import MASTER_ID
from broker.settings.tables import Settings
from broker.state.topic_rules import DEFAULT_TOPIC

PLAIN_TOPICS_MAX = 5_000
"""Registrations of more topics are compressed."""


def registration(node: Node, settings: Settings, address: str) -> RemotingCommand | None:
    """REGISTER_BROKER 103 for the node's present role; None while it has none. `address` is what clients connect to.

    UNREGISTER_BROKER 104 for a node that is no member of its group: one that was removed may be registered still.
    """
    if node.is_outside:
        return _goodbye(settings, address, settings.follower_broker_id)
    broker_id = _broker_id(node, settings)
    if broker_id is None:
        return None
    metadata = node.replica.metadata
    permission = settings.broker.permission_bits
    topics = {name: _masked(topic, permission) for name, topic in metadata.topics.items()}
    if not settings.broker.auto_create_topics:
        # The route of the topic that others are made after tells clients that a send makes one: here it does not.
        topics.pop(DEFAULT_TOPIC, None)
    # A name server takes topics in only with another version, which what is permitted here is no part of. Of two
    # masters it keeps the one with the greater state version (RouteInfoManager.registerBroker): who was deposed does
    # not displace the new leader.
    version = msgspec.structs.replace(
        metadata.topics_version,
        counter=metadata.topics_version.counter + node.permission_changes,
        state_version=node.replica.term,
    )
    table = RegisterBrokerBody(topics=TopicConfigTable(version, topics))
    # Tens of thousands of topics with long names would not fit into a frame otherwise; every name server reads both.
    compressed = len(topics) > PLAIN_TOPICS_MAX
    body = table.encode_compressed(OWN_VERSION) if compressed else table.encode()
    header = RegisterBrokerHeader(
        broker_name=settings.node.group,
        broker_address=address,
        cluster_name=settings.node.cluster,
        ha_server_address=_ha_address(address),
        broker_id=broker_id,
        compressed=compressed,
        body_crc=body_crc(body),
        all_topics=True,
    )
    return request(RequestCode.REGISTER_BROKER, header, body)


def unregistration(node: Node, settings: Settings, address: str) -> RemotingCommand | None:
    """UNREGISTER_BROKER 104; None while the node has no role to register under: an earlier registration may stand."""
    broker_id = _broker_id(node, settings)
    return None if broker_id is None else _goodbye(settings, address, broker_id)


def _goodbye(settings: Settings, address: str, broker_id: int) -> RemotingCommand:
    header = BrokerIdentityHeader(settings.node.group, address, settings.node.cluster, broker_id)
    return request(RequestCode.UNREGISTER_BROKER, header)


def _broker_id(node: Node, settings: Settings) -> int | None:
    replica = node.replica
    if replica.serving:
        return MASTER_ID
    if replica.leader is None or replica.leader == replica.node_id:
        return None  # nobody leads, or this node will in a moment
    return settings.follower_broker_id


def _masked(topic: TopicConfig, permission: int) -> TopicConfig:
    """The topic without what clients may not do on this broker at all."""
    allowed = topic.perm & (permission | int(Permission.INHERIT | Permission.PRIORITY))
    return topic if allowed == topic.perm else msgspec.structs.replace(topic, perm=allowed)


def _ha_address(address: str) -> str:
    """The reference's second port, which readers of the route expect to be named; nothing listens on it."""
    host, port = split_address(address)
    return join_address(host, min(port + 1, 65_535))
