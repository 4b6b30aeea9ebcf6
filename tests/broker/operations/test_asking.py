"""Questions to several: some at once and no more, the next member when one fails, the first error for all."""

from __future__ import annotations

import pytest
import trio

from broker.access.accounts import parse
from broker.access.control import AccessControl
from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, NoRoute
from broker.client.transport.credentials import Credentials
from broker.operations.asking import AT_ONCE, Groups, each
from broker.operations.clients import connected_clients
from broker.operations.consumer_groups import describe_group, list_groups
from broker.operations.doctor import diagnose
from broker.operations.messages import find_messages, way_of
from broker.operations.resets import Target, preview_reset, reset
from broker.remoting.codes import RequestCode
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime, code
from tests.broker.client.links import reset as broken

ACCOUNTS = """
[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true

[[accounts]]
access_key = "shop-service"
secret_key = "shop-secret"
topic_permissions = { t = "PUB|SUB" }
group_permissions = { shop = "SUB", TOOLS_CONSUMER = "SUB" }
"""


async def test_so_many_are_asked_at_once_and_answers_keep_their_order(admin: AdminClient) -> None:
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1 + number % 3)
        under_way -= 1
        return number * number

    assert await each(admin, range(100), ask) == [number * number for number in range(100)]
    assert most == AT_ONCE
    assert await each(admin, [], ask) == []


async def test_the_first_error_ends_all(admin: AdminClient) -> None:
    asked = []

    async def ask(number: int) -> None:
        asked.append(number)
        await trio.sleep(number)
        raise NoRoute("t", f"error {number}")

    with pytest.raises(NoRoute, match="error 3"):
        await each(admin, range(3, 90), ask)
    assert len(asked) == AT_ONCE


async def test_another_member_is_asked_unless_it_cannot_know_better(
    leaders: list[Broker], admin: AdminClient
) -> None:
    a, _ = leaders
    groups = await Groups.registered(admin)
    for step in (broken, code(14), code(1)):
        a.script(RequestCode.GET_TOPIC_STATS_INFO, step)
        response = await groups.read("a", RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"})
        assert response.code == 0
    a.script(RequestCode.GET_TOPIC_STATS_INFO, code(16, "not yours"))
    with pytest.raises(BrokerError, match="not yours"):
        await groups.read("a", RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"})
    with pytest.raises(NoRoute, match="no such group"):
        await groups.read("z", RequestCode.GET_TOPIC_STATS_INFO, {"topic": "t"})


async def test_the_leader_dies_between_two_questions(leaders: list[Broker], admin: AdminClient) -> None:
    a, _ = leaders
    a.append("t", 0, b"x")
    a.commit("g", "t", 0, 0)
    groups = await Groups.registered(admin)
    a.kill()
    response = await groups.read("a", RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert b"offsetTable" in bytes(response.body)


async def test_an_account_is_shown_what_is_its_own(leaders: list[Broker], runtime: ClientRuntime) -> None:
    a, b = leaders
    a.create_topic("secret")
    a.append("t", 0, b"x")
    for group, topic in (("shop", "t"), ("shop", "secret"), ("bank", "secret")):
        with a.client(f"{group}@1") as client:
            client.heartbeat(group, [topic])
        a.commit(group, topic, 0, 0)
    await trio.sleep(1)
    for member in (*a.group.alive(), *b.group.alive()):
        member.alive.access = AccessControl(parse(ACCOUNTS, "accounts.toml"))

    def account(access_key: str, secret_key: str) -> AdminClient:
        return AdminClient(NAME_SERVER, runtime=runtime, credentials=Credentials(access_key, secret_key))

    async with account("operator", "operator-secret") as admin:
        assert [group.name for group in await list_groups(await Groups.registered(admin))] == ["bank", "shop"]
        assert {at.topic for at in (await describe_group(await Groups.registered(admin), "shop")).queues} == {
            *("t", "secret", "%RETRY%shop")
        }
        assert (await diagnose(admin)).is_healthy
    async with account("shop-service", "shop-secret") as admin:
        (own,) = await list_groups(await Groups.registered(admin))
        assert (own.name, own.topics) == ("shop", ("t",))
        assert {at.topic for at in (await describe_group(await Groups.registered(admin), "shop")).queues} == {
            "t",
            "%RETRY%shop",
        }
        resets = await preview_reset(await Groups.registered(admin), "shop", "t", Target(kind="latest"))
        await reset(await Groups.registered(admin), "shop", resets)
        assert a.offset("shop") == 1
        (message,) = await find_messages(await Groups.registered(admin), "t")
        way = await way_of(await Groups.registered(admin), "t", message.message_id)
        assert [(one.group, one.state) for one in way.groups] == [("shop", "consumed")]
        with pytest.raises(BrokerError, match="needs SUB on group 'bank'"):
            await describe_group(await Groups.registered(admin), "bank")
        with pytest.raises(BrokerError, match="administrator"):
            await connected_clients(await Groups.registered(admin))
        diagnosis = await diagnose(admin)
        assert "nodes" in {finding.check for finding in diagnosis.findings}
    with pytest.raises(BrokerError):
        async with AdminClient(NAME_SERVER, runtime=runtime) as stranger:
            await list_groups(await Groups.registered(stranger))
