"""The places for connections of clients at a server, and who gives his up when all are taken.

A connection takes a place before it has said anything. When all are taken and one more comes, one that has not sent a
request yet goes for it. Where clients can show whose they are, one goes next that has not, and has asked for nothing
for longest. `crowd.py` says which. Who has shown an account stays, and where nobody can show one, whoever has sent a
request.
"""

from collections.abc import Callable

from broker.remoting.addresses import share_of
from broker.requests.crowd import Crowd
from broker.statistics.events import Event, Events


class Place:
    """The place of one connection, from `Places.take` until `free` is called, or another has it."""

    __slots__ = ("_crowd", "_leave", "_places", "_share", "_taken", "address")

    def __init__(self, places: "Places", address: str) -> None:
        self._places = places
        self.address = address
        """The one that its connection comes from."""
        self._share = share_of(address)
        self._taken = True
        self._crowd: Crowd[Place] | None = None
        """The crowd of which a member goes when somebody else needs a place; None if this place is kept in any case."""
        self._leave: Callable[[], None] | None = None
        self._join(places.silent)

    @property
    def is_safe(self) -> bool:
        """Nobody takes it any more, whatever comes."""
        return self._crowd is None

    def held_by(self, leave: Callable[[], None]) -> None:
        """Has `leave` called when another gets the place; at once if another has it."""
        self._leave = leave
        if not self._taken:
            leave()

    def asked(self, *, proven: bool) -> None:
        """Notes that a request has come, by somebody who has shown whose he is or has not."""
        assert self._taken, "who has lost his place is not heard any more"
        places = self._places
        self._join(None if proven or not places.can_be_proven() else places.strangers)

    def free(self) -> None:
        """Gives the place up. It may be called more than once."""
        if self._taken:
            self._taken = False
            self._join(None)
            self._places.taken -= 1
            self._leave = None

    def lost(self) -> None:
        """Another gets the place."""
        leave = self._leave
        self.free()
        if leave is not None:
            leave()

    def _join(self, crowd: "Crowd[Place] | None") -> None:
        if self._crowd is not None and self._crowd is not crowd:
            self._crowd.discard(self, self._share)
        self._crowd = crowd
        if crowd is not None:
            crowd.add(self, self._share)


class Places:
    """The places of one server. `can_be_proven` tells whether its clients can show whose they are."""

    def __init__(
        self, count: int, can_be_proven: Callable[[], bool], now_ns: Callable[[], int], events: Events
    ) -> None:
        self.can_be_proven = can_be_proven
        self.taken = 0
        self.silent: Crowd[Place] = Crowd()
        """Places of connections on which no request has come."""
        self.strangers: Crowd[Place] = Crowd()
        """Places of those who have sent requests without showing whose they are; who has asked last stands last."""
        self._count = count
        self._now_ns = now_ns
        self._events = events

    def take(self, address: str) -> Place | None:
        """Returns a place for a connection from there. Returns None where all are taken by connections that stay."""
        if self.taken >= self._count and not self._make_room():
            self._warn(Event.CONNECTION_REFUSED, "too many connections", address)
            return None
        self.taken += 1
        return Place(self, address)

    def _make_room(self) -> bool:
        for crowd in (self.silent, self.strangers):
            if crowd:
                place = crowd.first_to_go()
                self._warn(Event.CONNECTION_CLOSED, "too many connections", place.address)
                place.lost()
                return True
        return False

    def _warn(self, event: Event, reason: str, address: str) -> None:
        self._events.warn(event, reason, self._now_ns(), source=address, limit=self._count)
