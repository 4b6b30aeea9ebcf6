"""A topic followed through the death of its leader, and the rates between two looks."""

from __future__ import annotations

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.subscription import SqlFilter
from broker.client.errors import BrokerError, NoRoute, UsageError
from broker.operations.asking import Groups
from broker.operations.figures import between, sample
from broker.operations.following import Follower
from tests.broker.client.cluster import Broker


async def taken(follower: Follower, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with trio.fail_after(60):
        while len(found) < count:
            found += [message.body for message in await follower.take()]
    return found


async def test_a_follower_sees_what_comes_from_new_queues_and_new_leaders_too(
    leaders: list[Broker], admin: AdminClient
) -> None:
    a, b = leaders
    a.append("t", 0, b"before")
    async with Follower(admin, "t") as follower:
        a.append("t", 0, b"1")
        b.append("t", 1, b"2")
        assert sorted(filter(None, await taken(follower, 2))) == [b"1", b"2"]
        b.create_topic("t", 3)
        b.append("t", 2, b"in a new queue")
        assert await taken(follower, 1) == [b"in a new queue"]
        a.kill()
        await trio.sleep(10)
        a.append("t", 1, b"3")
        assert await taken(follower, 1) == [b"3"]
        assert await follower.take() == []


async def test_a_follower_takes_what_is_wanted_since_a_time(
    leaders: list[Broker], admin: AdminClient
) -> None:
    a, _ = leaders
    a.append("t", 0, b"old", b"TAGS\x01x\x02")
    await trio.sleep(60)
    since_ms = admin.core.runtime.wall_ms() - 30_000
    a.append("t", 0, b"1", b"TAGS\x01x\x02")
    a.append("t", 0, b"2", b"TAGS\x01y\x02price\x0112\x02")
    await trio.sleep(10)
    async with Follower(admin, "t", wanted="x || z", since_ms=since_ms) as follower:
        assert await taken(follower, 1) == [b"1"]
    async with Follower(admin, "t", wanted=SqlFilter("price > 10"), since_ms=0) as follower:
        assert await taken(follower, 1) == [b"2"]
    with pytest.raises(NoRoute):
        async with Follower(admin, "nowhere"):
            pass


async def test_a_condition_that_no_broker_can_read_ends_it_at_once(
    leaders: list[Broker], admin: AdminClient
) -> None:
    with pytest.raises(BrokerError, match="no SQL92 condition"):
        async with Follower(admin, "t", wanted=SqlFilter("a ==== b")):
            pass
    with pytest.raises(UsageError, match="names no tag"):
        Follower(admin, "t", wanted="||")


async def test_rates_are_what_lies_between_two_samples(leaders: list[Broker], admin: AdminClient) -> None:
    a, b = leaders
    for _ in range(10):
        a.append("t", 0, b"x")
    a.commit("g", "t", 0, 1)
    b.commit("other", "t", 0, 0)
    before = await sample(await Groups.registered(admin))
    for _ in range(20):
        a.append("t", 0, b"x")
        b.append("t", 1, b"x")
    a.commit("g", "t", 0, 11)
    await trio.sleep(2)
    after = await sample(await Groups.registered(admin))
    seconds = (after.at_ns - before.at_ns) / 1e9
    found = between(before, after)
    (topic,) = found.topics
    assert topic.topic == "t"
    assert topic.stored_per_s == pytest.approx(40 / seconds)
    assert [(group.group, group.lag) for group in found.groups] == [("other", 20), ("g", 19)]
    assert found.groups[1].consumed_per_s == pytest.approx(10 / seconds)
    assert [(node.broker, node.role) for node in found.nodes] == [
        ("a", "leader"),
        ("a", "follower"),
        ("a", "follower"),
        ("b", "leader"),
    ]
    assert all(node.failure is None and node.disk_used_percent is not None for node in found.nodes)
