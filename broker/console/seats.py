"""Connections of those who use the console: a `Seat` for each account that has signed in, one for all who have not.

A seat asks brokers with its account's own credentials and no others, so the brokers decide who may see and do what; the
console has no rights of its own to lend.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, ClientError
from broker.client.transport.core import broker_error
from broker.client.transport.credentials import Credentials
from broker.client.transport.runtime import Runtime
from broker.console.live import Live
from broker.console.options import ConsoleOptions
from broker.remoting.codes import RequestCode, ResponseCode


class SignInRefusedError(Exception):
    """The brokers do not know that account, or know no accounts; the text says which."""


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """The clients through which one account, or nobody, asks the cluster."""

    account: str
    """The access key; "" of whoever has not signed in."""
    admin: AdminClient
    live: Live
    options: ConsoleOptions
    credentials: Credentials | None = field(repr=False)
    over: trio.Event = field(default_factory=trio.Event, repr=False)
    """Set when its connections are to be closed."""


class Seats:
    """Opens and closes seats, each in a task of its own."""

    def __init__(
        self,
        options: ConsoleOptions,
        nursery: trio.Nursery,
        *,
        runtime: Runtime | None = None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._options = options
        self._nursery = nursery
        self._runtime = runtime
        self._wall_ms = wall_ms

    async def open(self, credentials: Credentials | None) -> Seat:
        """Open a seat; `Seat.over` closes it."""
        seat: Seat = await self._nursery.start(self._hold, credentials)
        return seat

    async def _hold(self, credentials: Credentials | None, task_status: trio.TaskStatus[Seat]) -> None:
        async with self._client(credentials) as admin, trio.open_nursery() as nursery:
            live = Live(admin, self._wall_ms)
            account = "" if credentials is None else credentials.access_key
            seat = Seat(account, admin, live, self._options, credentials)
            nursery.start_soon(live.run)
            task_status.started(seat)
            await seat.over.wait()
            nursery.cancel_scope.cancel()

    async def verify(self, credentials: Credentials) -> None:
        """Ask the brokers whether they know the account. Raises SignInRefusedError; ClientError if none answers."""
        if await self._is_known(None):
            raise SignInRefusedError(
                "the brokers have no accounts, or ask none of this machine: nobody need sign in"
            )
        if not await self._is_known(credentials):
            raise SignInRefusedError("the brokers know no account with this access key and secret key")

    async def _is_known(self, credentials: Credentials | None) -> bool:
        """Tell whether a leader answers what every account may ask: which topics it may use."""
        async with self._client(credentials) as admin:
            try:
                info = await admin.cluster_info()
            except BrokerError as error:
                if error.code == ResponseCode.NO_PERMISSION:
                    return False
                raise
            # The first that answers decides, whatever it says; one that is down says nothing about the account.
            failure: ClientError = ClientError("no broker is registered")
            for _, data in sorted(info.broker_table.items()):
                for _, address in sorted(data.broker_addresses.items()):
                    try:
                        response = await admin.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)
                    except ClientError as error:
                        failure = error
                        continue
                    if response.code == ResponseCode.SUCCESS:
                        return True
                    if response.code == ResponseCode.NO_PERMISSION:
                        return False
                    failure = broker_error(response, address)
            raise failure

    def _client(self, credentials: Credentials | None) -> AdminClient:
        options = self._options
        return AdminClient(
            options.name_servers, runtime=self._runtime, tls=options.tls, credentials=credentials
        )
