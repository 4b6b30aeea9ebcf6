"""The parts that every client has: its identity, connections, routes, heartbeats and background tasks.

A `ClientCore` lives for one ``async with``. Each producer, consumer and administration client owns one; they share no
state, so closing or losing one never touches another.

Brokers keep the groups of a client for each connection, so the first call on a new connection to a broker is a
heartbeat.
"""

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Literal, Self

from broker.client.errors import BrokerBusy, BrokerError, ClientClosed, ConnectionFailed, UsageError
from broker.client.transport.calls import PendingCall
from broker.client.transport.connection import Connection, RequestHandler
from broker.client.transport.identity import client_id
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.pool import ConnectionPool
from broker.client.transport.routes import NameServers, RouteCache, parse_name_servers
from broker.client.transport.runtime import TaskGroup
from broker.remoting.bodies import HeartbeatData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import encode_body
from broker.remoting.route import MASTER_ID

HEARTBEAT_S = 30.0
"""Time between heartbeats, in seconds; a broker forgets a client after 120 s."""
HEARTBEAT_TIMEOUT_S = 3.0
CLOSE_TIMEOUT_S = 3.0
"""Closing takes at most so many seconds: it tells brokers and stores consumer offsets, but never hangs."""

BUSY_CODES = frozenset(
    (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    )
)
"""Codes by which a broker refuses a request for now; it has done nothing."""


def broker_error(response: RemotingCommand, address: str) -> BrokerError:
    """Return the typed error for a response with an error code: BrokerBusy if it refuses for now, else BrokerError."""
    if response.code in BUSY_CODES:
        return BrokerBusy(response.code, response.remark, address)
    return BrokerError(
        response.code, response.remark, address, retry_may_help=response.code == ResponseCode.SYSTEM_ERROR
    )


class ClientCore:
    """Identity, connections, routes and heartbeats of one client. Its owner enters it with ``async with``, once.

    ``heartbeat`` returns the producer and consumer groups to announce; None means that there are none. Heartbeats go to
    leaders only, with ``include_slaves`` to followers, too: every broker must know the members of a consumer group.
    ``take_leave`` is called at the end, while connections are still open. Raises UsageError for name servers that are
    no addresses.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        heartbeat: Callable[[], HeartbeatData] | None = None,
        take_leave: Callable[[], Awaitable[None]] | None = None,
        include_slaves: bool = False,
    ) -> None:
        self.runtime = options.chosen_runtime()
        self.client_id = client_id(self.runtime)
        self.trace = options.trace
        self._addresses = parse_name_servers(options.name_servers)
        self._handlers: dict[int, RequestHandler] = {}
        self._heartbeat = heartbeat
        self._take_leave = take_leave
        self._include_slaves = include_slaves
        self._credentials = options.credentials
        self._task_scope: AbstractAsyncContextManager[TaskGroup] | None = None
        self.is_open = False
        self.at_close: list[Callable[[], None]] = []
        """Called once the client is closed: whoever waits in another task's use of it hears of that."""
        self.tasks: TaskGroup
        self.pool: ConnectionPool
        self.name_servers: NameServers
        self.routes: RouteCache

    async def __aenter__(self) -> Self:
        if self._task_scope is not None:
            raise UsageError("a client is entered once; make a new one")
        # A cancelled block still tells brokers that it leaves, and stores offsets: the connections must outlive it.
        self._task_scope = self.runtime.task_group(shielded=True)
        self.tasks = await self._task_scope.__aenter__()
        self.pool = ConnectionPool(self.runtime, self.tasks, self._handlers, self._greet, self._credentials)
        self.name_servers = NameServers(self.runtime, self.pool, self._addresses)
        self.routes = RouteCache(self.runtime, self.tasks, self.name_servers)
        self.is_open = True
        self.tasks.start_soon(self.routes.keep_fresh)
        if self._heartbeat is not None:
            self.tasks.start_soon(self._beat)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._task_scope is None:
            raise ClientClosed("left without having been entered")
        try:
            if self._take_leave is not None:
                await self._take_leave()
        finally:
            # Whatever the leave ends in, a second Ctrl-C for example: Trio's tasks must end before their block does.
            self.is_open = False
            self.pool.close()
            self.tasks.cancel()
            is_handled = await self._task_scope.__aexit__(kind, error, traceback)
            # Not before: the client's own tasks may ask for a route once more before their cancellation reaches them.
            self.routes.close()
            for tell in self.at_close:
                tell()
        return is_handled

    def on_request(self, code: int, handler: RequestHandler) -> RequestHandler | None:
        """Set the handler of a broker's requests with this code; returns the one it had.

        Call it before ``async with``.
        """
        before = self._handlers.get(int(code))
        self._handlers[int(code)] = handler
        return before

    def check_open(self) -> None:
        """Check that the client is in use. Raises ClientClosed before ``async with`` and after it."""
        if not self.is_open:
            raise ClientClosed("used outside its `async with` block")

    # Heartbeats ----------------------------------------------------------------------------------------------------

    async def heartbeat(self) -> None:
        """Announce the groups to all brokers of the known routes, connecting where needed. Raises nothing.

        A broker that cannot be reached now gets its heartbeat when a connection is open, or in the next round.
        """
        if self._heartbeat is None:
            return
        calls = []
        for address in self.broker_addresses():
            connection = self.pool.find(address)
            if connection is None:
                self.tasks.start_soon(self._connect_quietly, address)
            elif (pending := self._start_heartbeat(connection)) is not None:
                calls.append(pending)
        # All are on their way before the first response is waited for: one slow broker delays no other's heartbeat.
        await _all_ended(calls)

    def broker_addresses(self) -> list[str]:
        """Return the addresses of all brokers of the known routes that should know this client, each once."""
        addresses: dict[str, None] = {}
        for route in self.routes.known():
            for _, broker_id, address in route.addresses():
                if self._include_slaves or broker_id == MASTER_ID:
                    addresses[address] = None
        return list(addresses)

    async def _beat(self) -> None:
        while True:
            await self.runtime.sleep(HEARTBEAT_S)
            await self.heartbeat()

    def _greet(self, connection: Connection) -> None:
        if (
            connection.address not in self._addresses
            and (pending := self._start_heartbeat(connection)) is not None
        ):
            pending.abandon()  # nothing follows from its response; a broken connection shows in the next call

    def _start_heartbeat(self, connection: Connection) -> PendingCall | None:
        if self._heartbeat is None:
            return None
        try:
            body = encode_body(self._heartbeat())
            return connection.start_call(RequestCode.HEART_BEAT, None, body, HEARTBEAT_TIMEOUT_S)
        except ConnectionFailed:
            return None

    async def _connect_quietly(self, address: str) -> None:
        with contextlib.suppress(ConnectionFailed):
            await self.pool.get(address)

    async def unregister(self, kind: Literal["producerGroup", "consumerGroup"], group: str) -> None:
        """Tell every connected broker that this client leaves its group.

        Raises nothing: a broker that is not told notices later.
        """
        fields = {"clientID": self.client_id, kind: group}
        calls = []
        for connection in self.pool.open_connections():
            if connection.address not in self._addresses:
                with contextlib.suppress(ConnectionFailed):
                    calls.append(
                        connection.start_call(RequestCode.UNREGISTER_CLIENT, fields, b"", CLOSE_TIMEOUT_S)
                    )
        await _all_ended(calls)


async def _all_ended(calls: Sequence[PendingCall]) -> None:
    """Wait until each call has its response or has failed."""
    for pending in calls:
        with contextlib.suppress(ConnectionFailed):
            await pending.wait()


class CoreBlock:
    """The ``async with`` block of a client, which is that of its core."""

    core: ClientCore

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self.core.__aexit__(kind, error, traceback)
