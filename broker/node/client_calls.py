"""Requests that the broker makes of its clients and that they answer (RocketMQ's `Broker2Client`).

The leader asks, on the client's own connection or through the node that the client is connected to. That node notes
which relayed request of which client came from where, and sends the response back as it sends on what clients ask. A
response that nobody waits for (any more) is dropped.

Opaques of the two directions of a connection are independent, but two nodes may ask one client: a node's own have its
number in their upper bits.
"""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from broker.remoting.command import RemotingCommand, encode, request
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.deadline import NEVER, Time

TIMEOUT_NS: Final = 10_000_000_000
"""A client has so long to answer."""
WAITING_MAX: Final = 20_000
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024
"""The bytes of the requests that wait for clients' responses."""
RELAYED_MAX: Final = 20_000
"""Relayed requests without a response that a node remembers; the oldest are forgotten first."""

Done = Callable[[RemotingCommand | None], None]
"""Takes the client's response, or None if it was gone or gave none in time."""


_NUMBER_BITS: Final = 24
_NUMBER_MAX: Final = (1 << _NUMBER_BITS) - 1
_NODE_NUMBER_MAX: Final = (1 << 31 - _NUMBER_BITS) - 1
"""An opaque is a Java int that is not negative: 24 bits count a node's calls, and the 7 before them are its number."""


class _Call(NamedTuple):
    """A request to a client, which has time until `deadline_ns`; `asker` is the one that waits for it."""

    connection: Connection
    asker: RemotingCommand
    deadline_ns: int
    done: Done


Value = TypeVar("Value")


class _Table(Generic[Value]):
    """Values by connection and opaque, oldest first; what one connection has is found without the others'."""

    __slots__ = ("_opaques", "_values")

    def __init__(self) -> None:
        self._values: dict[tuple[Connection, int], Value] = {}
        self._opaques: dict[Connection, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def put(self, connection: Connection, opaque: int, value: Value) -> None:
        self._values[connection, opaque] = value
        self._opaques.setdefault(connection, {})[opaque] = None

    def first(self) -> Value | None:
        """The oldest."""
        return next(iter(self._values.values()), None)

    def pop_first(self) -> Value:
        connection, opaque = next(iter(self._values))
        value = self.pop(connection, opaque)
        assert value is not None
        return value

    def pop(self, connection: Connection, opaque: int) -> Value | None:
        value = self._values.pop((connection, opaque), None)
        if value is not None:
            opaques = self._opaques[connection]
            del opaques[opaque]
            if not opaques:
                del self._opaques[connection]
        return value

    def pop_all(self, connection: Connection) -> list[Value]:
        """Removes and returns all values of a connection, oldest first."""
        return [self._values.pop((connection, opaque)) for opaque in self._opaques.pop(connection, ())]


class ClientCalls:
    """The requests of one node to clients, and those that it passes on for other nodes."""

    def __init__(self, node_number: int, time: Time) -> None:
        self._time = time
        self._deadline = time.add_deadline(self._end_overdue, judges_silence=True)
        self._opaque_base = (node_number & _NODE_NUMBER_MAX) << _NUMBER_BITS
        self._last_number = 0
        # All calls live equally long: the first one is the next to expire.
        self._waiting: _Table[_Call] = _Table()
        self._budget = Budget("answers of clients", WAITING_MAX, WAITING_BYTES_MAX)
        """Shared by the addresses of the clients that are asked: who never answers keeps no other from being asked."""
        self._relayed: _Table[str] = _Table()

    def call(
        self,
        connection: Connection,
        code: int,
        header: msgspec.Struct,
        body: bytes,
        asker: RemotingCommand,
        done: Done,
    ) -> None:
        """Sends a request to a client; `done` is called once, never before this returns. `asker` is the request that
        waits for it.

        Raises `OverloadedError` when too much waits for clients that do not answer.
        """
        self._last_number = (self._last_number + 1) & _NUMBER_MAX
        opaque = self._opaque_base | self._last_number
        question = encode(request(code, header, body, opaque=opaque))
        # Behind the encoding and before all else: what cannot be encoded, or finds no room, leaves nothing behind.
        self._budget.take(connection, asker)
        self._waiting.put(connection, opaque, _Call(connection, asker, self._time.now_ns + TIMEOUT_NS, done))
        self._plan_expiry()
        connection.send(question)

    def answered(self, connection: Connection, answer: RemotingCommand) -> str | None:
        """Gives a client's response to who waits for it here, or returns the name of the node that asked."""
        call = self._waiting.pop(connection, answer.opaque)
        if call is not None:
            self._plan_expiry()
            self._end(call, answer)
            return None
        # Nobody here has asked: the question came from another node, or it was answered too late.
        return self._relayed.pop(connection, answer.opaque)

    def _end(self, call: "_Call", answer: RemotingCommand | None) -> None:
        self._budget.free(call.connection, call.asker)
        call.done(answer)

    def relayed(self, connection: Connection, opaque: int, asking: str) -> None:
        """Notes that a request of another node passes through this one to its client."""
        # Clients may never answer: nobody tells this node when to forget.
        if len(self._relayed) >= RELAYED_MAX:
            self._relayed.pop_first()
        self._relayed.put(connection, opaque, asking)

    def _plan_expiry(self) -> None:
        first = self._waiting.first()
        self._deadline.due_ns = NEVER if first is None else first.deadline_ns

    def _end_overdue(self) -> None:
        """Ends the calls whose time is over."""
        while (call := self._waiting.first()) is not None and call.deadline_ns <= self._time.now_ns:
            self._waiting.pop_first()
            # Before it is told: whoever hears of it may ask the next client, which plans anew.
            self._plan_expiry()
            self._end(call, None)

    def disconnected(self, connection: Connection) -> None:
        """Ends the calls to a client that is gone, and forgets what was relayed to it."""
        self._relayed.pop_all(connection)
        # Taken out before any is told: whoever hears of it may ask others.
        calls = self._waiting.pop_all(connection)
        self._plan_expiry()
        for call in calls:
            self._end(call, None)
