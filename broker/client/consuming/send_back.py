"""Sending a message back to its consumer group.

The broker that holds a message stores it again, in the retry topic of the consumer group or, after the last retry, as a
dead letter. If retention has deleted the message there is nothing that the broker could store. Then the member, which
has it whole, sends it to the retry topic itself. RocketMQ's client does that whenever sending back fails; here it is
done only when nobody else can, since a request of unknown outcome may have stored the message already.
"""

from __future__ import annotations

from broker.client.consuming.queue_calls import QueueCalls
from broker.client.errors import BrokerError, DamagedMessage
from broker.client.message import MessageView, SendStatus
from broker.remoting import property_names
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import SendMessageHeaderV2
from broker.state.topic_rules import DEFAULT_TOPIC, RETRY_PREFIX
from log.errors import RecordError
from log.formats.properties import encode_properties
from log.formats.record import (
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
    SYS_FLAG_TRANSACTION_MASK,
    decode_record,
)

FIRST_RETRY_LEVEL = 3
"""Delay level of the first retry, the same as at brokers; each further one is a level higher."""
_OF_THE_RECORD = SYS_FLAG_TRANSACTION_MASK | SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6
_STORED = tuple(int(status) for status in SendStatus)


async def send_back(
    calls: QueueCalls, group: str, message: MessageView, delay_level: int, max_retries: int | None
) -> None:
    """Store the message again for its consumer group, by the broker that holds it. `Consumer.send_back` says more.

    ``max_retries`` None leaves that number to the settings of the consumer group. Raises BrokerError, ConnectionFailed,
    NoRoute, NameServerUnavailable, DamagedMessage.
    """
    fields = {
        "offset": str(message.head.physical_offset),
        "group": group,
        "delayLevel": str(delay_level),
        "originMsgId": message.message_id,
        "originTopic": message.topic,
        "unitMode": "false",
    }
    if max_retries is not None:
        fields["maxReconsumeTimes"] = str(max_retries)
    try:
        await calls.patient.ask(message.queue, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    except BrokerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR or delay_level < 0:
            raise
        # The broker says no more than "system error"; what it still keeps tells if the message was deleted.
        if await calls.min_offset(message.queue) <= message.queue_offset:
            raise
        await _send_again(calls, group, message, delay_level, max_retries)


async def _send_again(
    calls: QueueCalls, group: str, message: MessageView, delay_level: int, max_retries: int | None
) -> None:
    try:
        record = decode_record(message.record_bytes())
    except RecordError as error:
        raise DamagedMessage(f"{message!r} cannot be sent back: {error}") from error
    properties = dict(message.properties)
    # Only the first time: later rounds keep the topic and the id that the message had in the beginning.
    properties.setdefault(property_names.RETRY_TOPIC, message.topic)
    properties.setdefault(property_names.ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[property_names.DELAY] = str(delay_level or FIRST_RETRY_LEVEL + record.reconsume_times)
    topic = RETRY_PREFIX + group
    header = SendMessageHeaderV2(
        producer_group=group,
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=1,
        queue_id=-1,  # the broker's choice
        sys_flag=record.sys_flag & ~_OF_THE_RECORD,
        born_timestamp=record.born_timestamp,
        flag=record.flag,
        properties=encode_properties(properties).decode(),
        reconsume_times=record.reconsume_times + 1,
        unit_mode=False,
        max_reconsume_times=max_retries,
        batch=False,
    )
    queue = message.queue._replace(topic=topic)
    await calls.patient.ask(queue, RequestCode.SEND_MESSAGE_V2, header, _STORED, record.body)
