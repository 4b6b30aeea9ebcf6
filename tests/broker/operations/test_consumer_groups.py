"""Consumer groups as an operator sees them: progress, members, disagreements, deletion."""

from __future__ import annotations

import functools

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.operations.asking import Groups
from broker.operations.consumer_groups import Conflict, delete_group, describe_group, list_groups
from broker.operations.errors import InUse, NotThere
from broker.remoting.bodies import ConsumeFromWhere
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime


async def test_a_group_far_behind(leaders: list[Broker], admin: AdminClient) -> None:
    a, b = leaders
    for number in range(5):
        a.append("t", 0, b"%d" % number)
    b.append("t", 1, b"x")
    a.commit("late", "t", 0, 2)
    b.commit("late", "t", 1, 1)
    await trio.sleep(7)
    with a.client() as client:
        client.heartbeat("late", ["t"])
        (summary,) = await list_groups(await Groups.registered(admin))
        found = await describe_group(await Groups.registered(admin), "late")
    assert (summary.name, summary.kind, summary.members) == ("late", "clustering", 1)
    assert summary.topics == ("t",)
    assert summary.lag == found.lag == 3
    own = [at for at in found.queues if at.topic == "t"]
    assert {at.topic for at in found.queues} == {"t", "%RETRY%late"}
    assert [(at.broker, at.queue, at.position, at.end, at.lag) for at in own] == [
        ("a", 0, 2, 5, 3),
        ("a", 1, 0, 0, 0),
        ("b", 0, 0, 0, 0),
        ("b", 1, 1, 1, 0),
    ]
    assert 10 <= own[0].lag_s < 11, "seven seconds, and three in which the member was asked in vain"
    assert found.lag_s == own[0].lag_s
    (member,) = found.members
    assert member.subscriptions is None, "this client answers no questions"
    assert [(wanted.topic, wanted.expression) for wanted in found.subscriptions] == [("t", "*")]


async def test_a_group_that_has_read_at_one_broker_group_only(
    leaders: list[Broker], admin: AdminClient
) -> None:
    """Nobody is there to say what it subscribes to: what it has read of a topic says that it reads the rest, too."""
    a, b = leaders
    for broker in (a, b):
        broker.append("t", 0, b"x")
    a.commit("away", "t", 0, 1)
    with a.client() as client:
        client.heartbeat("away", ["t"])
    found = await describe_group(await Groups.registered(admin), "away")
    (summary,) = await list_groups(await Groups.registered(admin))
    assert summary.lag == found.lag == 1
    assert [(at.broker, at.queue, at.lag) for at in found.queues if at.topic == "t" and at.lag] == [
        ("b", 0, 1)
    ]


@pytest.mark.parametrize(
    ("begins", "position", "lag"),
    [
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, None, 2),
        (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, 0, 5),
        (ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, None, 5),
        (None, None, 5),
    ],
)
async def test_a_queue_without_a_position_counts_from_where_a_first_pull_would_begin(
    leaders: list[Broker], admin: AdminClient, begins: ConsumeFromWhere | None, position: int | None, lag: int
) -> None:
    """At a, the first messages are deleted, so that members that want it begin at the end; at b none are."""
    a, b = leaders
    a.append("t", 0, b"deleted")
    await a.delete_stored()
    for number in range(3):
        a.append("t", 0, b"%d" % number)
    for number in range(2):
        b.append("t", 1, b"%d" % number)
    if position is not None:
        a.commit("new", "t", 0, position)
    with a.client() as client, b.client() as other:
        for one in (client, other):
            one.heartbeat(
                "new", ["t"], consume_from_where=begins or ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            )
        if begins is None:
            a.commit("new", "t", 1, 0)
            client.close()
            other.close()
        found = await describe_group(await Groups.registered(admin), "new")
        (summary,) = await list_groups(await Groups.registered(admin))
    assert [at.begin for at in found.queues if at.topic == "t"] == [1, 0, 0, 0]
    assert (found.lag, summary.lag) == (lag, lag)


async def test_members_that_disagree_and_what_each_holds(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    consumer = functools.partial(Consumer, NAME_SERVER, group="torn", runtime=runtime)
    async with (
        consumer(topics={"t": "a || b"}) as first,
        consumer(topics={"t": "b||a"}) as second,
        consumer(topics={"t": "c"}) as third,
    ):
        await trio.sleep(30)
        found = await describe_group(await Groups.registered(admin), "torn")
        ids = [one.core.client_id for one in (first, second, third)]
        (conflict,) = found.conflicts
        assert conflict == Conflict(topic="t", wanted=(("a || b", tuple(sorted(ids[:2]))), ("c", (ids[2],))))
        owned = {(at.broker, at.topic, at.queue): at.owner for at in found.queues if at.topic == "t"}
        assert set(owned.values()) == set(ids)
        for one, client_id in zip((first, second, third), ids, strict=True):
            own = {(queue.broker_name, queue.topic, queue.queue_id) for queue in one.assignment()}
            assert {place for place, owner in owned.items() if owner == client_id} == {
                place for place in own if place[1] == "t"
            }
        assert {member.language for member in found.members} == {"PYTHON"}


async def test_a_group_is_deleted_when_nobody_is_in_it(leaders: list[Broker], admin: AdminClient) -> None:
    a, _ = leaders
    with a.client() as client:
        client.heartbeat("g", ["t"])
        with pytest.raises(InUse, match="has 1 members"):
            await delete_group(await Groups.registered(admin), "g")
    a.commit("g", "t", 0, 0)
    await delete_group(await Groups.registered(admin), "g")
    assert await list_groups(await Groups.registered(admin)) == []
    assert a.offset("g") is None
    with pytest.raises(NotThere):
        await describe_group(await Groups.registered(admin), "g")
    with pytest.raises(NotThere):
        await delete_group(await Groups.registered(admin), "g")
