"""Request-reply of the client."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from broker.client.errors import BrokerError, MessageRejected, ReplyTimeout, SendOutcomeUnknown, UsageError
from broker.client.message import Message, MessageView
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, request
from broker.remoting.headers import PushReplyMessageHeader, SendMessageHeaderV2
from log.formats.properties import encode_properties, parse_properties
from log.formats.record import decode_record
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, Link, World, code, silent

SEND = RequestCode.SEND_MESSAGE_V2
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def properties_of_last(broker: Broker) -> dict[str, str]:
    return parse_properties(decode_record(broker.records()[-1]).properties)


def pushed(correlation_id: str, body: bytes, opaque: int = 5) -> RemotingCommand:
    properties = {"CORRELATION_ID": correlation_id, "MSG_TYPE": "reply", "colour": "red"}
    header = PushReplyMessageHeader(
        producer_group="c",
        topic="c_REPLY_TOPIC",
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        born_host="1.2.3.4:5",
        store_host="1.2.3.4:6",
        store_timestamp=2,
        properties=encode_properties(properties).decode(),
    )
    return request(PUSH, header, body, opaque=opaque)


async def test_request_waits_for_its_reply(
    broker: Broker, runtime: ClientRuntime, nursery: trio.Nursery
) -> None:
    asking: list[Link] = []

    def note_link(link: Link, command: RemotingCommand) -> None:
        asking.append(link)
        broker.handle(link, command)

    broker.script(SEND, note_link)
    async with (
        Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer,
        Producer(NAME_SERVER, group="p", runtime=runtime) as producer,
    ):

        async def answer() -> None:
            question = await consumer.__anext__()
            await trio.sleep(1)
            properties = properties_of_last(broker)
            assert properties["REPLY_TO_CLIENT"] == producer.core.client_id
            assert properties["TTL"] == "3000"
            (link,) = asking
            link.send(pushed("another", b"no"))
            await consumer.reply(question, b"yes", properties={"colour": "red"})
            link.send(pushed(properties["CORRELATION_ID"], b"twice"))

        nursery.start_soon(answer)
        reply = await producer.request(Message("t", b"question"))
        assert (reply.body, reply.topic, reply.properties["colour"]) == (b"yes", "c_REPLY_TOPIC", "red")
        await trio.sleep(1)
        answers = [command for command in broker.requests if command.is_response]
        assert [command.code for command in answers] == [ResponseCode.SUCCESS] * 3


async def test_a_reply_that_cannot_be_read_is_refused_and_harms_nothing(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        await producer.send(Message("t", b"x"))
        (link,) = broker.links
        link.send(request(PUSH, {"topic": "c_REPLY_TOPIC"}, b"no", opaque=7))
        await trio.sleep(1)
        (answer,) = [command for command in broker.requests if command.is_response]
        assert (answer.opaque, answer.code) == (7, ResponseCode.SYSTEM_ERROR)
        assert "unreadable reply" in (answer.remark or "")
        await producer.send(Message("t", b"still connected"))
        assert broker.links == [link]


async def test_request_without_a_reply_times_out(broker: Broker, runtime: ClientRuntime) -> None:
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        with pytest.raises(ReplyTimeout):
            await producer.request(Message("t", b"question"), timeout_s=2)
        assert trio.current_time() == pytest.approx(2, abs=0.1)
        (link,) = broker.links
        link.send(pushed(properties_of_last(broker)["CORRELATION_ID"], b"late"))
        await trio.sleep(1)
        assert (await producer.send(Message("t", b"still alive"))).queue_offset == 1


async def test_a_reply_counts_whatever_is_known_of_the_sending(
    broker: Broker, runtime: ClientRuntime, nursery: trio.Nursery
) -> None:
    """The simulator's seed 12: the request was stored and answered, and the call failed with an unknown outcome."""
    broker.script(SEND, *[broker.instead(silent)] * 100)
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:

        async def answer() -> None:
            await trio.sleep(1)
            (link,) = broker.links
            link.send(pushed(properties_of_last(broker)["CORRELATION_ID"], b"yes"))

        nursery.start_soon(answer)
        assert (await producer.request(Message("t", b"question"), timeout_s=2)).body == b"yes"
        with pytest.raises(SendOutcomeUnknown):
            await producer.request(Message("t", b"question"), timeout_s=2)
        assert trio.current_time() == pytest.approx(4, abs=0.1)


async def test_silent_name_servers_do_not_make_a_reply_longer_than_its_limit(
    world: World, broker: Broker, runtime: ClientRuntime
) -> None:
    """The simulator's seed 8: a new route was asked for after a refusal, and waited for without a limit."""
    asked = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "r"}
    broker.append("t", 0, b"question", encode_properties(asked))
    async with Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer:
        message = await consumer.__anext__()
        world.servers[NAME_SERVER].script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[silent] * 100)
        began = trio.current_time()
        with pytest.raises(BrokerError, match="not found"):
            await consumer.reply(message, b"answer", timeout_s=1)
        assert trio.current_time() - began <= 1.01


@pytest.mark.parametrize("name", ["CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"])
async def test_properties_of_requests_are_the_clients(
    world: World, runtime: ClientRuntime, name: str
) -> None:
    one_group(world)
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        with pytest.raises(UsageError):
            await producer.request(Message("t", b"x", properties={name: "mine"}))


async def test_consumer_replies_to_the_group_that_it_read_from(
    broker: Broker, runtime: ClientRuntime, nursery: trio.Nursery
) -> None:
    broker.script(REPLY, code(ResponseCode.SYSTEM_ERROR))
    replies: list[MessageView] = []
    async with (
        Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer,
        Producer(NAME_SERVER, group="p", runtime=runtime) as producer,
    ):

        async def ask() -> None:
            replies.append(await producer.request(Message("t", b"question")))

        nursery.start_soon(ask)
        message = await consumer.__anext__()
        await consumer.reply(message, b"answer", properties={"colour": "red"})
        assert [reply.body for reply in replies] == [b"answer"]
        headers = [command.decode_fields(SendMessageHeaderV2) for command in broker.received(REPLY)]
        assert len(headers) == 2, "repeated until it was taken"
        properties = parse_properties((headers[0].properties or "").encode())
        assert headers[0].topic == "c_REPLY_TOPIC", "by the cluster of the broker that it was read from"
        assert properties["CORRELATION_ID"] == message.properties["CORRELATION_ID"]
        assert properties["REPLY_TO_CLIENT"] == producer.core.client_id
        assert (properties["MSG_TYPE"], properties["colour"]) == ("reply", "red")
        assert broker.received(REPLY)[0].body == b"answer"
        broker.append("t", 0, b"no question")
        plain = await consumer.__anext__()
        with pytest.raises(UsageError, match="no request"):
            await consumer.reply(plain, b"answer")


async def test_reply_to_one_who_is_gone_fails(broker: Broker, runtime: ClientRuntime) -> None:
    asked = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "r"}
    broker.append("t", 0, b"question", encode_properties(asked))
    async with (
        Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer,
        Producer(NAME_SERVER, group="p", runtime=runtime) as producer,
    ):
        message = await consumer.__anext__()
        with pytest.raises(BrokerError, match="not found"):
            await producer.reply(message, b"answer")


@pytest.mark.parametrize(
    ("body", "properties"),
    [("text", {}), (bytes(4 * 1024 * 1024 + 1), {}), (b"x", {"a\x01": "b"}), (b"x", {"a": 5}), (b"x", ["a"])],
    ids=["text", "large", "separator", "number", "list"],
)
async def test_a_reply_that_no_message_can_be_is_refused_here(
    broker: Broker, runtime: ClientRuntime, body: bytes, properties: Any
) -> None:
    """In a connection it would take down the calls of others."""
    asked = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": "r"}
    broker.append("t", 0, b"question", encode_properties(asked))
    async with Consumer(NAME_SERVER, group="c", topics="t", start="first", runtime=runtime) as consumer:
        message = await anext(consumer)
        with pytest.raises(MessageRejected):
            await consumer.reply(message, body, properties=properties)
        await consumer.commit()
    assert not broker.received(REPLY)
