"""A connection as the core sees it: somewhere to put outgoing bytes, and nothing that can block.

The core never touches a socket. It appends buffers to a connection's outbox; the first append of a turn puts the
connection on the `Outgoing` list, and the shell (or the simulator) writes out every listed outbox when the turn is
over: one system call per connection and turn, however many answers it carries. Buffers may be slices of the commit
log's mapping, which go to the socket without a copy through Python objects.
"""

from collections.abc import Callable
from typing import Final

from broker.remoting.addresses import share_of
from log.formats.record import unpack_host

Buffer = bytes | bytearray | memoryview

LOOPBACK_HOST: Final = b"\x7f\x00\x00\x01\x00\x00\x00\x00"

UNREAD_BYTES_MAX: Final = 32 * 1024 * 1024
"""A client that leaves more than this unread gets no long lists, and no relayed responses: it is disconnected.

Its node stops reading its requests long before; this much may still come for those that the leader has already.
"""


NONCE_BYTES: Final = 16


class Greeting:
    """The nonce that a client was told on a connection, and what it has proved with it since (`greeting.py`)."""

    __slots__ = ("nonce", "number", "once", "proven")

    def __init__(self, nonce: bytes, *, once: bool) -> None:
        assert len(nonce) == NONCE_BYTES, "a fresh one for every connection"
        self.nonce = nonce
        self.once = once
        """One good signature is enough: the connection is encrypted."""
        self.number = -1
        """The opaque of the newest request with a good signature; the next one's is higher."""
        self.proven: tuple[str, str] | None = None
        """Access key and secret key of the newest good signature."""


class Outgoing:
    """The connections that have something to write since the last turn, in the order of their first write."""

    __slots__ = ("connections",)

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    def take(self) -> "list[Connection]":
        """Removes and returns the listed connections."""
        taken, self.connections = self.connections, []
        return taken


class Connection:
    """One remote end: a client, a name server, another replica, or a client connected to another replica.

    `host` is the remote address and port packed as in a record (8 bytes, 20 for IPv6): the BORNHOST of what it sends.
    `close_requested` tells the shell to close the socket once the outbox is written, `aborted` to do so at once.
    `unsent_bytes` is how much of what was queued in earlier turns the socket has not taken yet, as the shell last saw
    it. `was_written` says that the socket has taken something; whoever looks for idle connections resets it.
    `is_encrypted` tells whether it is TLS's; `greeting` is what it was greeted with (broker/requests/greeting.py).
    `is_certified` says that it has shown a certificate that the server asks for; what that proves, the server knows.
    `share` is what its address counts as where something is shared out by addresses (`share_of`).
    `has_unhandled` says that requests which came on it wait for a turn; `may_be_read` is what follows from that.
    `is_proven` tells that a request has come on it which showed an account, or came from an address that is trusted.
    """

    __slots__ = (
        "_outgoing",
        "aborted",
        "close_requested",
        "greeting",
        "has_unhandled",
        "host",
        "is_certified",
        "is_encrypted",
        "is_proven",
        "name",
        "outbox",
        "share",
        "unsent_bytes",
        "was_written",
    )

    def __init__(self, outgoing: Outgoing, name: str, host: bytes = LOOPBACK_HOST) -> None:
        self._outgoing = outgoing
        self.name = name
        self.host = host
        self.share = share_of(self.address)
        self.outbox: list[Buffer] = []
        self.close_requested = False
        self.aborted = False
        self.unsent_bytes = 0
        self.was_written = False
        self.is_encrypted = False
        self.is_certified = False
        self.is_proven = False
        self.has_unhandled = False
        self.greeting: Greeting | None = None

    @property
    def address(self) -> str:
        """The remote address without its port."""
        return self.name.rpartition(":")[0]

    def send(self, *buffers: Buffer) -> None:
        """Queues bytes for the remote end, to be written when the turn ends."""
        # It is listed once: by its first buffer of the turn, or when it was asked to close.
        if not self.outbox and not self.close_requested:
            self._outgoing.connections.append(self)
        self.outbox += buffers

    def go_on_reading(self) -> None:
        """Tells the shell that all requests which waited are handled."""
        self.has_unhandled = False
        # Listed without a byte to write, so that the shell looks whether to read again.
        if not self.outbox and not self.close_requested:
            self._outgoing.connections.append(self)

    def may_be_read(self, unsent_bytes_max: int) -> bool:
        """Tells whether more may be taken from the remote end, by whoever carries the connection.

        While requests wait nothing is, so that what waits is no more than one read. Nor is it while more than
        `unsent_bytes_max` bytes are unsent: who does not read its responses cannot ask for more.
        """
        return self.unsent_bytes <= unsent_bytes_max and not self.has_unhandled

    def take(self) -> list[Buffer]:
        """Removes and returns what is queued."""
        buffers, self.outbox = self.outbox, []
        return buffers

    def close(self) -> None:
        """Asks the shell to close the connection after what is queued has been written."""
        if not self.close_requested:
            # Listed also without a byte to write: the shell closes what it comes to.
            if not self.outbox:
                self._outgoing.connections.append(self)
            self.close_requested = True

    def abort(self) -> None:
        """Asks the shell to close the connection at once; what is queued, or will be, is not written."""
        if self.close_requested and not self.aborted and self not in self._outgoing.connections:
            # The shell has heard of the close, and waits until all is written: that may be never.
            self._outgoing.connections.append(self)
        self.close()
        self.aborted = True
        self.outbox.clear()

    @property
    def unread_bytes(self) -> int:
        """The bytes that wait for the remote end, those of this turn counted."""
        return self.unsent_bytes + sum(map(len, self.outbox))

    def leaves_much_unread(self) -> bool:
        """Tells whether so many bytes wait for the remote end that it is not to be given long lists."""
        return self.unread_bytes > UNREAD_BYTES_MAX

    def is_link_full(self) -> bool:
        """Tells whether the link to the replica between here and the client has no room; there is none between."""
        return False

    def __repr__(self) -> str:
        return f"<Connection {self.name}>"


class RelayedConnection(Connection):
    """A client of another replica, whose requests that replica forwards: what is sent goes back through it.

    `node` is that replica, which knows the client by `number`. `epoch` says over which link to it the client came,
    `term` in which term this node last took a request of it, as the leader. `deliver` is given the buffers of each send
    at once: the peer link has an outbox of its own. `is_link_full` tells whether that outbox has no room for more.
    """

    __slots__ = ("_deliver", "_is_link_full", "epoch", "node", "number", "term")

    def __init__(
        self,
        outgoing: Outgoing,
        node: str,
        number: int,
        host: bytes,
        deliver: Callable[[tuple[Buffer, ...]], None],
        is_link_full: Callable[[], bool],
    ) -> None:
        super().__init__(outgoing, f"{node}/{number}", host)
        self.node = node
        self.number = number
        self.epoch = 0
        self.term = 0
        self._deliver = deliver
        self._is_link_full = is_link_full

    @property
    def address(self) -> str:
        """The client's own address, without its port."""
        return unpack_host(self.host)[0]

    def send(self, *buffers: Buffer) -> None:
        """Hands the bytes to the replica that the client is connected to."""
        self._deliver(buffers)

    def leaves_much_unread(self) -> bool:
        """Tells whether the link to the client's replica is full: what the client itself reads is not known here."""
        return self._is_link_full()

    def is_link_full(self) -> bool:
        """Tells whether responses to clients of the same replica already fill the link to it."""
        return self._is_link_full()
