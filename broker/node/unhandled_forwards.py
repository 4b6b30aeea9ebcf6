"""What clients of other nodes have sent that this node has not handled yet, as a turn handles so much of it.

A link brings both: what Raft says, and what clients of the other node ask. It is read as fast as it brings, Raft's
messages are taken at once, and what clients ask waits here when it is much. So however much one of them asks by way of
a follower, no turn gets longer, and the follower's acknowledgements do not wait behind it. Addresses take turns; what
comes from one address stays in its order.
"""

from collections import OrderedDict, deque
from typing import Final

from broker.peers.protocol import ClientGone, Forward
from broker.requests.connection import RelayedConnection
from broker.requests.shared_places import SharedPlaces

UNHANDLED_MAX: Final = 20_000
UNHANDLED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Requests that wait, of all nodes together, and their bytes. Another node has no more of them wait for an answer from
here (`FORWARDED_MAX`): beyond that come requests that want none, and those of several nodes."""

_BYTES_OF_ONE: Final = 4 * 1024
"""A request costs as much as one more for each so many bytes that it has."""

Item = tuple[RelayedConnection, Forward | ClientGone]


def work_of(frame: Forward | ClientGone) -> int:
    """What it costs to handle that, in short requests."""
    return 1 + len(frame.body) // _BYTES_OF_ONE if isinstance(frame, Forward) else 1


class UnhandledForwards:
    """Those of one node."""

    __slots__ = ("_bytes", "_places", "by_share")

    def __init__(self) -> None:
        self.by_share: OrderedDict[str, deque[Item]] = OrderedDict()
        """By whom the clients count as (`RelayedConnection.share`); none is empty. The first of the first is next."""
        self._places = SharedPlaces(UNHANDLED_MAX)
        self._bytes = SharedPlaces(UNHANDLED_BYTES_MAX)
        """Of the requests; a client that has gone takes nothing."""

    def __len__(self) -> int:
        return sum(map(len, self.by_share.values()))

    def has_room(self, relayed: RelayedConnection, frame: Forward) -> bool:
        """Tells whether one more request may wait."""
        return self._places.has_room(relayed.share) and self._bytes.has_room(relayed.share, len(frame.body))

    def add(self, relayed: RelayedConnection, frame: Forward | ClientGone) -> None:
        """Has something wait behind all that is of the same share; of a request `has_room` was asked."""
        share = relayed.share
        if isinstance(frame, Forward):
            # Not the slice, which would keep all that has come with it.
            frame = Forward(frame.connection, frame.host, frame.term, bytes(frame.body))
            self._places.take(share)
            self._bytes.take(share, len(frame.body))
        self.by_share.setdefault(share, deque()).append((relayed, frame))

    def take(self) -> Item:
        """Removes what is next, and returns it; there must be something."""
        share, waiting = self.by_share.popitem(last=False)
        item = waiting.popleft()
        if waiting:
            self.by_share[share] = waiting  # behind all others
        self._taken(item)
        return item

    def drop(self, node: str) -> None:
        """Forgets what clients of a node have sent."""
        for share, waiting in list(self.by_share.items()):
            left: deque[Item] = deque()
            for item in waiting:
                if item[0].node == node:
                    self._taken(item)
                else:
                    left.append(item)
            if left:
                self.by_share[share] = left
            else:
                del self.by_share[share]

    def _taken(self, item: Item) -> None:
        relayed, frame = item
        if isinstance(frame, Forward):
            self._places.give_back(relayed.share)
            self._bytes.give_back(relayed.share, len(frame.body))
