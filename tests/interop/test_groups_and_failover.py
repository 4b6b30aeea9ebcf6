"""Consumer groups that change, and groups of brokers that lose their leader, seen through unmodified clients."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from tests.interop import wire
from tests.interop.clients import CLOCKS_APART_MS, CPP, Client
from tests.interop.cluster import Cluster, kill_leader, make_topic, wait_for_new_leader
from tests.interop.processes import Child, ChildError, Event, wait_until
from tests.interop.test_send_and_receive import bodies, everything_received, read_back, send

SETTLE_LIMIT_S = 120
"""Two rebalance periods of the slowest client and one route poll."""
FAILOVER_LIMIT_S = 180
QUEUES = 8
ROUND = 40
UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
VIEW_BROKER_STATS_DATA = 315


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


@pytest.mark.slow
@pytest.mark.extended
def test_order_and_delays_outlive_their_leader(
    failover_client: Client, fresh_cluster: Cluster, group: str
) -> None:
    """An orderly consumer skips nothing under the next leader; what waited comes once, and not before its time."""
    ordered = make_topic(fresh_cluster, f"ordered-{group}")
    delayed = make_topic(fresh_cluster, f"delayed-{group}")
    consumer = failover_client.start("push", topic=ordered, group=f"{group}-ordered", orderly=True)
    consumer.wait_for("started", SETTLE_LIMIT_S)
    options: dict[str, str | int] = {"group": "failover", "mode": "orderly", "shards": 4, "timeout_ms": 2000}
    sender = failover_client.start("send", topic=ordered, count=0, **options)
    consumer.wait_for("message", SETTLE_LIMIT_S, count=100)
    send(failover_client, delayed, count=4, prefix="level-", delay_level=3)
    timer = {"properties": "TIMER_DELAY_SEC=12"} if failover_client.name == CPP else {"delay_sec": 12}
    send(failover_client, delayed, count=4, prefix="timer-", **timer)

    old = kill_leader(fresh_cluster)
    at_kill = len(sender.of("sent"))
    wait_for_new_leader(fresh_cluster, old)
    sender.wait_for("sent", FAILOVER_LIMIT_S, count=at_kill + 200)
    sender.stop()
    acknowledged = {f"m-{event['index']}" for event in sender.of("sent")}
    consumer.wait_until(
        lambda: everything_received(consumer, acknowledged), FAILOVER_LIMIT_S, "all acknowledged consumed"
    )
    handled: dict[int, list[int]] = defaultdict(list)
    for event in consumer.of("message"):
        handled[event["queue"]].append(event["offset"])
    for queue, offsets in handled.items():
        first_time = list(dict.fromkeys(offsets))
        assert first_time == list(range(len(first_time))), f"queue {queue}: each for the first time in order"

    wanted = sorted(f"{kind}-{i}" for kind in ("level", "timer") for i in range(4))
    wait_until(
        lambda: len(read_back(failover_client, delayed)) >= len(wanted),
        FAILOVER_LIMIT_S,
        "what was delayed",
        interval_s=1,
    )
    stored = read_back(failover_client, delayed)
    assert sorted(bodies(stored)) == wanted
    for event in stored:
        delay_s = 10 if event["body"].startswith("level-") else 12
        assert event["store_ms"] - event["born_ms"] >= delay_s * 1000 - CLOCKS_APART_MS, event


@pytest.mark.trivet_only
@pytest.mark.extended
def test_group_reads_from_the_follower_that_its_configuration_names(
    client: Client, cluster: Cluster, topic: str, group: str
) -> None:
    """``brokerId`` of the group: answers to pulls send its members there for what is committed."""
    ((_, addresses),) = wire.broker_addresses(cluster.name_server).items()
    broker_id, follower = max(addresses.items())
    settings = {"groupName": group, "brokerId": broker_id}
    made = wire.call(
        cluster.leader().address,
        UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=json.dumps(settings).encode(),
    )
    assert made.code == wire.SUCCESS, made
    send(client, topic, count=400)
    consumer = client.start("push", topic=topic, group=group)
    everything = {f"m-{i}" for i in range(400)}
    consumer.wait_until(lambda: everything_received(consumer, everything), SETTLE_LIMIT_S, "the backlog")

    def given_by_the_follower() -> int:
        fields = {"statsName": "GROUP_GET_NUMS", "statsKey": f"{topic}@{group}"}
        told = wire.call(follower, VIEW_BROKER_STATS_DATA, fields)
        return json.loads(told.body)["statsMinute"]["sum"] if told.code == wire.SUCCESS else 0

    # The leader gives what the first pull of each queue asks for; what a pull waits for is the leader's to give, too.
    assert given_by_the_follower() >= 100


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
