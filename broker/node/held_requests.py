"""Requests that only a leader may handle, held while there is none: most elections are over in a moment."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from broker.remoting.command import RemotingCommand
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.late_requests import done_late

HELD_REQUESTS_MAX: Final = 2_000
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
HELD_NS_MAX: Final = 2_500_000_000
"""How many requests, of how many bytes, wait for a leader and for how long; clients give up after 3 s."""

_NEVER: Final = 1 << 62

Held = tuple[Connection, RemotingCommand]


class HeldRequests:
    """What one node holds, oldest first."""

    __slots__ = ("_budget", "_counts", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Connection, RemotingCommand]] = deque()
        """(until when, connection, request), to be looked at only: whether any waits is asked twice a turn."""
        self._budget = Budget("a leader", HELD_REQUESTS_MAX, HELD_BYTES_MAX)
        self._counts: dict[Connection, int] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def hold(self, connection: Connection, command: RemotingCommand, now_ns: int) -> None:
        """Holds a request. Raises `OverloadedError`."""
        self._budget.take(command)
        self._counts[connection] = self._counts.get(connection, 0) + 1
        self.waiting.append((now_ns + HELD_NS_MAX, connection, command))

    def has_any_of(self, connection: Connection) -> bool:
        """Whether a connection has a request here, without a look at the others'."""
        return connection in self._counts

    def _no_longer(self, connection: Connection, command: RemotingCommand) -> None:
        self._budget.give_back(command)
        self._counts[connection] -= 1
        if not self._counts[connection]:
            del self._counts[connection]

    def take_all(self, now_ns: int) -> list[Held]:
        """Everything, in order and as it may be done now; nothing is held any more."""
        taken: list[Held] = []
        for until_ns, connection, command in self.waiting:
            self._no_longer(connection, command)
            taken.append((connection, done_late(command, now_ns - (until_ns - HELD_NS_MAX))))
        self.waiting.clear()
        return taken

    def take_if(self, is_wanted: Callable[[Connection], bool]) -> list[Held]:
        """Those of some connections, in order; the others stay held."""
        kept: deque[tuple[int, Connection, RemotingCommand]] = deque()
        taken: list[Held] = []
        for until_ns, connection, command in self.waiting:
            if is_wanted(connection):
                self._no_longer(connection, command)
                taken.append((connection, command))
            else:
                kept.append((until_ns, connection, command))
        self.waiting = kept
        return taken

    def take_back(
        self, connection: Connection, is_wanted: Callable[[RemotingCommand], bool]
    ) -> list[RemotingCommand]:
        """Some of one connection's, in order; they stay as they came."""
        if connection not in self._counts:
            return []
        kept: deque[tuple[int, Connection, RemotingCommand]] = deque()
        taken: list[RemotingCommand] = []
        for until_ns, holder, command in self.waiting:
            if holder is connection and is_wanted(command):
                self._no_longer(connection, command)
                taken.append(command)
            else:
                kept.append((until_ns, holder, command))
        self.waiting = kept
        return taken

    def take_expired(self, now_ns: int) -> Iterator[Held]:
        """Those whose time is over."""
        while self.waiting and self.waiting[0][0] <= now_ns:
            _, connection, command = self.waiting.popleft()
            self._no_longer(connection, command)
            yield connection, command

    def deadline_ns(self) -> int:
        """When `take_expired` has something next."""
        return self.waiting[0][0] if self.waiting else _NEVER
