"""Several name servers of which one is lost, and what they keep for others.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import re

import pytest

from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import make_topic
from tests.interop.conftest import ClientOf, Configure
from tests.interop.mqadmin import Mqadmin
from tests.interop.processes import wait_until
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    SEND_LIMIT_S,
    bodies,
    everything_received,
    read_back,
)

pytestmark = [pytest.mark.java_only, pytest.mark.trivet_only]


def send_as_newcomer(client: Client, topic: str, prefix: str) -> list[str]:
    """Sends two messages from a new process that may begin with a dead name server; the bodies that were taken.

    Clients of 4.9 then ask the others at once. Those of 5.3 ask one name server an attempt, so that a first send fails,
    and the next asks another (`NettyRemotingClient.getAndCreateNameserverChannelAsync`).
    """
    sender = client.start(
        "send", topic=topic, group="interop-sender", count=2, prefix=prefix, timeout_ms=20_000
    )
    sender.finish(SEND_LIMIT_S)
    failed = sender.of("failed")
    assert len(failed) <= client.name.startswith("java-5"), failed
    assert all("RemotingConnectException" in event["error"] for event in failed), failed
    assert {event["status"] for event in sender.of("sent")} == {"OK"}
    return [f"{prefix}{event['index']}" for event in sender.of("sent")]


def test_one_of_two_name_servers_is_lost_and_comes_back(client_of: ClientOf, configure: Configure) -> None:
    cluster = configure(name_servers=2, broker={"broker": {"register_interval_ms": 1000}})
    topic = make_topic(cluster, "orders")
    client = client_of(cluster.name_server)
    consumer = client.start("push", topic=topic, group="orders-group")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sender = client.start("send", topic=topic, group="interop-sender", count=0, pause_ms=20)
    sender.wait_for("sent", DELIVERY_LIMIT_S, count=20)

    cluster.kill("namesrv-0")
    sender.wait_for("sent", DELIVERY_LIMIT_S, count=len(sender.of("sent")) + 50)
    newcomer = client_of(cluster.name_server)
    new = send_as_newcomer(newcomer, topic, "new-")
    made_meanwhile = send_as_newcomer(newcomer, "made-meanwhile", "m-")
    sender.stop()
    everything = {*(f"m-{event['index']}" for event in sender.of("sent")), *new}
    consumer.wait_until(
        lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "all that was sent"
    )

    cluster.start("namesrv-0")
    first = cluster.name_servers[0]
    wait_until(
        lambda: wire.topic_queue_count(first, "made-meanwhile") == 4, DELIVERY_LIMIT_S, "what it had missed"
    )
    assert sorted(bodies(read_back(client_of(first), "made-meanwhile"))) == made_meanwhile


def test_what_mqadmin_writes_to_every_name_server(client_of: ClientOf, configure: Configure) -> None:
    """Key-value configuration, the order of a topic, and write permissions."""
    cluster = configure(name_servers=2, name_server={"ordered_messages": True})
    topic = make_topic(cluster, "orders")
    mqadmin = Mqadmin(client_of(cluster.name_server))
    ((broker, _),) = wire.broker_addresses(cluster.name_servers[0]).items()

    mqadmin("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", f"{broker}:2")
    wiped = mqadmin("wipeWritePerm", "-b", broker)
    for server in cluster.name_servers:
        assert wire.call(server, 101, {"namespace": "space", "key": "key"}).fields == {"value": "value"}
        route = wire.tolerant_json(wire.call(server, 105, {"topic": topic}).body)
        assert isinstance(route, dict)
        assert route["orderTopicConf"] == f"{broker}:2"
        assert [queues["perm"] for queues in route["queueDatas"]] == [4]
        assert re.search(rf"{re.escape(server)}\] OK, \d+", wiped), wiped

    mqadmin("deleteKvConfig", "-s", "space", "-k", "key")
    mqadmin("updateOrderConf", "-t", topic, "-m", "delete")
    mqadmin("addWritePerm", "-b", broker)
    for server in cluster.name_servers:
        assert wire.call(server, 101, {"namespace": "space", "key": "key"}).code == 22
        route = wire.tolerant_json(wire.call(server, 105, {"topic": topic}).body)
        assert isinstance(route, dict)
        assert not route.get("orderTopicConf")
        assert [queues["perm"] for queues in route["queueDatas"]] == [6]
