"""A client's connections, on which each request of some kinds is noticed, with what is known of its outcome.

What an actor's own calls tell is how the last attempt ended. Invariants that count what requests did need every one.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from broker.client.errors import ConnectionFailed
from broker.client.transport.connection import Connection, Fields
from broker.client.transport.core import BUSY_CODES
from broker.client.transport.pool import CONNECT_TIMEOUT_S, ConnectionPool
from broker.client.transport.runtime import Buffer
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand


@dataclass(slots=True)
class Attempt:
    """The outcome of a request that has ended; with neither flag it may have had an effect, or have one yet."""

    is_confirmed: bool = False
    is_refused: bool = False
    answer: RemotingCommand | None = None


Watch = Callable[[Fields, Buffer], AbstractContextManager[Attempt]]
"""A block that is entered when a request leaves, and left when its outcome is known or its caller gone."""


class WatchedPool(ConnectionPool):
    """The connections of `pool`, to take the place of a client's own; requests of some codes go through `watch`."""

    def __init__(self, pool: ConnectionPool, codes: Sequence[int], watch: Watch) -> None:
        self._pool = pool
        self._codes = codes
        self._watch = watch

    def find(self, address: str) -> Connection | None:
        """Returns an open connection, as the pool does."""
        return self._pool.find(address)

    def open_connections(self) -> list[Connection]:
        """Returns all open connections, as the pool does."""
        return self._pool.open_connections()

    async def get(self, address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Connection:
        """Returns a connection, as the pool does. Raises ConnectFailed."""
        return await self._pool.get(address, timeout_s)

    def close(self) -> None:
        """Closes all connections, as the pool does."""
        self._pool.close()

    async def call(
        self, address: str, code: int, fields: Fields = None, body: Buffer = b"", timeout_s: float = 3.0
    ) -> RemotingCommand:
        """Makes a call, as the pool does; requests of the watched codes are noticed. Raises ConnectionFailed."""
        if code not in self._codes:
            return await self._pool.call(address, code, fields, body, timeout_s)
        failure: ConnectionFailed
        with self._watch(fields, body) as attempt:
            try:
                answer = await self._pool.call(address, code, fields, body, timeout_s)
            except ConnectionFailed as error:
                attempt.is_refused = not error.request_left
                failure = error
            else:
                attempt.answer = answer
                attempt.is_confirmed = answer.code == ResponseCode.SUCCESS
                attempt.is_refused = answer.code in BUSY_CODES
                return answer
        # Behind the block: an error within would end the watch at its `yield`, before it has looked at the outcome.
        raise failure
