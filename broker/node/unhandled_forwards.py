"""Requests of clients of other nodes that this node has not handled yet, as a turn handles so much of it.

A link brings both: what Raft says, and what clients of the other node ask. It is read as fast as it brings, Raft's
messages are taken at once, and what clients ask waits here when it is much. So however much one of them asks by way of
a follower, no turn gets longer, and the follower's acknowledgements do not wait behind it. Addresses take turns; what
comes from one address stays in its order.
"""

from typing import Final

from broker.peers.protocol import ClientGone, Forward
from broker.requests.connection import RelayedConnection
from broker.requests.in_turn import InTurn
from broker.requests.shared_places import SharedPlaces

UNHANDLED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of the requests that wait, of all nodes together."""

_BYTES_OF_ONE: Final = 4 * 1024
"""A request costs as much as one more for each so many bytes that it has."""

Item = tuple[RelayedConnection, Forward | ClientGone]


def work_of(frame: Forward | ClientGone) -> int:
    """Returns what it costs to handle the frame, counted in short requests."""
    return 1 + len(frame.body) // _BYTES_OF_ONE if isinstance(frame, Forward) else 1


class UnhandledForwards:
    """The forwarded requests of one node that are not handled yet."""

    __slots__ = ("_bytes", "_in_turn", "by_share", "places")

    def __init__(self, requests_max: int) -> None:
        """`requests_max`: of all nodes together. Another node has no more of them wait for an answer from here
        (`InnerLimits.forwarded_max`): beyond that come requests that want none, and those of several nodes."""
        self._in_turn: InTurn[Item] = InTurn()
        self.by_share = self._in_turn.by_share
        """By whom the clients count as (`RelayedConnection.share`)."""
        self.places = SharedPlaces(requests_max)
        """The requests; to be looked at only."""
        self._bytes = SharedPlaces(UNHANDLED_BYTES_MAX)
        """The bytes of the requests; those of a client that has gone do not count."""

    def __len__(self) -> int:
        return len(self._in_turn)

    def has_room(self, relayed: RelayedConnection, frame: Forward) -> bool:
        """Tells whether one more request may wait."""
        return self.places.has_room(relayed.share) and self._bytes.has_room(relayed.share, len(frame.body))

    def add(self, relayed: RelayedConnection, frame: Forward | ClientGone) -> None:
        """Has something wait behind all that is of the same share; of a request `has_room` was asked."""
        share = relayed.share
        if isinstance(frame, Forward):
            # Not the slice, which would keep all that has come with it.
            frame = Forward(frame.connection, frame.host, frame.term, bytes(frame.body))
            self.places.take(share)
            self._bytes.take(share, len(frame.body))
        self._in_turn.add(share, (relayed, frame))

    def take(self) -> Item:
        """Removes what is next, and returns it; there must be something."""
        item = self._in_turn.take()
        self._taken(item)
        return item

    def drop(self, node: str) -> None:
        """Forgets what clients of a node have sent."""
        for item in self._in_turn.take_if(lambda item: item[0].node == node):
            self._taken(item)

    def _taken(self, item: Item) -> None:
        relayed, frame = item
        if isinstance(frame, Forward):
            self.places.give_back(relayed.share)
            self._bytes.give_back(relayed.share, len(frame.body))
