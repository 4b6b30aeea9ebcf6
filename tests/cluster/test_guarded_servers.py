"""Real processes with TLS, accounts and a secret of the brokers, and a stranger who has the authority's certificate."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from broker.access.accounts import AccountEntry
from broker.backups.directory import Backup
from broker.client.admin import AdminClient
from broker.client.errors import BrokerError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.transport.credentials import Credentials
from broker.operations.access import accounts_in_force, add_account
from broker.remoting.codes import RequestCode, ResponseCode
from broker.spark_source.offsets import ranges
from broker.spark_source.options import parse_options
from broker.spark_source.sink import write_portion
from broker.spark_source.sink_options import parse_sink_options
from broker.spark_source.topic_reader import TopicReader
from broker.state.release import THIS_RELEASE
from broker.tools.cluster.query import ask
from tests.broker.shell.certificates import Certificates
from tests.broker.shell.test_access import ACCOUNTS, OPERATOR
from tests.interop.configured import ConfiguredCluster

pytestmark = pytest.mark.cluster

SECRET = "a secret of the brokers"


def _security_of_operator(cluster: ConfiguredCluster, authority: str) -> dict[str, str]:
    """Options of Spark's source and sink."""
    return {
        "nameServers": ",".join(cluster.name_servers),
        "tlsCa": authority,
        "accessKey": OPERATOR.access_key,
        "secretKey": OPERATOR.secret_key,
    }


async def spark_writes(cluster: ConfiguredCluster, authority: str, body: bytes) -> None:
    """What a task of Spark's sink does, twice as after a failure."""
    given = _security_of_operator(cluster, authority) | {"topic": "orders"}
    options = parse_sink_options(given, streaming=False, overwrite=False)
    for _ in range(2):
        await write_portion(options, "query/0", 0, 0, iter([pa.record_batch({"body": [body]})]))


async def spark_reads(cluster: ConfiguredCluster, authority: str) -> list[bytes]:
    """What the reader of Spark's source gets under the operator's account."""
    given = _security_of_operator(cluster, authority) | {"subscribePattern": "ord.*"}
    async with TopicReader(parse_options(given, streaming=False)) as reader:
        ends = await reader.ends(await reader.queues())
        found = [await reader.read_slice(one) for one in ranges(ends.earliest, ends.latest)]
    return [message.body for one in found for message in one.messages]


async def newcomer_may_publish(
    cluster: ConfiguredCluster, certificates: Certificates, accounts: Path
) -> None:
    """An account is added to the file that all servers read; all say when it is in force, and then it is."""
    newcomer = AccountEntry(
        access_key="newcomer", secret_key="a secret of its own", topic_permissions={"orders": "PUB"}
    )
    add_account(accounts, newcomer)
    tls = certificates.client()
    async with AdminClient(cluster.name_servers, tls=tls, credentials=OPERATOR) as admin:
        found = await accounts_in_force(admin, accounts)
        while {one.state for one in found} != {"in force"}:
            assert {one.state for one in found} <= {"in force", "other accounts"}
            await trio.sleep(0.1)
            found = await accounts_in_force(admin, accounts)
    assert sorted(one.server for one in found) == ["broker", "broker", "broker", "name server"]
    credentials = Credentials(newcomer.access_key, newcomer.secret_key)
    async with Producer(cluster.name_servers, group="p", tls=tls, credentials=credentials) as producer:
        await producer.send(Message("orders", b"mine"))
    async with AdminClient(cluster.name_servers, tls=tls, credentials=credentials) as admin:
        assert {one.state for one in await accounts_in_force(admin, accounts)} == {"does not tell"}


async def test_a_stranger_over_tls_changes_nothing_and_is_told_of(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue()
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    folder = tmp_path / "servers"
    cluster = ConfiguredCluster(
        folder,
        nodes=3,
        broker={
            "node": {"registration_secret": SECRET},
            "raft": {"peer_secret": SECRET},
            "acl": {"file": str(accounts)},
            "tls": {
                "mode": "enforcing",
                "certificate": certificate,
                "key": key,
                "name_server_ca": certificates.authority(),
            },
        },
        name_server={
            "registration_secret": SECRET,
            "acl_file": str(accounts),
            "tls_mode": "enforcing",
            "tls_certificate": certificate,
            "tls_key": key,
        },
        environment={
            "TRIVET_TLS_CA": certificates.authority(),
            "TRIVET_ACCESS_KEY": OPERATOR.access_key,
            "TRIVET_SECRET_KEY": OPERATOR.secret_key,
        },
    )
    try:
        cluster.trivet("topic", "create", "orders", "--queues", "2")
        assert cluster.trivet("acl", "status", "--file", str(accounts), "--json").count('"in force"') == 4
        await newcomer_may_publish(cluster, certificates, accounts)
        before = leader_of(cluster)
        identity = {
            "brokerName": "broker-a",
            "brokerAddr": before,
            "clusterName": "DefaultCluster",
            "brokerId": "0",
        }
        tls = certificates.client()
        for code, fields in (
            (RequestCode.REGISTER_BROKER, {**identity, "brokerAddr": "127.0.0.1:6", "haServerAddr": ""}),
            (RequestCode.UNREGISTER_BROKER, identity),
            (RequestCode.WIPE_WRITE_PERM_OF_BROKER, identity),
            (RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
            (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"}),
            (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "orders"}),
        ):
            with pytest.raises(BrokerError) as refused:
                await ask(cluster.name_servers[0], code, fields, tls=tls)
            assert refused.value.code == ResponseCode.NO_PERMISSION
        assert leader_of(cluster) == before
        cluster.trivet("produce", "orders", "still here")
        await spark_writes(cluster, certificates.authority(), b"from Spark")
        read = sorted(await spark_reads(cluster, certificates.authority()))
        assert read == [b"from Spark", b"mine", b"still here"]
        with pytest.raises(BrokerError) as refused:
            await ask(before, RequestCode.TRIVET_BACKUP_BEGIN, {}, tls=tls)
        assert refused.value.code == ResponseCode.NO_PERMISSION
        told = json.loads(cluster.trivet("backup", str(tmp_path / "backup"), "--json"))
        assert told["group"] == "broker-a"
        Backup(tmp_path / "backup", THIS_RELEASE).verify()
    finally:
        cluster.stop()
    log = (folder / "namesrv-0.log").read_text()
    assert "request refused" in log
    assert "source=127.0.0.1" in log
    assert [line for line in log.splitlines() if "open to everyone" in line and "acl_routes" in line]
    assert "open to everyone" not in (folder / "n0.log").read_text()


def leader_of(cluster: ConfiguredCluster) -> str:
    """The address to which clients are sent."""
    nodes = json.loads(cluster.trivet("status", "--json"))["nodes"]
    (leader,) = [node["address"] for node in nodes if node["role"] == "leader"]
    return str(leader)
