"""Leaders that are stopped in order and started again, and a group that is upgraded, under unmodified clients.

Part of ``make interop``. RocketMQ's clients keep a route for 30 s: they send to a node that is gone until it is back or
the route is looked up anew, and say that there is no connection. Nothing else may fail them; and nothing at all where
the node lingers for longer than that.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.earlier_release import unpack_earlier_release
from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import make_topic
from tests.interop.configured import ConfiguredCluster
from tests.interop.conftest import ClientOf, Configure
from tests.interop.processes import Event, wait_until
from tests.interop.test_groups_and_failover import FAILOVER_LIMIT_S
from tests.interop.traffic import FAILURES, NO_ANSWER, Traffic, failures, once_connected, traffic

pytestmark = [pytest.mark.trivet_only, pytest.mark.extended, pytest.mark.slow]

NODES = 3
STOPS = 20
LINGERING_STOPS = 3
LINGER_S = 35
"""Beyond the 30 s for which clients keep a route."""
ROUND = 30
"""Messages of each producer between two changes."""

NO_CONNECTION = re.compile(
    r"RemotingConnectException: connect to \S+ failed"
    r"|RemotingSendRequestException: send request to \S+ failed"
    r"|No route info of this topic"
)
"""As the clients say it. For the C++ client the last stands for five attempts in a row without a connection."""


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


@dataclass
class Rolling:
    """A group whose nodes are restarted under traffic, and what is seen of it meanwhile."""

    cluster: ConfiguredCluster
    traffic: Traffic
    watch: Watch
    ends_ms: list[int] = field(default_factory=list)
    """When nodes ended."""

    def restart(self, node: str) -> None:
        """Stops the node in order and starts it again, as this release."""
        self.cluster.stop_in_order(node)
        self.ends_ms.append(time.time_ns() // 1_000_000)
        self.cluster.start(node)
        self.traffic.go_on()

    def restart_leaders(self, times: int) -> None:
        """Stops the node that leads in order, and starts it again, so many times."""
        for _ in range(times):
            wait_until_level(self.cluster)
            self.restart(self.cluster.leader().id)

    def unexplained(self) -> list[Event]:
        """What failed the producer under test and is no lost connection to a node that was away."""
        found = []
        last_ms = 0
        for event in once_connected(self.traffic.producer):
            if event["event"] in FAILURES and not NO_CONNECTION.search(event["error"]):
                ended_meanwhile = any(last_ms <= end_ms <= event["at_ms"] for end_ms in self.ends_ms)
                if not (ended_meanwhile and NO_ANSWER.search(event["error"])):
                    found.append(event)
            last_ms = event["at_ms"]
        return found


@contextmanager
def rolling(client: Client, cluster: ConfiguredCluster) -> Iterator[Rolling]:
    """Runs traffic on the group while the block does (`traffic`)."""
    topic = make_topic(cluster, "rolling")
    with (
        Watch(cluster.name_server, topic) as watch,
        traffic(client, topic, name="rolling", messages=ROUND) as running,
    ):
        yield Rolling(cluster, running, watch)
    print(f"{watch.looks} looks, {len(watch.without_master)} without a master")
    assert watch.looks > 100


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


def test_leaders_are_stopped_in_order_and_started_again(client_of: ClientOf, configure: Configure) -> None:
    cluster = configure(nodes=NODES)
    with rolling(client_of(cluster.name_server), cluster) as running:
        running.restart_leaders(STOPS)
    assert running.watch.without_master == []
    assert running.unexplained() == []


def test_leaders_that_linger_fail_no_send(client_of: ClientOf, configure: Configure) -> None:
    cluster = configure(nodes=NODES, broker={"node": {"linger_s": LINGER_S}})
    with rolling(client_of(cluster.name_server), cluster) as running:
        running.restart_leaders(LINGERING_STOPS)
    assert running.watch.without_master == []
    assert failures(running.traffic.producer) == []


def test_group_is_upgraded(client_of: ClientOf, configure: Configure, tmp_path: Path) -> None:
    """From the release before this one, node by node, the leader last; then the new leader is started again.

    The stop of a leader of the earlier release may leave a route without a master for a moment.
    """
    cluster = configure(nodes=NODES, code=unpack_earlier_release(tmp_path))
    with rolling(client_of(cluster.name_server), cluster) as running:
        leader = cluster.leader()
        for node in sorted(cluster.nodes, key=lambda node: node == leader):
            wait_until_level(cluster)
            running.restart(node.id)
        running.watch.without_master.clear()
        running.restart_leaders(1)
    assert running.watch.without_master == []
    assert running.unexplained() == []
