"""Connections of a server whose sockets are read together, for tests of that."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import trio
import trio.testing

from broker.requests.connection import Connection, Outgoing
from broker.shell.socket_reading import Reading
from broker.shell.sockets import SocketConnection
from broker.shell.turns import Turns

LIMIT_S = 30.0
FAR_NS = 1 << 62


class Server:
    """Connections that are read together; `turns` has what each turn found: (client, bytes) in order of the reads."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.outgoing = Outgoing()
        self.turns: list[list[tuple[str, bytes]]] = []
        self.in_turn: Callable[[list[tuple[str, bytes]]], None] = lambda _: None
        self.connections: dict[str, SocketConnection] = {}
        self.failures: dict[str, Exception | None] = {}
        self._arrived: list[tuple[str, bytes]] = []
        self.runner = Turns(self._turn, lambda: 0)
        self.wake = self.runner.wake
        reading = Reading.begin(self.runner, lambda: None)
        assert reading is not None
        self.reading = reading
        self.scope = trio.CancelScope()
        nursery.start_soon(self.runner.run)
        nursery.start_soon(self._read)

    async def _read(self) -> None:
        with self.scope:
            await self.reading.run()

    def _turn(self) -> int:
        arrived, self._arrived = self._arrived, []
        self.turns.append(arrived)
        self.in_turn(arrived)
        for connection in self.outgoing.take():
            self.connections[connection.name].flush()
        return FAR_NS

    def connect(
        self,
        name: str,
        received: Callable[[bytes], None] | None = None,
        *,
        is_peer: bool = False,
        has_to_prove: bool = False,
    ) -> socket.socket:
        """The remote end of a new connection."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        served = SocketConnection(
            ours,
            Connection(self.outgoing, name),
            reading=self.reading,
            is_peer=is_peer,
            has_to_prove=has_to_prove,
        )
        self.connections[name] = served

        def arrived(data: bytes) -> None:
            self._arrived.append((name, data))
            self.wake()

        async def serve() -> None:
            failure: Exception | None = None
            try:
                await served.read_and_write(received or arrived)
            except Exception as error:
                failure = error
            self.failures[name] = failure

        self.nursery.start_soon(serve)
        return theirs


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            server = Server(nursery)
            await trio.testing.wait_all_tasks_blocked()
            server.turns.clear()  # the first, which every node begins with
            yield server
            nursery.cancel_scope.cancel()


async def receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        await trio.lowlevel.wait_readable(sock)
        data += sock.recv(65_536)
    return bytes(data)
