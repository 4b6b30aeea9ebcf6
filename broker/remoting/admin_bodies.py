"""JSON bodies of responses to administrators: statistics, connections, and maps keyed by queues.

Timestamps are milliseconds. Maps keyed by `MessageQueue` have RocketMQ's form, whose keys are objects;
such bodies are read by ``decode``.
"""

from __future__ import annotations

import msgspec

from broker.remoting.bodies import ConsumeFromWhere, ConsumeType, MessageModel, MessageQueue, SubscriptionData
from broker.remoting.command import Int32, Int64
from broker.remoting.json_body import (
    ObjectKeyed,
    decode_body,
    decode_object_keyed,
    encode_body,
    encode_object_keyed,
)
from broker.remoting.pieces import Pieces

decode_queue = msgspec.json.Decoder(MessageQueue, strict=False).decode


class TopicOffset(msgspec.Struct, rename="camel"):
    """One queue's range in TopicStats."""

    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStats(msgspec.Struct):
    """Response to GET_TOPIC_STATS_INFO 202: ``{"offsetTable":{queue:TopicOffset}}``."""

    offsets: dict[MessageQueue, TopicOffset]

    @classmethod
    def decode(cls, body: bytes | memoryview) -> TopicStats:
        return cls(decode_object_keyed(decode_body(body, _TopicStats).offset_table, decode_queue))


class _TopicStats(msgspec.Struct, rename="camel"):
    offset_table: dict[str, TopicOffset] = {}


class ConsumeOffset(msgspec.Struct, rename="camel"):
    """One queue's progress in ConsumeStats; ``pull_offset`` is 5.x."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0
    pull_offset: Int64 = 0


class ConsumeStats(msgspec.Struct):
    """Response to GET_CONSUME_STATS 208: ``{"consumeTps":...,"offsetTable":{queue:ConsumeOffset}}``."""

    offsets: dict[MessageQueue, ConsumeOffset]
    consume_tps: float = 0.0

    @classmethod
    def decode(cls, body: bytes | memoryview) -> ConsumeStats:
        raw = decode_body(body, _ConsumeStats)
        return cls(decode_object_keyed(raw.offset_table, decode_queue), raw.consume_tps)


def consume_stats_body(offsets: ObjectKeyed, consume_tps: float) -> Pieces:
    """`ConsumeStats` whose offsets are encoded already."""
    body = Pieces(b'{"consumeTps":%s,"offsetTable":' % encode_body(consume_tps))
    body.take(offsets.ended())
    body.write(b"}")
    return body


class _ConsumeStats(msgspec.Struct, rename="camel"):
    consume_tps: float = 0.0
    offset_table: dict[str, ConsumeOffset] = {}


class QueueTimeSpan(msgspec.Struct, rename="camel"):
    """One queue in the response to QUERY_CONSUME_TIME_SPAN 303; times in ms, 0 where there is no message."""

    message_queue: MessageQueue
    min_time_stamp: Int64 = 0
    max_time_stamp: Int64 = 0
    consume_time_stamp: Int64 = 0
    delay_time: Int64 = 0


class QueueOffsets(msgspec.Struct):
    """``{"offsetTable":{queue:offset}}``: body of 220 to clients but C++ ones, response to 222."""

    offsets: dict[MessageQueue, int]

    def encode(self) -> bytes:
        return encode_body({"offsetTable": encode_object_keyed(self.offsets)})

    @classmethod
    def decode(cls, body: bytes | memoryview) -> QueueOffsets:
        return cls(decode_object_keyed(decode_body(body, _QueueOffsets).offset_table, decode_queue))


class ListedOffsets:
    """Body of 220 to C++ clients, whose parser knows no object keys: a list, encoded part by part as it may be long."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[msgspec.Raw] = []

    def add(self, offsets: dict[MessageQueue, int]) -> None:
        """Encodes some of it."""
        for queue, offset in offsets.items():
            item = {
                "brokerName": queue.broker_name,
                "offset": offset,
                "queueId": queue.queue_id,
                "topic": queue.topic,
            }
            self._items.append(msgspec.Raw(encode_body(item)))

    def encode(self) -> bytes:
        """Returns the whole body."""
        return encode_body({"offsetTable": self._items})


class _QueueOffsets(msgspec.Struct, rename="camel"):
    offset_table: dict[str, Int64] = {}


class Connection(msgspec.Struct, rename="camel"):
    """One connection of a client in a producer or consumer group; ``client_address`` is ip:port."""

    client_address: str = msgspec.field(name="clientAddr")
    client_id: str
    language: str
    version: Int32


class ConsumerConnection(msgspec.Struct, rename="camel"):
    """Response to GET_CONSUMER_CONNECTION_LIST 203."""

    connection_set: list[Connection]
    consume_from_where: ConsumeFromWhere
    consume_type: ConsumeType
    message_model: MessageModel
    subscription_table: dict[str, SubscriptionData]


class QueueInHand(msgspec.Struct, rename="camel"):
    """One queue in ConsumerRunningInfo: its member has it now. The reference tells more of it."""

    cached_messages: Int32 = msgspec.field(name="cachedMsgCount", default=0)
    commit_offset: Int64 = 0


class ConsumerRunningInfo(msgspec.Struct):
    """Response of a consumer to GET_CONSUMER_RUNNING_INFO 307; clients that tell less leave fields out."""

    queues: dict[MessageQueue, QueueInHand] = {}
    subscriptions: list[SubscriptionData] = []
    properties: dict[str, str] = {}

    def encode(self) -> bytes:
        return encode_body(
            {
                "mqTable": encode_object_keyed(self.queues),
                "properties": self.properties,
                "statusTable": {},
                "subscriptionSet": self.subscriptions,
            }
        )

    @classmethod
    def decode(cls, body: bytes | memoryview) -> ConsumerRunningInfo:
        raw = decode_body(body, _ConsumerRunningInfo)
        queues = decode_object_keyed(raw.queues, decode_queue)
        return cls(queues, raw.subscription_set, raw.properties)


class _ConsumerRunningInfo(msgspec.Struct, rename="camel"):
    queues: dict[str, QueueInHand] = msgspec.field(name="mqTable", default_factory=dict)
    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []


class ProducerInfo(msgspec.Struct, rename="camel"):
    """One client of a producer group in AllProducers; ``remote_address`` is ip:port."""

    client_id: str
    language: str
    remote_address: str = msgspec.field(name="remoteIP")
    version: Int32 = 0


class AllProducers(msgspec.Struct):
    """Response to GET_ALL_PRODUCER_INFO 328: the clients of each producer group."""

    data: dict[str, list[ProducerInfo]] = {}


class BrokerConsumeStats(msgspec.Struct):
    """Response to GET_BROKER_CONSUME_STATS 317, as far as it is read: by consumer group, its progress in each topic."""

    groups: dict[str, list[ConsumeStats]]

    @classmethod
    def decode(cls, body: bytes | memoryview) -> BrokerConsumeStats:
        found: dict[str, list[ConsumeStats]] = {}
        for entry in decode_body(body, _BrokerConsumeStats).consume_stats_list:
            for group, stats in entry.items():
                found.setdefault(group, []).extend(
                    ConsumeStats(decode_object_keyed(raw.offset_table, decode_queue), raw.consume_tps)
                    for raw in stats
                )
        return cls(found)


class _BrokerConsumeStats(msgspec.Struct, rename="camel"):
    consume_stats_list: list[dict[str, list[_ConsumeStats]]] = []


class ConsumeTimeSpan(msgspec.Struct, rename="camel"):
    """Response to QUERY_CONSUME_TIME_SPAN 303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class ProducerConnection(msgspec.Struct, rename="camel"):
    """Response to GET_PRODUCER_CONNECTION_LIST 204."""

    connection_set: list[Connection]


class GroupList(msgspec.Struct, rename="camel"):
    """Response to QUERY_TOPIC_CONSUME_BY_WHO 300."""

    group_list: list[str] = []
