"""NATS JetStream: a stream with three replicas in files, as it is set up by default: a majority's page caches."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import HOST, Servers, free_base_port, until
from benchmarks.peers.workloads import Group, Setting

STREAM, SUBJECT = "BENCH", "bench.t"


class _NatsGroup:
    def __init__(self, servers: Servers, ports: list[int]) -> None:
        self._servers = servers
        self._ports = ports
        self._leader = 0
        self._client: Any = None
        self._stream: Any = None

    @property
    def pids(self) -> list[int]:
        return self._servers.pids

    async def connect(self, first: int, *, alone: bool = True) -> None:
        import nats

        async def quiet(_: Exception) -> None:
            pass

        ports = [self._ports[first]] if alone else self._ports
        self._client = await nats.connect(
            [f"nats://{HOST}:{port}" for port in ports],
            dont_randomize=True,
            reconnect_time_wait=0.05,
            max_reconnect_attempts=-1,
            error_cb=quiet,
            connect_timeout=2,
        )
        self._stream = self._client.jetstream(timeout=5)

    async def create(self) -> None:
        """Creates the stream, and goes on at its leader, which spares each message a hop."""
        from nats.js import api
        from nats.js.errors import Error

        await until(
            lambda: self._stream.add_stream(
                api.StreamConfig(
                    name=STREAM, subjects=[SUBJECT], num_replicas=3, storage=api.StorageType.FILE
                )
            ),
            "a stream",
            (OSError, Error, TimeoutError),
        )
        info = await self._stream.stream_info(STREAM)
        self._leader = int(info.cluster.leader[1:])
        await self._client.close()
        await self.connect(self._leader, alone=False)

    async def send(self, body: bytes) -> None:
        from nats.errors import Error

        try:
            await self._stream.publish(SUBJECT, body, timeout=5)
        except Error as error:
            raise ConnectionError(str(error)) from error

    async def send_all(self, body: bytes, count: int, setting: Setting) -> None:
        client, window = self._client, setting[1]
        acknowledged = refused = 0
        room = asyncio.Event()

        async def answered(message: Any) -> None:
            nonlocal acknowledged, refused
            acknowledged += 1
            refused += b'"error"' in message.data
            room.set()

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=answered, pending_msgs_limit=-1, pending_bytes_limit=-1)
        sent = 0
        while acknowledged < count:
            while sent < count and sent - acknowledged < window:
                await client.publish(SUBJECT, body, reply=inbox)
                sent += 1
            room.clear()
            if acknowledged < count:
                await room.wait()
        assert not refused, f"{refused} messages were refused"

    async def read_all(self, count: int) -> None:
        got = 0
        all_read = asyncio.Event()

        async def received(_: Any) -> None:
            nonlocal got
            got += 1
            if got >= count:
                all_read.set()

        await self._stream.subscribe(SUBJECT, ordered_consumer=True, cb=received)
        await all_read.wait()

    async def kill_leader(self) -> None:
        await self._servers.kill(self._leader)

    async def reconnect(self) -> None:
        pass  # its client does so by itself

    async def close(self) -> None:
        await self._client.close()


class NatsSystem:
    name = "nats"
    settings: dict[int, list[Setting]] = {size: [(1, 256), (1, 1024), (1, 4096)] for size in (1024, 100)}
    """Batches form by themselves in a window of messages."""

    def __init__(self) -> None:
        self.version = subprocess.check_output(["nats-server", "--version"], text=True).strip()

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[Group]:
        base = free_base_port(6)
        ports, routes = list(range(base, base + 3)), range(base + 3, base + 6)
        servers = Servers(folder)
        group = _NatsGroup(servers, ports)
        try:
            for i, port in enumerate(ports):
                config = folder / f"n{i}.conf"
                config.write_text(
                    f"server_name: n{i}\nlisten: {HOST}:{port}\n"
                    f'jetstream {{ store_dir: "{folder}/n{i}", max_mem: 256M, max_file: 8G }}\n'
                    f"cluster {{ name: bench, listen: {HOST}:{routes[i]}, routes: ["
                    + ", ".join(f"nats://{HOST}:{route}" for route in routes)
                    + "] }\n"
                )
                servers.start(f"n{i}", ["nats-server", "-c", config])
            await until(lambda: group.connect(0), "a server")
            await group.create()
            yield group
            await group.close()
        finally:
            await servers.stop()
