"""Leaders that are stopped in order and started again, and a group that is upgraded, under unmodified clients.

Part of ``make interop``. RocketMQ's clients keep a route for 30 s: they send to a node that is gone until it is back or
the route is looked up anew, and say that there is no connection. Nothing else may fail them; and nothing at all where
the node lingers for longer than that.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest

from tests.earlier_release import unpack_earlier_release
from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import make_topic
from tests.interop.configured import ROOT, ConfiguredCluster
from tests.interop.conftest import ClientOf, Configure
from tests.interop.processes import Child, Event, wait_until
from tests.interop.test_groups_and_failover import FAILOVER_LIMIT_S, SETTLE_LIMIT_S
from tests.interop.test_send_and_receive import bodies

pytestmark = [pytest.mark.trivet_only, pytest.mark.extended, pytest.mark.slow]

NODES = 3
STOPS = 20
LINGERING_STOPS = 3
LINGER_S = 35
"""Beyond the 30 s for which clients keep a route."""
PAUSE_MS = 10
"""Between two sends of a producer: what fails while a node is away is counted, and not how fast it fails."""
ROUND = 30
"""Messages of each producer between two changes."""
FAILURES = ("failed", "again")
"""A send that ended with an exception in the application; and one that was then made again."""
TIMEOUT_MS = 10_000
"""Of a send. By default it is three seconds with both clients, which a busy machine takes, too."""

NO_CONNECTION = re.compile(
    r"RemotingConnectException: connect to \S+ failed"
    r"|RemotingSendRequestException: send request to \S+ failed"
    r"|No route info of this topic"
)
"""As the clients say it. For the C++ client the last stands for five attempts in a row without a connection."""
NO_ANSWER = re.compile(r"sendDefaultImpl call timeout|wait response on the channel \S+ timeout")
"""As the Java client says when its connection was lost behind a request: it waits for the answer all the same."""


class Watch:
    """Looks the topic's route up again and again, as a client might in any moment."""

    def __init__(self, name_server: str, topic: str) -> None:
        self._name_server = name_server
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.looks = 0
        self.without_master: list[object] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(FAILOVER_LIMIT_S)

    def _run(self) -> None:
        while not self._ends.is_set():
            answer = wire.call(self._name_server, wire.GET_ROUTE_BY_TOPIC, {"topic": self._topic})
            route = wire.tolerant_json(answer.body) if answer.code == wire.SUCCESS else {}
            assert isinstance(route, dict)
            brokers = route.get("brokerDatas", [])
            self.looks += 1
            if not any("0" in broker["brokerAddrs"] for broker in brokers):
                self.without_master.append((answer, route))


class Traffic:
    """A producer and a push consumer of the client under test, and a producer of Trivet's, on one topic."""

    def __init__(self, client: Client, topic: str, watch: Watch) -> None:
        self.watch = watch
        self.ends_ms: list[int] = []
        """When nodes ended."""
        self.consumer = client.start("push", topic=topic, group="rolling-consumers")
        self.consumer.wait_for("started", SETTLE_LIMIT_S)
        options: dict[str, str | int] = {"count": 0, "pause_ms": PAUSE_MS, "timeout_ms": TIMEOUT_MS}
        self.producer = client.start("send", topic=topic, group="rolling", prefix="theirs-", **options)
        argv = [sys.executable, "-m", "tests.interop.trivet_sender", "--namesrv", client.name_server]
        argv += [
            "--topic",
            topic,
            "--group",
            "rolling-trivet",
            "--pause-ms",
            str(PAUSE_MS),
            "--prefix",
            "own-",
        ]
        self.own = Child(argv, log=client.folder / "trivet-sender.log", cwd=ROOT)
        self.go_on()

    def go_on(self) -> None:
        """Returns when both have sent another round of messages."""
        for sender in (self.producer, self.own):
            sender.wait_for("sent", FAILOVER_LIMIT_S, count=len(sender.of("sent")) + ROUND)

    def restart(self, cluster: ConfiguredCluster, node: str) -> None:
        """Stops the node in order and starts it again, as this release."""
        cluster.stop_in_order(node)
        self.ends_ms.append(time.time_ns() // 1_000_000)
        cluster.start(node)
        self.go_on()

    def unexplained(self) -> list[Event]:
        """What failed the producer under test and is no lost connection to a node that was away."""
        found = []
        last_ms = 0
        for event in once_connected(self.producer):
            if event["event"] in FAILURES and not NO_CONNECTION.search(event["error"]):
                ended_meanwhile = any(last_ms <= end_ms <= event["at_ms"] for end_ms in self.ends_ms)
                if not (ended_meanwhile and NO_ANSWER.search(event["error"])):
                    found.append(event)
            last_ms = event["at_ms"]
        return found

    def stop(self) -> None:
        self.producer.stop()
        self.own.stop()

    def wait_for_everything(self) -> None:
        """Behind `stop`; returns when the consumer has all that was acknowledged."""
        acknowledged = {f"theirs-{event['index']}" for event in self.producer.of("sent")}
        acknowledged |= {f"own-{event['index']}" for event in self.own.of("sent")}
        self.consumer.wait_until(
            lambda: acknowledged <= set(bodies(self.consumer.of("message"))), SETTLE_LIMIT_S, "everything"
        )


def failures(sender: Child) -> list[Event]:
    return [event for event in once_connected(sender) if event["event"] in FAILURES]


def once_connected(sender: Child) -> list[Event]:
    """Its events from the first acknowledgement on: how a client starts is not what is looked at."""
    return list(dropwhile(lambda event: event["event"] != "sent", sender.events))


def longest_pause_ms(sender: Child) -> int:
    """The longest time between two acknowledgements."""
    return max(int(after["at_ms"]) - int(before["at_ms"]) for before, after in pairwise(sender.of("sent")))


def told(name: str, sender: Child) -> str:
    """What was counted, in a line."""
    reasons = Counter(re.sub(r"cost \[\d+\]", "cost [..]", event["error"]) for event in failures(sender))
    counts = f"{len(sender.of('sent'))} sent, {reasons.total()} failed"
    return f"{name}: {counts}, longest pause {longest_pause_ms(sender)} ms, {dict(reasons)}"


@contextmanager
def traffic(client: Client, cluster: ConfiguredCluster) -> Iterator[Traffic]:
    """Runs while the block does; no send of Trivet's may fail meanwhile, and nothing be lost."""
    topic = make_topic(cluster, "rolling")
    with Watch(cluster.name_server, topic) as watch:
        running = Traffic(client, topic, watch)
        try:
            yield running
        finally:
            running.stop()
    print(told(client.name, running.producer), told("trivet", running.own), sep="\n")
    print(f"{watch.looks} looks, {len(watch.without_master)} without a master")
    assert watch.looks > 100
    assert failures(running.own) == []
    running.wait_for_everything()
    client.stop_all()  # nodes linger for those who are connected


def wait_until_level(cluster: ConfiguredCluster) -> None:
    """One node leads, and the others follow it closely."""

    def is_level() -> bool:
        nodes = cluster.statuses()
        leaders = [node for node in nodes if node["serving"]]
        return (
            len(nodes) == NODES
            and len(leaders) == 1
            and all(peer["state"] == "replicate" for peer in leaders[0]["peers"])
        )

    wait_until(is_level, FAILOVER_LIMIT_S, "all nodes follow one")


def restart_leaders(cluster: ConfiguredCluster, running: Traffic, times: int) -> None:
    """Stops the node that leads in order, and starts it again, so many times."""
    for _ in range(times):
        wait_until_level(cluster)
        running.restart(cluster, cluster.leader().id)


def test_leaders_are_stopped_in_order_and_started_again(client_of: ClientOf, configure: Configure) -> None:
    cluster = configure(nodes=NODES)
    with traffic(client_of(cluster.name_server), cluster) as running:
        restart_leaders(cluster, running, STOPS)
    assert running.watch.without_master == []
    assert running.unexplained() == []


def test_leaders_that_linger_fail_no_send(client_of: ClientOf, configure: Configure) -> None:
    cluster = configure(nodes=NODES, broker={"node": {"linger_s": LINGER_S}})
    with traffic(client_of(cluster.name_server), cluster) as running:
        restart_leaders(cluster, running, LINGERING_STOPS)
    assert running.watch.without_master == []
    assert failures(running.producer) == []


def test_group_is_upgraded(client_of: ClientOf, configure: Configure, tmp_path: Path) -> None:
    """From the release before this one, node by node, the leader last; then the new leader is started again.

    The stop of a leader of the earlier release may leave a route without a master for a moment.
    """
    cluster = configure(nodes=NODES, code=unpack_earlier_release(tmp_path))
    with traffic(client_of(cluster.name_server), cluster) as running:
        leader = cluster.leader()
        for node in sorted(cluster.nodes, key=lambda node: node == leader):
            wait_until_level(cluster)
            running.restart(cluster, node.id)
        running.watch.without_master.clear()
        restart_leaders(cluster, running, 1)
    assert running.watch.without_master == []
    assert running.unexplained() == []
