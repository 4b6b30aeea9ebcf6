"""Requests that only a leader may handle, held while there is none: most elections are over in a moment."""

from collections import deque
from collections.abc import Callable
from typing import Final

from broker.node.request_states import State, WaitingRequest
from broker.remoting.command import RemotingCommand
from broker.requests.budget import Budget
from broker.requests.connection import Connection

HELD_REQUESTS_MAX: Final = 4_000
HELD_BYTES_MAX: Final = 64 * 1024 * 1024


class HeldRequests:
    """The requests that one node holds, oldest first."""

    __slots__ = ("_budget", "_counts", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[WaitingRequest] = deque()
        """To be looked at only: every turn asks twice whether any waits."""
        self._budget = Budget("a leader", HELD_REQUESTS_MAX, HELD_BYTES_MAX)
        self._counts: dict[Connection, int] = {}
        """The number of requests in `waiting` by connection; never 0."""

    def __len__(self) -> int:
        return len(self.waiting)

    def hold(self, connection: Connection, command: RemotingCommand, now_ns: int) -> None:
        """Holds a request. Raises `OverloadedError`."""
        self._budget.take(connection, command)
        self._counts[connection] = self._counts.get(connection, 0) + 1
        self.waiting.append(WaitingRequest(connection, command, now_ns, State.HELD))

    def has_any_of(self, connection: Connection) -> bool:
        """Tells whether a connection has a request here; does not look at those of others."""
        return connection in self._counts

    def take_all(self) -> list[WaitingRequest]:
        """Removes and returns everything, in order."""
        return self._take_if(lambda request: True)

    def take_of(self, is_wanted: Callable[[Connection], bool]) -> list[WaitingRequest]:
        """Removes and returns the requests of some connections, in order."""
        return self._take_if(lambda request: is_wanted(request.connection))

    def take_back(
        self, connection: Connection, is_wanted: Callable[[RemotingCommand], bool]
    ) -> list[WaitingRequest]:
        """Removes and returns some of one connection's requests, in order."""
        if connection not in self._counts:
            return []
        return self._take_if(lambda request: request.connection is connection and is_wanted(request.command))

    def take_expired(self, now_ns: int) -> list[WaitingRequest]:
        """Removes and returns the requests whose time is over."""
        expired: list[WaitingRequest] = []
        while self.waiting and self.waiting[0].until_ns <= now_ns:
            expired.append(self.waiting.popleft())
            self._removed(expired[-1])
        return expired

    def _take_if(self, is_wanted: Callable[[WaitingRequest], bool]) -> list[WaitingRequest]:
        kept: deque[WaitingRequest] = deque()
        taken: list[WaitingRequest] = []
        for request in self.waiting:
            if is_wanted(request):
                self._removed(request)
                taken.append(request)
            else:
                kept.append(request)
        self.waiting = kept
        return taken

    def _removed(self, request: WaitingRequest) -> None:
        self._budget.give_back(request.connection, request.command)
        self._counts[request.connection] -= 1
        if not self._counts[request.connection]:
            del self._counts[request.connection]
