"""A node's connections to its peers and name servers: each is made, encrypted, read and written by one task.

What is said on a connection, how long it may take and when it is made anew is decided without I/O, by lines
(broker/requests/line.py) and accepted links (broker/node/links.py). They are told what becomes of a connection; they
send, and end it, through its `Connection`.
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

import trio

from broker.node.links import PROBED_NS, RECEIVE_BYTES, UNACKNOWLEDGED_NS_MAX, PeerLinks
from broker.remoting.addresses import split_address
from broker.requests.connection import Connection, Outgoing
from broker.requests.line import Line
from broker.shell.socket_reading import Reading
from broker.shell.sockets import SocketConnection, connect
from broker.shell.tls import Handshakes, RefusedError, dial_tls
from broker.shell.tls_contexts import PeerContexts
from broker.shell.wires import Attempt, Wires, closed_unless_done

_CLOSED: Final = "it closed the connection: its log says why"


def _nobody_comes() -> None:
    """Does nothing: there is no port for clients yet."""


class NodeWires(Wires):
    """The `broker.node.running.NodeSurroundings` of a process, and all its open connections."""

    def __init__(
        self,
        outgoing: Outgoing,
        begin: Callable[[], None],
        wake: Callable[[], None],
        reading: Reading | None = None,
        *,
        peers: PeerContexts | None = None,
        name_servers: ssl.SSLContext | None = None,
    ) -> None:
        """`peers` and `name_servers` are None for connections in the clear."""
        super().__init__(outgoing, begin, wake)
        self.tasks: trio.Nursery | None = None
        """The owner sets it before anything is dialled. The tasks of dialled connections run in it."""
        self.refuse_clients: Callable[[], None] = _nobody_comes
        """See `broker.node.running.NodeSurroundings`. The owner sets it as soon as it accepts clients."""
        self._reading = reading
        self._peers = peers
        self._name_servers = name_servers
        self._handshakes = Handshakes()
        """The handshakes on the port of the peers: however many clients shake hands, no peer waits for them."""

    def has_unread(self, connection: Connection) -> bool:
        """See `broker.node.running.NodeSurroundings`."""
        wire = self.open.get(connection)
        return wire is not None and wire.has_unread()

    # ------------------------------------------------------------------ dialled

    def dial_peer(self, line: Line) -> None:
        """See `broker.node.running.NodeSurroundings`."""
        self._dial(line, None if self._peers is None else self._peers.dialling, is_peer=True)

    def dial_name_server(self, line: Line) -> None:
        """See `broker.node.running.NodeSurroundings`."""
        self._dial(line, self._name_servers, is_peer=False)

    def _dial(self, line: Line, context: ssl.SSLContext | None, *, is_peer: bool) -> None:
        assert self.tasks is not None, "nothing is dialled before the node serves"
        assert line.connection not in self.open, "each attempt of a line has a connection of its own"
        attempt = self.open[line.connection] = Attempt(line.connection)
        self.tasks.start_soon(self._serve_line, line, line.connection, attempt, context, is_peer)

    async def _serve_line(
        self,
        line: Line,
        connection: Connection,
        attempt: Attempt,
        context: ssl.SSLContext | None,
        is_peer: bool,
    ) -> None:
        reason = _CLOSED
        try:
            with attempt.scope:
                address = line.address
                sock = await connect(address)
                with closed_unless_done(sock):
                    if is_peer:
                        _detect_silence(sock)
                    # Before TLS, so that the time that the other end has to prove itself covers the handshake
                    # (`HANDSHAKE_NS`).
                    line.opened(connection)
                    tls = (
                        None if context is None else await dial_tls(sock, context, split_address(address)[0])
                    )
                wire = SocketConnection(sock, connection, tls=tls, reading=self._reading, is_peer=is_peer)
                self.open[connection] = wire
                wire.flush()  # what was queued meanwhile
                await wire.read_and_write(line.received)
        except (OSError, RefusedError) as error:
            reason = str(error)
        finally:
            del self.open[connection]
            line.lost(connection, reason)

    # ------------------------------------------------------------------ accepted

    async def serve_accepted(self, links: PeerLinks, sock: socket.socket, address: str) -> None:
        """Receives what comes on a connection to the port of the peers, until it is closed."""
        connection = Connection(self._outgoing, f"peer at {address}")
        attempt = self.open[connection] = Attempt(connection)
        # Before TLS: a stranger's time runs from here on, and there are a few of them at a time.
        link = links.accept(connection, address)
        try:
            with attempt.scope:
                with closed_unless_done(sock):
                    _detect_silence(sock)
                    tls = (
                        None
                        if self._peers is None
                        else await self._handshakes.accept(sock, self._peers.accepting, link.share)
                    )
                wire = SocketConnection(sock, connection, tls=tls, reading=self._reading, is_peer=True)
                self.open[connection] = wire
                # Nobody waits until it can be written to: its challenge is all that is ever sent on it, which the
                # buffer of a new socket has room for.
                await wire.read(link.received, RECEIVE_BYTES)
        except RefusedError as error:
            link.close(str(error))
        finally:
            del self.open[connection]
            link.lost()


def _detect_silence(sock: socket.socket) -> None:
    unacknowledged_s, probed_s = UNACKNOWLEDGED_NS_MAX // 1_000_000_000, PROBED_NS // 1_000_000_000
    for level, option, value in (
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", unacknowledged_s * 1000),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", probed_s),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", unacknowledged_s - probed_s),
    ):
        # Not every system has all of these options.
        with contextlib.suppress(OSError, AttributeError):
            sock.setsockopt(level, getattr(socket, option), value)
