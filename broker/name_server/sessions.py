"""The connections of a name server: its clients' requests in, its responses out, without sockets and clocks."""

from collections.abc import Callable
from typing import Final

from broker.access.control import SEES_ALL, Sight
from broker.access.name_server_control import NameServerControl
from broker.access.refusal import RefusedError
from broker.name_server.server import NameServer
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.errors import RemotingError
from broker.requests.client_sessions import ClientSession, ClientSessions
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.line import Surroundings
from broker.statistics.events import Event, Events

UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Responses that may wait for one client: a hundred questions come in one read, and a list may have megabytes."""


class NameServerSessions:
    """All of one name server. `Surroundings.wake` is to write what `Connection`s hold, at once or soon.

    `nonce` returns the given number of random bytes. `control` decides what each client may do. `answer` stands in for
    `NameServer.answer`, and has the same arguments: the connection is the id. It is asked what may be asked.
    """

    def __init__(
        self,
        core: NameServer,
        surroundings: Surroundings,
        time: Time,
        idle_ns: int,
        nonce: Callable[[int], bytes],
        control: NameServerControl,
        answer: Callable[[Connection, RemotingCommand, int, Sight], bytes | None] | None = None,
    ) -> None:
        self._core = core
        self._control = control
        self._answer = answer or core.answer
        self.events = Events()
        self._time = time
        self._begin = surroundings.begin
        self._wake = surroundings.wake
        self._queued_bytes = 0
        """Counts the outbox of the connection whose bytes are being handled. It is empty before them, since `wake`
        writes it behind them."""
        self.clients = ClientSessions(
            surroundings,
            time,
            self._handle,
            core.connection_closed,
            idle_ns,
            nonce,
            self.events,
            has_strangers=lambda: True,
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
        answer: bytes | None
        if connection.unsent_bytes + self._queued_bytes > UNREAD_BYTES_MAX:
            answer = _refusal(command, ResponseCode.SYSTEM_BUSY, "[OVERLOAD]earlier answers are unread")
        else:
            answer = self._answer_if_allowed(connection, command)
        if answer is not None:
            self._queued_bytes += len(answer)
            connection.send(answer)

    def _answer_if_allowed(self, connection: Connection, command: RemotingCommand) -> bytes | None:
        now_ns = self._time.now_ns
        try:
            sight = SEES_ALL if command.is_response else self._control.check(connection, command)
        except RefusedError as refused:
            self.events.warn(
                Event.REQUEST_REFUSED,
                refused.reason.value,
                now_ns,
                source=connection.address,
                code=command.code,
                remark=refused.remark,
            )
            return _refusal(command, refused.code, refused.remark)
        except RemotingError as error:
            return _refusal(command, ResponseCode.SYSTEM_ERROR, str(error))
        return self._answer(connection, command, now_ns, sight)


def _refusal(command: RemotingCommand, code: int, remark: str) -> bytes | None:
    if command.is_response or command.is_one_way:
        return None
    return encode(response(command, code, remark))
