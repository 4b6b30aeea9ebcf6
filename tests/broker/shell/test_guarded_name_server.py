"""A name server with TLS, a secret and accounts on real sockets, and a group that registers there.

Every attack of a stranger over TLS fails, and clients, administrators and brokers go on.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
import pytest
import structlog.testing
import trio

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.credentials import Credentials
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.rocketmq_signature import ACCESS_KEY
from broker.settings.tables import AclSettings, NameServerSettings, Settings, TlsSettings
from broker.tools.cluster.query import ask, cluster_info, registered_brokers
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.servers import running
from tests.broker.shell.test_access import ACCOUNTS, OPERATOR, ORDERS

SECRET = "a secret of the brokers"


async def wait_leader_registered(
    name_server: str, tls: ssl.SSLContext, credentials: Credentials | None = OPERATOR
) -> None:
    while True:
        brokers = (await cluster_info(name_server, tls=tls, credentials=credentials)).broker_table.values()
        if any(0 in broker.broker_addresses for broker in brokers):
            return
        await trio.sleep(0.01)


async def test_strangers_over_tls_change_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    certificates = Certificates(folder)
    certificate, key = certificates.issue()
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    name_server = NameServerSettings(
        kv_config_path="",
        tls_mode="enforcing",
        tls_certificate=certificate,
        tls_key=key,
        registration_secret=SECRET,
        acl_file=str(accounts),
        acl_signatures="frame",
    )

    def change(settings: Settings) -> Settings:
        return msgspec.structs.replace(
            settings,
            node=msgspec.structs.replace(settings.node, registration_secret=SECRET),
            acl=AclSettings(file=str(accounts), signatures="frame"),
            tls=TlsSettings(
                mode="enforcing", certificate=certificate, key=key, name_server_ca=certificates.authority()
            ),
        )

    tls = certificates.client()
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, nodes=3, name_server=name_server, change=change) as servers:
            address = servers.name_server
            leader = await servers.wait_leader()
            await wait_leader_registered(address, tls)
            async with AdminClient(address, tls=tls, credentials=OPERATOR) as admin:
                await admin.create_topic("orders", queues=1)
            async with Producer(
                address, group="p", tls=tls, credentials=ORDERS, send_timeout_s=60
            ) as producer:
                await producer.send(Message("orders", b"1"))

            identity = {
                "brokerName": leader.node.group,
                "brokerAddr": leader.address,
                "clusterName": "DefaultCluster",
                "brokerId": "0",
            }
            attacks: tuple[tuple[int, dict[str, str]], ...] = (
                (RequestCode.REGISTER_BROKER, {**identity, "brokerAddr": "127.0.0.1:6", "haServerAddr": "h"}),
                (RequestCode.UNREGISTER_BROKER, identity),
                (RequestCode.WIPE_WRITE_PERM_OF_BROKER, identity),
                (RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
                (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"}),
                (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "orders"}),
                (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
            )
            for credentials in (None, Credentials("operator", "guessed-secret")):
                for code, fields in attacks:
                    with pytest.raises(BrokerError) as refused:
                        await ask(address, code, fields, tls=tls, credentials=credentials)
                    assert refused.value.code == ResponseCode.NO_PERMISSION, code
            # What mqadmin would send: RocketMQ's signature, which this name server does not take.
            fields = OPERATOR.sign({"brokerName": leader.node.group}, b"")
            with pytest.raises(BrokerError, match="not signed as a whole"):
                await ask(address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, fields, tls=tls)
            with pytest.raises(BrokerError):
                await ask(address, RequestCode.PUT_KV_CONFIG, {ACCESS_KEY: "broker"}, tls=tls)

            found = await registered_brokers(address, tls=tls, credentials=OPERATOR)
            assert {broker.broker_id: broker.address for broker in found}[0] == leader.address
            assert [broker.error for broker in found] == [None] * 3
            async with Producer(
                address, group="p", tls=tls, credentials=ORDERS, send_timeout_s=60
            ) as producer:
                await producer.send(Message("orders", b"2"))  # routes and permissions are what they were

            # The leader goes, in order: its unregistration and the next one's registration are theirs.
            leader.stop()
            while True:
                try:
                    found = await registered_brokers(address, tls=tls, credentials=OPERATOR)
                except ClientError:
                    continue
                if any(broker.broker_id == 0 and broker.address != leader.address for broker in found):
                    break
                await trio.sleep(0.01)
    told = [line for line in logs if line["event"] == "request refused"]
    assert {line["source"] for line in told} == {"127.0.0.1"}
    assert {"no broker", "no account", "bad signature"} <= {line["reason"] for line in told}


async def test_brokers_register_by_their_certificates_and_nobody_else_does(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    certificates = Certificates(folder)
    server = certificates.issue()
    node = certificates.issue(authority="nodes")
    name_server = NameServerSettings(
        kv_config_path="",
        tls_certificate=server[0],
        tls_key=server[1],
        tls_broker_ca=certificates.authority("nodes"),
    )

    def change(settings: Settings) -> Settings:
        tls = TlsSettings(
            certificate=node[0],
            key=node[1],
            peer_ca=certificates.authority("nodes"),
            name_server_ca=certificates.authority(),
        )
        return msgspec.structs.replace(settings, tls=tls)

    nobody = certificates.client()
    async with running(tmp_path, nodes=3, name_server=name_server, change=change) as servers:
        leader = await servers.wait_leader()
        await wait_leader_registered(servers.name_server, nobody, None)
        intruder = {
            "brokerName": leader.node.group,
            "brokerAddr": "127.0.0.1:6",
            "clusterName": "DefaultCluster",
            "brokerId": "0",
            "haServerAddr": "h",
        }
        for tls in (nobody, None):
            with pytest.raises(BrokerError, match="tls_broker_ca") as refused:
                await ask(servers.name_server, RequestCode.REGISTER_BROKER, intruder, tls=tls)
            assert refused.value.code == ResponseCode.NO_PERMISSION
        # A certificate of another authority is no better than none, of whatever name it is.
        shown = certificates.client(shows=certificates.issue(identity="127.0.0.2"))
        with pytest.raises(ClientError):
            await ask(servers.name_server, RequestCode.REGISTER_BROKER, intruder, tls=shown)
        brokers = await registered_brokers(servers.name_server, tls=nobody)
        assert {broker.address for broker in brokers} == {
            broker.address for broker in servers.brokers.values()
        }
        by_node = certificates.client(shows=node)
        await ask(
            servers.name_server, RequestCode.REGISTER_BROKER, {**intruder, "brokerName": "b"}, tls=by_node
        )
