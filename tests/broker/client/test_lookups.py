"""Single messages by id and by key, as a client asks for them."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import BrokerError, UsageError
from broker.client.message import MessageQueue, MessageView
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, response
from tests.broker.client.fake_cluster import NAME_SERVER, FakeBroker, FakeNameServer, Group, one_group
from tests.broker.client.links import ClientRuntime, Link, Step, World, code, reset

Q0 = MessageQueue("t", "g", 0)
STORED_AT = "127.0.0.1:10911"
"""Where the fake brokers store, as their records say."""


def records(*found: bytes) -> Step:
    """Answers with these."""
    return lambda link, command: response(command, 0, body=b"".join(found))


def id_of(record: bytes) -> str:
    """The id that its broker gave."""
    view = MessageView(Q0, record)
    return view.offset_message_id


async def test_a_message_is_asked_of_its_node_and_then_of_another(
    autojump_clock: MockClock, world: World, runtime: ClientRuntime
) -> None:
    FakeNameServer(world, NAME_SERVER)
    group = Group("g")
    leader, node = FakeBroker(world, "b0:1", group), FakeBroker(world, STORED_AT, group)
    world.add_topic("t", {"g": {0: leader.address, 1: node.address}}, 1)
    for body in (b"other", b"wanted"):
        group.append("t", 0, body)
    other, wanted = group.queues["t", 0]
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:

        async def view() -> bytes | None:
            found = await consumer.view_message("t", id_of(wanted))
            return None if found is None else found.body

        node.script(RequestCode.VIEW_MESSAGE_BY_ID, records(wanted))
        assert await view() == b"wanted"
        assert not leader.received(RequestCode.VIEW_MESSAGE_BY_ID)
        node.script(RequestCode.VIEW_MESSAGE_BY_ID, reset, code(14), records(other), code(1))
        leader.script(RequestCode.VIEW_MESSAGE_BY_ID, *[records(wanted)] * 3, code(1))
        assert [await view() for _ in range(4)] == [b"wanted", b"wanted", b"wanted", None]


async def test_a_message_of_a_node_that_is_gone_is_asked_of_its_group(
    autojump_clock: MockClock, world: World, runtime: ClientRuntime
) -> None:
    (leader,) = one_group(world)
    for body in (b"other", b"wanted"):
        leader.append("t", 0, body)
    other, wanted = leader.group.queues["t", 0]
    # Another group's message at the same place is no answer.
    leader.script(RequestCode.VIEW_MESSAGE_BY_ID, records(wanted), code(1), records(other))
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        found = [await consumer.view_message("t", id_of(wanted)) for _ in range(3)]
        assert [message and message.body for message in found] == [b"wanted", None, None]
        for id_of_nothing in ("", "xyz", "00" * 12):
            with pytest.raises(UsageError):
                await consumer.view_message("t", id_of_nothing)


async def test_messages_by_key(autojump_clock: MockClock, world: World, runtime: ClientRuntime) -> None:
    (broker,) = one_group(world)
    for body in (b"1", b"2"):
        broker.append("t", 0, body)
    first, second = broker.group.queues["t", 0]
    broker.script(
        RequestCode.QUERY_MESSAGE, records(second, first), code(22), records(first), records(b"\0\0\0\1")
    )
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        found = await consumer.messages_with_key("t", "k", begin_ms=5, end_ms=9, max_messages=7)
        assert [(message.body, message.queue) for message in found] == [(b"2", Q0), (b"1", Q0)]
        assert await consumer.messages_with_key("t", "k") == []
        assert [message.body for message in await consumer.messages_with_id("t", "u")] == [b"1"]
        asked = [command.fields for command in broker.received(RequestCode.QUERY_MESSAGE)]
        assert asked[0] == {
            "topic": "t",
            "key": "k",
            "maxNum": "7",
            "beginTimestamp": "5",
            "endTimestamp": "9",
        }
        assert asked[2]["_UNIQUE_KEY_QUERY"] == "true"
        with pytest.raises(BrokerError, match="unreadable"):
            await consumer.messages_with_id("t", "u")


async def test_times(autojump_clock: MockClock, world: World, runtime: ClientRuntime) -> None:
    (broker,) = one_group(world)

    def timestamp(value: str) -> Step:
        def answer(link: Link, command: RemotingCommand) -> RemotingCommand:
            return response(command, 0, fields={"timestamp": value})

        return answer

    def offset(link: Link, command: RemotingCommand) -> RemotingCommand:
        return response(
            command, 0, fields={"offset": {"LOWER": "3", "UPPER": "2"}[command.fields["boundaryType"]]}
        )

    broker.script(
        RequestCode.GET_EARLIEST_MSG_STORETIME, timestamp("1700"), timestamp("-1"), timestamp("soon")
    )
    broker.script(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offset, offset)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        assert await consumer.earliest_store_time(Q0) == 1700
        assert await consumer.earliest_store_time(Q0) is None
        with pytest.raises(BrokerError, match="unreadable"):
            await consumer.earliest_store_time(Q0)
        assert (await consumer.search_offset(Q0, 5), await consumer.search_offset(Q0, 5, "upper")) == (3, 2)
