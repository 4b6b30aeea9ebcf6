"""The places for connections of clients at a server, and which connection gives its place up when all are taken.

A connection takes a place before it has said anything. When all are taken and one more comes, one goes that has not
sent a request yet. If there is none, and clients can show accounts here, one goes that has shown none, the one whose
last request is oldest. Of which address it is, `crowd.py` says. A connection that has shown an account stays; where
nobody can show one, so does a connection that has sent a request.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.requests.connection import Connection
from broker.requests.crowd import Crowd
from broker.requests.deadline import Time
from broker.statistics.events import EventKind, Events


@dataclass(eq=False)
class ConnectionPlaces:
    """The places for connections at one server, and which connections have them."""

    _most: int
    _time: Time
    _events: Events
    """Told of connections that are sent away, and of those that find no place."""
    _can_be_proven: Callable[[], bool]
    """Tells whether clients can show accounts."""
    _send_away: Callable[[Connection], None]
    """Ends a connection whose place another gets."""
    _silent: Crowd[Connection] = field(default_factory=Crowd)
    """Connections on which no request has come."""
    _strangers: Crowd[Connection] = field(default_factory=Crowd)
    """Connections that have sent requests and shown no account, in the order of their last requests."""
    _crowds: dict[Connection, Crowd[Connection] | None] = field(default_factory=dict)
    """Each connection that has a place, with the crowd of which one goes when another needs a place; None: it stays
    in any case."""

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return len(self._crowds)

    def take(self, connection: Connection) -> bool:
        """Gives a new connection a place. Returns False where all are taken by connections that stay."""
        if self.taken >= self._most:
            crowd = self._silent or self._strangers
            if not crowd:
                self._warn(EventKind.CONNECTION_REFUSED, connection)
                return False
            goes = crowd.first_to_go()
            self._warn(EventKind.CONNECTION_CLOSED, goes)
            # Its place is free at once, although the shell has yet to close it.
            self.free(goes)
            self._send_away(goes)
        self._crowds[connection] = self._silent
        self._silent.add(connection, connection.share)
        return True

    def asked(self, connection: Connection) -> bool:
        """Notes that a request has come. Returns whether the connection stays from now on, whoever comes."""
        before = self._crowds[connection]  # who has lost its place is not heard any more
        stays = connection.is_proven or not self._can_be_proven()
        crowd = None if stays else self._strangers
        if before is not None and before is not crowd:
            before.discard(connection)
        if crowd is not None:
            # At each request: of strangers the one goes whose last request is oldest.
            crowd.add(connection, connection.share)
        self._crowds[connection] = crowd
        return stays

    def free(self, connection: Connection) -> None:
        """Takes the place back of a connection, which may have lost it already."""
        crowd = self._crowds.pop(connection, None)
        if crowd is not None:
            crowd.discard(connection)

    def _warn(self, event: EventKind, connection: Connection) -> None:
        self._events.warn(
            event, "too many connections", self._time.now_ns, source=connection.address, limit=self._most
        )
