"""Typed extFields of administration requests to a broker; the rules are those of `headers`."""

import msgspec

from broker.remoting.command import Int32, Int64


class CreateTopicHeader(msgspec.Struct, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC 17; ``attributes`` (5.x) is ``+key=value,-key``."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    order: bool
    topic_sys_flag: Int32 | None = None
    attributes: str | None = None
    force: bool | None = None


class ResumeCheckHalfMessageHeader(msgspec.Struct, rename="camel"):
    """RESUME_CHECK_HALF_MESSAGE 323; ``message_id`` is the offset id of what was given up."""

    message_id: str = msgspec.field(name="msgId")
    topic: str | None = None


class TopicHeader(msgspec.Struct):
    """DELETE_TOPIC_IN_BROKER 215, GET_TOPIC_STATS_INFO 202, GET_TOPIC_CONFIG 351,
    QUERY_TOPIC_CONSUME_BY_WHO 300.
    """

    topic: str


class DeleteSubscriptionGroupHeader(msgspec.Struct, rename="camel"):
    """DELETE_SUBSCRIPTIONGROUP 207; 4.9 calls cleanOffset removeOffset."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


class GroupHeader(msgspec.Struct):
    """GET_SUBSCRIPTIONGROUP_CONFIG 352, QUERY_TOPICS_BY_CONSUMER 343."""

    group: str


class ConsumerGroupHeader(msgspec.Struct, rename="camel"):
    """GET_CONSUMER_CONNECTION_LIST 203."""

    consumer_group: str


class ProducerGroupHeader(msgspec.Struct, rename="camel"):
    """GET_PRODUCER_CONNECTION_LIST 204."""

    producer_group: str


class GetConsumeStatsHeader(msgspec.Struct, rename="camel"):
    """GET_CONSUME_STATS 208; without a topic, every topic that the consumer group consumes. ``topic_list`` (5.x),
    joined by semicolons, goes before it.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class ResetOffsetHeader(msgspec.Struct, rename="camel"):
    """INVOKE_BROKER_TO_RESET_OFFSET 222 and RESET_CONSUMER_CLIENT_OFFSET 220; timestamp -1 is the
    queue's end.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatusHeader(msgspec.Struct, rename="camel"):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223 and GET_CONSUMER_STATUS_FROM_CLIENT 221."""

    topic: str
    group: str
    client_address: str | None = msgspec.field(name="clientAddr", default=None)


class GetConsumerRunningInfoHeader(msgspec.Struct, rename="camel"):
    """GET_CONSUMER_RUNNING_INFO 307."""

    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectlyHeader(msgspec.Struct, rename="camel"):
    """CONSUME_MESSAGE_DIRECTLY 309."""

    consumer_group: str
    client_id: str | None = None
    message_id: str | None = msgspec.field(name="msgId", default=None)
    broker_name: str | None = None


class QuerySubscriptionHeader(msgspec.Struct):
    """QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    group: str
    topic: str | None = None


class ConsumeTimeSpanHeader(msgspec.Struct):
    """QUERY_CONSUME_TIME_SPAN 303."""

    topic: str
    group: str


class CorrectionOffsetHeader(msgspec.Struct, rename="camel"):
    """QUERY_CORRECTION_OFFSET 308; ``filter_groups`` are joined by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class BrokerConsumeStatsHeader(msgspec.Struct, rename="camel"):
    """GET_BROKER_CONSUME_STATS 317."""

    is_order: bool


class QueryConsumeQueueHeader(msgspec.Struct, rename="camel"):
    """QUERY_CONSUME_QUEUE 321: ``count`` units from ``index`` on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class CloneGroupOffsetHeader(msgspec.Struct, rename="camel"):
    """CLONE_GROUP_OFFSET 314."""

    source_group: str = msgspec.field(name="srcGroup")
    destination_group: str = msgspec.field(name="destGroup")
    topic: str | None = None
    offline: bool | None = None


class ViewBrokerStatsHeader(msgspec.Struct, rename="camel"):
    """VIEW_BROKER_STATS_DATA 315."""

    stats_name: str
    stats_key: str
