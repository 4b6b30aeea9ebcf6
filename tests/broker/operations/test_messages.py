"""Messages found by whatever is known of them, and the ways that they have taken."""

from __future__ import annotations

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.errors import NoRoute, UsageError
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.operations.asking import Groups
from broker.operations.errors import NotThere
from broker.operations.messages import MessageWay, find_messages, way_of
from broker.operations.queue_browsing import read_queue
from broker.remoting import property_names
from broker.remoting.codes import RequestCode
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, World, reset


def bodies(messages: list[object]) -> list[object]:
    return [getattr(message, "body") for message in messages]  # noqa: B009


def ways(way: MessageWay) -> list[tuple[str, str | None]]:
    return [(step.what, step.group) for step in way.steps]


async def test_messages_are_found_by_time_offset_key_and_id(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    sent = []
    times = []
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        for number in range(8):
            times.append(runtime.wall_ms())
            message = Message("t", b"%d" % number, keys=[f"k{number % 2}"])
            sent.append(await producer.send(message))
            await trio.sleep(1)
    times_stored = [found.stored_ms for found in await find_messages(await Groups.registered(admin), "t")]
    assert times_stored == sorted(times_stored)

    async def found(**choices: object) -> list[object]:
        return bodies(list(await find_messages(await Groups.registered(admin), "t", **choices)))  # type: ignore[arg-type]

    everything = [b"%d" % number for number in range(8)]
    assert await found() == everything
    assert await found(limit=3) == everything[-3:], "the newest"
    assert await found(since_ms=times_stored[2], limit=3) == everything[2:5], "from there on"
    assert await found(until_ms=times_stored[3]) == everything[:3]
    assert await found(since_ms=times_stored[2], until_ms=times_stored[4]) == everything[2:4]
    assert await found(key="k1") == everything[1::2]
    assert await found(key="k1", since_ms=times_stored[2]) == everything[3::2]
    for number, result in enumerate(sent):
        assert await found(message_id=result.message_id) == [everything[number]]
        assert await found(message_id=result.offset_message_id) == [everything[number]]
        queue = result.queue
        (first, *_) = await found(broker=queue.broker_name, queue=queue.queue_id, offset=result.queue_offset)
        assert first == everything[number]
    with pytest.raises(UsageError):
        await found(key="k1", message_id="x")
    with pytest.raises(UsageError):
        await found(offset=1, since_ms=1)
    with pytest.raises(UsageError, match="0 or more"):
        await found(offset=-1)
    with pytest.raises(NotThere):
        await found(queue=9)
    with pytest.raises(NoRoute):
        await find_messages(await Groups.registered(admin), "nowhere")


async def test_the_third_member_is_asked_where_two_are_out_of_reach(
    world: World, runtime: ClientRuntime
) -> None:
    leader, second, third = one_group(world, members=3)
    leader.append("t", 0, b"here")
    for gone in (leader, second):
        gone.script(RequestCode.PULL_MESSAGE, *[reset] * 100)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        found = [views async for views in read_queue(admin, MessageQueue("t", "g", 0), 0, 1)]
    assert [view.body for views in found for view in views] == [b"here"]
    assert third.received(RequestCode.PULL_MESSAGE)


@pytest.mark.parametrize("due", ["\u00b2", "9" * 5000])
async def test_a_sender_may_write_what_it_likes_for_the_time_at_which_brokers_have_a_message_due(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime, due: str
) -> None:
    properties = {property_names.TIMER_OUT_MS: due}
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        sent = await producer.send(Message("t", b"x", properties=properties, delay_level=3))
    groups = await Groups.registered(admin)
    (step,) = (await way_of(groups, "t", sent.message_id)).steps
    assert (step.what, step.until_ms) == ("waits", None)


async def test_the_way_of_a_delayed_message_to_the_dead_letters(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    async with (
        Producer(NAME_SERVER, group="p", runtime=runtime) as producer,
        Consumer(
            NAME_SERVER, group="g", topics="t", start="first", max_retries=1, runtime=runtime
        ) as consumer,
        Consumer(NAME_SERVER, group="other", topics={"t": "b"}, start="first", runtime=runtime) as other,
    ):
        await other.wait_assigned()
        sent = await producer.send(Message("t", b"x", tags="a", delay_ms=30_000))
        waiting = await way_of(await Groups.registered(admin), "t", sent.message_id)
        assert ways(waiting) == [("waits", None)]
        (step,) = waiting.steps
        assert step.until_ms is not None
        assert 29_000 < step.until_ms - step.at_ms <= 30_000
        assert waiting.message is None

        message = await anext(consumer)
        await consumer.send_back(message)
        again = await anext(consumer)
        assert again.reconsume_times == 1
        await consumer.send_back(again)
        await consumer.commit()
        with trio.move_on_after(30):
            await anext(other)  # which gets nothing, and so passes it over
        way = await way_of(await Groups.registered(admin), "t", sent.message_id)
    assert ways(way) == [
        ("waits", None),
        ("delivered", None),
        ("waits", "g"),
        ("retried", "g"),
        ("dead letter", "g"),
    ]
    assert way.message is not None
    assert way.message.body == b"x"
    assert {(one.group, one.state) for one in way.groups} == {("g", "consumed"), ("other", "filtered")}
    with pytest.raises(NotThere):
        await way_of(await Groups.registered(admin), "t", "0A0000071FDF00000000000000000000")
