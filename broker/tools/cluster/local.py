"""A name server and a Raft group of brokers as child processes on this machine.

    async with LocalCluster(LocalClusterOptions(directory)) as cluster:
        await cluster.wait_ready()
        leader = await cluster.leader()
        await cluster.kill(leader.id)

Everything that it writes is under one directory: a configuration per node that a person can start by hand
(``trivet broker --config DIR/n0/broker.toml``), stores, logs and traces. The servers know nothing of it: it sees them
as any operator does, by processes and over the network. It never restarts a server by itself, because the uses that it
has (tests, demonstrations, measurements) are about what happens when one is gone.

All children end with the ``async with`` block, cleanly where they can; they also end when this process is killed.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import msgspec
import trio

from broker.client.errors import ClientError
from broker.remoting.addresses import join_address
from broker.remoting.node_status import NodeStatus
from broker.settings.reading import (
    BrokerConfig,
    NameServerConfig,
    NodeSettings,
    ObserveSettings,
    RaftSettings,
    StorageSettings,
    to_toml,
)
from broker.tools.cluster.child import Child, ChildDiedError
from broker.tools.cluster.ports import PortReservations
from broker.tools.cluster.query import cluster_info, node_status

READY_TIMEOUT_S = 120.0
"""For machines with much else to do. A server that ends meanwhile is noticed at once."""
STOP_GRACE_S = 15.0
_ASK_AGAIN_S = 0.05
"""Pause between two questions to servers that are not ready. Their readiness is theirs to tell; nothing is assumed."""
PORTS_BETWEEN_NODES = 10
"""Nodes listen at ``port``, ``port`` + 10, ...: the ports next to each are the reference's for other purposes."""


@dataclass(frozen=True, slots=True)
class LocalClusterOptions:
    """What to start. Port 0 takes free ports."""

    directory: Path
    nodes: int = 3
    name_server_port: int = 0
    port: int = 0
    host: str = "127.0.0.1"
    group: str = "broker-a"
    storage: StorageSettings = field(
        default_factory=lambda: StorageSettings(data_file_bytes=64 * 1024 * 1024)
    )
    """Settings of every node's store; its path is replaced."""
    raft: RaftSettings = field(default_factory=RaftSettings)
    """Settings of every node's group; its peers are replaced."""
    change: Callable[[BrokerConfig], BrokerConfig] = lambda config: config
    """A last word on every node's configuration."""
    trace_directory: Path | None = None
    """Where replicas write ``nX.trace``; None for no traces."""


class LocalNode:
    """One broker of the cluster: its place, and its process if it has one."""

    def __init__(self, config: BrokerConfig, directory: Path) -> None:
        self.config = config
        self.directory = directory
        self.config_path = directory / "broker.toml"
        self.log_path = directory / "broker.log"
        self.child: Child | None = None

    @property
    def id(self) -> str:
        """n0, n1, ..."""
        return self.config.node.id

    @property
    def address(self) -> str:
        """Where it listens for clients."""
        return self.config.node.listen

    @property
    def registered_address(self) -> str:
        """Where the name server sends clients."""
        return self.config.node.advertise or self.address

    @property
    def peer_address(self) -> str:
        """Where its peers look for it."""
        return self.config.raft.peers[self.id]

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.child is not None and self.child.running

    @property
    def data_directory(self) -> Path:
        """The entry log's data files (storage.md 3)."""
        return Path(self.config.log_directory) / "data"


class LocalCluster:
    """The name server and the nodes; see the module."""

    def __init__(self, options: LocalClusterOptions) -> None:
        assert options.nodes >= 1, "a group has at least one node"
        self.options = options
        self.directory = options.directory.absolute()
        self.nodes: dict[str, LocalNode] = {}
        self.name_server_address = ""
        self.name_server_config_path = self.directory / "namesrv.toml"
        self.name_server: Child | None = None
        self._next_number = 0
        self._ports = PortReservations(options.host)
        self._deaths_in, self.deaths = trio.open_memory_channel[Child](1024)
        """Servers that ended without being asked to, in order."""
        self._tasks: trio.Nursery | None = None
        self._watches: list[trio.CancelScope] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> LocalCluster:
        """Write the configurations and start every server. Raises PortInUseError, OSError."""
        try:
            self._lay_out()
            self._tasks = await self._stack.enter_async_context(trio.open_nursery())
            self.start_name_server()
            for node_id in self.nodes:
                self.start(node_id)
        except BaseException:
            self._kill_all()
            self._ports.release()
            if self._tasks is not None:
                await self._end_tasks(self._tasks)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop every server, brokers first so that they can unregister."""
        assert self._tasks is not None
        try:
            with trio.CancelScope(shield=True):
                await self._stop_all()
        finally:
            self._kill_all()
            self._ports.release()
            await self._end_tasks(self._tasks)

    async def _end_tasks(self, tasks: trio.Nursery) -> None:
        tasks.cancel_scope.cancel()
        for scope in self._watches:
            scope.cancel()
        await self._stack.aclose()

    # Lay-out -------------------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        options = self.options
        self.directory.mkdir(parents=True, exist_ok=True)
        if options.trace_directory is not None:
            options.trace_directory.mkdir(parents=True, exist_ok=True)
        name_server_port = self._ports.reserve(options.name_server_port, "the name server's")
        self.name_server_address = join_address(options.host, name_server_port)
        addresses = [self._reserve(number) for number in range(options.nodes)]
        peers = {f"n{number}": peer for number, (_, peer) in enumerate(addresses)}
        for number, (listen, _) in enumerate(addresses):
            self._lay_out_node(f"n{number}", listen, peers, join=False)

    def add_node(self) -> LocalNode:
        """Lay out one more node, which joins the group of the others; start it, and have the group add it.

        Its peers are all nodes that this cluster has: `discard` those that are no members any more before.
        """
        number = self._next_number
        listen, peer = self._reserve(number)
        peers = {node.id: node.peer_address for node in self.nodes.values()}
        return self._lay_out_node(f"n{number}", listen, {**peers, f"n{number}": peer}, join=True)

    def discard(self, node_id: str) -> None:
        """Forget a node that was removed from the group and is stopped; its files stay."""
        assert not self.nodes[node_id].running, f"{node_id} runs"
        del self.nodes[node_id]

    def write_peers(self) -> None:
        """Name the present nodes in all configurations, as operators do after a change of members."""
        peers = {node.id: node.peer_address for node in self.nodes.values()}
        for node in self.nodes.values():
            raft = msgspec.structs.replace(node.config.raft, peers=peers)
            node.config = msgspec.structs.replace(node.config, raft=raft)
            node.config_path.write_text(to_toml(node.config), encoding="utf-8")

    def _reserve(self, number: int) -> tuple[str, str]:
        """Addresses for a node's clients and for its peers."""
        options = self.options
        self._next_number = max(self._next_number, number + 1)
        port = options.port and options.port + number * PORTS_BETWEEN_NODES
        port = self._ports.reserve(port, f"n{number}'s for clients")
        peer_port = self._ports.reserve(port + 1 if options.port else 0, f"n{number}'s for its peers")
        return join_address(options.host, port), join_address(options.host, peer_port)

    def _lay_out_node(self, node_id: str, listen: str, peers: dict[str, str], *, join: bool) -> LocalNode:
        directory = self.directory / node_id
        directory.mkdir(exist_ok=True)
        config = self._config(node_id, listen, peers, directory, join=join)
        node = self.nodes[node_id] = LocalNode(config, directory)
        node.config_path.write_text(to_toml(config), encoding="utf-8")
        return node

    def _config(
        self, node_id: str, listen: str, peers: dict[str, str], directory: Path, *, join: bool
    ) -> BrokerConfig:
        options = self.options
        trace = (
            ""
            if options.trace_directory is None
            else str(options.trace_directory.absolute() / f"{node_id}.trace")
        )
        config = BrokerConfig(
            node=NodeSettings(
                cluster="DefaultCluster",
                group=options.group,
                id=node_id,
                listen=listen,
                name_servers=(self.name_server_address,),
            ),
            raft=msgspec.structs.replace(options.raft, peers=peers, join=join),
            storage=msgspec.structs.replace(options.storage, path=str(directory / "store")),
            observe=ObserveSettings(trace=trace),
        )
        return options.change(config)

    # Processes -----------------------------------------------------------------------------------------------------

    def start_name_server(self) -> None:
        """Start the name server, which must not be running."""
        assert self.name_server is None or not self.name_server.running
        config = NameServerConfig(
            listen=self.name_server_address, kv_config_path=str(self.directory / "kvConfig.json")
        )
        self.name_server_config_path.write_text(to_toml(config), encoding="utf-8")
        arguments = ["namesrv", "--config", str(self.name_server_config_path)]
        self.name_server = self._launch("namesrv", arguments, self.directory / "namesrv.log")

    def start(self, node_id: str) -> None:
        """Start a node, which must not be running."""
        node = self.nodes[node_id]
        assert not node.running, f"{node_id} runs"
        node.child = self._launch(node_id, ["broker", "--config", str(node.config_path)], node.log_path)

    async def kill(self, node_id: str) -> None:
        """SIGKILL to a running node; returns when its process is gone."""
        await self._child_of(node_id).kill()

    def kill_nowait(self, node_id: str) -> Child:
        """SIGKILL to a running node; the child's ``exited`` tells when it is gone."""
        child = self._child_of(node_id)
        child.kill_nowait()
        return child

    async def stop(self, node_id: str, grace_s: float = STOP_GRACE_S) -> bool:
        """SIGTERM to a running node; returns whether it stopped by itself, with exit code 0."""
        return await self._child_of(node_id).stop(grace_s)

    def signal(self, node_id: str, number: signal.Signals) -> None:
        """Any signal (SIGSTOP, SIGCONT) to a running node."""
        self._child_of(node_id).send_signal(number)

    def children(self) -> list[Child]:
        """Every process started last in its place, running or not; the name server first."""
        found = [self.name_server, *(node.child for node in self.nodes.values())]
        return [child for child in found if child is not None]

    def _child_of(self, node_id: str) -> Child:
        child = self.nodes[node_id].child
        assert child is not None
        assert child.running, f"{node_id} does not run"
        return child

    def _launch(self, name: str, arguments: list[str], log_path: Path) -> Child:
        assert self._tasks is not None, "the cluster is not entered"
        child = Child(name, arguments, log_path)
        self._tasks.start_soon(self._watch, child)
        return child

    async def _watch(self, child: Child) -> None:
        # Also while the whole block is being cancelled: stopping the servers in order waits for their ends.
        with trio.CancelScope(shield=True) as scope:
            self._watches.append(scope)
            await child.watch()
            self._watches.remove(scope)
        if scope.cancelled_caught:
            return
        if not child.expected_to_end:
            with contextlib.suppress(trio.WouldBlock):
                self._deaths_in.send_nowait(child)

    async def _stop_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                if node.running:
                    assert node.child is not None
                    nursery.start_soon(node.child.stop, STOP_GRACE_S)
        if self.name_server is not None and self.name_server.running:
            await self.name_server.stop(STOP_GRACE_S)

    def _kill_all(self) -> None:
        for child in self.children():
            child.kill_now()

    # State ---------------------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when a leader serves and every running node is registered under its role.

        Raises ChildDiedError if a server ends meanwhile, and trio.TooSlowError, whose text has the last state, if it
        takes too long.
        """
        missing = "nothing has been asked yet"
        with trio.move_on_after(timeout_s):
            while True:
                self._check_alive()
                missing = await self._missing()
                if not missing:
                    return
                await trio.sleep(_ASK_AGAIN_S)
        raise trio.TooSlowError(f"not ready after {timeout_s:g} s: {missing}")

    def _check_alive(self) -> None:
        for child in self.children():
            if not child.running and not child.expected_to_end:
                raise ChildDiedError(child.how_it_ended())

    async def _missing(self) -> str:
        """What a ready cluster lacks, empty if nothing."""
        running = {node.registered_address: node for node in self.nodes.values() if node.running}
        try:
            info = await cluster_info(self.name_server_address, timeout_s=1.0)
        except ClientError as error:
            return f"the name server: {error}"
        group = info.broker_table.get(self.options.group)
        addresses = {} if group is None else group.broker_addresses
        leader_address = addresses.get(0)
        if leader_address is None:
            return "no leader is registered"
        unregistered = [node.id for address, node in running.items() if address not in addresses.values()]
        if unregistered:
            return f"{', '.join(unregistered)} not registered"
        try:
            # The node itself is asked, and not what may stand in front of it.
            node = running.get(leader_address)
            status = await node_status(leader_address if node is None else node.address, timeout_s=1.0)
        except ClientError as error:
            return f"the registered leader: {error}"
        return (
            ""
            if status.role == "leader" and status.serving
            else f"{status.node} is registered as leader, not serving"
        )

    async def wait_unregistered(self, node_id: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the name server no longer has the node, which must be down. Raises trio.TooSlowError."""
        assert not self.nodes[node_id].running, f"{node_id} runs, and stays registered"
        address = self.nodes[node_id].registered_address
        with trio.fail_after(timeout_s):
            while True:
                group = (await cluster_info(self.name_server_address)).broker_table.get(self.options.group)
                if group is None or address not in group.broker_addresses.values():
                    return
                await trio.sleep(_ASK_AGAIN_S)

    async def status(self, timeout_s: float = 1.0) -> dict[str, NodeStatus]:
        """The status of every running node that answers in time."""
        found: dict[str, NodeStatus] = {}

        async def inquire(node: LocalNode) -> None:
            with contextlib.suppress(ClientError):
                found[node.id] = await node_status(node.address, timeout_s=timeout_s)

        async with trio.open_nursery() as nursery:
            for node in self.nodes.values():
                if node.running:
                    nursery.start_soon(inquire, node)
        return dict(sorted(found.items()))

    async def leader(self, timeout_s: float = READY_TIMEOUT_S) -> LocalNode:
        """The serving leader of the newest term; waits for one. Raises trio.TooSlowError, ChildDiedError."""
        with trio.fail_after(timeout_s):
            while True:
                self._check_alive()
                status = await self.status()
                serving = [node for node in status.values() if node.role == "leader" and node.serving]
                if serving:
                    return self.nodes[max(serving, key=lambda node: node.term).node]
                await trio.sleep(_ASK_AGAIN_S)

    async def wait_caught_up(self, timeout_s: float = READY_TIMEOUT_S) -> int:
        """Wait until every running node has committed and applied what the leader had committed; returns that index.

        Raises trio.TooSlowError, ChildDiedError.
        """
        with trio.fail_after(timeout_s):
            target: int | None = None
            while True:
                self._check_alive()
                status = await self.status()
                if target is None:
                    target = max(
                        (
                            node.commit_index
                            for node in status.values()
                            if node.role == "leader" and node.serving
                        ),
                        default=None,
                    )
                running = [node.id for node in self.nodes.values() if node.running]
                if target is not None and all(
                    node_id in status
                    and min(status[node_id].commit_index, status[node_id].applied_index) >= target
                    for node_id in running
                ):
                    return target
                await trio.sleep(_ASK_AGAIN_S)

    async def ready_report(self) -> dict[str, object]:
        """What the ``READY`` line says."""
        status = await self.status(READY_TIMEOUT_S)
        return {
            "namesrv": self.name_server_address,
            "nodes": [
                {
                    "id": node.id,
                    "pid": node.child.pid if node.child is not None else None,
                    "address": node.address,
                    "role": status[node.id].role if node.id in status else "unknown",
                }
                for node in self.nodes.values()
            ],
        }


@contextlib.asynccontextmanager
async def open_ready_cluster(options: LocalClusterOptions) -> AsyncIterator[LocalCluster]:
    """A cluster that is ready when the block begins."""
    async with LocalCluster(options) as cluster:
        await cluster.wait_ready()
        yield cluster
