"""Typed extFields of the requests that clients and brokers exchange, and of their responses.

The rules that hold for every header here and in its sibling modules:

* attribute names are full words, the wire's names are given by ``rename`` or ``name=`` where they differ;
* a field without a default is one the receiver fails without (``@CFNotNull`` in RocketMQ's classes), a default of None
  is sent as nothing at all;
* unknown fields are ignored, so the 5.x additions that mean nothing here (bname, ns, nsd, oway, lo) are not listed.

The long and the short send header have the same attributes, so a processor reads either. Their `once` and `again`, and
`once` of the response, are Trivet's own (broker/sending/repeated_sends.py).
"""

import msgspec

from broker.remoting.command import Int32, Int64

_SHORT_SEND_NAMES = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}


class SendMessageHeader(msgspec.Struct, rename="camel", gc=False):
    """SEND_MESSAGE 10 and SEND_REPLY_MESSAGE 324: the long names. Timestamps are
    milliseconds.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None
    once: Int64 | None = None
    again: bool | None = None


class SendMessageHeaderV2(msgspec.Struct, rename=_SHORT_SEND_NAMES, gc=False):
    """SEND_MESSAGE_V2 310, SEND_BATCH_MESSAGE 320, SEND_REPLY_MESSAGE_V2 325: one letter a name."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    batch: bool | None = None
    broker_name: str | None = None
    once: Int64 | None = None
    again: bool | None = None


SendHeader = SendMessageHeader | SendMessageHeaderV2
"""Both have the same attributes."""


class SendMessageResponseHeader(msgspec.Struct, rename="camel", gc=False):
    """Response to every kind of send. A batch joins its message ids by commas and gives its first queue offset."""

    message_id: str = msgspec.field(name="msgId")
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: bool | None = msgspec.field(name="TRACE_ON", default=None)
    once: str | None = None


class PortionHeader(msgspec.Struct, rename="camel"):
    """TRIVET_BEGIN_PORTION 90008 and TRIVET_END_PORTION 90009."""

    topic: str
    writer: str
    number: Int64


class PortionResponseHeader(msgspec.Struct, rename="camel"):
    """Response to 90008; ``standing`` is a `broker.state.writers.Standing`, ``position`` the portion's floor."""

    standing: str
    position: Int64


class PullMessageHeader(msgspec.Struct, rename="camel", gc=False):
    """PULL_MESSAGE 11 and LITE_PULL_MESSAGE 361; sys_flag has the bits of
    `codes.PullSysFlag`.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_message_count: Int32 = msgspec.field(name="maxMsgNums")
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_ms: Int64 = msgspec.field(name="suspendTimeoutMillis")
    subscription_version: Int64 = msgspec.field(name="subVersion")
    subscription: str | None = None
    expression_type: str | None = None
    max_message_bytes: Int32 | None = msgspec.field(name="maxMsgBytes", default=None)


class PullMessageResponseHeader(msgspec.Struct, rename="camel", gc=False):
    """The fields of a response to a pull, whatever its code."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64


class UnregisterClientHeader(msgspec.Struct, rename="camel"):
    """UNREGISTER_CLIENT 35."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupHeader(msgspec.Struct, rename="camel"):
    """GET_CONSUMER_LIST_BY_GROUP 38."""

    consumer_group: str


class QueryConsumerOffsetHeader(msgspec.Struct, rename="camel"):
    """QUERY_CONSUMER_OFFSET 14; ``set_zero_if_not_found`` is 5.x, null means true there and here."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(msgspec.Struct, rename="camel"):
    """UPDATE_CONSUMER_OFFSET 15, usually one-way."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64


class OffsetResponseHeader(msgspec.Struct):
    """Response to 14, 29, 30 and 31."""

    offset: Int64


class ConsumerSendMessageBackHeader(msgspec.Struct, rename="camel"):
    """CONSUMER_SEND_MSG_BACK 36; ``offset`` is the commit log's."""

    offset: Int64
    group: str
    delay_level: Int32
    origin_message_id: str | None = msgspec.field(name="originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None


class EndTransactionHeader(msgspec.Struct, rename="camel"):
    """END_TRANSACTION 37; ``outcome`` is a `codes.TransactionOutcome`."""

    producer_group: str
    half_queue_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    commit_log_offset: Int64
    outcome: Int32 = msgspec.field(name="commitOrRollback")
    message_id: str = msgspec.field(name="msgId")
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None


class CheckTransactionStateHeader(msgspec.Struct, rename="camel"):
    """CHECK_TRANSACTION_STATE 39, broker to producer, one-way; ``message_id`` is the UNIQ_KEY."""

    half_queue_offset: Int64 = msgspec.field(name="tranStateTableOffset")
    commit_log_offset: Int64
    message_id: str | None = msgspec.field(name="msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str | None = msgspec.field(name="offsetMsgId", default=None)
    topic: str | None = None
    broker_name: str | None = msgspec.field(name="bname", default=None)


class NotifyConsumerIdsChangedHeader(msgspec.Struct, rename="camel"):
    """NOTIFY_CONSUMER_IDS_CHANGED 40, broker to consumer, one-way."""

    consumer_group: str


class SearchOffsetHeader(msgspec.Struct, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP 29; ``boundary_type`` is 5.x, LOWER (null too) or UPPER."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None


class QueueHeader(msgspec.Struct, rename="camel"):
    """GET_MAX_OFFSET 30, GET_MIN_OFFSET 31, GET_EARLIEST_MSG_STORETIME 32."""

    topic: str
    queue_id: Int32
    committed: bool | None = None


class EarliestStoreTimeResponseHeader(msgspec.Struct):
    """Response to 32: milliseconds, -1 without a message."""

    timestamp: Int64


class QueryMessageHeader(msgspec.Struct, rename="camel"):
    """QUERY_MESSAGE 12; ``unique_key_query`` true looks up a UNIQ_KEY instead of one of KEYS."""

    topic: str
    key: str
    max_count: Int32 = msgspec.field(name="maxNum")
    begin_timestamp: Int64
    end_timestamp: Int64
    unique_key_query: bool | None = msgspec.field(name="_UNIQUE_KEY_QUERY", default=None)


class ViewMessageHeader(msgspec.Struct):
    """VIEW_MESSAGE_BY_ID 33; ``offset`` is the commit log's, from the message id; 5.x names the topic, too."""

    offset: Int64
    topic: str | None = None


class PushReplyMessageHeader(msgspec.Struct, rename="camel"):
    """PUSH_REPLY_MESSAGE_TO_CLIENT 326, broker to requester: the reply's send header and where it came from."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    born_host: str
    store_host: str
    store_timestamp: Int64
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool | None = None
