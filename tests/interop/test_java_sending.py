"""Sends of the Java client beyond the ordinary: limits, repeated sends, codecs, IPv6, the trace of a message.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import re
import socket
from collections import Counter

import pytest
import trio

from broker.client.admin import AdminClient
from broker.operations.asking import Groups
from broker.operations.messages import MessageWay, way_of
from tests.interop.clients import Client
from tests.interop.cluster import make_topic
from tests.interop.conftest import ClientOf, Configure
from tests.interop.mqadmin import Mqadmin
from tests.interop.processes import Event, wait_until
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    SEND_LIMIT_S,
    bodies,
    everything_received,
    read_back,
    send,
)

pytestmark = pytest.mark.java_only

BODY_BYTES_MAX = 4 << 20
COMPRESSED, COMPRESSED_BY = 0x1, 0x700
"""Bits of a message's sysFlag."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def refusals(client: Client, topic: str, **options: str | int | bool) -> list[Event]:
    """Runs a sender all of whose sends must be refused, and gives the refusals."""
    sender = client.start("send", topic=topic, group="interop-sender", timeout_ms=20_000, **options)
    sender.finish(SEND_LIMIT_S)
    assert sender.of("sent") == []
    return sender.of("failed")


def test_largest_body_is_stored_and_a_byte_more_is_refused(client: Client, topic: str) -> None:
    large: dict[str, str | int | bool] = {"max_size": 2 * BODY_BYTES_MAX, "uncompressed": True}
    send(client, topic, size=BODY_BYTES_MAX, **large)
    (refused,) = refusals(client, topic, size=BODY_BYTES_MAX + 1, **large)

    assert "CODE: 13" in refused["error"], refused
    assert str(BODY_BYTES_MAX) in refused["error"], "the remark does not say what is allowed"
    assert [len(event["body"]) for event in read_back(client, topic)] == [BODY_BYTES_MAX]


def test_properties_beyond_the_limit_are_refused(client: Client, topic: str) -> None:
    (refused,) = refusals(client, topic, properties="large=" + "x" * 33_000)

    assert "CODE: 13" in refused["error"], refused
    assert "propert" in refused["error"], refused
    assert read_back(client, topic) == []


@pytest.mark.trivet_only
@pytest.mark.both_headers
def test_repeated_send_is_stored_once(client: Client, topic: str) -> None:
    """The fields ``once`` and ``again``, as any client can add them by a hook."""
    sent = send(client, topic, count=5, repeat=3)

    assert len(sent) == 15
    places = {event["index"]: set[tuple[int, int]]() for event in sent}
    for event in sent:
        places[event["index"]].add((event["queue"], event["offset"]))
    assert [len(found) for found in places.values()] == [1] * 5
    assert Counter(bodies(read_back(client, topic))) == Counter(f"m-{i}" for i in range(5))


@pytest.mark.parametrize(("codec", "bits"), [("LZ4", 1), ("ZSTD", 2), ("ZLIB", 3)])
def test_compressed_bodies_come_back(
    client_of: ClientOf, client: Client, topic: str, codec: str, bits: int
) -> None:
    """The broker stores what it got; the codec's bits in sysFlag reach the consumer."""
    sender = client_of(client.name_server, f"-Drocketmq.message.compressType={codec}")
    send(sender, topic, count=3, size=50_000)

    stored = read_back(client, topic)
    assert sorted(event["body"] for event in stored) == [f"m-{i}".ljust(50_000, ".") for i in range(3)]
    assert {event["sys_flag"] & (COMPRESSED | COMPRESSED_BY) for event in stored} == {COMPRESSED | bits << 8}


def test_message_trace(client: Client, topic: str, group: str, mqadmin: Mqadmin) -> None:
    """A client that traces sends where its messages went, and consumed them, to a topic that mqadmin reads."""
    consumer = client.start("push", topic=topic, group=group, trace=True)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sender = client.start("send", topic=topic, group="traced", trace=True, linger=True, timeout_ms=20_000)
    (sent,) = sender.wait_for("sent", SEND_LIMIT_S)
    consumer.wait_for("message", DELIVERY_LIMIT_S)

    def is_traced() -> bool:
        # Neither the topic nor the message need be there yet; clients send what they have traced from time to time.
        trace = mqadmin("queryMsgTraceById", "-i", sent["msg_id"], excused="CODE: ")
        published = re.search(r"(?m)^Pub\s+traced\s.*success", trace)
        return published is not None and re.search(rf"(?m)^Sub\s+{group}\s.*success", trace) is not None

    wait_until(is_traced, DELIVERY_LIMIT_S, "both traces", interval_s=1)

    async def way() -> MessageWay:
        async with AdminClient(client.name_server) as admin:
            return await way_of(await Groups.registered(admin), topic, sent["msg_id"])

    told = trio.run(way).traces
    assert [(one.what, one.group, one.result) for one in told] == [
        ("sent", "traced", "success"),
        ("consumed", group, "success"),
    ]


@pytest.mark.trivet_only
def test_ipv6(client_of: ClientOf, configure: Configure) -> None:
    """Addresses of 16 bytes in records, message ids, routes and answers."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 on the loopback: {error}")
    cluster = configure(host="::1")
    client = client_of(cluster.name_server)
    topic = make_topic(cluster, "ipv6")
    consumer = client.start("push", topic=topic, group="ipv6-consumers", fail_times=1)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sent = send(client, topic, count=4)
    send(client, topic, count=4, mode="batch", batch=4, prefix="batch-")

    everything = {f"{prefix}-{i}" for prefix in ("m", "batch") for i in range(4)}
    consumer.wait_until(
        lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "all, sent back once"
    )
    loopback = "00000000000000000000000000000001"
    positions = {event["body"]: event["commit_log_offset"] for event in read_back(client, topic)}
    for event in sent:
        assert event["offset_msg_id"].startswith(loopback)
        assert int(event["offset_msg_id"][40:], 16) == positions[f"m-{event['index']}"]
