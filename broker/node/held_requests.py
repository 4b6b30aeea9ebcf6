"""Requests that only a leader may handle, held while there is none: most elections are over in a moment.

When one is found they go on, some in each turn (`Forwarding.turn_held`), and meanwhile others come. The requests of a
connection go on in the order in which its client sent them. Addresses take turns, and so do the connections of an
address: who has thousands of requests here keeps another waiting for one of them at a time.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.node.request_states import State, WaitingRequest
from broker.remoting.command import RemotingCommand
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.shared_places import SharedPlaces

HELD_BYTES_MAX: Final = 64 * 1024 * 1024


class HeldRequests:
    """The requests that one node holds."""

    __slots__ = ("_budget", "_shares", "waiting")

    def __init__(self, requests_max: int) -> None:
        self.waiting: OrderedDict[WaitingRequest, None] = OrderedDict()
        """All held requests, the one first whose time is over first. To be looked at only: each turn asks if any waits.
        """
        self._budget = Budget("a leader", requests_max, HELD_BYTES_MAX)
        self._shares: OrderedDict[str, OrderedDict[Connection, list[WaitingRequest]]] = OrderedDict()
        """All held requests by what their clients count as (`Connection.share`), then by connection, in the order of
        their numbers; none of these is empty. The first share's first connection's first request is next."""

    @property
    def places(self) -> SharedPlaces:
        """The places that held requests take."""
        return self._budget.places

    def __len__(self) -> int:
        return len(self.waiting)

    def hold(self, connection: Connection, command: RemotingCommand, now_ns: int, number: int) -> None:
        """Holds a request, before those of its connection that have higher numbers. Raises `OverloadedError`."""
        self._budget.take(connection, command)
        request = WaitingRequest(connection, command, now_ns, State.HELD, number)
        self.waiting[request] = None
        connections = self._shares.setdefault(connection.share, OrderedDict())
        insort(connections.setdefault(connection, []), request, key=_number)

    def has_any_of(self, connection: Connection) -> bool:
        """Tells whether a connection has a request here; does not look at those of others."""
        return connection in self._shares.get(connection.share, ())

    def has_any_before(self, number: int, connection: Connection) -> bool:
        """Tells whether a connection has a request here with a lower number; does not look at those of others."""
        return self.has_any_of(connection) and self._shares[connection.share][connection][0].number < number

    def take_next(self) -> WaitingRequest:
        """Removes and returns the request whose turn it is to go on; there is one."""
        share, connections = next(iter(self._shares.items()))
        connection, requests = next(iter(connections.items()))
        # Behind all other addresses, and behind the other connections of its own.
        self._shares.move_to_end(share)
        connections.move_to_end(connection)
        return self.take(requests[0])

    def take_first_of(self, connection: Connection) -> WaitingRequest:
        """Removes and returns the first request of a connection that has any."""
        return self.take(self._shares[connection.share][connection][0])

    def take_expired(self, now_ns: int) -> WaitingRequest | None:
        """Removes and returns a request whose time is over, if there is one."""
        first = next(iter(self.waiting), None)
        return self.take(first) if first is not None and first.until_ns <= now_ns else None

    def take_of(self, is_wanted: Callable[[Connection], bool]) -> list[WaitingRequest]:
        """Removes and returns the requests of some connections, in order."""
        return [self.take(request) for request in [*self.waiting] if is_wanted(request.connection)]

    def of(self, connection: Connection) -> list[WaitingRequest]:
        """Returns the requests of one connection, in order."""
        return [*self._shares[connection.share][connection]] if self.has_any_of(connection) else []

    def take(self, request: WaitingRequest) -> WaitingRequest:
        """Removes and returns a request, which is here."""
        connection = request.connection
        del self.waiting[request]
        self._budget.free(connection, request.command)
        share = connection.share
        connections = self._shares[share]
        requests = connections[connection]
        requests.remove(request)
        if not requests:
            del connections[connection]
            if not connections:
                del self._shares[share]
        assert bool(self.waiting) == bool(self._shares), (
            f"{len(self.waiting)} requests of {len(self._shares)} shares"
        )
        return request


def _number(request: WaitingRequest) -> int:
    return request.number
