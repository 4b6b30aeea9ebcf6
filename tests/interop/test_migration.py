"""A store that RocketMQ wrote becomes a group of Trivet, in which its clients go on. Part of ``make interop``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.artifacts import REFERENCE_VERSION, REFERENCE_VERSION_5
from tests.interop.cluster import HOST, free_base_port, make_topic
from tests.interop.configured import TRIVET
from tests.interop.conftest import ClientOf, Configure, available
from tests.interop.processes import Child, wait_until
from tests.interop.reference import GROUP, ReferenceCluster
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, SEND_LIMIT_S, bodies, read_back, send

pytestmark = [pytest.mark.java_only, pytest.mark.trivet_only, pytest.mark.slow]

TOPIC = "orders"


def trivet(*words: str | Path) -> str:
    done = subprocess.run(
        [TRIVET, *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def reference(client_name: str, tmp_path: Path) -> Iterator[ReferenceCluster]:
    """A DLedger group of one node, of the client's version."""
    version = REFERENCE_VERSION if client_name.startswith("java-4") else REFERENCE_VERSION_5
    peer = f"n0-{HOST}:{free_base_port(1)}"
    dledger = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": GROUP,
        "dLegerPeers": peer,
        "dLegerSelfId": "n0",
        "transactionTimeOut": "60000",
    }
    with available():
        cluster = ReferenceCluster(tmp_path / "reference", 1, dledger, version=version)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("end", ["stopped", "killed", "followed"])
def test_clients_go_on_where_they_were(
    reference: ReferenceCluster, client_of: ClientOf, configure: Configure, tmp_path: Path, end: str
) -> None:
    client = client_of(reference.name_server)
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
    send(client, TOPIC, count=3, prefix="late-", delay_level=4)
    sender = client.start(
        "transaction", topic=TOPIC, group="deciders", outcome="unknown", count=2, prefix="half-"
    )
    sender.wait_for("done", SEND_LIMIT_S)
    sender.stop()
    decided = client.start(
        "transaction", topic=TOPIC, group="deciders", outcome="commit", count=2, prefix="done-"
    )
    decided.wait_for("done", SEND_LIMIT_S)
    decided.stop()
    before = read_back(client, TOPIC)
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

    if follower is not None:
        assert follower.wait_for_end(DELIVERY_LIMIT_S) == 0, follower.tail()
        lines = follower.lines
        wait_until(lambda: len(lines) > 0, DELIVERY_LIMIT_S, "its report")
        output = lines[-1]
    else:
        output = trivet(*command)
    report: dict[str, Any] = json.loads(output)
    assert report["is_complete"]
    assert (report["delayed_waiting"], report["half_open"]) == (3, 2), report
    if follower is None:  # units that the broker makes behind a copy are not compared
        assert report["units_compared"] == report["messages"], report["not_taken"]
    assert report["records_without_queue"] == 0
    if end != "killed":
        assert report["not_taken"] == []
    trivet("backup", "verify", backup)

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
    kept = [[event[name] for name in places] for event in before]
    known = {(event["queue"], event["offset"]): [event[name] for name in places] for event in after}
    assert [known[event["queue"], event["offset"]] for event in before] == kept

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
        for name, count in (("rest", 60), ("late", 3), ("half", 2), ("done", 2), ("more", more))
        for number in range(count)
    }
    consumer.wait_until(
        lambda: wanted <= set(bodies(consumer.of("message"))), DELIVERY_LIMIT_S, "what was not consumed yet"
    )
    deciders.stop()
    again = consumed & set(bodies(consumer.of("message")))
    assert not again or end == "killed", again


def offsets_text(root: Path) -> str:
    path = root / "config" / "consumerOffset.json"
    return path.read_text() if path.exists() else ""
