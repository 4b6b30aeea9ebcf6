"""The connections between the replicas of a group: one dialled to each peer, one accepted from each.

A node sends on the link that it dialled and receives on those that it accepted (see broker/peers/protocol.py). A link
that breaks is the first sign of a peer's death, and the core is told at once, whichever of the two it was.

Before the core hears of a link both ends have proved that they belong to the group: by certificates if `tls.peer_ca`
is set, and by the group's secret (broker/peers/handshake.py). Until then whoever has connected is a stranger: of those
there may be a few at a time, for a few seconds, and each can make the node keep no more than one short frame.
"""

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Final

import structlog
import trio

from broker.node.node import Node
from broker.peers.handshake import HANDSHAKE_FRAME_BYTES_MAX, NONCE_BYTES, Accepting, Dialling
from broker.peers.protocol import (
    PROTOCOL_VERSION,
    Hello,
    PeerDecoder,
    PeerProtocolError,
    encode_frame,
    take_frame,
)
from broker.remoting.addresses import split_address
from broker.requests.connection import Connection
from broker.shell.reading import Reading
from broker.shell.sockets import SocketConnection, connect
from broker.shell.tls import RefusedError, TlsSession, accept_tls, dial_tls
from broker.shell.tls_contexts import PeerContexts

log = structlog.get_logger("trivet.peers")

_RECEIVE_BYTES: Final = 256 * 1024
_CONNECT_TIMEOUT_S: Final = 2.0
_HELLO_TIMEOUT_S: Final = 5.0
_RETRY_S_MIN: Final = 0.02
_RETRY_S_MAX: Final = 0.5
_REFUSED_RETRY_S: Final = 2.0
"""Between two attempts with a peer that does not believe this node, or that this node does not believe."""
_STRANGERS_MAX: Final = 64
"""Connections at a time that have not yet proved that they are a peer's; for the next one the oldest is closed.

A peer proves itself within two round trips, so that the one that has waited longest is the least likely to be one:
silent strangers, however many, cannot keep peers out for the seconds that each may stay.
"""
_UNACKNOWLEDGED_MS_MAX: Final = 5_000
"""A link whose bytes the peer's system does not acknowledge for so long is broken."""


class PeerLinks:
    """Keeps the links of one node with the peers that its replica names.

    `open_sockets` maps a connection of the core to its socket.
    """

    def __init__(
        self,
        node: Node,
        open_sockets: dict[Connection, SocketConnection],
        begin: Callable[[], None],
        wake: Callable[[], None],
        reading: Reading | None = None,
        *,
        secret: str = "",
        tls: PeerContexts | None = None,
    ) -> None:
        self._node = node
        self._sockets = open_sockets
        self._begin = begin
        self._wake = wake
        self._reading = reading
        self._secret = secret
        self._tls = tls
        self._inbound: dict[str, SocketConnection] = {}
        self._strangers: dict[trio.CancelScope, None] = {}
        """Whose end each waits for, oldest first."""
        self._tasks: trio.Nursery | None = None
        self._peers: dict[str, str] = {}
        self._dialled: dict[str, trio.CancelScope] = {}

    async def run(self) -> None:
        """Dials, and dials anew, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            self.follow_membership()
            await trio.sleep_forever()

    def follow_membership(self) -> None:
        """Begins links with new peers and ends those with others; to be called after every turn."""
        peers = self._node.replica.members.peers
        if peers is self._peers or self._tasks is None:
            return
        self._peers = peers
        for peer in [peer for peer in self._dialled if peer not in peers]:
            self._dialled.pop(peer).cancel()
        for peer in peers:
            if peer not in self._dialled:
                self._dialled[peer] = trio.CancelScope()
                self._tasks.start_soon(self._dial, peer, self._dialled[peer])

    # ------------------------------------------------------------------ dialled

    async def _dial(self, peer: str, scope: trio.CancelScope) -> None:
        with scope:
            await self._keep_link(peer)

    async def _keep_link(self, peer: str) -> None:
        retry_s = _RETRY_S_MIN
        complaint = ""
        while (
            peer in self._peers
        ):  # a task whose sleep has just ended runs on for a moment after it was cancelled
            address = self._peers[peer]
            sock = None
            with trio.move_on_after(_CONNECT_TIMEOUT_S), contextlib.suppress(OSError):
                sock = await connect(address)
            if sock is None:
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, _RETRY_S_MAX)
                continue
            retry_s = _RETRY_S_MIN
            try:
                await self._serve_dialled(peer, address, sock)
                complaint = ""
            except (RefusedError, PeerProtocolError) as refused:
                if str(refused) != complaint:
                    complaint = str(refused)
                    log.warning("no link to a peer", peer=peer, address=address, reason=complaint)
                await trio.sleep(_REFUSED_RETRY_S)
            await trio.sleep(retry_s)

    async def _serve_dialled(self, peer: str, address: str, sock: socket.socket) -> None:
        _detect_silence(sock)
        node = self._node
        tls: TlsSession | None = None
        if self._tls is not None:
            with _closed_unless_done(sock):
                tls = await dial_tls(sock, self._tls.dialling, split_address(address)[0])
        connection = Connection(node.outgoing, f"peer {peer}")
        link = SocketConnection(sock, connection, tls=tls, reading=self._reading)
        self._sockets[connection] = link
        replica = node.replica
        own_address = replica.membership.addresses.get(replica.node_id, "")
        dialling = Dialling(
            Hello(
                PROTOCOL_VERSION,
                node.group,
                replica.node_id,
                peer,
                own_address,
                secrets.token_bytes(NONCE_BYTES),
            ),
            self._secret,
        )
        deadline = trio.CancelScope(deadline=trio.current_time() + _HELLO_TIMEOUT_S)
        pending = b""
        up = False

        def received(data: bytes) -> None:
            nonlocal pending, up
            if up:
                raise PeerProtocolError("it answers on a link that only this node sends on")
            pending += data
            taken = take_frame(pending, HANDSHAKE_FRAME_BYTES_MAX)
            if taken is None:
                return
            connection.send(*encode_frame(dialling.answered(taken[0])))
            up = True
            deadline.deadline = float("inf")
            replica.links[peer] = connection
            self._begin()
            node.peer_connected(peer)
            self._wake()

        connection.send(*encode_frame(dialling.hello))
        self._wake()
        try:
            with deadline:
                await link.read_and_write(received)
            if not up:
                raise RefusedError(
                    "it said nothing" if deadline.cancelled_caught else "it closed the link: its log says why"
                )
        finally:
            link.close()
            del self._sockets[connection]
            if up:
                if replica.links.get(peer) is connection:
                    del replica.links[peer]
                self._begin()
                node.peer_lost(peer)
                self._wake()

    # ------------------------------------------------------------------ accepted

    async def serve_accepted(self, sock: socket.socket, address: str) -> None:
        """Receives what a peer sends, once it has proved that it is one; a stranger is sent away."""
        if len(self._strangers) >= _STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        _detect_silence(sock)
        accepting = Accepting(self._node.group, self._node.replica.node_id, self._secret, secrets.token_bytes)
        stranger = trio.CancelScope()
        self._strangers[stranger] = None
        try:
            with stranger:
                with _closed_unless_done(sock):
                    tls = None if self._tls is None else await accept_tls(sock, self._tls.accepting)
                await self._serve_inbound(sock, tls, accepting, stranger)
        except (RefusedError, PeerProtocolError) as refused:
            log.warning("link of a peer closed", peer=accepting.source, address=address, reason=str(refused))
        finally:
            self._strangers.pop(stranger, None)
        if stranger.cancelled_caught:
            log.warning(
                "link of a peer closed", address=address, reason=f"{_STRANGERS_MAX} others came after it"
            )

    async def _serve_inbound(
        self, sock: socket.socket, tls: TlsSession | None, accepting: Accepting, stranger: trio.CancelScope
    ) -> None:
        node = self._node
        link = SocketConnection(sock, Connection(node.outgoing, "peer"), tls=tls, reading=self._reading)
        decoder = PeerDecoder()
        deadline = trio.CancelScope(deadline=trio.current_time() + _HELLO_TIMEOUT_S)
        pending = b""
        source: str | None = None

        def received(data: bytes) -> None:
            nonlocal pending, source
            wants_turn = source is None
            if source is None:
                pending += data
                while accepting.source is None:
                    taken = take_frame(pending, HANDSHAKE_FRAME_BYTES_MAX)
                    if taken is None:
                        return
                    frame, pending = taken
                    answer = accepting.received(frame)
                    if answer is not None:
                        link.connection.send(*encode_frame(answer))
                        link.flush()  # a hundred bytes, which the buffer of a new connection has room for
                self._strangers.pop(stranger, None)
                source, data, pending = accepting.source, pending, b""
                self._begin()
                self._replace_inbound(source, link)
                node.replica.members.met(source, accepting.hello.address)
                deadline.deadline = float("inf")
            self._begin()
            for peer_frame in decoder.feed(data):
                if node.peer_received(source, peer_frame):
                    wants_turn = True
            if wants_turn:
                self._wake()

        try:
            with deadline:
                await link.read(received, _RECEIVE_BYTES)
            if source is None:
                raise RefusedError(
                    f"it did not prove within {_HELLO_TIMEOUT_S:g} s that it is a peer"
                    if deadline.cancelled_caught
                    else "closed before it proved that it is a peer"
                )
        finally:
            link.close()
            if source is not None and self._inbound.get(source) is link:
                del self._inbound[source]
                node.replica.members.parted(source)
                self._begin()
                node.peer_lost(source)
                self._wake()

    def _replace_inbound(self, source: str, link: SocketConnection) -> None:
        """A peer that dials again has lost its earlier link, even if that is not seen here yet."""
        earlier = self._inbound.pop(source, None)
        self._inbound[source] = link
        if earlier is not None:
            earlier.close()
            self._node.peer_lost(source)


@contextlib.contextmanager
def _closed_unless_done(sock: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        sock.close()
        raise


def _detect_silence(sock: socket.socket) -> None:
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS_MAX)
