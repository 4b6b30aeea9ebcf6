"""Single messages by id and by key, as a client asks for them."""

from __future__ import annotations

import pytest
import trio

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import BrokerError, UsageError
from broker.client.message import MessageQueue, MessageView
from broker.remoting.codes import RequestCode
from broker.remoting.command import response
from log.formats.properties import encode_properties
from log.formats.record import decode_record
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import WALL_START_MS, ClientRuntime, Step, World, code, reset

VIEW = RequestCode.VIEW_MESSAGE_BY_ID
Q0 = MessageQueue("t", "g", 0)


def records(*found: bytes) -> Step:
    """Responds with these."""
    return lambda link, command: response(command, 0, body=b"".join(found))


def id_of(record: bytes) -> str:
    """The id that its broker gave."""
    view = MessageView(Q0, record)
    return view.offset_message_id


async def leader_that_is_gone(world: World) -> tuple[Broker, Broker]:
    """A node that has stored two messages and was killed, and who leads now."""
    node, *others = one_group(world, members=3)
    for body in (b"other", b"wanted"):
        node.append("t", 0, body)
    node.kill()
    await trio.sleep(1)
    return node, next(one for one in others if one.node_id == one.group.leader)


async def test_a_message_is_asked_of_its_node_and_then_of_another(
    world: World, runtime: ClientRuntime
) -> None:
    node, leader = await leader_that_is_gone(world)
    node.restart()
    await trio.sleep(3)
    other, wanted = node.records()
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:

        async def view() -> bytes | None:
            found = await consumer.view_message("t", id_of(wanted))
            return None if found is None else found.body

        assert await view() == b"wanted"
        assert not leader.received(VIEW)
        node.script(VIEW, reset, code(14), records(other), code(1))
        leader.script(VIEW, *[leader.handle] * 3, code(1))
        assert [await view() for _ in range(4)] == [b"wanted", b"wanted", b"wanted", None]
        assert len(leader.received(VIEW)) == 4


async def test_a_message_of_a_node_that_is_gone_is_asked_of_its_group(
    world: World, runtime: ClientRuntime
) -> None:
    _, leader = await leader_that_is_gone(world)
    other, wanted = leader.records()
    # Another group's message at the same place is not what was asked for.
    leader.script(VIEW, leader.handle, code(1), records(other))
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        found = [await consumer.view_message("t", id_of(wanted)) for _ in range(3)]
        assert [message and message.body for message in found] == [b"wanted", None, None]
        for id_of_nothing in ("", "xyz", "00" * 12):
            with pytest.raises(UsageError):
                await consumer.view_message("t", id_of_nothing)


async def test_messages_by_key(broker: Broker, runtime: ClientRuntime) -> None:
    for number in (1, 2):
        broker.append(
            "t", 0, b"%d" % number, encode_properties({"KEYS": "k other", "UNIQ_KEY": f"u{number}"})
        )
    begin, end = WALL_START_MS - 10, WALL_START_MS + 10_000
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        found = await consumer.messages_with_key("t", "k", begin_ms=begin, end_ms=end, max_messages=7)
        assert [(message.body, message.queue) for message in found] == [(b"2", Q0), (b"1", Q0)]
        assert await consumer.messages_with_key("t", "k", begin_ms=5, end_ms=9) == []
        assert await consumer.messages_with_key("t", "nothing") == []
        assert [message.body for message in await consumer.messages_with_id("t", "u1")] == [b"1"]
        asked = [command.fields for command in broker.received(RequestCode.QUERY_MESSAGE)]
        assert asked[0] == {
            "topic": "t",
            "key": "k",
            "maxNum": "7",
            "beginTimestamp": str(begin),
            "endTimestamp": str(end),
        }
        assert asked[3]["_UNIQUE_KEY_QUERY"] == "true"
        broker.script(RequestCode.QUERY_MESSAGE, records(b"\0\0\0\1"))
        with pytest.raises(BrokerError, match="unreadable"):
            await consumer.messages_with_id("t", "u")


async def test_times(world: World, runtime: ClientRuntime) -> None:
    (broker,) = one_group(world, queues=2)
    for pause_s in (1, 0, 1, 0):
        broker.append("t", 0, b"x")
        await trio.sleep(pause_s)
    first, second = (decode_record(record).store_timestamp for record in broker.records()[:2])
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        assert await consumer.earliest_store_time(Q0) == first
        assert await consumer.earliest_store_time(MessageQueue("t", "g", 1)) is None
        broker.script(
            RequestCode.GET_EARLIEST_MSG_STORETIME,
            lambda link, command: response(command, 0, fields={"timestamp": "soon"}),
        )
        with pytest.raises(BrokerError, match="unreadable"):
            await consumer.earliest_store_time(Q0)
        assert await consumer.search_offset(Q0, second) == 1
        assert await consumer.search_offset(Q0, second, "upper") == 2
