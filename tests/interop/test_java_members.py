"""Consumers of the Java client that change while they run, and what the client can be told that servers notice.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import Cluster, make_topic
from tests.interop.conftest import ClientOf
from tests.interop.processes import Child
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    bodies,
    everything_received,
    read_back,
    send,
)

pytestmark = pytest.mark.java_only


def tell(consumer: Child, line: str) -> None:
    """Has a running consumer do something, and waits until it has."""
    done = len(consumer.of("obeyed"))
    consumer.write_line(line)
    consumer.wait_for("obeyed", DELIVERY_LIMIT_S, count=done + 1)


def wait_for(consumer: Child, wanted: set[str]) -> None:
    consumer.wait_until(
        lambda: everything_received(consumer, wanted), DELIVERY_LIMIT_S, f"{len(wanted)} messages"
    )


def test_subscription_changed_at_run_time(client: Client, topic: str, group: str) -> None:
    """Heartbeats tell the broker, which has the pulls that wait there sent anew, from where they were.

    So what else came while they waited may come, too, but once and to the new subscription only.
    """
    consumer = client.start("push", topic=topic, group=group, expression="red")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=6, tags="red,blue", prefix="first-")
    wait_for(consumer, {f"first-{i}" for i in (0, 2, 4)})
    assert Counter(bodies(consumer.of("message"))) == Counter([f"first-{i}" for i in (0, 2, 4)])

    tell(consumer, f"subscribe {topic} blue")
    send(client, topic, count=6, tags="red,blue", prefix="second-")
    wait_for(consumer, {f"second-{i}" for i in (1, 3, 5)})
    assert not {f"second-{i}" for i in (0, 2, 4)} & set(bodies(consumer.of("message")))

    tell(consumer, f"subscribe {topic} *")
    send(client, topic, count=6, tags="red,blue", prefix="third-")
    wait_for(consumer, {f"third-{i}" for i in range(6)})
    consumer.stop()
    assert max(Counter(bodies(consumer.of("message"))).values()) == 1


def test_suspended_consumer_goes_on_where_it_was(client: Client, topic: str, group: str) -> None:
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=8, prefix="before-")
    wait_for(consumer, {f"before-{i}" for i in range(8)})
    tell(consumer, "suspend")
    send(client, topic, count=8, prefix="meanwhile-")
    tell(consumer, "resume")
    send(client, topic, count=8, prefix="after-")

    everything = {f"{prefix}-{i}" for prefix in ("before", "meanwhile", "after") for i in range(8)}
    wait_for(consumer, everything)
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(everything)


def test_topic_is_given_more_queues(client_of: ClientOf, cluster: Cluster, topic: str, group: str) -> None:
    """Clients learn of them from the route, and the consumer gives the new queues to itself."""
    client = client_of(cluster.name_server, "-Drocketmq.client.rebalance.waitInterval=1000")
    consumer = client.start("push", topic=topic, group=group, poll_ms=1000)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=8, prefix="four-")
    make_topic(cluster, topic, queues=8)

    sent = send(client, topic, count=32, prefix="eight-")
    assert {event["queue"] for event in sent} == set(range(8))
    everything = {f"four-{i}" for i in range(8)} | {f"eight-{i}" for i in range(32)}
    wait_for(consumer, everything)
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(everything)


def test_namespace(client: Client, group: str) -> None:
    """Topic and group are stored as ``NAMESPACE%NAME``; the client strips what it has put before them."""
    topic = f"spaced-{group}"
    consumer = client.start("push", topic=topic, group=group, namespace="shop", fail_times=1)
    sender_made_it = send(client, topic, count=4, namespace="shop")
    wait_for(consumer, {f"m-{i}" for i in range(4)})

    assert {event["topic"] for event in consumer.of("message")} == {topic}
    assert {event["reconsume"] for event in consumer.of("message")} == {1}
    assert wire.topic_queue_count(client.name_server, f"shop%{topic}") == 4
    assert wire.topic_queue_count(client.name_server, f"%RETRY%shop%{group}") == 1
    assert wire.topic_queue_count(client.name_server, topic) is None
    stored = read_back(client, f"shop%{topic}")
    assert len(sender_made_it) == len(stored) == 4


@pytest.mark.parametrize("option", ["heartbeat_v2", "broker_rebalance"])
def test_what_5x_clients_go_without(client: Client, topic: str, group: str, option: str) -> None:
    """Short heartbeats are sent to brokers alone that offer them; who is not assigned queues (400) shares them out."""
    if "java-4" in client.name:
        pytest.skip("the option came with 5.x")
    options: dict[str, str | int | bool] = {option: True}
    consumer = client.start("push", topic=topic, group=group, **options)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=12)

    everything = {f"m-{i}" for i in range(12)}
    wait_for(consumer, everything)
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(everything)
