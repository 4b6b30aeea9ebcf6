"""Requests that the broker makes of its clients and that they answer (remoting.md 8).

The leader asks, on the client's own connection or through the node that the client is connected to. That node notes
which relayed request of which client came from where, and sends the answer back as it sends on what clients ask. An
answer that nobody waits for (any more) is dropped.

Opaques of the two directions of a connection are independent, but two nodes may ask one client: a node's own have its
number in their upper bits.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from broker.connection import Connection
from broker.remoting.command import RemotingCommand, encode, request

TIMEOUT_NS: Final = 10_000_000_000
"""How long a client has to answer (remoting.md 8)."""
RELAYED_MAX: Final = 20_000
"""Relayed requests without an answer that a node remembers; the oldest are forgotten first."""

_NEVER: Final = 1 << 62

Done = Callable[[RemotingCommand | None], None]
"""Takes the client's answer, or None: it was gone, or gave none in time."""


class ClientCalls:
    """One node's requests to clients, and those that it passes on for others."""

    def __init__(self, node_number: int) -> None:
        self._opaque_base = (node_number & 0x7F) << 24
        self._last_number = 0
        # All calls live equally long: the first one is the next to expire.
        self._waiting: dict[tuple[Connection, int], tuple[int, Done]] = {}
        self._relayed: dict[tuple[Connection, int], str] = {}

    def call(
        self, connection: Connection, code: int, header: msgspec.Struct, body: bytes, now_ns: int, done: Done
    ) -> None:
        """Asks a client; `done` is called once, never before this returns."""
        self._last_number = (self._last_number + 1) & 0xFF_FFFF
        opaque = self._opaque_base | self._last_number
        self._waiting[connection, opaque] = (now_ns + TIMEOUT_NS, done)
        connection.send(encode(request(code, header, body, opaque=opaque)))

    def answered(self, connection: Connection, answer: RemotingCommand) -> str | None:
        """A client's answer: given to whoever waits for it here; the name of the node that asked, if one did."""
        key = (connection, answer.opaque)
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting[1](answer)
            return None
        return self._relayed.pop(key, None)

    def relayed(self, connection: Connection, opaque: int, asking: str) -> None:
        """A request of another node passes through this one to its client."""
        if len(self._relayed) >= RELAYED_MAX:
            del self._relayed[next(iter(self._relayed))]
        self._relayed[connection, opaque] = asking

    def deadline_ns(self) -> int:
        """When `expire` has something to do."""
        return next(iter(self._waiting.values()))[0] if self._waiting else _NEVER

    def expire(self, now_ns: int) -> None:
        """Ends the calls whose time is over."""
        while self._waiting:
            key, (deadline_ns, done) = next(iter(self._waiting.items()))
            if deadline_ns > now_ns:
                return
            del self._waiting[key]
            done(None)

    def disconnected(self, connection: Connection) -> None:
        """What a client was asked will not be answered."""
        for key in [key for key in self._relayed if key[0] is connection]:
            del self._relayed[key]
        for key in [key for key in self._waiting if key[0] is connection]:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting[1](None)
