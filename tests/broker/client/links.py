"""A network in memory for the client's tests: connections that a test can stop, break and script at the server's end.

A server handles requests as its class says. A test changes what becomes of the next requests of a code by
`Server.script`: each step replaces the normal handling of one request. Time is Trio's mock clock.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from broker.client.transport.runtime import Buffer, ByteStream
from broker.client.transport.trio_runtime import TrioRuntime
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.frame import FrameDecoder

WALL_START_MS = 1_700_001_000_000
"""The wall clock when Trio's mock clock begins."""


class Pipe:
    """One direction of a memory connection."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.stopped = False
        """While true the receiver reads nothing and the sender's writes do not fit."""
        self.takes: Callable[[int], int] = lambda size: size
        """Of so many bytes that are to be written, how many fit now."""
        self._data = bytearray()
        self._ended = False
        self._broken = False
        self._changed = trio.Event()

    def put(self, data: bytes) -> None:
        if self._broken:
            raise OSError(errno.ECONNRESET, "connection reset")
        self.writes.append(data)
        self._data += data
        self._wake()

    async def get(self) -> bytes:
        while True:
            if self._broken:
                raise OSError(errno.ECONNRESET, "connection reset")
            if self._data and not self.stopped:
                data = bytes(self._data)
                self._data.clear()
                return data
            if self._ended:
                return b""
            await self._changed.wait()

    async def wait_room(self) -> None:
        while self.stopped and not self._broken:
            await self._changed.wait()

    def go_on(self) -> None:
        self.stopped = False
        self._wake()

    def end(self, *, broken: bool = False) -> None:
        self._ended = True
        self._broken = self._broken or broken
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class MemoryStream:
    """The client's end: a `ByteStream`."""

    def __init__(self, outgoing: Pipe, incoming: Pipe) -> None:
        self.outgoing = outgoing
        self.incoming = incoming

    def write_nowait(self, buffers: Sequence[Buffer]) -> int:
        if self.outgoing.stopped:
            return 0
        data = b"".join(buffers)
        taken = self.outgoing.takes(len(data))
        if taken:
            self.outgoing.put(data[:taken])
        return taken

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        while data:
            await self.outgoing.wait_room()
            taken = self.outgoing.takes(len(data))
            if taken:
                self.outgoing.put(data[:taken])
                data = data[taken:]
            else:
                await trio.sleep(0.001)

    async def receive_some(self) -> bytes:
        return await self.incoming.get()

    def close(self) -> None:
        self.outgoing.end()
        self.incoming.end(broken=True)


@dataclass(eq=False)
class Link:
    """One connection as its server sees it."""

    address: str
    from_client: Pipe
    to_client: Pipe

    def send(self, command: RemotingCommand) -> None:
        self.to_client.put(encode(command))

    def reset(self) -> None:
        """As when the server's process dies."""
        self.from_client.end(broken=True)
        self.to_client.end(broken=True)


Step = Callable[[Link, RemotingCommand], RemotingCommand | None]
"""Handles one request; None responds nothing."""


def silent(link: Link, command: RemotingCommand) -> None:
    """Never responds."""


def second_damaged(link: Link, command: RemotingCommand) -> RemotingCommand:
    """Of a pull's response, with the head of its second message damaged: the magic number."""
    body = bytearray(command.body)
    second = int.from_bytes(body[:4], "big")
    if second < len(body):
        body[second + 4] ^= 1
    command.body = bytes(body)
    return command


def reset(link: Link, command: RemotingCommand) -> None:
    """Breaks the connection instead of responding."""
    link.reset()


def code(number: int, remark: str = "scripted") -> Step:
    """Responds with that code and does nothing."""
    return lambda link, command: response(command, number, remark)


class Server:
    """Something that listens at an address."""

    def __init__(self, world: World, address: str) -> None:
        self.world = world
        self.address = address
        self.up = True
        self.links: list[Link] = []
        self.requests: list[RemotingCommand] = []
        self.scripts: dict[int, deque[Step]] = {}
        world.servers[address] = self

    def script(self, request_code: int, *steps: Step) -> None:
        """The next requests of that code are handled by these steps."""
        self.scripts.setdefault(int(request_code), deque()).extend(steps)

    def received(self, request_code: int) -> list[RemotingCommand]:
        """The requests of that code so far."""
        return [command for command in self.requests if command.code == request_code]

    def kill(self) -> None:
        """All connections break, new ones are refused."""
        self.up = False
        for link in self.links:
            link.reset()
        self.links.clear()

    def accept(self, link: Link) -> None:
        """A client has connected."""
        self.links.append(link)
        self.world.nursery.start_soon(self.serve, link)

    def disconnected(self, link: Link) -> None:
        """A client's connection has ended, or the server was killed."""

    async def serve(self, link: Link) -> None:
        """Handles what a client sends until its connection ends."""
        decoder = FrameDecoder()
        try:
            while data := await link.from_client.get():
                for command in decoder.feed(data):
                    self.requests.append(command)
                    self._handle(link, command)
        except OSError:
            pass
        finally:
            if link in self.links:
                self.links.remove(link)
            self.disconnected(link)

    def _handle(self, link: Link, command: RemotingCommand) -> None:
        steps = None if command.is_response else self.scripts.get(command.code)
        response = steps.popleft()(link, command) if steps else self.handle(link, command)
        if response is not None and not command.is_one_way:
            with contextlib.suppress(OSError):
                link.send(response)

    def handle(self, link: Link, command: RemotingCommand) -> RemotingCommand | None:
        """Handles a request that no step is scripted for, or a response; returns the response, None for none now."""
        raise NotImplementedError


class World:
    """The network: servers by their addresses."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.servers: dict[str, Server] = {}
        self.connect_delay_s = 0.0
        self.takes: Callable[[int], int] | None = None
        """`Pipe.takes` of what clients write on new connections."""

    async def connect(self, address: str) -> ByteStream:
        await trio.sleep(self.connect_delay_s)
        server = self.servers.get(address)
        if server is None or not server.up:
            raise OSError(errno.ECONNREFUSED, f"connection to {address} refused")
        link = Link(address, Pipe(), Pipe())
        link.from_client.takes = self.takes or link.from_client.takes
        server.accept(link)
        return MemoryStream(link.from_client, link.to_client)


def now_ns() -> int:
    """Trio's time, which a test can rule, in nanoseconds."""
    return round(trio.current_time() * 1e9)


class ClientRuntime(TrioRuntime):
    """Trio's tasks and mock clock, a seed, and the world's network."""

    def __init__(self, world: World, seed: int = 1) -> None:
        super().__init__(random.Random(seed))
        self.now_ns = now_ns
        self._world = world

    def wall_ms(self) -> int:
        return WALL_START_MS + int(trio.current_time() * 1000)

    def local_address(self) -> str:
        return "10.0.0.7"

    async def connect(self, address: str) -> ByteStream:
        return await self._world.connect(address)
