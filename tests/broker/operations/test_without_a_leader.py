"""One broker group of two has no leader: each operation does what it can in the other, and can be repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, ClientError, NoRoute
from broker.operations.asking import Groups, leaderless
from broker.operations.clients import connected_clients
from broker.operations.consumer_groups import delete_group, describe_group, list_groups
from broker.operations.dead_letters import count_dead_letters, list_dead_letters, purge, redrive
from broker.operations.doctor import diagnose
from broker.operations.errors import InUse, NotThere, in_words
from broker.operations.figures import between, sample
from broker.operations.following import QUEUES_LOOKED_FOR_S, Follower
from broker.operations.messages import find_messages, way_of
from broker.operations.resets import Target, preview_reset, reset
from broker.operations.settings import change_settings, settings_in_force
from broker.operations.topics import (
    alter_topic,
    create_topic,
    delete_topic,
    plan_topic,
    topic_queues,
    topic_stats,
    what_it_changes,
)
from broker.operations.waiting_messages import waiting_messages
from broker.remoting.codes import RequestCode
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster
from tests.broker.client.links import ClientRuntime, World, code


@dataclass(frozen=True)
class Halves:
    """Two broker groups: `a` of three nodes, two of which can be taken away and come back, and `b` of one."""

    admin: AdminClient
    a: list[Broker]
    b: Broker

    def lose(self) -> None:
        for broker in self.a[:2]:
            broker.kill()

    async def find_again(self) -> None:
        for broker in self.a[:2]:
            broker.restart()
        await trio.sleep(30)

    async def groups(self) -> Groups:
        """The groups of one operation."""
        return await Groups.registered(self.admin)


@pytest.fixture
async def halves(world: World, runtime: ClientRuntime) -> AsyncIterator[Halves]:
    cluster = Cluster(world)
    of_a, (b,) = cluster.add_group("a", 3), cluster.add_group("b")
    for leader in (of_a[0], b):
        leader.create_topic("t", 2)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        yield Halves(admin, of_a, b)


def names(groups: Groups) -> list[str]:
    return [one.group for one in groups.missing]


async def test_a_topic_is_created_where_it_can_be(halves: Halves) -> None:
    wanted = plan_topic(await halves.groups(), "u", queues=3)
    assert wanted.groups == ("a", "b")
    halves.lose()
    groups = await halves.groups()
    assert (await create_topic(groups, wanted), names(groups)) == (["b"], ["a"])
    assert await what_it_changes(await halves.groups(), wanted) == []
    groups = await halves.groups()
    assert await what_it_changes(groups, plan_topic(groups, "u", queues=3, ordered=True)) == ["b"]
    await halves.find_again()
    groups = await halves.groups()
    assert (await create_topic(groups, wanted), names(groups)) == (["a", "b"], [])
    assert len((await topic_queues(groups, "u")).queues) == 6


async def test_a_topic_is_shown_changed_and_deleted_where_it_can_be(halves: Halves) -> None:
    halves.b.append("t", 1, b"x")
    halves.lose()
    groups = await halves.groups()
    queues = await topic_queues(groups, "t")
    assert [(at.queue.broker_name, at.max_offset) for at in queues.queues] == [("b", 0), ("b", 1)]
    assert (queues.leaders, names(groups)) == ({"a": None, "b": halves.b.address}, ["a"])
    groups = await halves.groups()
    assert ((await topic_stats(groups, "t")).messages, names(groups)) == (1, ["a"])
    with pytest.raises(NotThere, match="a may have it"):
        await topic_stats(await halves.groups(), "v")

    groups = await halves.groups()
    assert (await alter_topic(groups, "t", queues=4), names(groups)) == (["b"], ["a"])
    with pytest.raises(ClientError):
        await alter_topic(await halves.groups(), "t", queues=5, brokers=["a"])
    await halves.find_again()
    groups = await halves.groups()
    assert (await alter_topic(groups, "t", queues=4), names(groups)) == (["a", "b"], [])
    assert [at.read_queues for at in (await topic_stats(groups, "t")).brokers] == [4, 4]

    with halves.b.client() as client:
        client.heartbeat("g", ["t"])
        halves.lose()
        with pytest.raises(InUse):
            await delete_topic(await halves.groups(), "t")
    groups = await halves.groups()
    assert (await delete_topic(groups, "t"), names(groups)) == (["b"], ["a"])
    await halves.find_again()
    assert [at.broker for at in (await topic_stats(await halves.groups(), "t")).brokers] == ["a"]
    groups = await halves.groups()
    assert (await delete_topic(groups, "t"), names(groups)) == (["a", "b"], [])
    with pytest.raises(NotThere):
        await delete_topic(await halves.groups(), "t")


async def test_a_consumer_group_is_shown_and_sent_elsewhere_where_it_can_be(halves: Halves) -> None:
    a, b = halves.a[0], halves.b
    for broker in (a, b):
        for _ in range(3):
            broker.append("t", 0, b"x")
        with broker.client() as client:
            client.heartbeat("g", ["t"])
        broker.commit("g", "t", 0, 1)
    assert [one.lag for one in await list_groups(await halves.groups())] == [4]
    halves.lose()
    groups = await halves.groups()
    (summary,) = await list_groups(groups)
    assert (summary.name, summary.lag, names(groups)) == ("g", 2, ["a"])
    groups = await halves.groups()
    found = await describe_group(groups, "g")
    assert (found.lag, {at.broker for at in found.queues}, names(groups)) == (2, {"b"}, ["a"])

    groups = await halves.groups()
    resets = await preview_reset(groups, "g", "t", Target(kind="latest"))
    done = await reset(groups, "g", resets)
    assert ({one.broker for one in done}, names(groups)) == ({"b"}, ["a"])
    # A shift that is repeated goes further: it is done in all, or where it is named.
    with pytest.raises(NoRoute, match="name one broker group"):
        await preview_reset(await halves.groups(), "g", "t", Target(kind="by", value=-1))
    assert (
        len(await preview_reset(await halves.groups(), "g", "t", Target(kind="by", value=-1, broker="b")))
        == 2
    )
    await halves.find_again()
    assert (await describe_group(await halves.groups(), "g")).lag == 2
    groups = await halves.groups()
    await reset(groups, "g", await preview_reset(groups, "g", "t", Target(kind="latest")))
    assert ((await describe_group(await halves.groups(), "g")).lag, names(groups)) == (0, [])


async def test_a_consumer_group_is_deleted_where_it_can_be(halves: Halves) -> None:
    for broker in (halves.a[0], halves.b):
        with broker.client() as client:
            client.heartbeat("g", ["t"])
        broker.commit("g", "t", 0, 0)
    halves.lose()
    groups = await halves.groups()
    assert (await delete_group(groups, "g"), names(groups)) == (["b"], ["a"])
    await halves.find_again()
    assert [one.name for one in await list_groups(await halves.groups())] == ["g"]
    groups = await halves.groups()
    assert (await delete_group(groups, "g"), names(groups)) == (["a", "b"], [])
    assert await list_groups(await halves.groups()) == []


async def test_dead_letters_are_told_sent_and_deleted_where_they_can_be(halves: Halves) -> None:
    for broker in (halves.a[0], halves.b):
        broker.create_topic("%DLQ%g", 1)
        broker.create_topic("%RETRY%g", 1)
        broker.append("%DLQ%g", 0, b"x")
        with broker.client() as client:
            client.heartbeat("g", ["t"])
    halves.a[0].create_topic("%DLQ%only-a", 1)
    halves.a[0].append("%DLQ%only-a", 0, b"x")
    await trio.sleep(1)
    assert (await count_dead_letters(await halves.groups(), "g")).kept == 2
    halves.lose()
    groups = await halves.groups()
    assert ([(one.group, one.kept) for one in await list_dead_letters(groups)], names(groups)) == (
        [("g", 1)],
        ["a"],
    )
    groups = await halves.groups()
    sent = await redrive(groups, "g")
    assert (sent.sent, sent.left, names(groups)) == (1, 0, ["a"])
    groups = await halves.groups()
    assert (await purge(groups, "g"), names(groups)) == (1, ["a"])
    with pytest.raises(ClientError):
        await count_dead_letters(await halves.groups(), "only-a")
    await halves.find_again()
    sent = await redrive(await halves.groups(), "g")
    assert (sent.sent, sent.left) == (1, 0)


async def test_what_is_looked_at_is_told_where_it_can_be(halves: Halves) -> None:
    with halves.b.client("me@1") as client:
        client.heartbeat("g", ["t"])
        client.send("t", b"x", 0, {"KEYS": "k", "UNIQ_KEY": "AC11000100001111AAAA000000000001"})
        halves.b.commit("g", "t", 0, 0)
        halves.lose()
        groups = await halves.groups()
        assert ([one.client_id for one in await connected_clients(groups)], names(groups)) == (
            ["me@1"],
            ["a"],
        )
    groups = await halves.groups()
    (message,) = await find_messages(groups, "t")
    assert (message.body, names(groups)) == (b"x", ["a"])
    groups = await halves.groups()
    assert (len(await find_messages(groups, "t", key="k")), names(groups)) == (1, ["a"])
    groups = await halves.groups()
    way = await way_of(groups, "t", message.message_id)
    assert ([step.broker for step in way.steps], names(groups)) == (["b"], ["a"])
    groups = await halves.groups()
    assert ((await waiting_messages(groups)).timed, names(groups)) == (0, ["a"])
    diagnosis = await diagnose(halves.admin)
    assert not diagnosis.is_healthy
    # A group that comes back is no burst of messages.
    before = await sample(await halves.groups())
    await halves.find_again()
    halves.a[0].commit("g", "t", 0, 0)
    after = await sample(await halves.groups())
    assert ([one.group for one in before.missing], after.missing) == (["a"], ())
    assert [rate.stored_per_s for rate in between(before, after).topics] == [0.0]


async def test_what_can_be_followed_is_and_the_rest_when_it_answers_again(halves: Halves) -> None:
    halves.a[0].append("t", 0, b"before")
    halves.b.append("t", 0, b"before")
    await trio.sleep(1)
    halves.lose()
    async with Follower(halves.admin, "t") as follower:
        assert [one.group for one in follower.missing] == ["a"]
        halves.b.append("t", 1, b"b")
        assert await bodies(follower) == [b"b"]
        await halves.find_again()
        halves.a[0].append("t", 1, b"a")
        assert await bodies(follower) == [b"a"]
        assert follower.missing == ()
        halves.b.create_topic("t", 3)
        halves.b.append("t", 2, b"in a new queue")
        assert await bodies(follower) == [b"in a new queue"]
        assert await bodies(follower, 0) == []


async def bodies(follower: Follower, count: int = 1) -> list[bytes | None]:
    """So many messages, or those that come until queues have been looked for."""
    found: list[bytes | None] = []
    with trio.move_on_after(3 * QUEUES_LOOKED_FOR_S):
        while not count or len(found) < count:
            found += [message.body for message in await follower.take()]
    return found


async def test_an_order_to_change_settings_that_ends_in_the_middle_says_what_it_has_changed(
    halves: Halves,
) -> None:
    halves.b.script(RequestCode.UPDATE_BROKER_CONFIG, code(1, "not now"))
    with pytest.raises(BrokerError) as failed:
        await change_settings(halves.admin, {"brokerPermission": "4"})
    changed = ", ".join(broker.address for broker in halves.a)
    assert in_words(failed.value) == f"{failed.value}; changed before that at {changed}"


async def test_settings_are_told_of_nodes_that_answer(halves: Halves) -> None:
    halves.a[2].script(RequestCode.GET_BROKER_CONFIG, code(1, "not now"))
    told = await settings_in_force(halves.admin)
    assert sorted((one.broker, bool(one.settings)) for one in told) == [
        ("a", False), ("a", True), ("a", True), ("b", True)
    ]  # fmt: skip
    (failure,) = (one.failure for one in told if one.failure is not None)
    assert failure == f"{halves.a[2].address} answered code 1: not now"
    halves.lose()
    assert [one.group for one in leaderless(await halves.admin.cluster_info())] == ["a"]
    for broker in (*halves.a, halves.b):
        broker.kill()
    with pytest.raises(ClientError):
        await settings_in_force(halves.admin)


async def test_a_topic_is_looked_up_in_the_list_of_a_broker_that_knows_no_question_for_one(
    halves: Halves,
) -> None:
    unknown = code(3, "request type 351 not supported")
    for topic, found in (("t", ["a", "b"]), ("nowhere", ["a"])):
        halves.a[0].create_topic("nowhere", 1)
        halves.b.script(RequestCode.GET_TOPIC_CONFIG, unknown)
        groups = await halves.groups()
        stats = await topic_stats(groups, topic)
        assert ([at.broker for at in stats.brokers], names(groups)) == (found, [])
    halves.b.script(RequestCode.GET_TOPIC_CONFIG, unknown)
    groups = await halves.groups()
    assert await what_it_changes(groups, plan_topic(groups, "t", queues=3)) == ["a", "b"]


async def test_nothing_is_done_where_no_group_answers_and_a_refusal_is_no_absence(halves: Halves) -> None:
    groups = await halves.groups()
    for broker in (halves.a[0], halves.b):
        broker.script(RequestCode.GET_TOPIC_CONFIG, code(16, "not yours"))
    with pytest.raises(BrokerError, match="not yours"):
        await topic_stats(groups, "t")
    assert (names(groups), groups.names) == ([], ("a", "b"))
    wanted = plan_topic(groups, "u", queues=3)
    for broker in halves.a:
        broker.kill()
    halves.b.kill()
    with pytest.raises(ClientError):
        await create_topic(groups, wanted)
