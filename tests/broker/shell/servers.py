"""Whole servers in one event loop: a name server and a group of brokers on real sockets and real files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import trio

from broker.settings.loading import to_toml
from broker.settings.rules import check_broker
from broker.settings.tables import (
    NameServerSettings,
    NodeSettings,
    RaftSettings,
    Settings,
    StorageSettings,
)
from broker.shell.broker_server import BrokerServer
from broker.shell.name_server import NameServerProcess
from broker.tools.cluster.ports import PortReservations
from broker.tools.cluster.query import cluster_info

LIMIT_S = 240.0
"""Ends a test that hangs; no test depends on how long anything takes."""


@dataclass
class Servers:
    """Running servers: ``name_servers`` by address, ``brokers`` by node id; ``base`` are the name servers' settings."""

    base: NameServerSettings = field(default_factory=NameServerSettings)
    name_servers: dict[str, NameServerProcess] = field(default_factory=dict)
    brokers: dict[str, BrokerServer] = field(default_factory=dict)
    configs: dict[str, Settings] = field(default_factory=dict)

    @property
    def name_server(self) -> str:
        return next(iter(self.name_servers))

    def leader(self) -> BrokerServer | None:
        """The broker that serves, if one does."""
        return next((broker for broker in self.brokers.values() if broker.node.replica.serving), None)

    async def wait_leader(self) -> BrokerServer:
        while True:
            leader = self.leader()
            if leader is not None:
                return leader
            await trio.sleep(0.01)

    async def wait_registered(self) -> None:
        """Until every name server knows a broker that takes writes."""
        for address in self.name_servers:
            while True:
                brokers = (await cluster_info(address)).broker_table.values()
                if any(0 in broker.broker_addresses for broker in brokers):
                    break
                await trio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    *,
    nodes: int = 1,
    name_servers: int = 1,
    name_server: NameServerSettings | None = None,
    change: Callable[[Settings], Settings] = lambda config: config,
) -> AsyncIterator[Servers]:
    """Servers that are asked to stop in order at the end. ``change`` has the last word on a broker's configuration."""
    base = name_server or NameServerSettings(kv_config_path="")
    servers = Servers(base)
    # Until the end: a server that is stopped and begun anew finds its port free.
    ports = PortReservations("127.0.0.1")
    with trio.fail_after(LIMIT_S), contextlib.ExitStack() as stack:
        stack.callback(ports.release)
        async with trio.open_nursery() as nursery:
            for _ in range(name_servers):
                listen = f"127.0.0.1:{ports.reserve(0, 'a name server')}"
                process = NameServerProcess(msgspec.structs.replace(base, listen=listen))
                servers.name_servers[process.address] = process
                nursery.start_soon(process.serve)
            peers = {f"n{k}": f"127.0.0.1:{ports.reserve(0, 'peers')}" for k in range(nodes)}
            for node_id in peers:
                config = change(
                    Settings(
                        node=NodeSettings(
                            id=node_id, listen="127.0.0.1:0", name_servers=tuple(servers.name_servers)
                        ),
                        raft=RaftSettings(
                            peers=peers if nodes > 1 else {},
                            election_timeout_min_ms=500,  # far apart: on one loop all nodes wait for each one's fsync
                            election_timeout_max_ms=1500,
                            heartbeat_ms=100,
                        ),
                        storage=StorageSettings(
                            path=str(folder / node_id),
                            data_file_bytes=1 << 20,
                            entry_index_file_bytes=32 * 4096,
                            consume_queue_file_bytes=20 * 1024,
                            index_file_slots=1000,
                            index_file_entries=4000,
                            max_message_bytes=256 * 1024,
                        ),
                    )
                )
                check_broker(config)
                assert to_toml(config), "every test configuration can be written down"
                servers.configs[node_id] = config
                broker = servers.brokers[node_id] = BrokerServer(config)
                nursery.start_soon(broker.serve)
            try:
                yield servers
            finally:
                for broker in servers.brokers.values():
                    broker.stop()
                for process in servers.name_servers.values():
                    process.stop()
