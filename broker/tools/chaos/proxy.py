"""The network between real processes, which can be cut, slowed down and reset: TCP proxies in front of each node.

Nodes and clients know each other by the addresses of proxies. TCP loses, repeats and reorders nothing, so neither do
these: a cut holds bytes back, in one direction or both, until it heals or a timeout closes the connection. Whoever
dials during a cut gets a connection on which nothing arrives.

One proxy serves all peers of a node, and one all its clients. Who a connection is from shows in its first frame, the
hello; clients are all `CLIENTS`.
"""

import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

from broker.peers.handshake import HANDSHAKE_FRAME_BYTES_MAX
from broker.peers.protocol import Hello, PeerProtocolError, take_frame
from broker.remoting.addresses import split_address

CLIENTS: Final = "clients"
"""The name of all clients as one end of a link."""

_RECEIVE_BYTES: Final = 65_536
_CHUNKS_MAX: Final = 64
"""The number of pieces that a slow link holds before it stops taking more."""
_LINGER_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing sends a reset."""


@dataclass(eq=False, slots=True)
class _Connection:
    """A connection through a proxy: the stream that was accepted, and the one that was dialled for it."""

    source: str
    target: str
    streams: tuple[trio.SocketStream, trio.SocketStream]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def reset(self) -> None:
        for stream in self.streams:
            with contextlib.suppress(OSError):
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.scope.cancel()


class Network:
    """All proxies of a run; made by `open_network`."""

    def __init__(self, tasks: trio.Nursery, host: str = "127.0.0.1") -> None:
        self._tasks = tasks
        self._host = host
        self._cuts: dict[tuple[str, str], int] = {}
        self._delays: dict[str, list[float]] = {}
        self._connections: dict[_Connection, None] = {}
        self._changed = trio.Event()

    def listen(self, node: str, target: str, *, peers: bool) -> str:
        """A new proxy in front of `target`, ``host:port``, where `node` listens; returns the proxy's address."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((self._host, 0))
        listener.listen(128)
        host, port = listener.getsockname()
        self._tasks.start_soon(self._serve, trio.socket.from_stdlib_socket(listener), node, target, peers)
        return f"{host}:{port}"

    # ------------------------------------------------------------------ faults

    @contextlib.contextmanager
    def cut(self, *links: tuple[str, str]) -> Iterator[None]:
        """Lets nothing through from each link's first end to its second while the block lasts."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1
        try:
            yield
        finally:
            for link in links:
                self._cuts[link] -= 1
                if not self._cuts[link]:
                    del self._cuts[link]
            self._wake()

    @contextlib.contextmanager
    def delay(self, node: str, seconds: float) -> Iterator[None]:
        """Delays all that goes to or from the node by so much while the block lasts."""
        self._delays.setdefault(node, []).append(seconds)
        try:
            yield
        finally:
            self._delays[node].remove(seconds)

    def reset(self, node: str) -> int:
        """Breaks all connections to and from the node, with what is under way on them; returns how many."""
        broken = [found for found in self._connections if node in (found.source, found.target)]
        for connection in broken:
            connection.reset()
        return len(broken)

    def is_cut(self, source: str, target: str) -> bool:
        """True if nothing gets from one to the other."""
        return (source, target) in self._cuts

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _delay_of(self, source: str, target: str) -> float:
        delays = (*self._delays.get(source, ()), *self._delays.get(target, ()))
        return max(delays, default=0.0)

    # ------------------------------------------------------------------ connections

    async def _serve(self, listener: trio.socket.SocketType, node: str, target: str, peers: bool) -> None:
        with listener:
            while True:
                accepted, _ = await listener.accept()
                self._tasks.start_soon(self._serve_connection, accepted, node, target, peers)

    async def _serve_connection(
        self, accepted: trio.socket.SocketType, node: str, target: str, peers: bool
    ) -> None:
        async with trio.SocketStream(accepted) as near:
            try:
                begin, source = await _read_hello(near) if peers else (b"", CLIENTS)
                far = await trio.open_tcp_stream(*split_address(target))
            except (OSError, trio.BrokenResourceError):
                # As at the node's own port when nobody listens there.
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
                return
            connection = _Connection(source, node, (near, far))
            self._connections[connection] = None
            try:
                async with far:
                    with connection.scope:
                        await self._carry(connection, begin)
            finally:
                del self._connections[connection]

    async def _carry(self, connection: _Connection, begin: bytes) -> None:
        near, far = connection.streams
        source, target = connection.source, connection.target
        async with trio.open_nursery() as both:
            both.start_soon(self._carry_one_way, near, far, source, target, begin, connection)
            both.start_soon(self._carry_one_way, far, near, target, source, b"", connection)

    async def _carry_one_way(
        self,
        receiving: trio.SocketStream,
        sending: trio.SocketStream,
        source: str,
        target: str,
        begin: bytes,
        connection: _Connection,
    ) -> None:
        """Carries bytes in order, none before its time or during a cut; an end or a reset is passed on like bytes."""
        into, out_of = trio.open_memory_channel[tuple[float, bytes]](_CHUNKS_MAX)

        async def receive() -> None:
            data = begin
            broken = False
            async with into:
                while True:
                    if data:
                        await into.send((trio.current_time() + self._delay_of(source, target), data))
                    try:
                        data = await receiving.receive_some(_RECEIVE_BYTES)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        data, broken = b"", True
                    if not data:
                        break
                # A reset that a cut holds back is not seen at the other end before the cut has healed.
                if broken:
                    await self._wait_whole(source, target)
                    connection.reset()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            try:
                async for due, data in out_of:
                    await trio.sleep_until(due)
                    await self._wait_whole(source, target)
                    await sending.send_all(data)
                await self._wait_whole(source, target)
                await sending.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                connection.reset()

    async def _wait_whole(self, source: str, target: str) -> None:
        while self.is_cut(source, target):
            await self._changed.wait()


async def _read_hello(stream: trio.SocketStream) -> tuple[bytes, str]:
    """Returns the received bytes, and from whom they are. Raises trio.BrokenResourceError if no hello comes."""
    data = b""
    while received := await stream.receive_some(_RECEIVE_BYTES):
        data += received
        try:
            taken = take_frame(data, HANDSHAKE_FRAME_BYTES_MAX)
        except PeerProtocolError as error:
            raise trio.BrokenResourceError(str(error)) from error
        if taken is not None:
            if not isinstance(taken[0], Hello):
                raise trio.BrokenResourceError("its first frame is no hello")
            return data, taken[0].source
    raise trio.BrokenResourceError("it said nothing")


@contextlib.asynccontextmanager
async def open_network() -> AsyncIterator[Network]:
    """A network whose proxies end with the block."""
    async with trio.open_nursery() as nursery:
        yield Network(nursery)
        nursery.cancel_scope.cancel()
