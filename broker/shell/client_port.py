"""The port of a server's clients: what comes there is accepted, let in, read and written, one task for each connection.

How many there may be, how long each may take and who must go for another is decided without I/O, by `ClientSessions`;
here are bytes and TLS. Both kinds of connections come to one port. Their first byte tells them apart: 0x16 begins a TLS
handshake, and as the first byte of a frame's length it would mean more than any frame has. The handshake is done before
the server hears of the connection, so that a stranger who cannot finish it costs a socket and some kilobytes.

What Trio wakes together runs in one pass of its scheduler, and nothing comes between. So a thousand strangers who speak
or go at the same moment are not left to it: few are woken in each pass (`HEARD_AT_ONCE`).
"""

import select
import socket
import ssl
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import trio

from broker.requests.client_sessions import ClientSession, ClientSessions
from broker.shell.socket_reading import Reading
from broker.shell.sockets import (
    UNSENT_BYTES_HIGH,
    SocketConnection,
    accept_forever,
    accept_rest,
    packed_host,
)
from broker.shell.tls import Handshakes, RefusedError, TlsSession
from broker.shell.wires import Attempt, Wires, closed_unless_done

_TLS_HANDSHAKE: Final = 0x16

HEARD_AT_ONCE: Final = 16
"""The most connections that are not let in yet of which is heard, in one pass of Trio's scheduler, that something has
come, or their end. Each costs up to 0.2 ms with what follows; ten thousand that closed at once kept a node for more
than a second."""


class ClientPort:
    """The listening sockets for clients, and the connections that come to them. `start` is called once.

    With `context` None everyone is let in at once, in the clear. With `enforcing` nobody is let in in the clear.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        clients: ClientSessions,
        wires: Wires,
        context: ssl.SSLContext | None,
        *,
        enforcing: bool,
        reading: Reading | None = None,
        unsent_bytes_high: int = UNSENT_BYTES_HIGH,
    ) -> None:
        """`reading` and `unsent_bytes_high` are those of `SocketConnection`."""
        self._listeners = listeners
        self._clients = clients
        self._wires = wires
        self._context = context
        self._enforcing = enforcing
        self._reading = reading
        self._unsent_bytes_high = unsent_bytes_high
        self._arriving = _Arriving.begin()
        self._wait = trio.lowlevel.wait_readable if self._arriving is None else self._arriving.wait
        self._handshakes = Handshakes(self._wait)
        self._tasks: trio.Nursery

    def start(self, tasks: trio.Nursery) -> None:
        """Serves whoever comes, in tasks of this nursery, until it is cancelled."""
        self._tasks = tasks
        if self._arriving is not None:
            tasks.start_soon(self._arriving.run)
        for listener in self._listeners:
            tasks.start_soon(accept_forever, listener, self._take, self._clients.events)

    def refuse_others(self) -> None:
        """Lets nobody connect any more; who has connected already is taken in."""
        for listener in self._listeners:
            accept_rest(listener, self._take)

    def _take(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Begins to serve a connection that was accepted, or closes it."""
        sock.setblocking(False)
        session = self._clients.accept(f"{address[0]}:{address[1]}", packed_host(address))
        if session is None:
            sock.close()
            return
        # From now on, before its task runs: it may have to go for the next one.
        attempt = self._wires.open[session.connection] = Attempt(session.connection, sock)
        self._tasks.start_soon(self._serve, sock, session, attempt)

    async def _serve(self, sock: socket.socket, session: ClientSession, attempt: Attempt) -> None:
        connection, clients = session.connection, self._clients
        try:
            with attempt.scope:
                with closed_unless_done(sock):
                    tls = await self._keys(sock, session)
                if connection.aborted:  # it has lost its place, and its task has yet to hear of it
                    sock.close()
                    return
                session.let_in(
                    is_encrypted=tls is not None, is_certified=tls is not None and tls.has_certificate
                )
                wire = SocketConnection(
                    sock,
                    connection,
                    self._unsent_bytes_high,
                    tls,
                    self._reading,
                    has_to_prove=clients.server.has_strangers,
                )
                self._wires.open[connection] = wire
                await wire.read_and_write(session.received)
        except RefusedError as refused:
            session.refuse(refused.reason, str(refused))
        finally:
            del self._wires.open[connection]
            session.lost()

    async def _keys(self, sock: socket.socket, session: ClientSession) -> TlsSession | None:
        """Returns what encrypts a connection, or None if it is in the clear. Raises RefusedError."""
        context = self._context
        if context is None:
            return None
        try:
            await self._wait(sock)
            # Looked at only: it is the first byte of what is read next, in the clear or by TLS.
            first = sock.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise RefusedError(f"lost before its first byte: {error}") from error
        if not first:
            raise RefusedError("closed before its first byte")
        if first[0] == _TLS_HANDSHAKE:
            session.shakes_hands()
            return await self._handshakes.accept(sock, context, session.connection.share)
        if self._enforcing:
            raise RefusedError("not encrypted, and TLS is enforced")
        return None


class _Arriving:
    """Connections that are not let in yet and have to go on, in an epoll set of their own. Linux only: see `begin`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._waiting: dict[int, trio.Event] = {}

    @classmethod
    def begin(cls) -> "_Arriving | None":
        """Returns None on systems without epoll: there Trio wakes all at once that speak at once."""
        return cls() if sys.platform == "linux" else None

    async def wait(self, sock: socket.socket) -> None:
        """Returns when there is something to receive, or the other end is gone. Raises OSError."""
        descriptor = sock.fileno()
        self._epoll.register(descriptor, select.EPOLLIN)
        heard = self._waiting[descriptor] = trio.Event()
        try:
            await heard.wait()
        finally:
            # Else something has come, and `run` has taken it out.
            if self._waiting.pop(descriptor, None) is not None:
                self._epoll.unregister(descriptor)

    async def run(self) -> NoReturn:
        """Wakes those who wait, `HEARD_AT_ONCE` in each pass of Trio's scheduler."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, _ in self._epoll.poll(0, HEARD_AT_ONCE):
                self._epoll.unregister(descriptor)
                self._waiting.pop(descriptor).set()
