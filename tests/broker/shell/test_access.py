"""Accounts on running brokers: what is refused reaches no processor, followers decide for their own clients."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog.testing
import trio

from broker.access.accounts import AccountsError
from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import BrokerError, NotDelivered, SendOutcomeUnknown
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import RequestCode, ResponseCode
from broker.settings.tables import AclSettings, Settings, TlsSettings
from broker.tools.cluster.query import ask
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import LIMIT_S, Servers, running

ACCOUNTS = """
[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true

[[accounts]]
access_key = "orders-service"
secret_key = "orders-secret"
topic_permissions = { orders = "PUB|SUB" }
group_permissions = { orders-group = "SUB" }
"""

OPERATOR = Credentials("operator", "operator-secret")
ORDERS = Credentials("orders-service", "orders-secret")


@contextlib.asynccontextmanager
async def guarded(folder: Path, nodes: int = 1) -> AsyncIterator[tuple[Servers, Path]]:
    """Brokers with accounts, and the file of them."""
    file = folder / "accounts.toml"
    file.write_text(ACCOUNTS)

    def change(settings: Settings) -> Settings:
        return msgspec.structs.replace(settings, acl=AclSettings(file=str(file), allow_plaintext=True))

    async with running(folder, nodes=nodes, change=change) as servers:
        await servers.wait_leader()
        await servers.wait_registered()
        yield servers, file


async def check_refused(producer: Producer, topic: str, why: str) -> None:
    """A send to the topic is not delivered, and the error says why.

    A send repeats what may be allowed soon, until its time is over: one whose last attempt had no time left for the
    answer says nothing of it and is repeated.
    """
    while True:
        with pytest.raises((NotDelivered, SendOutcomeUnknown)) as refused:
            await producer.send(Message(topic, b"1"), timeout_s=1)
        if isinstance(refused.value, NotDelivered):
            assert why in str(refused.value)
            return


async def test_accounts_bound_what_clients_do(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (servers, _):
        leader = await servers.wait_leader()
        name_server = servers.name_server
        async with AdminClient(name_server, credentials=ORDERS) as admin:
            with pytest.raises(BrokerError, match="needs an administrator") as refused:
                await admin.create_topic("orders", queues=1)
            assert refused.value.code == ResponseCode.NO_PERMISSION
        async with AdminClient(name_server, credentials=OPERATOR) as admin:
            await admin.create_topic("orders", queues=1)
            await admin.create_topic("payroll", queues=1)
        async with Producer(name_server, group="p", credentials=ORDERS, send_timeout_s=60) as producer:
            sent = await producer.send(Message("orders", b"1"))
            await check_refused(producer, "payroll", "needs PUB on topic 'payroll'")
        async with PullConsumer(name_server, group="orders-group", credentials=ORDERS) as consumer:
            consumer.assign({sent.queue: 0})
            assert [message.body for message in await consumer.poll(timeout_s=LIMIT_S)] == [b"1"]
        async with Producer(name_server, group="p", send_timeout_s=60) as producer:
            await check_refused(producer, "orders", "names no AccessKey")
        assert leader.node.stats.put == 1


async def test_an_account_is_taken_over_tls_alone(tmp_path: Path) -> None:
    """Where the broker has both kinds of connections, as `permissive` has it, and nobody has told it otherwise."""
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue()
    file = tmp_path / "accounts.toml"
    file.write_text(ACCOUNTS)

    def change(settings: Settings) -> Settings:
        tls = TlsSettings(certificate=certificate, key=key)
        return msgspec.structs.replace(settings, acl=AclSettings(file=str(file)), tls=tls)

    async with running(tmp_path, change=change) as servers:
        broker = await servers.wait_leader()
        code = RequestCode.GET_BROKER_CONFIG
        for credentials in (OPERATOR, ORDERS):
            with pytest.raises(
                BrokerError, match="over TLS alone here, and this connection is plain"
            ) as refused:
                await ask(broker.address, code, credentials=credentials)
            assert refused.value.code == ResponseCode.NO_PERMISSION
        await ask(broker.address, code, credentials=OPERATOR, tls=certificates.client())
        file.write_text('white_remote_addresses = ["127.0.0.1"]\n' + ACCOUNTS)
        broker.reload()
        await ask(broker.address, code)


async def test_follower_decides_and_the_leader_believes_it(tmp_path: Path) -> None:
    """Forwarded requests are checked where they came in; the leader takes the follower's word."""
    async with guarded(tmp_path, nodes=3) as (servers, _):
        leader = await servers.wait_leader()
        follower = next(broker for broker in servers.brokers.values() if broker is not leader)
        fields = {
            "topic": "orders",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        }
        create = RequestCode.UPDATE_AND_CREATE_TOPIC
        for credentials in (None, ORDERS, Credentials("operator", "another-secret")):
            with pytest.raises(BrokerError) as refused:
                await ask(follower.address, create, fields, credentials=credentials)
            assert refused.value.code == ResponseCode.NO_PERMISSION
        assert "orders" not in leader.node.replica.metadata.topics
        await ask(follower.address, create, fields, credentials=OPERATOR)
        assert "orders" in leader.node.replica.metadata.topics


async def test_accounts_are_read_anew(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (servers, file):
        broker = await servers.wait_leader()
        new = Credentials("newcomer", "newcomer-secret")
        with pytest.raises(BrokerError, match="no account has the AccessKey 'newcomer'"):
            await ask(broker.address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, credentials=new)
        file.write_text(ACCOUNTS + '[[accounts]]\naccess_key = "newcomer"\nsecret_key = "newcomer-secret"\n')
        broker.reload()
        await ask(broker.address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, credentials=new)
        with structlog.testing.capture_logs() as logs:
            file.write_text("[[accounts]]\naccess_key = 7\n")
            broker.reload()
        assert "account 1, access_key: Expected `str`" in logs[0]["reason"]
        await ask(broker.address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, credentials=new)


async def test_changed_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.shell.access_file._LOOK_S", 0.05)
    async with guarded(tmp_path) as (servers, file):
        broker = await servers.wait_leader()
        with pytest.raises(BrokerError, match="names no AccessKey"):
            await ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
        file.write_text('white_remote_addresses = ["127.0.0.1"]\n' + ACCOUNTS)
        with trio.fail_after(10):
            while True:
                try:
                    await ask(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
                    break
                except BrokerError:
                    await trio.sleep(0.02)


async def test_broker_without_its_accounts_does_not_start(tmp_path: Path) -> None:
    def change(settings: Settings) -> Settings:
        return msgspec.structs.replace(
            settings, acl=AclSettings(file=str(tmp_path / "none.toml"), allow_plaintext=True)
        )

    with pytest.raises(ExceptionGroup) as refused:
        async with running(tmp_path, change=change):
            pass
    assert refused.group_contains(AccountsError, match=r"none\.toml: No such file")
