"""A running group as tests see it, whichever broker it is: addresses, roles, and a way to kill a node.

``TrivetCluster`` runs the command line ``trivet cluster`` as a user would and reads its READY line. The reference's
counterpart is in ``reference.py``. Roles are asked of the name server each time, as clients learn them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.interop import wire
from tests.interop.processes import Child, wait_until

READY_LIMIT_S = 180.0
FAILOVER_LIMIT_S = 180.0
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Node:
    """One broker process: its name, process id and client address ``host:port``."""

    id: str
    pid: int
    address: str


class Cluster(Protocol):
    """A name server and one group of brokers on loopback."""

    kind: str
    name_server: str
    nodes: Sequence[Node]

    def leader(self) -> Node: ...

    def stop(self) -> None: ...


def leader_of(name_server: str, nodes: Sequence[Node]) -> Node:
    """The node that the name server lists under broker id 0. Raises ``LookupError`` while there is none."""
    by_address = {node.address: node for node in nodes}
    for addresses in wire.broker_addresses(name_server).values():
        if 0 in addresses and addresses[0] in by_address:
            return by_address[addresses[0]]
    raise LookupError("no broker is registered with id 0")


def has_leader(name_server: str, nodes: Sequence[Node], other_than: Node | None = None) -> bool:
    try:
        return leader_of(name_server, nodes) != other_than
    except LookupError:
        return False


def wait_for_leader(name_server: str, nodes: Sequence[Node]) -> Node:
    """The node of `leader_of`, once there is one: on a busy machine a group may elect anew at any time."""
    found: list[Node] = []

    def look() -> bool:
        with contextlib.suppress(LookupError):
            found.append(leader_of(name_server, nodes))
        return bool(found)

    wait_until(look, FAILOVER_LIMIT_S, "a leader")
    return found[0]


def kill_leader(cluster: Cluster) -> Node:
    """SIGKILL of the present leader; returns it once its process is gone."""
    leader = cluster.leader()
    os.kill(leader.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(leader.pid), FAILOVER_LIMIT_S, f"end of process {leader.pid}")
    return leader


def wait_for_new_leader(cluster: Cluster, old: Node) -> Node:
    """Blocks until the name server lists another leader than ``old``."""
    limit = FAILOVER_LIMIT_S
    wait_until(lambda: has_leader(cluster.name_server, cluster.nodes, old), limit, "a new leader")
    return cluster.leader()


def make_topic(cluster: Cluster, topic: str, queues: int = 4) -> str:
    """Creates ``topic`` on the group and waits for its route at every name server."""
    wire.create_topic(cluster.leader().address, topic, queues)
    for server in cluster.name_server.split(";"):

        def is_routed(at: str = server) -> bool:
            return wire.topic_queue_count(at, topic) == queues

        wait_until(is_routed, FAILOVER_LIMIT_S, f"route of {topic} at {server}")
    return topic


def is_running(pid: int) -> bool:
    """Returns whether the process exists and has not ended (a zombie has)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status[status.rindex(")") + 2] not in "ZX"


_given: set[int] = set()
"""The ports that this process was given: the servers that are to have them may not listen yet."""


def free_base_port(span: int, host: str = HOST) -> int:
    """The first of ``span`` consecutive ports of the loopback address ``host``, all free now and given to nobody else.

    Below those that systems give to whoever connects, so that they are free still when the servers come to listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(200):
        base = random.randrange(15_000, 32_000)
        ports = range(base, base + span)
        if _given.isdisjoint(ports) and all(_is_free(family, host, port) for port in ports):
            _given.update(ports)
            return base
    raise RuntimeError(f"no {span} consecutive free ports found")


def _is_free(family: socket.AddressFamily, host: str, port: int) -> bool:
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class TrivetCluster:
    """``trivet cluster`` as a child process."""

    kind = "trivet"

    def __init__(self, folder: Path, nodes: int = 3, flush: str = "async") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name_server = f"{HOST}:{free_base_port(1)}"
        port = free_base_port(10 * nodes + 2)
        argv = [str(Path(sys.executable).with_name("trivet")), "cluster", "--dir", str(folder / "data")]
        argv += ["--nodes", str(nodes), "--namesrv-port", self.name_server.rpartition(":")[2]]
        argv += ["--flush", flush]
        self._child = Child([*argv, "--port", str(port + 2), "--vip"], log=folder / "cluster.log", cwd=folder)
        try:
            self._child.wait_until(self._ready_line, READY_LIMIT_S, "READY")
        except BaseException:
            self._child.interrupt()
            raise
        ready = json.loads(self._ready_line()[len("READY ") :])
        self.name_server = ready["namesrv"]
        self.nodes: Sequence[Node] = [
            Node(node["id"], node["pid"], node["address"]) for node in ready["nodes"]
        ]

    def leader(self) -> Node:
        return wait_for_leader(self.name_server, self.nodes)

    def stop(self) -> None:
        """Ctrl-C, as a user ends it; every child must be gone afterwards."""
        self._child.interrupt()
        deadline = time.monotonic() + FAILOVER_LIMIT_S
        for node in self.nodes:
            while is_running(node.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            if is_running(node.pid):
                os.kill(node.pid, signal.SIGKILL)
                raise AssertionError(f"trivet cluster left {node.id} (pid {node.pid}) behind")

    def _ready_line(self) -> str:
        return next((line for line in self._child.lines if line.startswith("READY ")), "")
