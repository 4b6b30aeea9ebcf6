"""The servers of a test, on Trio: a name server and the nodes of one group, each of which can be killed and started."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import trio

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.settings.tables import (
    BrokerSettings,
    NameServerSettings,
    NodeSettings,
    RaftSettings,
    RetentionSettings,
    Settings,
    StorageSettings,
)
from broker.shell.broker_server import BrokerServer
from broker.shell.machine import machine_clock
from broker.shell.name_server import NameServerProcess
from broker.testing.power import Power, PoweredDisk
from broker.tools.cluster.ports import PortReservations
from broker.tools.cluster.query import cluster_info

HOST = "127.0.0.1"
Flush = Literal["sync", "async"]
_LOOK_AGAIN_S = 0.005


class Servers:
    """The running servers. All of it is called in their event loop."""

    def __init__(
        self, directory: Path, nodes: int, flush: Flush, ports: PortReservations, tasks: trio.Nursery
    ) -> None:
        self._tasks = tasks
        self._running: dict[str, tuple[BrokerServer, trio.CancelScope, trio.Event]] = {}
        self._name_server = NameServerProcess(NameServerSettings(listen=f"{HOST}:0", kv_config_path=""))
        self.name_server = self._name_server.address
        """Its address."""
        ids = [f"n{number}" for number in range(nodes)]
        peers = {node: f"{HOST}:{ports.reserve(0, 'peers')}" for node in ids}
        self._settings = {
            node: self._settings_of(
                node, f"{HOST}:{ports.reserve(0, 'clients')}", peers if nodes > 1 else {}, directory, flush
            )
            for node in ids
        }
        self._power = {node: Power(directory / node) for node in ids}
        tasks.start_soon(self._name_server.serve)
        self.start()

    def _settings_of(
        self, node: str, listen: str, peers: dict[str, str], directory: Path, flush: Flush
    ) -> Settings:
        return Settings(
            node=NodeSettings(id=node, listen=listen, name_servers=(self.name_server,)),
            broker=BrokerSettings(register_interval_ms=1000),
            raft=RaftSettings(
                peers=peers, election_timeout_min_ms=500, election_timeout_max_ms=1500, heartbeat_ms=100
            ),
            storage=StorageSettings(
                path=str(directory / node),
                flush=flush,
                data_file_bytes=16 << 20,
                entry_index_file_bytes=32 * 16384,
                consume_queue_file_bytes=20 * 4096,
                index_file_slots=4096,
                index_file_entries=16384,
                prepare_ahead_bytes=64 << 10,
            ),
            # However full a developer's disk is: tests store little.
            retention=RetentionSettings(disk_clean_percent=95, disk_force_percent=99, disk_full_percent=99),
        )

    def start(self, *nodes: str) -> None:
        """Start these nodes, or all that do not run. Raises ValueError for one that does, or that there is not."""
        stopped = [node for node in self._settings if node not in self._running]
        for node in nodes:
            if node not in stopped:
                raise ValueError(
                    f"{node} is no node that could be started: {', '.join(stopped) or 'all run'}"
                )
        for node in nodes or stopped:
            self._start(node)

    def _start(self, node: str) -> None:
        scope, ended = trio.CancelScope(), trio.Event()
        power = self._power[node]
        boot = f"{machine_clock()} {power.losses}" if power.losses else None
        server = BrokerServer(self._settings[node], PoweredDisk(power), boot)
        self._running[node] = server, scope, ended

        async def serve() -> None:
            try:
                with scope:
                    await server.serve()
            finally:
                del self._running[node]
                ended.set()

        self._tasks.start_soon(serve)

    @property
    def leader(self) -> str | None:
        """The node that serves, if one does."""
        return next(
            (node for node, (server, _, _) in self._running.items() if server.node.replica.serving), None
        )

    async def wait_leader(self) -> str:
        """Wait until a node leads and is registered, so that clients find it."""
        while True:
            leader = self.leader
            if leader is not None and await self._registered() == self._settings[leader].node.listen:
                return leader
            await trio.sleep(_LOOK_AGAIN_S)

    async def _registered(self) -> str | None:
        """The address of the leader that the name server gives to clients; None without one, and without an answer."""
        # The name server runs in this loop, too: if it has no time to answer, nobody has, and it is asked again.
        with contextlib.suppress(ClientError):
            brokers = (await cluster_info(self.name_server)).broker_table.values()
            return next((found.broker_addresses.get(0) for found in brokers), None)
        return None

    async def kill(self, node: str) -> None:
        """End a node as the end of its process would: nothing is flushed, nobody is told. Raises ValueError."""
        if node not in self._running:
            raise ValueError(f"{node} does not run")
        _, scope, ended = self._running[node]
        scope.cancel()
        await ended.wait()

    async def kill_leader(self) -> str:
        """Kill the node that leads, once there is one; returns it."""
        leader = await self.wait_leader()
        await self.kill(leader)
        return leader

    async def lose_power(self, *nodes: str) -> None:
        """End these nodes, or all, as if their machines lost power at once: what was not flushed is gone.

        They need not run. Raises ValueError for one that there is not.
        """
        for node in nodes:
            if node not in self._settings:
                raise ValueError(f"{node} is no node: {', '.join(self._settings)}")
        lost = nodes or tuple(self._settings)
        running = [self._running[node] for node in lost if node in self._running]
        for _, scope, _ in running:
            scope.cancel()
        for _, _, ended in running:
            await ended.wait()
        for node in lost:
            self._power[node].lose()

    async def create_topic(self, topic: str, queues: int) -> None:
        """Create a topic, and wait until clients find it. Raises what `AdminClient.create_topic` raises."""
        async with AdminClient(self.name_server) as admin:
            await admin.create_topic(topic, queues=queues)

    async def stop(self) -> None:
        """Stop all nodes in order, one after the other, so that none waits for a majority; then the name server."""
        for server, _, ended in list(self._running.values()):
            server.stop()
            await ended.wait()
        self._name_server.stop()

    async def drop(self) -> None:
        """Kill all nodes, whose files nobody wants, and stop the name server."""
        for node in list(self._running):
            await self.kill(node)
        self._name_server.stop()


@contextlib.asynccontextmanager
async def serving(directory: Path, nodes: int, *, flush: Flush, keep: bool) -> AsyncIterator[Servers]:
    """Servers with files in that directory, which are ready for clients.

    With the block they end: in order if the files are to be kept.
    """
    ports = PortReservations(HOST)  # until the end: a node that is killed and started finds its port free
    try:
        async with trio.open_nursery() as tasks:
            servers = Servers(directory, nodes, flush, ports, tasks)
            await servers.wait_leader()
            try:
                yield servers
            finally:
                with trio.CancelScope(shield=True):
                    await (servers.stop() if keep else servers.drop())
    finally:
        ports.release()
