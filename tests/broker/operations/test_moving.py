"""A topic moves from one group to another: nothing is lost on the way, and it goes on where it was broken off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.errors import UsageError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.operations.errors import InUse, NotThere
from broker.operations.moving import TopicMove
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster
from tests.broker.client.links import ClientRuntime, World

SETTLE_S = 35.0


@pytest.fixture
def groups(world: World) -> tuple[Broker, Broker]:
    """The leaders of two groups, of which the first has a topic of two queues, with two messages."""
    cluster = Cluster(world)
    (source,), (target,) = (cluster.add_group(name) for name in ("ga", "gb"))
    source.create_topic("t", queues=2)
    for queue in range(2):
        source.append("t", queue, b"%d" % queue)
    return source, target


@asynccontextmanager
async def moving(runtime: ClientRuntime, *, drop_unread: bool = False) -> AsyncIterator[TopicMove]:
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        yield TopicMove(admin, "t", "ga", "gb", drop_unread=drop_unread)


async def names_of(move: TopicMove) -> list[str]:
    return [queue.broker_name for queue in (await move._admin.route("t")).readable]


async def test_a_topic_goes_when_all_of_it_is_read(
    groups: tuple[Broker, Broker], runtime: ClientRuntime
) -> None:
    source, target = groups
    source.commit("readers", "t", 0, 1)
    async with moving(runtime) as move, Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        waits = await move.step()
        assert waits == [
            "producers with the old route: 35 s more, if nothing comes to ga",
            "consumer group readers: 1 messages to read in ga",
        ]
        assert await names_of(move) == ["ga", "ga", "gb", "gb"]
        assert (await producer.send(Message("t", b"new"))).queue.broker_name == "gb"
        source.append("t", 1, b"with an old route")
        await trio.sleep(SETTLE_S)
        assert await move.step() == [
            "producers with the old route: 35 s more, if nothing comes to ga",
            "consumer group readers: 2 messages to read in ga",
        ]
        await trio.sleep(SETTLE_S)
        assert await move.step() == ["consumer group readers: 2 messages to read in ga"]
        source.commit("readers", "t", 1, 2)
        assert await move.step() == []
        assert await names_of(move) == ["gb", "gb"]
        assert "t" not in source.metadata.topics
        assert await move.step() == [], "it is done"
    assert sum(len(target.stored("t", queue)) for queue in range(2)) == 1


async def test_a_move_that_was_broken_off_goes_on(
    groups: tuple[Broker, Broker], runtime: ClientRuntime
) -> None:
    """By another process, which knows nothing of the first one but what the groups have."""
    source, _ = groups
    async with moving(runtime, drop_unread=True) as move:
        assert len(await move.step()) == 1
    assert source.metadata.topics["t"].perm == 4
    async with moving(runtime, drop_unread=True) as move:
        assert len(await move.step()) == 1
        await trio.sleep(SETTLE_S)
        assert await move.step() == []
        assert (await move._admin.route("t")).permissions == {"gb": 6}


async def test_what_is_hidden_is_waited_for(groups: tuple[Broker, Broker], runtime: ClientRuntime) -> None:
    """A delayed message that fires into a topic that is gone would be lost."""
    async with (
        moving(runtime, drop_unread=True) as move,
        Producer(NAME_SERVER, group="p", runtime=runtime) as producer,
    ):
        await producer.send(Message("t", b"later", delay_level=5))  # a minute
        await move.step()
        await trio.sleep(SETTLE_S)
        assert await move.step() == ["1 delayed messages in ga, of whatever topic"]
        await trio.sleep(30)
        waits = await move.step()
        assert waits[0].startswith("producers with the old route"), "it has come: nothing was quiet"
        await trio.sleep(90)  # that it was delivered is noted within a minute
        assert await move.step() == []


async def test_a_consumer_group_that_has_read_elsewhere_is_waited_for(
    groups: tuple[Broker, Broker], runtime: ClientRuntime
) -> None:
    """It is away, and the source knows nothing of it: all that the source has is new to it."""
    _, target = groups
    target.create_topic("t", queues=2)
    target.append("t", 0, b"x")
    target.commit("away", "t", 0, 1)
    async with moving(runtime) as move:
        assert "consumer group away: 2 messages to read in ga" in await move.step()


async def test_messages_that_nobody_reads_are_not_dropped_unasked(
    groups: tuple[Broker, Broker], runtime: ClientRuntime
) -> None:
    async with moving(runtime) as move:
        with pytest.raises(InUse, match="no consumer group reads them"):
            await move.step()
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        with pytest.raises(UsageError, match="same group"):
            TopicMove(admin, "t", "ga", "ga")
        with pytest.raises(NotThere):
            await TopicMove(admin, "other", "ga", "gb").step()
