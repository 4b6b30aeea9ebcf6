"""The open connections of a client, one for each address, opened when first needed.

Opening runs in a task of its own and not in the call that asked first: others wait for the same connection, and the
asker may be cancelled. The same task then serves the connection until it ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from broker.client.errors import ConnectFailed, ConnectionFailed
from broker.client.transport.connection import Connection, Fields, RequestHandler
from broker.client.transport.credentials import Credentials
from broker.client.transport.runtime import Buffer, Event, Runtime, TaskGroup
from broker.client.transport.tls_words import DistrustedError
from broker.remoting.command import RemotingCommand

CONNECT_TIMEOUT_S = 3.0
"""Time limit for opening a connection, in seconds."""


@dataclass(slots=True, eq=False)
class _Opening:
    """A connection that is being opened. ``done`` is set at the end; then ``connection`` is there, or ``failure``."""

    done: Event
    connection: Connection | None = None
    failure: str = f"no connection within {CONNECT_TIMEOUT_S} s"
    is_distrusted: bool = False


@dataclass(eq=False)
class ConnectionPool:
    """Connections by address. ``_on_connected`` is called with each new one before any call goes out on it."""

    _runtime: Runtime
    _tasks: TaskGroup
    _handlers: Mapping[int, RequestHandler]
    _on_connected: Callable[[Connection], None]
    _credentials: Credentials | None = None
    _connections: dict[str, Connection] = field(default_factory=dict)
    _openings: dict[str, _Opening] = field(default_factory=dict)
    _closed: bool = False

    def find(self, address: str) -> Connection | None:
        """Return the open connection to the address, None when there is none now."""
        connection = self._connections.get(address)
        return connection if connection is not None and not connection.closed else None

    def open_connections(self) -> list[Connection]:
        """Return all open connections, in the order in which their addresses were first used."""
        return [connection for connection in self._connections.values() if not connection.closed]

    async def get(self, address: str, timeout_s: float = CONNECT_TIMEOUT_S) -> Connection:
        """Return the connection to the address, opened if need be.

        Raises ConnectFailed, after ``timeout_s`` at most.
        """
        connection = self.find(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ConnectFailed(address, "the client was closed")
        opening = self._openings.get(address)
        if opening is None:
            opening = self._openings[address] = _Opening(self._runtime.event())
            self._tasks.start_soon(self._open_and_serve, address, opening)
        with self._runtime.move_on_after(timeout_s):
            await opening.done.wait()
            if opening.connection is None:
                raise ConnectFailed(address, opening.failure, is_distrusted=opening.is_distrusted)
            return opening.connection
        raise ConnectFailed(address, f"no connection within {timeout_s:.3g} s")

    async def call(
        self, address: str, code: int, fields: Fields = None, body: Buffer = b"", timeout_s: float = 3.0
    ) -> RemotingCommand:
        """Make one call to an address, connecting if need be; ``timeout_s`` bounds both together.

        Returns the response, whatever its code. Raises ConnectFailed, ConnectionLost, CallTimeout.
        """
        started_ns = self._runtime.now_ns()
        connection = await self.get(address, min(timeout_s, CONNECT_TIMEOUT_S))
        elapsed_s = (self._runtime.now_ns() - started_ns) / 1e9
        return await connection.call(code, fields, body, max(timeout_s - elapsed_s, 0.001))

    async def _open_and_serve(self, address: str, opening: _Opening) -> None:
        opened: Connection | None = None
        connection: Connection | None = None
        try:
            with self._runtime.move_on_after(CONNECT_TIMEOUT_S):
                stream = await self._runtime.connect(address)
                connection = Connection(self._runtime, address, stream, self._handlers)
                # To sign anything the greeting's nonce is needed, whose response only a connection that runs can
                # receive.
                if self._credentials is not None:
                    self._tasks.start_soon(connection.run)
                    await connection.introduce(self._credentials)
                opened = connection
        except OSError as error:
            opening.failure = error.strerror or str(error) or type(error).__name__
            opening.is_distrusted = isinstance(error, DistrustedError)
        except ConnectionFailed as error:
            opening.failure = str(error)
        finally:
            del self._openings[address]
            if opened is not None:
                self._connections[address] = opened
                opening.connection = opened
                self._on_connected(opened)
            elif connection is not None:
                connection.close("not introduced in time")
            opening.done.set()
        # With credentials it runs since it was introduced.
        if opened is not None and self._credentials is None:
            await opened.run()

    def close(self) -> None:
        """Close all connections, and open no more."""
        self._closed = True
        for connection in self._connections.values():
            connection.close("the client was closed")
