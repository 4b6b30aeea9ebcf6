"""Java clients and mqadmin against brokers that want TLS and know their accounts (docs/security.md).

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.interop.clients import Client
from tests.interop.configured import ConfiguredCluster
from tests.interop.conftest import ClientOf, Configure
from tests.interop.mqadmin import Mqadmin
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    SEND_LIMIT_S,
    everything_received,
    read_back,
    send,
)

pytestmark = [pytest.mark.java_only, pytest.mark.trivet_only]

ACCOUNTS = """
[[accounts]]
access_key = "operator"
secret_key = "operator-secret"
admin = true

[[accounts]]
access_key = "orders-service"
secret_key = "orders-secret"
default_topic_permission = "DENY"
default_group_permission = "DENY"
topic_permissions = { orders = "PUB|SUB" }
group_permissions = { orders-group = "SUB", interop-reader = "SUB" }
"""
OPERATOR = {"access_key": "operator", "secret_key": "operator-secret"}
ORDERS = {"access_key": "orders-service", "secret_key": "orders-secret"}
WRONG = {"access_key": "orders-service", "secret_key": "guessed"}


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files of an authority and of a server that it certifies."""

    authority: Path
    server: Path
    key: Path


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    files = Certificates(tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "server.key")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(files.authority))
    server = authority.issue_cert("127.0.0.1", "localhost")
    server.private_key_pem.write_to_path(str(files.key))
    for pem in server.cert_chain_pems:
        pem.write_to_path(str(files.server), append=True)
    return files


def trusting(authority: Path) -> tuple[str, ...]:
    """Options with which a Java client encrypts, and checks the server's certificate."""
    return (
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={authority}",
    )


def test_tls(client_of: ClientOf, configure: Configure, certificates: Certificates, tmp_path: Path) -> None:
    """Every connection is encrypted and verified; a client that does not encrypt, or trusts others, gets nowhere."""
    served = {"certificate": str(certificates.server), "key": str(certificates.key)}
    cluster = configure(
        nodes=3,
        broker={"tls": {"mode": "enforcing", "name_server_ca": str(certificates.authority), **served}},
        name_server={"tls_mode": "enforcing", **{f"tls_{name}": value for name, value in served.items()}},
        environment={"TRIVET_TLS_CA": str(certificates.authority)},
    )
    cluster.trivet("topic", "create", "orders", "--queues", "2")
    client = client_of(cluster.name_server, *trusting(certificates.authority))
    consumer = client.start("push", topic="orders", group="orders-group")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, "orders", count=10)
    send(client, "orders", count=1, size=1_000_000, prefix="large-")
    everything = {f"m-{i}" for i in range(10)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "ten messages")
    assert len(read_back(client, "orders")) == 11
    assert "#QID" in Mqadmin(client)("topicStatus", "-t", "orders")

    strangers = tmp_path / "strangers.pem"
    trustme.CA().cert_pem.write_to_path(str(strangers))
    for stranger in (client_of(cluster.name_server), client_of(cluster.name_server, *trusting(strangers))):
        sender = stranger.start("send", topic="orders", group="interop-sender", timeout_ms=1000)
        sender.finish(SEND_LIMIT_S)
        assert sender.of("sent") == []
        assert len(sender.of("failed")) == 1


def with_accounts(configure: Configure, tmp_path: Path) -> ConfiguredCluster:
    """Starts a broker with `ACCOUNTS`, which Trivet's own commands reach as `OPERATOR`."""
    (tmp_path / "accounts.toml").write_text(ACCOUNTS)
    return configure(
        broker={"acl": {"file": str(tmp_path / "accounts.toml"), "allow_plaintext": True}},
        environment={
            "TRIVET_ACCESS_KEY": OPERATOR["access_key"],
            "TRIVET_SECRET_KEY": OPERATOR["secret_key"],
        },
    )


@pytest.fixture
def guarded(configure: Configure, tmp_path: Path) -> ConfiguredCluster:
    """A broker with accounts, and its topics."""
    cluster = with_accounts(configure, tmp_path)
    for topic in ("orders", "payroll"):
        cluster.trivet("topic", "create", topic, "--queues", "2")
    return cluster


def refusal(client: Client, topic: str, **credentials: str) -> str:
    """Returns the reason for which a send was refused."""
    sender = client.start("send", topic=topic, group="interop-sender", timeout_ms=20_000, **credentials)
    sender.finish(SEND_LIMIT_S)
    assert sender.of("sent") == []
    (failed,) = sender.of("failed")
    return str(failed["error"])


@pytest.mark.both_headers
def test_accounts(client_of: ClientOf, guarded: ConfiguredCluster) -> None:
    """AclClientRPCHook: signed requests are served as far as the account's permissions reach."""
    client = client_of(guarded.name_server)
    consumer = client.start("push", topic="orders", group="orders-group", **ORDERS)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, "orders", count=5, **ORDERS)
    send(client, "orders", count=5, mode="batch", batch=5, prefix="batch-", **ORDERS)
    everything = {f"{prefix}-{i}" for prefix in ("m", "batch") for i in range(5)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "ten messages")
    assert len(read_back(client, "orders", **ORDERS)) == 10

    assert "CODE: 16" in refusal(client, "payroll", **ORDERS)
    assert "CODE: 16" in refusal(client, "orders", **WRONG)
    assert "CODE: 16" in refusal(client, "orders")
    reader = client.start("pull", topic="payroll", group="interop-reader", **ORDERS)
    assert reader.wait_for_end(DELIVERY_LIMIT_S) != 0
    assert "CODE: 16" in reader.log.read_text()


def test_mqadmin_needs_an_administrator(client_of: ClientOf, guarded: ConfiguredCluster) -> None:
    client = client_of(guarded.name_server)
    change = ("updateTopic", "-b", guarded.leader().address, "-t", "made")
    assert "create topic to" in Mqadmin(client, **OPERATOR)(*change)
    assert "CODE: 16" in Mqadmin(client_of(guarded.name_server), **ORDERS)(*change, excused="CODE: 16")
    assert "CODE: 16" in Mqadmin(client_of(guarded.name_server))(*change, excused="CODE: 16")
