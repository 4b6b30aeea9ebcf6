"""A store that RocketMQ wrote becomes a group of Trivet, in which its clients go on. Part of ``make interop``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.interop import wire
from tests.interop.artifacts import REFERENCE_VERSION, REFERENCE_VERSION_5
from tests.interop.clients import Client
from tests.interop.cluster import HOST, free_base_port, make_topic
from tests.interop.configured import DATA_FILE_BYTES, TRIVET
from tests.interop.conftest import ClientOf, Configure, available
from tests.interop.processes import Child, Event, wait_until
from tests.interop.reference import GROUP, ReferenceCluster
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, SEND_LIMIT_S, bodies, read_back, send

pytestmark = [pytest.mark.java_only, pytest.mark.trivet_only, pytest.mark.slow]

TOPIC = "orders"
ONE_MINUTE = 5
"""A delay level. Until the copy is made nothing may fall due."""
TIMED_S = 100
REST_LIMIT_S = TIMED_S + DELIVERY_LIMIT_S


def trivet(*words: str | Path) -> str:
    done = subprocess.run(
        [TRIVET, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def reference_of(client_name: str, folder: Path, settings: dict[str, str]) -> ReferenceCluster:
    """One broker of the client's version."""
    version = REFERENCE_VERSION if client_name.startswith("java-4") else REFERENCE_VERSION_5
    with available():
        return ReferenceCluster(folder, 1, {"transactionTimeOut": "60000", **settings}, version=version)


def dledger_settings() -> dict[str, str]:
    """Of a DLedger group of one node."""
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": GROUP,
        "dLegerPeers": f"n0-{HOST}:{free_base_port(1)}",
        "dLegerSelfId": "n0",
    }


@pytest.fixture
def reference(client_name: str, tmp_path: Path) -> Iterator[ReferenceCluster]:
    cluster = reference_of(client_name, tmp_path / "reference", dledger_settings())
    yield cluster
    cluster.stop()


@dataclass(frozen=True)
class Sent:
    """What a broker was given before it was taken over."""

    consumed: set[str]
    """What the group going-on had consumed."""
    timed: int
    """Messages of a time of their own."""
    stored: list[Event]
    """All messages that were to be read."""


def fill(reference: ReferenceCluster, client: Client) -> Sent:
    """Messages that are consumed and others that are not, delayed ones, and transactions with and without an end."""
    make_topic(reference, TOPIC, queues=3)
    make_topic(reference, "gone", queues=1)
    consumer = client.start("push", topic=TOPIC, group="going-on")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, TOPIC, count=120, tags="red,green", size=300)
    send(client, TOPIC, count=20, mode="batch", batch=10, prefix="batch-")
    consumer.wait_until(
        lambda: len(set(bodies(consumer.of("message")))) == 140, DELIVERY_LIMIT_S, "all that was sent"
    )
    consumer.stop()
    consumed = set(bodies(consumer.of("message")))
    send(client, TOPIC, count=60, prefix="rest-", size=50_000)
    send(client, TOPIC, count=3, prefix="late-", delay_level=ONE_MINUTE)
    for outcome, prefix in (("unknown", "half-"), ("commit", "done-")):
        sender = client.start(
            "transaction", topic=TOPIC, group="deciders", outcome=outcome, count=2, prefix=prefix
        )
        sender.wait_for("done", SEND_LIMIT_S)
        sender.stop()
    timed = timed_of(client.name)
    if timed:
        send(client, TOPIC, count=timed, prefix="timed-", delay_sec=TIMED_S)
    return Sent(consumed, timed, read_back(client, TOPIC))


def timed_of(client_name: str) -> int:
    """How many messages have a time of their own: 5.x has a timer wheel, 4.x none."""
    return 0 if client_name.startswith("java-4") else 2


def check_clients_go_on(
    backup: Path, sent: Sent, configure: Configure, client_of: ClientOf, *, more: int, may_repeat: bool
) -> None:
    """Makes a group of the backup: messages are where they were, and clients get the rest."""

    def restore(config: Path) -> None:
        trivet("restore", backup, "--config", config, "--yes")

    moved = configure(
        nodes=3,
        broker={
            "node": {"group": GROUP},
            "raft": {"lineage": "moved"},
            "broker": {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 500},
        },
        before_start=restore,
    )
    client = client_of(moved.name_server)
    after = read_back(client, TOPIC)
    places = ("queue", "offset", "body", "msg_id", "born_ms", "store_ms")
    kept = [[event[name] for name in places] for event in sent.stored]
    known = {(event["queue"], event["offset"]): [event[name] for name in places] for event in after}
    assert [known[event["queue"], event["offset"]] for event in sent.stored] == kept

    consumer = client.start("push", topic=TOPIC, group="going-on")
    deciders = client.start(
        "transaction",
        topic=TOPIC,
        group="deciders",
        outcome="commit",
        check_outcome="commit",
        count=1,
        prefix="x-",
    )
    wanted = {
        f"{name}-{number}"
        for name, count in (
            ("rest", 60),
            ("late", 3),
            ("half", 2),
            ("done", 2),
            ("timed", sent.timed),
            ("more", more),
        )
        for number in range(count)
    }
    consumer.wait_until(
        lambda: wanted <= set(bodies(consumer.of("message"))), REST_LIMIT_S, "what was not consumed yet"
    )
    deciders.stop()
    again = sent.consumed & set(bodies(consumer.of("message")))
    assert not again or may_repeat, again


@pytest.mark.parametrize("end", ["stopped", "killed", "followed"])
def test_clients_go_on_where_they_were(
    reference: ReferenceCluster, client_of: ClientOf, configure: Configure, tmp_path: Path, end: str
) -> None:
    client = client_of(reference.name_server)
    sent = fill(reference, client)
    client.stop_all()
    root, backup = reference.store_of("n0"), tmp_path / "backup"
    command = ["migrate", "--from", str(root), "--to", str(backup), "--group", GROUP, "--json"]
    follower, more = None, 0
    if end == "followed":
        # It copies beside a broker that serves, and ends by itself when that has stopped.
        follower = Child([TRIVET, *command, "--follow"], log=tmp_path / "follower.log", cwd=tmp_path)
        wait_until((backup / "manifest.json").exists, DELIVERY_LIMIT_S, "the begin of the copy")
        more = 50
        send(client, TOPIC, count=more, prefix="more-", size=2_000)
        client.stop_all()
    if end == "killed":
        # Positions and the end of the log are written every few seconds: those of a killed broker must be there.
        wait_until(lambda: "going-on" in offsets_text(root), 60, "the positions of the consumer")
        os.kill(reference.nodes[0].pid, signal.SIGKILL)
    reference.stop(keep_stores=True)

    report: dict[str, Any] = json.loads(trivet(*command)) if follower is None else report_of(follower)
    assert report["is_complete"]
    waiting = report["delayed_waiting"], report["timed_waiting"], report["half_open"]
    assert waiting == (3, sent.timed, 2), report
    if follower is None:  # units that the broker makes behind a copy are not compared
        assert report["units_compared"] == report["messages"], report["not_taken"]
    assert report["records_without_queue"] == 0
    if end != "killed":
        assert report["not_taken"] == []
    trivet("backup", "verify", backup)
    check_clients_go_on(backup, sent, configure, client_of, more=more, may_repeat=end == "killed")


@pytest.mark.parametrize("kind", ["plain", "dledger"])
def test_a_broker_that_runs_is_taken_over_through_its_own_protocol(
    client_name: str, kind: str, client_of: ClientOf, configure: Configure, tmp_path: Path
) -> None:
    settings = {} if kind == "plain" else dledger_settings()
    reference = reference_of(client_name, tmp_path / "reference", settings)
    try:
        client = client_of(reference.name_server)
        sent = fill(reference, client)
        config = tmp_path / "node.toml"
        config.write_text(
            f'[node]\nid = "n0"\ngroup = "{GROUP}"\nlisten = "{HOST}:10911"\n'
            f"[storage]\ndata_file_bytes = {DATA_FILE_BYTES}\n"
        )
        command = ["migrate", "--from", reference.name_server, "--config", str(config), "--json"]
        seen = json.loads(trivet(*command))
        assert (seen["is_complete"], seen["delayed_waiting"]) == (False, 3)
        backup = tmp_path / "backup"
        follower = Child(
            [TRIVET, *command, "--to", str(backup), "--follow"], log=tmp_path / "follower.log", cwd=tmp_path
        )
        wait_until((backup / "manifest.json").exists, DELIVERY_LIMIT_S, "the begin of the copy")
        send(client, TOPIC, count=50, prefix="more-", size=2_000)
        client.stop_all()
        take_no_messages = b"brokerPermission=4\n"
        answer = wire.call(reference.leader().address, wire.UPDATE_BROKER_CONFIG, {}, take_no_messages)
        assert answer.code == wire.SUCCESS
        report = report_of(follower)
    finally:
        reference.stop()
    assert report["is_complete"]
    # 4.x does not show which half messages are decided: it says so, and producers are asked about them again.
    unseen = 0 if sent.timed else 2
    waiting = report["delayed_waiting"], report["timed_waiting"], report["half_open"]
    assert waiting == (3, sent.timed, 2 + unseen), report
    assert report["records_without_queue"] == 0
    told = [sentence.split(",")[0].split("(")[0] for sentence in report["not_taken"]]
    assert told[0].startswith("message ids")
    assert told[1:] == (["decisions about half messages"] if unseen else []), told
    trivet("backup", "verify", backup)
    check_clients_go_on(backup, sent, configure, client_of, more=50, may_repeat=False)


ACCOUNTS_4 = """accounts:
- accessKey: operator
  secretKey: operator-secret
  admin: true
"""
ACCOUNTS_5 = {
    "authenticationEnabled": "true",
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": '{"username":"operator","password":"operator-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"operator","secretKey":"operator-secret"}',
}


def test_a_broker_with_accounts_and_tls_is_taken_over_by_whom_it_knows(
    client_name: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # Java reads no other
    (tmp_path / "key.pem").write_bytes(key_pem)
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    folder = tmp_path / "reference"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "plain_acl.yml").write_text(ACCOUNTS_4)
    is_4 = client_name.startswith("java-4")
    with available():
        reference = ReferenceCluster(
            folder,
            1,
            {"aclEnable": "true"} if is_4 else ACCOUNTS_5,
            version=REFERENCE_VERSION if is_4 else REFERENCE_VERSION_5,
            broker_options=["-Dtls.server.mode=enforcing"],
            options=(
                "-Dtls.test.mode.enable=false",
                f"-Dtls.server.certPath={tmp_path}/cert.pem",
                f"-Dtls.server.keyPath={tmp_path}/key.pem",
            ),
        )
    name_server = reference.name_server
    encrypted = ("--tls-ca", tmp_path / "ca.pem")
    known = (*encrypted, "--access-key", "operator", "--secret-key", "operator-secret")
    try:
        trivet("produce", TOPIC, "a", "b", "c", "--namesrv", name_server, *known)
        command = ("migrate", "--from", name_server)
        for options, reason in (
            ((), "connection"),
            (encrypted, "accesskey" if is_4 else "username"),
            ((*known[:-1], "wrong"), "signature"),
        ):
            refused = subprocess.run(
                [TRIVET, *map(str, (*command, *options))],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
            assert reason in refused.stderr.lower()
            assert len(refused.stderr.splitlines()) == 1
        trivet("config", "set", "brokerPermission=4", "--yes", "--namesrv", name_server, *known)
        report = json.loads(trivet(*command, *known, "--to", tmp_path / "backup", "--follow", "--json"))
    finally:
        reference.stop()
    assert (report["messages"], report["is_complete"]) == (3, True)
    trivet("backup", "verify", tmp_path / "backup")


def report_of(follower: Child) -> dict[str, Any]:
    """Waits for its end, and returns what it has printed."""
    assert follower.wait_for_end(DELIVERY_LIMIT_S) == 0, follower.tail()
    lines = follower.lines
    wait_until(lambda: len(lines) > 0, DELIVERY_LIMIT_S, "its report")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def offsets_text(root: Path) -> str:
    path = root / "config" / "consumerOffset.json"
    return path.read_text() if path.exists() else ""
