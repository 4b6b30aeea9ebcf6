"""The connections of a name server: its clients' requests in, its responses out, without sockets and clocks."""

from collections.abc import Callable
from typing import Final

from broker.name_server.server import NameServer
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand, encode, response
from broker.requests.client_sessions import ClientSession, ClientSessions
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.line import Surroundings

UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Responses that may wait for one client: a hundred questions come in one read, and a list may have megabytes."""


class NameServerSessions:
    """All of one name server. `Surroundings.wake` is to write what `Connection`s hold, at once or soon.

    `nonce` returns the given number of random bytes. `answer` stands in for `NameServer.answer`, and has the same
    arguments: the connection is the id.
    """

    def __init__(
        self,
        core: NameServer,
        surroundings: Surroundings,
        time: Time,
        idle_ns: int,
        nonce: Callable[[int], bytes],
        answer: Callable[[Connection, RemotingCommand, int], bytes | None] | None = None,
    ) -> None:
        self._core = core
        self._answer = answer or core.answer
        self._time = time
        self._begin = surroundings.begin
        self._wake = surroundings.wake
        self._queued_bytes = 0
        """Counts the outbox of the connection whose bytes are being handled. It is empty before them, since `wake`
        writes it behind them."""
        self.clients = ClientSessions(
            surroundings, time, self._handle, core.connection_closed, idle_ns, nonce
        )

    def accept(self, connection: Connection) -> ClientSession:
        """A client, or a broker, has connected."""
        return self.clients.accept(connection)

    def sweep(self) -> None:
        """Drops brokers that have fallen silent, and closes idle connections: every `SWEEP_NS`."""
        self._begin()
        for connection in self._core.expire(self._time.now_ns):
            assert isinstance(connection, Connection)
            connection.abort()
        self.clients.sweep()
        self._wake()

    def _handle(self, connection: Connection, command: RemotingCommand) -> None:
        if not connection.outbox:
            self._queued_bytes = 0
        if connection.unsent_bytes + self._queued_bytes <= UNREAD_BYTES_MAX:
            answer = self._answer(connection, command, self._time.now_ns)
        else:
            answer = _refusal(command)
        if answer is not None:
            self._queued_bytes += len(answer)
            connection.send(answer)


def _refusal(command: RemotingCommand) -> bytes | None:
    if command.is_response or command.is_one_way:
        return None
    return encode(response(command, ResponseCode.SYSTEM_BUSY, "[OVERLOAD]earlier answers are unread"))
