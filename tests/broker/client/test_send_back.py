"""Giving messages back to their group: by the broker that holds them, or by the member once nobody else has them."""

from __future__ import annotations

import pytest

from broker.client.consuming.consumer import Consumer
from broker.client.errors import BrokerError, DamagedMessage, UsageError
from broker.client.message import MessageView
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import response
from broker.remoting.headers import ConsumerSendMessageBackHeader, SendMessageHeaderV2
from log.formats.properties import encode_properties, parse_properties
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
SEND = RequestCode.SEND_MESSAGE_V2


async def one_message(consumer: Consumer, broker: Broker) -> MessageView:
    broker.append("t", 0, b"body", encode_properties({"KEYS": "k", "UNIQ_KEY": "U"}))
    return await consumer.__anext__()


async def test_what_retention_has_taken_the_member_sends_itself(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """The broker could store nothing, for ever: the listener got such a message again and again."""
    async with Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer:
        message = await one_message(consumer, broker)
        await broker.delete_stored()
        await consumer.send_back(message)
        again = await consumer.__anext__()
        assert (again.topic, again.body, again.reconsume_times) == ("t", b"body", 1)
    (sent,) = broker.received(SEND)
    header = sent.decode_fields(SendMessageHeaderV2)
    assert (header.topic, header.queue_id, header.reconsume_times) == ("%RETRY%c", -1, 1)
    assert (bytes(sent.body), header.born_timestamp) == (b"body", message.born_timestamp_ms)
    assert parse_properties((header.properties or "").encode()) == {
        "KEYS": "k",
        "UNIQ_KEY": "U",
        "CLUSTER": "c",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": message.offset_message_id,
        "DELAY": "3",
    }


async def test_how_often_is_what_the_consumer_says(broker: Broker, runtime: ClientRuntime) -> None:
    async with Consumer(
        NAME_SERVER, group="c", topics="t", start="first", max_retries=2, runtime=runtime
    ) as consumer:
        message = await one_message(consumer, broker)
        await consumer.send_back(message)
        await broker.delete_stored()
        await consumer.send_back(message)
    for asked in broker.received(SEND_BACK):
        assert asked.decode_fields(ConsumerSendMessageBackHeader).max_reconsume_times == 2
    (sent,) = broker.received(SEND)
    assert sent.decode_fields(SendMessageHeaderV2).max_reconsume_times == 2
    for times, broadcast in ((-1, False), (1, True)):
        with pytest.raises(UsageError, match="max_retries"):
            Consumer(
                NAME_SERVER, group="c", topics="t", runtime=runtime, max_retries=times, broadcast=broadcast
            )


async def test_what_is_still_there_is_not_sent_a_second_time(broker: Broker, runtime: ClientRuntime) -> None:
    """The same code says that the outcome is unknown: the broker may have stored it."""
    unknown = [lambda link, command: response(command, ResponseCode.SYSTEM_ERROR, "unknown")] * 100
    broker.script(SEND_BACK, *unknown)
    async with Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer:
        message = await one_message(consumer, broker)
        with pytest.raises(BrokerError, match="unknown"):
            await consumer.send_back(message)
    assert not broker.received(SEND)


async def test_what_is_damaged_and_deleted_cannot_be_sent_back(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer:
        message = await one_message(consumer, broker)
        await broker.delete_stored()
        damaged = bytearray(message.record_bytes())
        damaged[message.head.body_begin - message._start] ^= 1
        with pytest.raises(DamagedMessage):
            await consumer.send_back(MessageView(message.queue, bytes(damaged)))
    assert not broker.received(SEND)
