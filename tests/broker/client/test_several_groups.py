"""Clients of several groups: one without a leader delays nobody who may go elsewhere, and moves nobody who may not."""

from __future__ import annotations

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.errors import NoRoute
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode, ResponseCode
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster
from tests.broker.client.links import ClientRuntime, World, code, reset

SEND = RequestCode.SEND_MESSAGE_V2
GROUPS = ("ga", "gb")
KEYS = [f"key-{number}" for number in range(12)]


def two_groups(world: World, members: int = 3, **settings: bool) -> tuple[list[Broker], list[Broker]]:
    """Groups with a topic of two queues each, the leader of each first."""
    cluster = Cluster(world)
    first, second = (cluster.add_group(name, members, **settings) for name in GROUPS)
    for brokers in (first, second):
        brokers[0].create_topic("t", queues=2)
    return first, second


async def test_a_send_goes_to_another_group_while_one_has_no_leader(
    world: World, runtime: ClientRuntime
) -> None:
    """Nothing of it is stored where the connection is refused: the next attempt needs no pause, and no new leader."""
    first, _ = two_groups(world)
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        for _ in range(4):
            await producer.send(Message("t", b"before"))
        for broker in first:
            broker.kill()  # all of them: this group has no leader for the rest of the test
        began = trio.current_time()
        results = [await producer.send(Message("t", b"after")) for _ in range(12)]
        assert {result.queue.broker_name for result in results} == {"gb"}
        assert trio.current_time() - began < 0.1


async def test_a_send_comes_to_each_member_of_each_group(world: World, runtime: ClientRuntime) -> None:
    """This client reaches one member of each, which forwards; attempts go to the groups by turns."""
    groups = two_groups(world)
    for leader, follower, _ in groups:
        leader.create_topic("one", queues=1)
        leader.up = follower.up = False
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        for _ in range(4):
            result = await producer.send(Message("one", b"x"))
            assert result.queue.broker_name in GROUPS


async def test_a_key_keeps_its_queue_while_its_group_elects(world: World, runtime: ClientRuntime) -> None:
    """A route that was asked for in that moment lists the group without a leader: the key waits for the next one."""
    first, _ = two_groups(world)
    async with Producer(NAME_SERVER, group="p", runtime=runtime, send_timeout_s=30) as producer:
        before = {key: (await producer.send(Message("t", b"x"), queue=key)).queue for key in KEYS}
        assert {queue.broker_name for queue in before.values()} == set(GROUPS)
        for broker in first[:2]:
            broker.kill()  # the last one cannot lead alone
        await producer.core.routes.refresh("t")
        route = producer.core.routes.find("t")
        assert route is not None
        assert {queue.broker_name for queue in route.writable} == {"gb"}, "the moment is the one in question"
        after = {}
        async with trio.open_nursery() as sends:

            async def send(key: str) -> None:
                after[key] = (await producer.send(Message("t", b"x"), queue=key)).queue

            for key in KEYS:
                sends.start_soon(send, key)
            await trio.sleep(2)
            first[0].restart()
        assert after == before


async def test_a_key_finds_another_queue_when_its_group_has_lost_the_topic(
    world: World, runtime: ClientRuntime
) -> None:
    """A topic that was moved away: a producer with an old route learns it by being refused, and fails no send."""
    first, _ = two_groups(world, members=1, auto_create_topics=False)
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        before = {key: (await producer.send(Message("t", b"x"), queue=key)).queue for key in KEYS}
        assert {queue.broker_name for queue in before.values()} == set(GROUPS)
        with first[0].client() as client:
            client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
        after = {key: (await producer.send(Message("t", b"x"), queue=key)).queue for key in KEYS}
        assert {queue.broker_name for queue in after.values()} == {"gb"}
    assert len(first[0].received(SEND)) > len([one for one in before.values() if one.broker_name == "ga"])


async def test_what_may_be_stored_stays_with_its_group(world: World, runtime: ClientRuntime) -> None:
    """The other group could not recognize the message: it would be there twice."""
    first, second = two_groups(world)
    async with Producer(NAME_SERVER, group="p", runtime=runtime, send_timeout_s=30) as producer:
        for broker in (*first, *second):
            broker.script(SEND, broker.instead(reset), code(ResponseCode.SYSTEM_BUSY), reset)
        for _ in range(4):
            await producer.send(Message("t", b"x"))
    stored = [len(group[0].stored("t", queue)) for group in (first, second) for queue in range(2)]
    assert sum(stored) == 4


async def test_a_topic_in_some_groups(world: World, runtime: ClientRuntime) -> None:
    """A change in one group leaves the topic in the others as it is; what one group deletes leaves its route."""
    two_groups(world, members=1)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        await admin.create_topic("u", queues=3, groups=["gb"])
        assert {queue.broker_name for queue in (await admin.route("u")).readable} == {"gb"}
        await admin.create_topic("t", queues=2, perm=4, groups=["ga"])
        route = await admin.route("t")
        assert [queue.broker_name for queue in route.readable] == ["ga", "ga", "gb", "gb"]
        assert [queue.broker_name for queue in route.writable] == ["gb", "gb"]
        await admin.delete_topic_in_group("t", "ga")
        assert [queue.broker_name for queue in (await admin.route("t")).readable] == ["gb", "gb"]
        await admin.delete_topic_in_group("t", "ga")  # again, as of somebody who does not know
        with pytest.raises(NoRoute, match="ga, gb"):
            await admin.create_topic("u", groups=["gc"])


async def test_a_broadcast_consumer_without_a_file_goes_on_where_it_was(
    world: World, runtime: ClientRuntime
) -> None:
    """When a group is away for so long that its queues are given up, and then back."""
    (first,), _ = two_groups(world, members=1)
    async with Consumer(
        NAME_SERVER, group="c", topics="t", start="last", broadcast=True, runtime=runtime
    ) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(1)
        first.append("t", 0, b"1")
        assert (await anext(consumer)).body == b"1"
        first.append("t", 0, b"2")
        first.kill()
        await trio.sleep(120)
        assert {queue.broker_name for queue in consumer.assignment()} == {"gb"}
        first.restart()
        first.append("t", 0, b"3")
        with trio.fail_after(120):
            assert [(await anext(consumer)).body for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_group_that_is_away_delays_many_topics_once(world: World, runtime: ClientRuntime) -> None:
    """It is asked first who the members are, and answers this client nothing."""
    first, second = two_groups(world, members=1)
    topics = ["t", *(f"t{number}" for number in range(10))]
    for topic in topics:
        for broker in (*first, *second):
            broker.create_topic(topic)
    first[0].up = False
    async with Consumer(NAME_SERVER, group="c", topics=topics, runtime=runtime) as consumer:
        started = trio.current_time()
        await consumer.wait_assigned()
        assert trio.current_time() - started < 2 * 3.0
