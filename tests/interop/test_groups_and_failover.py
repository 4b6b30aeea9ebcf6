"""Consumer groups that change, and groups of brokers that lose their leader, seen through unmodified clients."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from tests.interop.clients import Client
from tests.interop.cluster import Cluster, kill_leader, make_topic, wait_for_new_leader
from tests.interop.processes import Child, ChildError, Event, wait_until
from tests.interop.test_send_and_receive import bodies, everything_received, read_back, send

SETTLE_LIMIT_S = 120
"""Two rebalance periods of the slowest client and one route poll."""
FAILOVER_LIMIT_S = 180
QUEUES = 8
ROUND = 40


def deliver_round(
    client: Client, topic: str, consumers: Sequence[Child], prefix: str
) -> list[dict[str, Event]]:
    """Sends one round and waits until the consumers together have all of it; what each one got, by body."""
    send(client, topic, count=ROUND, prefix=prefix)
    wanted = {f"{prefix}{i}" for i in range(ROUND)}

    def received() -> list[dict[str, Event]]:
        return [
            {event["body"]: event for event in consumer.of("message") if event["body"] in wanted}
            for consumer in consumers
        ]

    wait_until(lambda: wanted <= set().union(*received()), SETTLE_LIMIT_S, f"round {prefix} delivered")
    return received()


def shares(rounds: Sequence[dict[str, Event]]) -> list[set[int]]:
    """Queues that each consumer was given messages of."""
    return [{event["queue"] for event in received.values()} for received in rounds]


def wait_for_split(client: Client, topic: str, consumers: Sequence[Child], split: Sequence[int]) -> None:
    """Sends rounds until one is shared so that the consumers have ``split`` queues each, no queue twice."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    for number in itertools.count():
        queues = shares(deliver_round(client, topic, consumers, f"{'-'.join(map(str, split))}-{number}-"))
        sizes = sorted(map(len, queues))
        if sizes == sorted(split) and sum(sizes) == len(set().union(*queues)):
            return
        if time.monotonic() > deadline:
            raise ChildError(f"queues are shared as {queues}, wanted {split}")


@pytest.mark.slow
def test_two_members_share_the_queues_and_one_takes_over(
    client: Client, cluster: Cluster, group: str
) -> None:
    topic = make_topic(cluster, f"shared-{group}", QUEUES)
    first = client.start("push", topic=topic, group=group, instance="first")
    wait_for_split(client, topic, [first], [QUEUES])

    second = client.start("push", topic=topic, group=group, instance="second")
    wait_for_split(client, topic, [first, second], [QUEUES // 2, QUEUES // 2])

    first.kill()
    wait_for_split(client, topic, [second], [QUEUES])


@pytest.mark.slow
def test_leader_killed_under_producers_and_a_consumer(
    failover_client: Client, fresh_cluster: Cluster, group: str
) -> None:
    """SIGKILL of the leader: nothing acknowledged is lost, queues keep their order, the consumer goes on by itself."""
    plain = make_topic(fresh_cluster, f"failover-{group}")
    ordered = make_topic(fresh_cluster, f"failover-ordered-{group}")
    consumer = failover_client.start("push", topic=plain, group=group)
    consumer.wait_for("started", SETTLE_LIMIT_S)
    # Messages in flight at the kill fail or are retried by the client after its own timeout.
    options: dict[str, str | int] = {"group": "failover", "count": 0, "timeout_ms": 2000}
    senders = [
        failover_client.start("send", topic=plain, mode="sync", **options),
        failover_client.start("send", topic=ordered, mode="orderly", shards=4, **options),
    ]
    for sender in senders:
        sender.wait_for("sent", SETTLE_LIMIT_S, count=200)

    old = kill_leader(fresh_cluster)
    at_kill = [len(sender.of("sent")) for sender in senders]
    wait_for_new_leader(fresh_cluster, old)
    for sender, count in zip(senders, at_kill, strict=True):
        sender.wait_for("sent", FAILOVER_LIMIT_S, count=count + 200)
        sender.stop()

    of_plain, of_ordered = (
        {f"m-{event['index']}": event["offset"] for event in sender.of("sent")} for sender in senders
    )
    check_nothing_lost(of_plain, read_back(failover_client, plain))
    stored = read_back(failover_client, ordered)
    check_nothing_lost(of_ordered, stored)
    check_order(of_ordered, stored)
    consumer.wait_until(
        lambda: everything_received(consumer, set(of_plain)), FAILOVER_LIMIT_S, "all acknowledged consumed"
    )


def check_order(acknowledged: dict[str, int], stored: list[Event]) -> None:
    """Within a queue, acknowledged messages stay in the order in which they were sent."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in stored:
        places[event["body"]].append((event["queue"], event["offset"]))
    in_queue: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for body, offset in acknowledged.items():
        for queue, stored_offset in places[body]:
            if stored_offset == offset:
                in_queue[queue].append((offset, int(body.removeprefix("m-"))))
    for order in in_queue.values():
        order.sort()
        indices = [index for _, index in order]
        assert indices == sorted(indices)


def check_nothing_lost(acknowledged: dict[str, int], stored: list[Event]) -> None:
    """Every acknowledged message is there at its offset; every place of the topic is there once, without gaps."""
    offsets: dict[str, set[int]] = defaultdict(set)
    for event in stored:
        offsets[event["body"]].add(event["offset"])
    lost = [body for body, offset in acknowledged.items() if offset not in offsets[body]]
    assert lost == []
    places = Counter((event["queue"], event["offset"]) for event in stored)
    assert [place for place, count in places.items() if count > 1] == []
    ends: dict[int, int] = defaultdict(int)
    for queue, offset in places:
        ends[queue] = max(ends[queue], offset + 1)
    assert sum(ends.values()) == len(places)
    assert bodies(stored)
