"""JSON bodies that clients and brokers exchange: heartbeats, locks, subscriptions, groups, topics.

Structs are written with their fields in RocketMQ's order (alphabetical by wire name) and read
tolerantly by `json_body.decode_body`. Absent lists are empty. The bodies of responses to administrators are in
`admin_bodies`.
"""

import enum
from typing import Any

import msgspec

from broker.remoting.command import Int32, Int64


class MessageModel(enum.StrEnum):
    """The ways in which a consumer group shares its messages."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeType(enum.StrEnum):
    """The side that asks for messages: the application, the client library, or the broker (5.x)."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class ConsumeFromWhere(enum.StrEnum):
    """The place where a consumer group without a stored offset begins; the last three names are deprecated."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"


class SubscriptionData(msgspec.Struct, rename="camel", kw_only=True):
    """One topic's subscription: an empty or ``*`` ``sub_string`` takes all; ``code_set`` are the tags'
    Java hashes.

    ``sub_version`` is the client's clock in milliseconds: a larger one replaces a smaller one.
    """

    class_filter_mode: bool = False
    code_set: list[Int32] = []
    expression_type: str = "TAG"
    sub_string: str = "*"
    sub_version: Int64 = 0
    tags_set: list[str] = []
    topic: str


class ConsumerData(msgspec.Struct, rename="camel", kw_only=True):
    """One consumer group of a heartbeat."""

    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    group_name: str
    message_model: MessageModel = MessageModel.CLUSTERING
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel"):
    """One producer group of a heartbeat."""

    group_name: str


class HeartbeatData(msgspec.Struct, rename="camel", kw_only=True):
    """Body of HEART_BEAT 34; ``without_sub`` (5.x) says that the subscriptions were left out as unchanged."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


class CheckClientConfigBody(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG 46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class ConsumerListBody(msgspec.Struct, rename="camel"):
    """Response to GET_CONSUMER_LIST_BY_GROUP 38."""

    consumer_id_list: list[str] = []


class MessageQueue(msgspec.Struct, rename="camel", frozen=True, order=True):
    """A queue of a topic on a broker; also a map key in the dialect of `json_body`."""

    broker_name: str
    queue_id: Int32
    topic: str


class LockBatchBody(msgspec.Struct, rename="camel", kw_only=True):
    """Body of LOCK_BATCH_MQ 41 and UNLOCK_BATCH_MQ 42; ``only_this_broker`` is 5.x."""

    client_id: str
    consumer_group: str
    queues: list[MessageQueue] = msgspec.field(name="mqSet", default_factory=list)
    only_this_broker: bool = False


class LockBatchResponseBody(msgspec.Struct):
    """Response to 41: the queues that the client now holds."""

    queues: list[MessageQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)


class DataVersion(msgspec.Struct, rename="camel", frozen=True):
    """Version of a set of configurations: changes counted, in which master epoch (5.x), and when
    (milliseconds).
    """

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0


class TopicConfig(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """A topic on a broker; ``perm`` has the bits of `codes.Permission`."""

    attributes: dict[str, str] = {}
    order: bool = False
    perm: Int32 = 6
    read_queue_nums: Int32 = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16


class TopicConfigTable(msgspec.Struct, rename="camel"):
    """Topics with their version: response to GET_ALL_TOPIC_CONFIG 21, topics.json, and part of a registration."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class SubscriptionGroupConfig(msgspec.Struct, rename="camel", kw_only=True):
    """A consumer group: body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP 200."""

    attributes: dict[str, str] = {}
    broker_id: Int64 = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: Int32 = 15
    group_name: str
    group_sys_flag: Int32 = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: Int32 = 16
    retry_queue_nums: Int32 = 1
    which_broker_when_consume_slowly: Int64 = 1
    group_retry_policy: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """For the POP consumers of 5.x: kept and told. Whoever takes one from outside checks it (`check_retry_policy`)."""


_Plain = Int64 | float | str | bool | None
_RetryPolicy = dict[str, _Plain | dict[str, _Plain | list[_Plain]]]


def check_retry_policy(config: SubscriptionGroupConfig) -> None:
    """Passes a policy that is made as RocketMQ's are: texts and numbers, in objects and lists, two objects deep.

    Raises `msgspec.ValidationError` for others. JSON has numbers and depths that a snapshot of the state has not: once
    such a policy is committed no node can go on.
    """
    if config.group_retry_policy is not msgspec.UNSET:
        msgspec.convert(config.group_retry_policy, _RetryPolicy)


class SubscriptionGroupTable(msgspec.Struct, rename="camel"):
    """Consumer groups with their version: response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG 201 and
    subscriptionGroup.json."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, Int32]] = {}
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class TopicConfigList(msgspec.Struct, rename="camel"):
    """Topics to be created or changed: body of UPDATE_AND_CREATE_TOPIC_LIST 18 (5.x)."""

    topic_config_list: list[TopicConfig]


class SubscriptionGroupList(msgspec.Struct, rename="camel"):
    """Consumer groups to be created or changed: body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST 225 (5.x)."""

    group_config_list: list[SubscriptionGroupConfig]


class TopicList(msgspec.Struct, rename="camel", omit_defaults=True):
    """The response to the requests for topic lists; ``broker_address`` only in 304's."""

    broker_address: str | None = msgspec.field(name="brokerAddr", default=None)
    topics: list[str] = msgspec.field(name="topicList", default_factory=list)


class KeyValueTable(msgspec.Struct):
    """``{"table":{key:value}}``: 219, 28, and the order configuration in a registration's response."""

    table: dict[str, str] = {}
