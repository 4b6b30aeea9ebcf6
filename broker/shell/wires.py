"""The open connections of a server: what its core has queued for one is written through its wire.

A node's, which dials as well, has more (`node_wires.py`).
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

import trio

from broker.requests.connection import Connection, Outgoing
from broker.shell.sockets import SocketConnection, has_come


class Wire(Protocol):
    """Bytes for a connection go through it."""

    def flush(self) -> None:
        """Writes what the connection has queued, or closes it if that was asked for."""

    def has_unread(self) -> bool:
        """Tells whether bytes have come that were not received yet."""


class Attempt:
    """A connection that is not ready yet: bytes for it wait in its outbox, and an abort ends the attempt.

    `sock` is None while there is none.
    """

    def __init__(self, connection: Connection, sock: socket.socket | None = None) -> None:
        self.scope = trio.CancelScope()
        self._connection = connection
        self._sock = sock

    def flush(self) -> None:
        """Ends the attempt if that was asked for."""
        if self._connection.aborted:
            self.scope.cancel()

    def has_unread(self) -> bool:
        """Tells whether bytes have come that were not received yet."""
        return self._sock is not None and has_come(self._sock)


class Wires:
    """The `broker.requests.line.Surroundings` of a process, and all its open connections."""

    def __init__(self, outgoing: Outgoing, begin: Callable[[], None], wake: Callable[[], None]) -> None:
        self.begin = begin
        self.wake = wake
        self.open: dict[Connection, Wire] = {}
        """By what the core knows of them. The port of the clients (`client_port.py`) puts its connections here, too."""
        self._outgoing = outgoing

    def hand_out(self) -> None:
        """Writes what is queued, as far as the sockets take it now."""
        wires = self.open
        for connection in self._outgoing.take():
            wire = wires.get(connection)
            if wire is None:
                # Its socket is gone: what is queued for it goes nowhere.
                connection.take()
            else:
                wire.flush()

    def close(self) -> None:
        """Closes all sockets, for a process that ends."""
        # Attempts have closed theirs: their tasks have ended before (`closed_unless_done`).
        for wire in list(self.open.values()):
            if isinstance(wire, SocketConnection):
                wire.close()


@contextlib.contextmanager
def closed_unless_done(sock: socket.socket) -> Iterator[None]:
    """Closes the socket if the block raises anything, which goes on."""
    try:
        yield
    except BaseException:
        sock.close()
        raise
