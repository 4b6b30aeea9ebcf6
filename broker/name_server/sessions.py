"""The connections of a name server: its clients' requests in, its responses out, without sockets and clocks."""

from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Final

from broker.access.control import SEES_ALL, Sight
from broker.access.name_server_control import NameServerControl
from broker.access.refusal import RefusedError
from broker.name_server.server import NameServer
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand, encode, response
from broker.remoting.errors import RemotingError
from broker.requests.budget import Budget
from broker.requests.client_sessions import ClientSessions, SessionLimits
from broker.requests.connection import Connection, Outgoing
from broker.requests.deadline import Time
from broker.requests.errors import OverloadedError
from broker.requests.line import Surroundings
from broker.requests.responses import UNREAD
from broker.requests.work import work_of
from broker.statistics.events import EventKind, Events

UNREAD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Responses that may wait for one client: a hundred questions come in one read, and a list may have megabytes."""

BYTES_BEHIND_MAX: Final = 64 * 1024 * 1024
"""Registrations with thousands of topics that wait for another one's end, together; what is beyond is to come again."""


Answering = Generator[None, None, bytes | None]
"""A request that is carried out in steps; it returns the response's frame, or None for what wants none."""


class NameServerSessions:
    """The sessions of all clients of a name server. `Surroundings.wake` is to write what `Connection`s hold, soon.

    `nonce` returns the given number of random bytes. `control` decides what each client may do. `answer_in_steps`
    stands in for `NameServer.answer_in_steps`, and has the same arguments: the connection is the id. It is asked what
    may be asked. The owner calls `turn` when it is due, and soon after each `wake` as long as `has_more`.
    """

    def __init__(
        self,
        core: NameServer,
        surroundings: Surroundings,
        time: Time,
        outgoing: Outgoing,
        limits: SessionLimits,
        nonce: Callable[[int], bytes],
        control: NameServerControl,
        answer_in_steps: Callable[[Connection, RemotingCommand, int, Sight], Answering] | None = None,
    ) -> None:
        self._core = core
        self._control = control
        self._answer_in_steps = answer_in_steps or core.answer_in_steps
        self._long: tuple[Connection, Answering] | None = None
        """The request that is carried out in steps, and whose. There is one at a time: each takes memory."""
        self._behind: deque[tuple[Connection, RemotingCommand, Sight]] = deque()
        """Long requests that wait for it, and what came on their connections and on its own behind them."""
        self._behind_of: Counter[Connection] = Counter()
        self._budget = Budget("registrations of other brokers", 1_000, BYTES_BEHIND_MAX)
        self.events = Events()
        self._time = time
        self._begin = surroundings.begin
        self._wake = surroundings.wake
        self._queued_bytes: dict[Connection, int] = {}
        """Counts the outboxes that are not empty; those of others, which `wake` has written, are left as they were."""
        self.clients = ClientSessions(self, limits, surroundings, time, outgoing, nonce, self.events)
        self._sweep_deadline = time.add_deadline(self._sweep, self.clients.sweep_due_ns, judges_silence=True)

    @property
    def sweep_due_ns(self) -> int:
        """The time at which a turn next drops brokers that have fallen silent, and closes idle connections."""
        return self._sweep_deadline.due_ns

    def turn(self) -> int:
        """Sweeps when that is due, and goes on with what takes long, for some milliseconds.

        Returns when the next turn is due, in monotonic nanoseconds: now as long as `has_more`. Others are to have
        their turn between two calls.
        """
        self._begin()
        self._time.run_due()
        if self.has_more:
            self._go_on()
        self._wake()
        return self._time.now_ns if self.has_more else self._time.earliest_ns

    def _sweep(self) -> None:
        for connection in self._core.routes.drop_silent(self._time.now_ns):
            assert isinstance(connection, Connection)
            self.clients.must_go(
                "silent broker", connection, "a broker registered on it, and no more in time"
            )
        self.clients.sweep()
        self._sweep_deadline.due_ns = self.clients.sweep_due_ns

    @property
    def can_prove_clients(self) -> bool:
        """True where brokers have to show whose they are."""
        return self._control.knows_brokers

    @property
    def has_strangers(self) -> bool:
        """True: anybody may ask a name server."""
        return True

    def client_connected(self, connection: Connection) -> None:
        """Does nothing: a client is known by what it asks."""

    def received(self, connection: Connection, command: RemotingCommand) -> None:
        """Answers a request, or has it wait for its turn."""
        if self._leaves_unread(connection):
            answer = _refusal(command, ResponseCode.SYSTEM_BUSY, UNREAD)
        else:
            answer = self._answer_if_allowed(connection, command)
        self._send(connection, answer)

    def _leaves_unread(self, connection: Connection) -> bool:
        queued = self._queued_bytes.get(connection, 0) if connection.outbox else 0
        return connection.unsent_bytes + queued > UNREAD_BYTES_MAX

    def _send(self, connection: Connection, answer: bytes | None) -> None:
        if answer is not None:
            queued = self._queued_bytes.get(connection, 0) if connection.outbox else 0
            self._queued_bytes[connection] = queued + len(answer)
            connection.send(answer)

    def client_disconnected(self, connection: Connection) -> None:
        """Forgets what a client has asked, and whom it has registered."""
        if self._long is not None and self._long[0] is connection:
            self._long[1].close()
            self._long = None
        self._queued_bytes.pop(connection, None)
        self._core.routes.connection_closed(connection)
        if self.has_more:
            self._wake()

    @property
    def has_more(self) -> bool:
        """Requests wait for their turn; or one is carried out in steps, or waits for that; or topics are to be
        forgotten."""
        return (
            bool(self.clients.unhandled)
            or self._long is not None
            or bool(self._behind)
            or self._core.routes.is_forgetting
        )

    def _go_on(self) -> None:
        if self.clients.unhandled:
            self.clients.go_on()
        if self._core.routes.is_forgetting:
            self._core.routes.forget()
            return  # a step of a request takes as long: it has a turn of its own
        if self._long is not None:
            connection, steps = self._long
            try:
                next(steps)
            except StopIteration as end:
                self._long = None
                self._send_late(connection, end.value)
        # As much as of what came in one read: there may be a thousand, each a list of all topics.
        left = self.clients.work_at_once
        while left > 0 and self._long is None and self._behind:
            connection, command, sight = self._behind.popleft()
            left -= work_of(command)
            self._budget.free(connection, command)
            self._behind_of[connection] -= 1
            if not self._behind_of[connection]:
                del self._behind_of[connection]
            if connection not in self.clients.open:
                continue
            # Looked at once more: when these requests came, the responses to those before them were not made yet.
            if self._leaves_unread(connection):
                self._send_late(connection, _refusal(command, ResponseCode.SYSTEM_BUSY, UNREAD))
            else:
                self._send_late(connection, self._carried_out(connection, command, sight))

    def _send_late(self, connection: Connection, answer: bytes | None) -> None:
        """Sends a response that has waited, and counts it as `ClientSession.received` counts what comes at once."""
        self._send(connection, answer)
        if answer is not None and not connection.is_proven and not connection.aborted:
            self.clients.unread.close_if_too_much(connection)

    def _is_to_wait(self, connection: Connection, command: RemotingCommand) -> bool:
        """Tells whether a request comes behind a long one of its connection, or is long while there is another."""
        if self._long is None and not self._behind:
            return False
        return (
            connection in self._behind_of
            or (self._long is not None and self._long[0] is connection)
            or self._core.is_long(command)
        )

    def _answer_if_allowed(self, connection: Connection, command: RemotingCommand) -> bytes | None:
        now_ns = self._time.now_ns
        try:
            sight = SEES_ALL if command.is_response else self._control.check(connection, command)
        except RefusedError as refused:
            self.events.warn(
                EventKind.REQUEST_REFUSED,
                refused.reason.value,
                now_ns,
                source=connection.address,
                code=command.code,
                remark=refused.remark,
            )
            return _refusal(command, refused.code, refused.remark)
        except RemotingError as error:
            return _refusal(command, ResponseCode.SYSTEM_ERROR, str(error))
        # Answers of one connection stay in the order of its requests: behind a long one all others of it wait.
        if not self._is_to_wait(connection, command):
            return self._carried_out(connection, command, sight)
        try:
            self._budget.take(connection, command)
        except OverloadedError as error:
            return _refusal(command, ResponseCode.SYSTEM_BUSY, f"[OVERLOAD]{error}")
        self._behind.append((connection, command, sight))
        self._behind_of[connection] += 1
        return None

    def _carried_out(self, connection: Connection, command: RemotingCommand, sight: Sight) -> bytes | None:
        """Does the first step of a request; returns the response, or None where there is none yet, or none at all."""
        steps = self._answer_in_steps(connection, command, self._time.now_ns, sight)
        try:
            next(steps)
        except StopIteration as end:
            answer: bytes | None = end.value
            return answer
        assert self._long is None, "a long request is begun when there is no other"
        self._long = connection, steps
        return None


def _refusal(command: RemotingCommand, code: int, remark: str) -> bytes | None:
    if command.is_response or command.is_one_way:
        return None
    return encode(response(command, code, remark))
