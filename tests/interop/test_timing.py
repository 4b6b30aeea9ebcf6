"""Messages for later: the 18 levels, and times of their own. Part of ``make interop``."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.interop.clients import CLOCKS_APART_MS, Client
from tests.interop.cluster import make_topic
from tests.interop.conftest import ClientOf, Configure
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, SEND_LIMIT_S, bodies, send

LEVELS = 18


@pytest.mark.trivet_only
@pytest.mark.extended
def test_eighteen_levels(client_of: ClientOf, configure: Configure) -> None:
    """A message of each level, one of a level beyond the last: each once, after its delay."""
    delays_s = [1 + level // 3 for level in range(LEVELS)]
    cluster = configure(broker={"broker": {"delay_levels": " ".join(f"{delay}s" for delay in delays_s)}})
    client = client_of(cluster.name_server)
    topic = make_topic(cluster, "levels")
    consumer = client.start("push", topic=topic, group="levels-consumers")
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    sender = client.start(
        "send", topic=topic, group="interop-sender", count=LEVELS + 1, delay_level=-1, timeout_ms=20_000
    )
    sender.finish(SEND_LIMIT_S)
    assert sender.of("failed") == []

    consumer.wait_for("message", DELIVERY_LIMIT_S, count=LEVELS + 1)
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(f"m-{i}" for i in range(LEVELS + 1))
    for event in consumer.of("message"):
        delay_s = delays_s[min(int(event["body"].removeprefix("m-")), LEVELS - 1)]
        assert event["store_ms"] - event["born_ms"] >= delay_s * 1000 - CLOCKS_APART_MS, event


@pytest.mark.java_only
@pytest.mark.both_headers
@pytest.mark.parametrize(
    ("option", "value_ms"), [("delay_sec", 2000), ("delay_ms", 1300), ("deliver_in_ms", 2600)]
)
def test_message_with_a_time_of_its_own(
    client: Client, topic: str, group: str, option: str, value_ms: int
) -> None:
    """setDelayTimeSec, setDelayTimeMs, setDeliverTimeMs of 5.x; 4.9 knows only the properties behind them."""
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    options: dict[str, str | int | bool] = {option: value_ms // 1000 if option == "delay_sec" else value_ms}
    before_ms = time.time() * 1000
    send(client, topic, count=3, prefix="late-", **options)
    send(client, topic, count=1, prefix="now-")

    consumer.wait_for("message", DELIVERY_LIMIT_S, count=4)
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(["late-0", "late-1", "late-2", "now-0"])
    for event in consumer.of("message"):
        if event["body"].startswith("late-"):
            assert event["topic"] == topic
            # An absolute time is fixed before its message is sent: it counts from before all of them.
            since_ms = before_ms if option == "deliver_in_ms" else event["born_ms"]
            assert event["store_ms"] - since_ms >= value_ms - CLOCKS_APART_MS


@pytest.mark.cpp_only
@pytest.mark.extended
def test_times_of_their_own_are_properties(client: Client, topic: str, group: str) -> None:
    """A client that has never heard of such times can name them."""
    consumer = client.start("push", topic=topic, group=group)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=2, prefix="late-", properties="TIMER_DELAY_MS=1300")
    send(client, topic, count=2, prefix="later-", properties="TIMER_DELAY_SEC=2")

    consumer.wait_for("message", DELIVERY_LIMIT_S, count=4)
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(["late-0", "late-1", "later-0", "later-1"])
    for event in consumer.of("message"):
        delay_ms = 1300 if event["body"].startswith("late-") else 2000
        assert event["store_ms"] - event["born_ms"] >= delay_ms


@pytest.mark.java_only
def test_time_beyond_the_limit_is_refused(client: Client, topic: str) -> None:
    """More than three days ahead."""
    sender = client.start(
        "send", topic=topic, group="interop-sender", delay_sec=4 * 86_400, timeout_ms=20_000
    )
    sender.finish(SEND_LIMIT_S)
    (refused,) = sender.of("failed")
    assert "CODE: 13" in refused["error"], refused
