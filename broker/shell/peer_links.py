"""The connections between the replicas of a group: one dialled to each peer, one accepted from each.

A node sends on the link that it dialled and receives on those that it accepted (see broker/peer_protocol.py). A link
that breaks is the first sign of a peer's death, and the core is told at once, whichever of the two it was.
"""

import contextlib
import socket
from collections.abc import Callable
from typing import Final

import structlog
import trio

from broker.connection import Connection
from broker.node import Node
from broker.peer_protocol import PROTOCOL_VERSION, Hello, PeerDecoder, PeerProtocolError, encode_frame
from broker.shell.sockets import SocketConnection, connect

log = structlog.get_logger("trivet.peers")

_RECEIVE_BYTES: Final = 256 * 1024
_CONNECT_TIMEOUT_S: Final = 2.0
_HELLO_TIMEOUT_S: Final = 5.0
_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 0.5
_UNACKNOWLEDGED_MS_MAX: Final = 5_000
"""A link whose bytes the peer's system does not acknowledge for so long is broken."""


class PeerLinks:
    """Keeps the links of one node. `open_sockets` maps a connection of the core to its socket."""

    def __init__(
        self,
        node: Node,
        open_sockets: dict[Connection, SocketConnection],
        begin: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._node = node
        self._sockets = open_sockets
        self._begin = begin
        self._wake = wake
        self._inbound: dict[str, SocketConnection] = {}

    # ------------------------------------------------------------------ dialled

    async def dial(self, peer: str) -> None:
        """Keeps a link to `peer` as long as the peer is a member of the group."""
        retry_s = _RETRY_S_MIN
        while peer in self._node.replica.membership.addresses:
            sock = None
            with trio.move_on_after(_CONNECT_TIMEOUT_S), contextlib.suppress(OSError):
                sock = await connect(self._node.replica.membership.addresses[peer])
            if sock is None:
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            retry_s = _RETRY_S_MIN
            await self._serve_dialled(peer, sock)
            await trio.sleep(retry_s)

    async def _serve_dialled(self, peer: str, sock: socket.socket) -> None:
        _detect_silence(sock)
        node = self._node
        connection = Connection(node.outgoing, f"peer {peer}")
        link = SocketConnection(sock, connection)
        self._sockets[connection] = link
        hello = Hello(PROTOCOL_VERSION, node.group, node.replica.node_id, peer)
        connection.send(*encode_frame(hello))
        node.replica.links[peer] = connection
        self._begin()
        node.peer_connected(peer)
        self._wake()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.write)
                await link.read(_nothing_expected)
                nursery.cancel_scope.cancel()
        finally:
            link.close()
            del self._sockets[connection]
            del node.replica.links[peer]
            self._begin()
            node.peer_lost(peer)
            self._wake()

    # ------------------------------------------------------------------ accepted

    async def serve_accepted(self, sock: socket.socket) -> None:
        """Receives what a peer sends, once it has said who it is; a stranger is sent away."""
        _detect_silence(sock)
        node = self._node
        link = SocketConnection(sock, Connection(node.outgoing, "peer"))
        decoder = PeerDecoder()
        source: str | None = None
        deadline = trio.CancelScope(deadline=trio.current_time() + _HELLO_TIMEOUT_S)

        def received(data: bytes) -> None:
            nonlocal source
            self._begin()
            for frame in decoder.feed(data):
                if source is None:
                    source = self._check_hello(frame)
                    self._replace_inbound(source, link)
                    deadline.deadline = float("inf")
                else:
                    node.peer_received(source, frame)
            self._wake()

        try:
            with deadline:
                await link.read(received, _RECEIVE_BYTES)
        except PeerProtocolError as error:
            log.warning("link of a peer closed", peer=source, reason=str(error))
        finally:
            link.close()
            if source is not None and self._inbound.get(source) is link:
                del self._inbound[source]
                self._begin()
                node.peer_lost(source)
                self._wake()

    def _check_hello(self, frame: object) -> str:
        node = self._node
        if not isinstance(frame, Hello):
            raise PeerProtocolError("the first frame is no hello")
        if frame.version != PROTOCOL_VERSION:
            raise PeerProtocolError(f"protocol version {frame.version}, this node speaks {PROTOCOL_VERSION}")
        if frame.group != node.group:
            raise PeerProtocolError(f"group {frame.group!r}, this node is of group {node.group!r}")
        if frame.target != node.replica.node_id:
            raise PeerProtocolError(f"it looks for {frame.target!r}, this node is {node.replica.node_id!r}")
        if frame.source == node.replica.node_id:
            raise PeerProtocolError(f"two nodes are called {frame.source!r}")
        return frame.source

    def _replace_inbound(self, source: str, link: SocketConnection) -> None:
        """A peer that dials again has lost its earlier link, even if that is not seen here yet."""
        earlier = self._inbound.pop(source, None)
        self._inbound[source] = link
        if earlier is not None:
            earlier.close()
            self._node.peer_lost(source)


def _nothing_expected(_: bytes) -> None:
    raise OSError("a peer answered on a link that only this node sends on")


def _detect_silence(sock: socket.socket) -> None:
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS_MAX)
