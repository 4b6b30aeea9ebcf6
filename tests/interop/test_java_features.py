"""Features that only the Java client has: transactions, request-reply, SQL filters, managed pull, dead letters.

Part of ``make interop``; needs Java and Maven.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import Cluster, kill_leader, make_topic, wait_for_new_leader
from tests.interop.conftest import ClientOf, Configure
from tests.interop.processes import wait_until
from tests.interop.test_java_questions import Asked
from tests.interop.test_send_and_receive import (
    DELIVERY_LIMIT_S,
    SEND_LIMIT_S,
    bodies,
    everything_received,
    read_back,
    send,
)

pytestmark = pytest.mark.java_only

GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_LIMIT_S = 150
"""Transaction time-out and two check intervals at the reference's defaults (`BrokerConfig`)."""


def test_asynchronous_sends_are_stored_at_their_offsets(client: Client, topic: str) -> None:
    sent = send(client, topic, mode="async", count=2000)

    assert len(sent) == 2000
    stored = {event["body"]: (event["queue"], event["offset"]) for event in read_back(client, topic)}
    assert {f"m-{event['index']}": (event["queue"], event["offset"]) for event in sent} == stored


def test_offset_queries_agree_with_what_is_stored(client: Client, topic: str) -> None:
    send(client, topic, count=10)

    reader = client.start("pull", topic=topic, group="interop-reader")
    reader.finish(DELIVERY_LIMIT_S)
    ends = {event["queue"]: event for event in reader.of("queue-end")}
    assert sorted(ends) == [0, 1, 2, 3]
    for queue, end in ends.items():
        in_queue = [event for event in reader.of("message") if event["queue"] == queue]
        assert end["min"] == 0
        assert end["max"] == end["next"] == len(in_queue)
        assert end["earliest_store_ms"] == (in_queue[0]["store_ms"] if in_queue else -1)
        assert end["search_at_0"] == 0


def test_message_id_names_the_record(client: Client, topic: str) -> None:
    """The offset message id of a send is the storing address and the position of its record."""
    sent = send(client, topic, count=5)

    positions = {event["body"]: event["commit_log_offset"] for event in read_back(client, topic)}
    for event in sent:
        assert int(event["offset_msg_id"][16:], 16) == positions[f"m-{event['index']}"]


@pytest.mark.core
@pytest.mark.both_headers
def test_committed_transactions_are_delivered(client: Client, topic: str) -> None:
    sender = client.start("transaction", topic=topic, group=f"{topic}-producers", outcome="commit", count=10)
    sender.wait_for("done", SEND_LIMIT_S)

    consumer = client.start("push", topic=topic, group=f"{topic}-consumers")
    everything = {f"t-{i}" for i in range(10)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "the committed")
    assert Counter(bodies(consumer.of("message"))) == Counter(everything)


def test_rolled_back_transactions_are_not(client: Client, topic: str) -> None:
    sender = client.start("transaction", topic=topic, group=f"{topic}-producers", outcome="rollback", count=5)
    sender.wait_for("done", SEND_LIMIT_S)
    assert [event["status"] for event in sender.of("sent")] == ["OK"] * 5
    send(client, topic, count=4)

    assert sorted(bodies(read_back(client, topic))) == [f"m-{i}" for i in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_unknown_transactions_are_checked_back(client: Client, topic: str, verdict: str) -> None:
    sender = client.start(
        "transaction",
        topic=topic,
        group=f"{topic}-producers",
        outcome="unknown",
        check_outcome=verdict,
        count=3,
    )
    sender.wait_for("done", SEND_LIMIT_S)
    everything = {f"t-{i}" for i in range(3)}
    sender.wait_until(lambda: everything <= set(bodies(sender.of("checked"))), CHECK_LIMIT_S, "three checks")
    assert {event["topic"] for event in sender.of("checked")} == {topic}

    if verdict == "commit":
        wait_until(
            lambda: len(read_back(client, topic)) == 3, DELIVERY_LIMIT_S, "three committed", interval_s=1
        )
    else:
        send(client, topic, count=1)
        assert bodies(read_back(client, topic)) == ["m-0"]


@pytest.mark.trivet_only
def test_transaction_that_nobody_decides_is_given_up_and_resumed(
    client_of: ClientOf, configure: Configure
) -> None:
    """After so many questions it is in the topic of those given up; 323 has its producer asked again."""
    times = {"transaction_timeout_ms": 200, "transaction_check_interval_ms": 200, "transaction_check_max": 3}
    cluster = configure(broker={"broker": times})
    client = client_of(cluster.name_server)
    topic = make_topic(cluster, "orders")
    options = {"topic": topic, "group": "deciders"}
    sender = client.start(
        "transaction", outcome="unknown", check_outcome="unknown", prefix="lost-", **options
    )
    sender.wait_for("done", SEND_LIMIT_S)
    wait_until(lambda: wire.topic_queue_count(client.name_server, GIVEN_UP), DELIVERY_LIMIT_S, GIVEN_UP)
    wait_until(lambda: len(read_back(client, GIVEN_UP)) == 1, DELIVERY_LIMIT_S, "it", interval_s=0.5)
    sender.stop()
    assert bodies(sender.of("checked")) == ["lost-0"] * 3
    assert read_back(client, topic) == []

    # A producer of 5.x is known to brokers once it has sent.
    decider = client.start(
        "transaction", outcome="commit", check_outcome="commit", prefix="other-", **options
    )
    decider.wait_for("sent", SEND_LIMIT_S)
    (given_up,) = read_back(client, GIVEN_UP)
    assert Asked(client)("resumeCheckHalfMessage", GIVEN_UP, given_up["msg_id"]) is True
    decider.wait_for("checked", DELIVERY_LIMIT_S)
    wait_until(lambda: len(read_back(client, topic)) == 2, DELIVERY_LIMIT_S, "both", interval_s=0.5)
    assert sorted(bodies(read_back(client, topic))) == ["lost-0", "other-0"]


@pytest.mark.slow
def test_undecided_transactions_outlive_their_leader(
    failover_client: Client, fresh_cluster: Cluster, group: str
) -> None:
    """Half messages that one leader took are asked about by the next, and committed once."""
    topic = make_topic(fresh_cluster, f"failover-{group}")
    sender = failover_client.start(
        "transaction",
        topic=topic,
        group=f"{topic}-producers",
        outcome="unknown",
        check_outcome="commit",
        count=3,
    )
    sender.wait_for("done", SEND_LIMIT_S)
    old = kill_leader(fresh_cluster)
    wait_for_new_leader(fresh_cluster, old)
    everything = {f"t-{i}" for i in range(3)}
    sender.wait_until(lambda: everything <= set(bodies(sender.of("checked"))), CHECK_LIMIT_S, "three checks")

    def delivered() -> list[str]:
        return sorted(bodies(read_back(failover_client, topic)))

    wait_until(lambda: len(delivered()) >= 3, DELIVERY_LIMIT_S, "three committed", interval_s=1)
    assert delivered() == sorted(everything)


@pytest.mark.both_headers
def test_requests_get_their_replies(client: Client, topic: str, group: str) -> None:
    replier = client.start("reply", topic=topic, group=group)
    replier.wait_for("started", DELIVERY_LIMIT_S)
    requester = client.start(
        "request",
        topic=topic,
        group=f"{group}-asking",
        count=3,
        ttl_ms=20_000,
        callback="5.3.1" in client.name,
    )
    requester.finish(DELIVERY_LIMIT_S + 60)

    assert requester.of("failed") == []
    assert [event["body"] for event in requester.of("reply")] == [f"answer to question-{i}" for i in range(3)]


def test_requests_and_replies_by_the_older_codes(
    client_of: ClientOf, client: Client, topic: str, group: str
) -> None:
    """Sends under 10, replies under 324: with long names of their fields."""
    older = client_of(client.name_server, "-Dorg.apache.rocketmq.client.sendSmartMsg=false")
    replier = older.start("reply", topic=topic, group=group)
    replier.wait_for("started", DELIVERY_LIMIT_S)
    requester = older.start(
        "request",
        topic=topic,
        group=f"{group}-asking",
        count=3,
        ttl_ms=20_000,
        callback="5.3.1" in client.name,
    )
    requester.finish(DELIVERY_LIMIT_S + 60)

    assert [event["body"] for event in requester.of("reply")] == [f"answer to question-{i}" for i in range(3)]
    send(older, topic, count=20, tags="a")
    stored = [event["body"] for event in read_back(client, topic, expression="a")]
    assert sorted(stored) == sorted(f"m-{i}" for i in range(20))


@pytest.mark.core
def test_sql_filter_is_evaluated_by_the_broker(client: Client, topic: str, group: str) -> None:
    expression = "weight BETWEEN 3 AND 6 AND colour IN ('red', 'blue') AND missing IS NULL"
    consumer = client.start("push", topic=topic, group=group, sql=True, expression=expression)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=10, properties="weight=%,colour=red")
    send(client, topic, count=10, properties="weight=%,colour=green", prefix="green-")

    wanted = {f"m-{i}" for i in range(3, 7)}
    consumer.wait_until(
        lambda: everything_received(consumer, wanted), DELIVERY_LIMIT_S, "what the filter lets by"
    )
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(wanted)


def test_sql_filter_of_a_lite_pull_consumer(client: Client, topic: str, group: str) -> None:
    """Its pulls bring the condition themselves."""
    send(client, topic, count=10, properties="weight=%")
    consumer = client.start("litepull", topic=topic, group=group, sql=True, expression="weight IN ('3', '5')")
    wanted = {"m-3", "m-5"}
    consumer.wait_until(lambda: everything_received(consumer, wanted), DELIVERY_LIMIT_S, "what is let by")
    consumer.stop()
    assert Counter(bodies(consumer.of("message"))) == Counter(wanted)


@pytest.mark.both_headers
def test_lite_pull_consumer_owns_all_queues_and_commits(client: Client, topic: str, group: str) -> None:
    send(client, topic, count=40, prefix="first-")
    consumer = client.start("litepull", topic=topic, group=group)
    consumer.wait_for("message", DELIVERY_LIMIT_S, count=40)
    consumer.stop()
    (stopped,) = consumer.of("stopped")
    assert sorted(stopped["queues"].split(",")) == ["0", "1", "2", "3"]

    send(client, topic, count=40, prefix="second-")
    again = client.start("litepull", topic=topic, group=group)
    second = {f"second-{i}" for i in range(40)}
    again.wait_until(lambda: everything_received(again, second), DELIVERY_LIMIT_S, "what came since")
    assert Counter(bodies(again.of("message"))) == Counter(second)


def test_message_refused_too_often_is_a_dead_letter(
    client: Client, cluster: Cluster, topic: str, group: str
) -> None:
    consumer = client.start("push", topic=topic, group=group, fail_times=99, max_reconsume=1, retry_level=1)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    send(client, topic, count=2)
    consumer.wait_for("refused", DELIVERY_LIMIT_S, count=4)

    dead = f"%DLQ%{group}"

    def dead_letters() -> list[str]:
        reader = client.start("pull", topic=dead, group="interop-reader")
        try:
            reader.finish(DELIVERY_LIMIT_S)
        except AssertionError:
            return []  # the topic is not there yet
        return bodies(reader.of("message"))

    wait_until(
        lambda: sorted(dead_letters()) == ["m-0", "m-1"], DELIVERY_LIMIT_S, "two dead letters", interval_s=1
    )


def test_vip_channel(client: Client, cluster: Cluster, group: str) -> None:
    """Clients that prefer the VIP channel talk to the listening port minus 2."""
    topic = make_topic(cluster, f"vip-{group}")
    sent = send(client, topic, count=3, vip=True)
    assert [event["status"] for event in sent] == ["OK"] * 3

    consumer = client.start("push", topic=topic, group=group, vip=True, fail_times=1)
    consumer.wait_for("started", DELIVERY_LIMIT_S)
    everything = {f"m-{i}" for i in range(3)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "retried ones")
