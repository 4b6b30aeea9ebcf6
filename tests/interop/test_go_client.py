"""The Go client: every way of sending, filters, transactions, accounts, and a leader that is lost.

Part of ``make interop``; skipped where Go or the client cannot be had. Its driver is `go_client/main.go`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import artifacts
from tests.interop.clients import GO, Client
from tests.interop.cluster import Cluster, kill_leader, make_topic, wait_for_new_leader
from tests.interop.conftest import DEFAULT, ClientOf, Configure, available
from tests.interop.test_groups_and_failover import FAILOVER_LIMIT_S, SETTLE_LIMIT_S
from tests.interop.test_java_features import CHECK_LIMIT_S
from tests.interop.test_java_secured import ORDERS, WRONG, with_accounts
from tests.interop.test_send_and_receive import DELIVERY_LIMIT_S, SEND_LIMIT_S, bodies, everything_received

pytestmark = [pytest.mark.go_only, pytest.mark.extended]


@pytest.fixture
def client_of(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientOf]:
    """Makes drivers of the Go client, where it is asked for and can be had."""
    wanted = str(pytestconfig.getoption("--clients", default=DEFAULT)).split(",")
    if not {GO, "all"} & {*wanted}:
        pytest.skip("needs the Go client: make interop")
    with available():
        artifacts.go_client()
    subjects: list[Client] = []

    def make(name_server: str, *_: str) -> Client:
        subjects.append(Client(GO, name_server, tmp_path_factory.mktemp(GO)))
        return subjects[-1]

    yield make
    for subject in subjects:
        subject.stop_all()


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "batch"])
def test_sends_are_consumed_once(client: Client, topic: str, group: str, mode: str) -> None:
    sender = client.start("send", topic=topic, group="sender", mode=mode, count=100)
    sender.wait_for("done", SEND_LIMIT_S)
    assert sender.of("failed") == []
    consumer = client.start("push", topic=topic, group=group)
    everything = {f"m-{index}" for index in range(100)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "all messages")

    assert Counter(bodies(consumer.of("message"))) == Counter(everything)
    if mode in ("sync", "async"):
        stored = {event["body"]: event["offset"] for event in consumer.of("message")}
        assert {f"m-{event['index']}": event["offset"] for event in sender.of("sent")} == stored


@pytest.mark.parametrize(
    ("sql", "expression", "wanted"),
    [
        (False, "odd || none", range(1, 40, 2)),
        (True, "index between 10 and 19 and TAGS = 'odd'", range(11, 20, 2)),
    ],
)
def test_filters(client: Client, topic: str, group: str, sql: bool, expression: str, wanted: range) -> None:
    client.start("send", topic=topic, group="sender", count=40).finish(SEND_LIMIT_S)
    consumer = client.start("push", topic=topic, group=group, sql=sql, expression=expression)
    everything = {f"m-{index}" for index in wanted}
    consumer.wait_until(
        lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "the wanted ones"
    )
    assert Counter(bodies(consumer.of("message"))) == Counter(everything)


def test_transactions(client: Client, topic: str, group: str) -> None:
    """Committed, rolled back, and committed when the broker asks."""
    sender = client.start("send", topic=topic, group=f"{group}-sender", mode="transaction", count=6)
    consumer = client.start("push", topic=topic, group=group)
    everything = {"m-0", "m-2", "m-3", "m-5"}
    consumer.wait_until(
        lambda: everything_received(consumer, everything), CHECK_LIMIT_S, "the committed ones"
    )
    assert set(bodies(sender.of("asked"))) == {"m-2", "m-5"}
    assert Counter(bodies(consumer.of("message"))) == Counter(everything)


@pytest.mark.trivet_only
def test_accounts(client_of: ClientOf, configure: Configure, tmp_path: Path) -> None:
    cluster = with_accounts(configure, tmp_path)
    cluster.trivet("topic", "create", "orders", "--queues", "2")
    client = client_of(cluster.name_server)
    consumer = client.start("push", topic="orders", group="orders-group", **ORDERS)
    client.start("send", topic="orders", group="sender", mode="batch", **ORDERS).finish(SEND_LIMIT_S)
    everything = {f"m-{index}" for index in range(10)}
    consumer.wait_until(lambda: everything_received(consumer, everything), DELIVERY_LIMIT_S, "ten messages")

    refused = client.start("send", topic="orders", group="sender", **WRONG)
    refused.finish(SEND_LIMIT_S)
    assert [event["error"][:8] for event in refused.of("failed")] == ["CODE: 16"]


@pytest.mark.slow
def test_leader_killed_under_two_producers_and_two_consumers(
    failover_client: Client, fresh_cluster: Cluster, group: str
) -> None:
    """SIGKILL of the leader: all that was acknowledged is consumed, and all clients go on by themselves."""
    client = failover_client
    topics = [make_topic(fresh_cluster, f"{group}-{number}") for number in range(2)]
    consumers = [client.start("push", topic=topic, group=f"{group}-{topic}") for topic in topics]
    senders = [client.start("send", topic=topic, group="failover", count=0) for topic in topics]
    for sender in senders:
        sender.wait_for("sent", SETTLE_LIMIT_S, count=200)

    old = kill_leader(fresh_cluster)
    at_kill = [len(sender.of("sent")) for sender in senders]
    wait_for_new_leader(fresh_cluster, old)
    for sender, consumer, before in zip(senders, consumers, at_kill, strict=True):
        sender.wait_for("sent", FAILOVER_LIMIT_S, count=before + 200)
        sender.stop()
        acknowledged = {f"m-{event['index']}" for event in sender.of("sent")}

        def all_of_it(consumer=consumer, acknowledged=acknowledged) -> bool:  # type: ignore[no-untyped-def]
            return everything_received(consumer, acknowledged)

        consumer.wait_until(all_of_it, FAILOVER_LIMIT_S, "all that was acknowledged")
