"""Topics, connected clients, what waits, settings and accounts, as an operator asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker.access.accounts import AccountsError
from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, NoRoute, UsageError
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.client.producing.transactions import Decision, TransactionalProducer
from broker.operations.access import check_account, list_accounts, show_account
from broker.operations.asking import Groups
from broker.operations.clients import connected_clients
from broker.operations.errors import InUse, NotThere
from broker.operations.settings import change_settings, settings_in_force
from broker.operations.topics import (
    alter_topic,
    delete_topic,
    topic_stats,
)
from broker.operations.waiting_messages import waiting_messages
from broker.remoting.codes import RequestCode
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime, second_damaged


async def test_a_topic_is_shown_altered_and_deleted(leaders: list[Broker], admin: AdminClient) -> None:
    a, b = leaders
    for _ in range(30):
        a.append("t", 0, bytes(100))
    b.append("t", 1, b"x")
    b.commit("g", "t", 1, 1)
    found = await topic_stats(await Groups.registered(admin), "t")
    assert (found.messages, found.groups) == (31, ("g",))
    assert found.messages_per_s == pytest.approx(31 / 60)
    assert [(at.broker, at.write_queues, [queue.end for queue in at.queues]) for at in found.brokers] == [
        ("a", 2, [30, 0]),
        ("b", 2, [0, 1]),
    ]
    assert await alter_topic(await Groups.registered(admin), "t", may_write=False, brokers=["a"]) == ["a"]
    assert await alter_topic(await Groups.registered(admin), "t", queues=3) == ["a", "b"]
    found = await topic_stats(await Groups.registered(admin), "t")
    assert [(at.read_queues, at.may_read, at.may_write) for at in found.brokers] == [
        (3, True, False),
        (3, True, True),
    ]
    with pytest.raises(UsageError, match="nothing to change"):
        await alter_topic(await Groups.registered(admin), "t")
    with pytest.raises(NotThere):
        await alter_topic(await Groups.registered(admin), "x", queues=1)
    with pytest.raises(NoRoute, match="no such group"):
        await alter_topic(await Groups.registered(admin), "t", queues=1, brokers=["z"])
    with a.client() as client:
        client.heartbeat("g", ["t"])
        with pytest.raises(InUse, match="'g' subscribes"):
            await delete_topic(await Groups.registered(admin), "t")
    await delete_topic(await Groups.registered(admin), "t")
    with pytest.raises(NotThere):
        await topic_stats(await Groups.registered(admin), "t")
    with pytest.raises(NotThere):
        await delete_topic(await Groups.registered(admin), "t")


async def test_clients_are_told_once_for_each_group(leaders: list[Broker], admin: AdminClient) -> None:
    a, b = leaders
    with a.client("me@1") as client, b.client("me@1") as same, b.client("you@2") as other:
        client.heartbeat("readers", ["t"], producer_group="writers")
        same.heartbeat("readers", ["t"])
        other.heartbeat(producer_group="writers")
        found = await connected_clients(await Groups.registered(admin))
    assert [(one.role, one.group, one.client_id, one.brokers) for one in found] == [
        ("consumer", "readers", "me@1", ("a", "b")),
        ("producer", "writers", "me@1", ("a",)),
        ("producer", "writers", "you@2", ("b",)),
    ]
    assert {one.language for one in found} == {"JAVA"}


async def test_what_waits(leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime) -> None:
    async def later(message: object) -> Decision:
        return Decision.UNKNOWN

    async with (
        Producer(NAME_SERVER, group="p", runtime=runtime) as producer,
        TransactionalProducer(NAME_SERVER, group="tp", check=later, runtime=runtime) as transactions,
    ):
        await producer.send(Message("t", b"level", delay_level=5))
        await producer.send(Message("t", b"time", delay_ms=600_000))
        opened = await transactions.begin(Message("t", b"half"))
        decided = await transactions.begin(Message("t", b"decided"))
        await decided.commit()
        await trio.sleep(20)
        found = await waiting_messages(await Groups.registered(admin))
        assert (found.by_level, found.timed, found.half) == ({5: 1}, 1, 1)
        delayed = found.delayed_messages
        assert [(one.kind, one.home, one.message.body) for one in delayed] == [
            ("level", "t", b"level"),
            ("time", "t", b"time"),
        ]
        assert [(one.due_ms or 0) - one.message.stored_ms for one in delayed] == pytest.approx(
            [60_000, 600_000], abs=100
        )
        (half,) = found.half_messages
        assert (half.home, half.producer_group, half.message.body) == ("t", "tp", b"half")
        await opened.rollback()
        await trio.sleep(120)
        found = await waiting_messages(await Groups.registered(admin))
        assert (found.by_level, found.timed, found.half) == ({}, 1, 0)


async def test_one_that_tells_nothing_keeps_no_other_that_waits_from_being_told(
    leaders: list[Broker], admin: AdminClient
) -> None:
    for number in range(3):
        leaders[0].append("t", 0, b"%d" % number, b"DELAY\x015\x02")
    leaders[0].script(RequestCode.PULL_MESSAGE, leaders[0].instead(second_damaged))
    found = await waiting_messages(await Groups.registered(admin))
    assert [one.message.body for one in found.delayed_messages] == [None, b"0", b"2"]
    assert [one.due_ms is None for one in found.delayed_messages] == [True, False, False]


async def test_a_half_message_that_tells_nothing_is_shown_as_damaged(
    leaders: list[Broker], admin: AdminClient, runtime: ClientRuntime
) -> None:
    async def later(message: object) -> Decision:
        return Decision.UNKNOWN

    async with TransactionalProducer(NAME_SERVER, group="tp", check=later, runtime=runtime) as producer:
        for number in range(3):
            queue = MessageQueue("t", "a", 0)
            await producer.begin(Message("t", b"%d" % number), queue=queue)
        leaders[0].script(RequestCode.PULL_MESSAGE, leaders[0].instead(second_damaged))
        found = await waiting_messages(await Groups.registered(admin))
        assert found.half == 3
        assert [one.message.body for one in found.half_messages] == [None, b"0", b"2"]


async def test_settings_and_where_they_are_from(leaders: list[Broker], admin: AdminClient) -> None:
    nodes = await settings_in_force(admin)
    assert [node.broker for node in nodes] == ["a", "a", "a", "b"]
    at = leaders[0].address
    assert await change_settings(admin, {"brokerPermission": "4"}, address=at) == [at]
    (node,) = await settings_in_force(admin, address=at)
    told = {one.name: one for one in node.settings}
    assert (told["brokerPermission"].value, told["brokerPermission"].origin) == ("4", "run time")
    assert told["brokerPermission"].changeable
    assert (told["brokerName"].value, told["brokerName"].origin) == ("a", "file")
    assert not told["brokerName"].changeable
    assert told["flushDiskType"].origin == "default"
    others = await settings_in_force(admin)
    assert [[one.value for one in node.settings if one.name == "brokerPermission"] for node in others].count(
        ["6"]
    ) == 3
    with pytest.raises(BrokerError, match="cannot change while the broker runs"):
        await change_settings(admin, {"brokerName": "z"})
    with pytest.raises(NotThere, match="no broker is registered at"):
        await change_settings(admin, {"brokerPermission": "6"}, address="nowhere:1")
    with pytest.raises(UsageError):
        await change_settings(admin, {})


def test_accounts_say_who_may_do_what(tmp_path: Path) -> None:
    path = tmp_path / "accounts.toml"
    path.write_text(
        '[[accounts]]\naccess_key = "operator"\nsecret_key = "12345678"\nadmin = true\n'
        'topic_permissions = { closed = "DENY" }\n'
        '[[accounts]]\naccess_key = "service"\nsecret_key = "87654321"\n'
        'default_group_permission = "SUB"\ntopic_permissions = { orders = "PUB" }\n'
    )
    operator, service = list_accounts(path)
    assert (operator.admin, service.admin) == (True, False)
    assert "12345678" not in repr(operator)
    assert show_account(path, "service").topics == {"orders": "PUB"}

    def may(access_key: str, **of: str) -> tuple[bool, bool]:
        verdict = check_account(path, access_key, **of)
        return verdict.may_publish, verdict.may_subscribe

    assert may("operator", topic="any") == (True, True)
    assert may("operator", topic="closed") == (False, False)
    assert may("service", topic="orders") == (True, False)
    assert may("service", topic="other") == (False, False)
    assert may("service", group="g") == (False, True)
    with pytest.raises(NotThere):
        show_account(path, "nobody!")
    path.write_text("[[accounts]]\n")
    with pytest.raises(AccountsError):
        list_accounts(path)
