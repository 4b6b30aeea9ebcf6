"""Typed extFields of the name server's requests and responses; the rules are those of
`headers`.
"""

import msgspec

from broker.remoting.command import Int32, Int64


class GetRouteHeader(msgspec.Struct, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerHeader(msgspec.Struct, rename="camel"):
    """REGISTER_BROKER 103. A ``body_crc`` of 0 is not checked; ``heartbeat_timeout_ms`` is sent by 5.x only.

    ``all_topics`` is Trivet's own: the body lists every topic of the broker, so that topics which it does not list are
    removed. Brokers of RocketMQ also register single topics: a topic that these do not list is kept.
    """

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    ha_server_address: str = msgspec.field(name="haServerAddr")
    broker_id: Int64
    compressed: bool = False
    body_crc: Int32 = msgspec.field(name="bodyCrc32", default=0)
    heartbeat_timeout_ms: Int64 | None = msgspec.field(name="heartbeatTimeoutMillis", default=None)
    enable_acting_master: bool | None = None
    all_topics: bool | None = None


class RegisterBrokerResponseHeader(msgspec.Struct, rename="camel"):
    """Response to 103: where the broker with id 0 is, for one that is not."""

    ha_server_address: str | None = msgspec.field(name="haServerAddr", default=None)
    master_address: str | None = msgspec.field(name="masterAddr", default=None)


class BrokerIdentityHeader(msgspec.Struct, rename="camel"):
    """UNREGISTER_BROKER 104 and QUERY_DATA_VERSION 322."""

    broker_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(msgspec.Struct):
    """Response to 322: whether the broker should register again."""

    changed: bool


class BrokerHeartbeatHeader(msgspec.Struct, rename="camel"):
    """BROKER_HEARTBEAT 904 (5.x)."""

    cluster_name: str
    broker_address: str = msgspec.field(name="brokerAddr")
    broker_name: str


class BrokerNameHeader(msgspec.Struct, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER 205 and ADD_WRITE_PERM_OF_BROKER 327."""

    broker_name: str


class WipeWritePermResponseHeader(msgspec.Struct, rename="camel"):
    """Response to 205."""

    wipe_topic_count: Int32


class AddWritePermResponseHeader(msgspec.Struct, rename="camel"):
    """Response to 327."""

    add_topic_count: Int32


class TopicsByClusterHeader(msgspec.Struct):
    """GET_TOPICS_BY_CLUSTER 224."""

    cluster: str


class DeleteTopicHeader(msgspec.Struct, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV 216; with a cluster name (5.x) only that cluster's queue data goes."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicHeader(msgspec.Struct):
    """REGISTER_TOPIC_IN_NAMESRV 217 (5.x)."""

    topic: str


class PutKeyValueHeader(msgspec.Struct):
    """PUT_KV_CONFIG 100."""

    namespace: str
    key: str
    value: str


class KeyValueHeader(msgspec.Struct):
    """GET_KV_CONFIG 101 and DELETE_KV_CONFIG 102."""

    namespace: str
    key: str


class KeyValueResponseHeader(msgspec.Struct):
    """Response to 101."""

    value: str | None = None


class NamespaceHeader(msgspec.Struct):
    """GET_KVLIST_BY_NAMESPACE 219."""

    namespace: str


class BrokerMemberGroupHeader(msgspec.Struct, rename="camel"):
    """GET_BROKER_MEMBER_GROUP 901 (5.x)."""

    cluster_name: str
    broker_name: str
