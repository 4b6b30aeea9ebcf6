"""RabbitMQ: a quorum queue with publisher confirms; a majority's disks."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.processes import HOST, Servers, free_base_port, until
from benchmarks.peers.workloads import Group, Setting

QUEUE = "bench"
_CONTROL_S = 120


class _RabbitGroup:
    """Publishes on one channel; confirms come in order of delivery tags, several at once or each alone."""

    def __init__(self, nodes: _Nodes) -> None:
        self._nodes = nodes
        self._connection: Any = None
        self._channel: Any = None
        self._tag = 0
        self._waiting: deque[tuple[int, Callable[[bool], None]]] = deque()

    @property
    def pids(self) -> list[int]:
        return self._nodes.servers.pids

    async def connect(self, node: int) -> None:
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(value: Any, error: bool = False) -> None:
            if not opened.done():
                if error:
                    opened.set_exception(ConnectionError(str(value)))
                else:
                    opened.set_result(value)

        parameters = pika.ConnectionParameters(
            HOST,
            self._nodes.ports[node],
            connection_attempts=1,
            socket_timeout=2,
            blocked_connection_timeout=5,
        )
        AsyncioConnection(
            parameters,
            on_open_callback=lambda connection: connection.channel(
                on_open_callback=lambda channel: settle((connection, channel))
            ),
            on_open_error_callback=lambda _, error: settle(error, True),
            on_close_callback=lambda _, error: self._lost(error),
        )
        self._connection, self._channel = await opened
        self._tag = 0
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel.confirm_delivery(self._confirmed, callback=lambda _: ready.set_result(None))
        await ready

    def _lost(self, error: object) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            done(False)

    def _confirmed(self, frame: Any) -> None:
        import pika

        method, good = frame.method, isinstance(frame.method, pika.spec.Basic.Ack)
        waiting = self._waiting
        if method.multiple:
            while waiting and waiting[0][0] <= method.delivery_tag:
                waiting.popleft()[1](good)
            return
        for place, (tag, done) in enumerate(waiting):
            if tag == method.delivery_tag:
                del waiting[place]
                done(good)
                return

    def _publish(self, body: bytes, done: Callable[[bool], None]) -> None:
        import pika

        self._tag += 1
        self._waiting.append((self._tag, done))
        self._channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2))

    async def declare(self) -> None:
        declared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel.queue_declare(
            QUEUE,
            durable=True,
            arguments={"x-queue-type": "quorum", "x-quorum-initial-group-size": 3},
            callback=lambda _: declared.set_result(None),
        )
        await declared

    async def send(self, body: bytes) -> None:
        if self._channel is None or not self._channel.is_open:
            raise ConnectionError("closed")
        confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._publish(body, lambda good: None if confirmed.done() else confirmed.set_result(good))
        if not await confirmed:
            raise ConnectionError("not confirmed")

    async def send_all(self, body: bytes, count: int, setting: Setting) -> None:
        all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = waits = count

        def done(good: bool) -> None:
            nonlocal left, waits
            assert good, "refused, or the connection is lost"
            waits -= 1
            if left:
                left -= 1
                self._publish(body, done)
            elif not waits:
                all_done.set_result(None)

        for _ in range(min(setting[1], count)):
            left -= 1
            self._publish(body, done)
        await all_done

    async def read_all(self, count: int) -> None:
        got = 0
        all_read: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def received(channel: Any, delivery: Any, *_: object) -> None:
            nonlocal got
            got += 1
            if got % 500 == 0 or got == count:
                channel.basic_ack(delivery.delivery_tag, multiple=True)
            if got == count:
                all_read.set_result(None)

        self._channel.basic_qos(prefetch_count=2000)
        self._channel.basic_consume(QUEUE, received)
        await all_read

    async def kill_leader(self) -> None:
        await self._nodes.servers.kill(0)  # the node that the queue was declared on leads it

    async def reconnect(self) -> None:
        await self.connect(1)

    async def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
            await asyncio.sleep(0)


class _Nodes:
    """Three Erlang nodes on loopback, joined to one cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        base = free_base_port(6)
        self.ports = list(range(base, base + 3))
        self._peer_ports = list(range(base + 3, base + 6))
        self.servers = Servers(folder)
        self._names = [f"bench{base}n{i}@localhost" for i in range(3)]
        home = folder / "home"
        home.mkdir()
        cookie = home / ".erlang.cookie"
        cookie.write_text("benchmarks")
        cookie.chmod(0o400)
        self._home = home

    def _environment(self, i: int) -> dict[str, str]:
        return {
            "HOME": str(self._home),
            "RABBITMQ_NODENAME": self._names[i],
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.ports[i]),
            "RABBITMQ_DIST_PORT": str(self._peer_ports[i]),
            "RABBITMQ_MNESIA_BASE": str(self._folder / f"n{i}"),
            "RABBITMQ_LOG_BASE": str(self._folder / f"log{i}"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self._folder / f"n{i}.pid"),
        }

    async def start(self) -> None:
        (self._folder / "plugins").write_text("[].\n")
        tools = _tools()
        for i in range(3):
            self.servers.start(f"n{i}", [tools / "rabbitmq-server"], self._environment(i))
        for i in range(3):
            await until(lambda i=i: self._control(i, "await_startup"), f"node {i}")  # type: ignore[misc]
        for i in (1, 2):
            for words in (("stop_app",), ("reset",), ("join_cluster", self._names[0]), ("start_app",)):
                await self._control(i, *words)

    async def _control(self, i: int, *words: str) -> None:
        command = [str(_tools() / "rabbitmqctl"), "-n", self._names[i], *words]
        environment = {**os.environ, **self._environment(i)}
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, timeout=_CONTROL_S
        )
        if done.returncode:
            raise OSError(f"rabbitmqctl {' '.join(words)}: {done.stderr or done.stdout}")


def _tools() -> Path:
    """The folder with RabbitMQ's own scripts: those of distributions want another user."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    on_path = shutil.which("rabbitmq-server")
    if not found and on_path is None:
        raise FileNotFoundError("rabbitmq-server is not installed")
    return found[-1] if found else Path(str(on_path)).parent


class RabbitmqSystem:
    name = "rabbitmq"
    settings: dict[int, list[Setting]] = {size: [(1, 256), (1, 1024), (1, 2048)] for size in (1024, 100)}

    def __init__(self) -> None:
        self.version = f"RabbitMQ {_tools().parent.name.rpartition('-')[2]}, quorum queue"

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[Group]:
        nodes = _Nodes(folder)
        group = _RabbitGroup(nodes)
        try:
            await nodes.start()
            await until(lambda: group.connect(0), "a connection")
            await group.declare()
            yield group
            await group.close()
        finally:
            await nodes.servers.stop()
