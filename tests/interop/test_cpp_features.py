"""Features that the C++ client has in its own way: accounts, name servers, asynchronous sends, the limit of retries.

Part of ``make interop``; needs neither Java nor Maven.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import Cluster, make_topic
from tests.interop.conftest import ClientOf, Configure
from tests.interop.processes import wait_until
from tests.interop.test_groups_and_failover import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
from tests.interop.test_java_secured import ORDERS, WRONG, with_accounts
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    SEND_LIMIT_S,
    bodies,
    everything_received,
    read_back,
    send,
)

pytestmark = [pytest.mark.cpp_only, pytest.mark.extended]


def test_asynchronous_sends_are_stored_at_their_offsets(client: Client, topic: str) -> None:
    sent = send(client, topic, mode="async", count=200)

    assert {event["status"] for event in sent} == {"OK"}
    stored = {event["body"]: event["offset"] for event in read_back(client, topic)}
    assert {f"m-{event['index']}": event["offset"] for event in sent} == stored


@pytest.mark.trivet_only
def test_accounts(client_of: ClientOf, configure: Configure, tmp_path: Path) -> None:
    """This client signs every request; without an account, with an empty key."""
    cluster = with_accounts(configure, tmp_path)
    for topic in ("orders", "payroll"):
        cluster.trivet("topic", "create", topic, "--queues", "2")
    client = client_of(cluster.name_server)
    consumer = client.start("push", topic="orders", group="orders-group", **ORDERS)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, "orders", count=5, **ORDERS)
    send(client, "orders", count=5, mode="batch", batch=5, prefix="batch-", **ORDERS)
    everything = {f"{prefix}-{i}" for prefix in ("m", "batch") for i in range(5)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "ten messages")
    assert len(read_back(client, "orders", **ORDERS)) == 10

    for topic, account in (("payroll", ORDERS), ("orders", WRONG), ("orders", {})):
        sender = client.start("send", topic=topic, group="interop-sender", timeout_ms=5_000, **account)
        sender.finish(SEND_LIMIT_S)
        assert (len(sender.of("sent")), len(sender.of("failed"))) == (0, 1), (topic, account)


@pytest.mark.trivet_only
def test_one_of_two_name_servers_is_lost(client_of: ClientOf, configure: Configure) -> None:
    cluster = configure(name_servers=2, broker={"broker": {"register_interval_ms": 1000}})
    topic = make_topic(cluster, "orders")
    client = client_of(cluster.name_server)
    consumer = client.start("push", topic=topic, group="orders-group")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sender = client.start("send", topic=topic, group="interop-sender", count=0)
    sender.wait_for("sent", DELIVERY_LIMIT_S, count=20)

    cluster.kill("namesrv-0")
    sender.wait_for("sent", DELIVERY_LIMIT_S, count=len(sender.of("sent")) + 50)
    sender.stop()
    assert sender.of("failed") == []
    send(client, topic, count=5, prefix="new-")
    everything = {f"m-{event['index']}" for event in sender.of("sent")} | {f"new-{i}" for i in range(5)}
    consumer.wait_until(
        lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "all that was sent"
    )


@pytest.mark.slow
def test_group_limits_the_retries(client: Client, cluster: Cluster, topic: str, group: str) -> None:
    """Clients before 3.4.9 do not say how often; what the group allows counts (`AbstractSendMessageProcessor`)."""
    settings = {"groupName": group, "retryMaxTimes": 1, "retryQueueNums": 1}
    made = wire.call(
        cluster.leader().address, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(settings).encode()
    )
    assert made.code == wire.SUCCESS, made
    consumer = client.start("push", topic=topic, group=group, fail_times=99)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=2)

    dead = f"%DLQ%{group}"
    wait_until(
        lambda: wire.topic_queue_count(client.name_server, dead), DELIVERY_LIMIT_S, "the dead letters' topic"
    )
    wait_until(
        lambda: len(read_back(client, dead)) == 2, DELIVERY_LIMIT_S, "two dead letters", interval_s=0.5
    )
    assert Counter(bodies(consumer.of("refused"))) == {"m-0": 2, "m-1": 2}
    assert sorted(bodies(read_back(client, dead))) == ["m-0", "m-1"]
