"""Three groups over three machines: one machine dies, then each is restarted in turn, under unmodified clients.

Part of ``make interop``. RocketMQ's clients keep a route for 30 s, and go to another broker name at once when a send
fails: with one group they wait for the next look (test_rolling.py), with several no send need fail.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.tools.cluster.layout import Layout, LocalClusterOptions
from tests.interop import wire
from tests.interop.clients import Client
from tests.interop.cluster import READY_LIMIT_S
from tests.interop.configured import COMMAND_LIMIT_S, ROOT, STOP_LIMIT_S, TRIVET
from tests.interop.conftest import ClientOf
from tests.interop.processes import Child, wait_until
from tests.interop.traffic import NO_ANSWER, Traffic, failures, traffic

pytestmark = [pytest.mark.trivet_only, pytest.mark.extended, pytest.mark.slow]

OLD_JAVA = "java-4.9.8"
GROUPS = 3
MACHINES = 3
ROUND = 300
ROUTE_LIFE_S = 32
"""Beyond the 30 s for which clients keep a route: what they do with an old one has been seen, and with a new one."""


class Groups:
    """The name server and the nodes, as processes that are started and ended by their machines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._layout = Layout(LocalClusterOptions(folder / "data", nodes=MACHINES, groups=GROUPS))
        self.name_server = self._layout.name_server_address
        self._name_server = self._start("namesrv", self._layout.name_server_settings_path)
        self._running: dict[str, Child] = {}
        for machine in range(MACHINES):
            self.start(machine)
        self.wait_ready()

    def start(self, machine: int) -> None:
        """Starts the nodes of a machine."""
        for node in self._layout.on_machine(machine):
            self._running[node.id] = self._start("broker", node.settings_path)

    def kill(self, machine: int) -> None:
        """SIGKILL to the nodes of a machine, all at once."""
        lost = [self._running.pop(node.id) for node in self._layout.on_machine(machine)]
        for child in lost:
            child.process.kill()
        for child in lost:
            child.kill()

    def stop_in_order(self, machine: int) -> None:
        """Asks the nodes of a machine to stop; returns once they have ended, with status 0."""
        stopped = [self._running.pop(node.id) for node in self._layout.on_machine(machine)]
        for child in stopped:
            child.process.terminate()
        for child in stopped:
            assert child.wait_for_end(STOP_LIMIT_S) == 0, child.tail()

    def wait_ready(self) -> None:
        """Until each running node is registered, and each group is led by the node that it prefers."""

        def is_ready() -> bool:
            registered = wire.broker_addresses(self.name_server)
            present = {address for addresses in registered.values() for address in addresses.values()}
            nodes = self._layout.nodes
            return {nodes[node_id].address for node_id in self._running} <= present and all(
                registered.get(nodes[preferred].group, {}).get(0) == nodes[preferred].address
                for node in nodes.values()
                for preferred in node.settings.raft.preferred_leaders
                if preferred in self._running
            )

        wait_until(is_ready, READY_LIMIT_S, "all groups are led")

    def make_topic(self, topic: str) -> None:
        """As an operator does."""
        words = ["topic", "create", topic, "--queues", "4", "--namesrv", self.name_server]
        subprocess.run([TRIVET, *words], check=True, timeout=COMMAND_LIMIT_S)

    def stop(self) -> None:
        for child in [*self._running.values(), self._name_server]:
            child.interrupt()
        self._layout.release()

    def _start(self, kind: str, settings: Path) -> Child:
        argv = [sys.executable, "-m", "trivet", kind, "--config", str(settings)]
        return Child(argv, log=settings.with_suffix(".log"), cwd=ROOT)


@contextmanager
def traffic_on(groups: Groups, client: Client) -> Iterator[Traffic]:
    """Runs traffic on a topic of all groups while the block does (`traffic`)."""
    groups.make_topic("several")
    with traffic(client, "several", name="several", messages=ROUND) as running:
        yield running


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    running = Groups(tmp_path)
    yield running
    running.stop()


def test_a_machine_dies(client_of: ClientOf, groups: Groups) -> None:
    with traffic_on(groups, client_of(groups.name_server)) as running:
        groups.kill(1)
        running.go_on(ROUTE_LIFE_S)
        groups.start(1)
        groups.wait_ready()
        running.go_on(ROUTE_LIFE_S)
    check_failures(running, ended=1)


def test_each_machine_is_stopped_in_order_and_started_again(client_of: ClientOf, groups: Groups) -> None:
    with traffic_on(groups, client_of(groups.name_server)) as running:
        for machine in range(MACHINES):
            groups.stop_in_order(machine)
            running.go_on()
            groups.start(machine)
            groups.wait_ready()
            running.go_on()
    check_failures(running, ended=MACHINES)


def check_failures(running: Traffic, ended: int) -> None:
    """No send has failed but those of a client that waits for an answer on a connection that is gone.

    The Java client of 4.x does, for as long as it may: of a producer that sends one message after the other that is the
    one under way when the machine ends, and no other.
    """
    failed = failures(running.producer)
    if running.client.name != OLD_JAVA:
        assert failed == []
    assert [event for event in failed if not NO_ANSWER.search(event["error"])] == []
    assert len(failed) <= ended
