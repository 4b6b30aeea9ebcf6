"""Consumers of the Java client: places by time, conditions that are refused, growing delays, locks of ordered queues.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tests.interop.clients import CLOCKS_APART_MS, Client
from tests.interop.cluster import Cluster, make_topic
from tests.interop.processes import Event, wait_until
from tests.interop.test_groups_and_failover import SETTLE_LIMIT_S
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    bodies,
    everything_received,
    read_back,
    send,
)

pytestmark = pytest.mark.java_only


def send_two_rounds(client: Client, topic: str) -> int:
    """Sends ``early-`` and ``late-``, four each; gives a whole second between the two, in milliseconds."""
    send(client, topic, count=4, prefix="early-")
    second = int(time.time()) + 1
    wait_until(lambda: time.time() > second + 1, 10, "two seconds of the wall clock gone")
    send(client, topic, count=4, prefix="late-")
    return second * 1000


def test_search_by_time(client: Client, topic: str) -> None:
    """SEARCH_OFFSET_BY_TIMESTAMP: the earliest message that is not older, the end where there is none."""
    between = send_two_rounds(client, topic)

    reader = client.start("pull", topic=topic, group="interop-reader", search=between)
    reader.finish(DELIVERY_LIMIT_S)
    ends = reader.of("queue-end")
    assert sorted(end["queue"] for end in ends) == [0, 1, 2, 3]
    for end in ends:
        in_queue = [event for event in reader.of("message") if event["queue"] == end["queue"]]
        late = [event["offset"] for event in in_queue if event["store_ms"] >= between]
        assert end["search"] == min(late, default=end["max"])


def test_lite_pull_from_a_time_with_assigned_queues(client: Client, topic: str, group: str) -> None:
    """assign, offsetForTimestamp, seek, commitSync, committed."""
    between = send_two_rounds(client, topic)

    consumer = client.start("assigned", topic=topic, group=group, from_ms=between, count=4)
    consumer.finish(DELIVERY_LIMIT_S)
    assert sorted(bodies(consumer.of("message"))) == [f"late-{i}" for i in range(4)]
    ends = Counter(event["queue"] for event in read_back(client, topic))
    assert {event["queue"]: event["offset"] for event in consumer.of("committed")} == dict(ends)


def test_new_group_from_a_time(client: Client, topic: str, group: str) -> None:
    between = send_two_rounds(client, topic)

    since = time.strftime("%Y%m%d%H%M%S", time.localtime(between / 1000))
    options = {"from": "CONSUME_FROM_TIMESTAMP", "timestamp": since}
    consumer = client.start("push", topic=topic, group=group, **options)
    everything = {f"late-{i}" for i in range(4)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "the late ones")
    # A queue that is young begins at 0 for a group without offsets, whatever it wants (`ConsumerManageProcessor`).
    assert everything <= set(bodies(consumer.of("message")))


@pytest.mark.trivet_only
@pytest.mark.parametrize(
    ("condition", "remark"),
    [
        ("weight >", "at character 9: the expression ends too early"),
        ("weight > 'heavy'", "at character 10: only numbers and properties can be compared by >"),
    ],
)
def test_sql_condition_that_cannot_be_used_is_refused(
    client: Client, topic: str, group: str, condition: str, remark: str
) -> None:
    consumer = client.start("push", topic=topic, group=group, sql=True, expression=condition)
    assert consumer.wait_for_end(DELIVERY_LIMIT_S) != 0, "the consumer started"
    complaint = consumer.log.read_text()
    assert "CODE: 23" in complaint, complaint
    assert remark in complaint, complaint


@pytest.mark.slow
def test_retries_come_after_growing_delays(client: Client, topic: str, group: str) -> None:
    """Without a wish of the consumer: level 3 (10 s), then level 4 (30 s)."""
    consumer = client.start("push", topic=topic, group=group, fail_times=2, retry_level=0)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=2)

    consumer.wait_for("message", 60 + DELIVERY_LIMIT_S, count=2)
    attempts: dict[str, list[Event]] = defaultdict(list)
    for event in consumer.events:
        if event["event"] in ("refused", "message"):
            attempts[event["body"]].append(event)
    for body, (first, second, third) in attempts.items():
        assert [event["reconsume"] for event in (first, second, third)] == [0, 1, 2], body
        assert second["store_ms"] - first["at_ms"] >= 10_000 - CLOCKS_APART_MS
        assert third["store_ms"] - second["at_ms"] >= 30_000 - CLOCKS_APART_MS
    assert sorted(attempts) == ["m-0", "m-1"]


@pytest.mark.slow
def test_ordered_queues_have_one_holder_at_a_time(client: Client, cluster: Cluster, group: str) -> None:
    """While members come and go nobody handles a message of a queue that another holds; each queue's order stands."""
    topic = make_topic(cluster, f"locked-{group}", queues=4)
    sender = client.start("send", topic=topic, group="interop-sender", mode="orderly", count=0, pause_ms=10)
    sender.wait_for("sent", DELIVERY_LIMIT_S)
    members = []
    for name in ("first", "second", "third"):
        options: dict[str, str | int | bool] = {"orderly": True, "hold_ms": 20, "instance": name}
        members.append(client.start("push", topic=topic, group=group, **options))
        members[-1].wait_for("message", SETTLE_LIMIT_S, count=20)
    members[0].stop()
    sender.stop()
    last = {f"m-{event['index']}" for event in sender.of("sent")}
    wait_until(
        lambda: last <= {body for member in members for body in bodies(member.of("message"))},
        SETTLE_LIMIT_S,
        "all that was sent",
    )

    spans: dict[int, list[tuple[int, int, int, str]]] = defaultdict(list)
    for name, member in zip(("first", "second", "third"), members, strict=True):
        begun = {(event["queue"], event["offset"]): event["at_ms"] for event in member.of("begin")}
        for event in member.of("message"):
            place = (event["queue"], event["offset"])
            spans[event["queue"]].append((begun[place], event["at_ms"], event["offset"], name))
    assert any(len({name for *_, name in handled}) > 1 for handled in spans.values()), "a queue changed hands"
    for queue, handled in spans.items():
        handled.sort()
        for (_, end, offset, holder), (begin, _, next_offset, next_holder) in pairwise(handled):
            assert begin >= end, (
                f"queue {queue}: {holder} held {offset} when {next_holder} began {next_offset}"
            )
            assert next_offset >= offset
        assert sorted({offset for _, _, offset, _ in handled}) == list(range(handled[-1][2] + 1))
