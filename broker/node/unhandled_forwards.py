"""Requests of clients of other nodes that this node has not handled yet, as a turn handles so much of it.

A link brings both: what Raft says, and what clients of the other node ask. It is read as fast as it brings, Raft's
messages are taken at once, and what clients ask waits here when it is much. So however much one of them asks by way of
a follower, no turn gets longer, and the follower's acknowledgements do not wait behind it. Addresses take turns; what
comes from one address stays in its order.

What nodes tell of their clients, unasked, has places of its own. Whoever asks is told that there is no place, and asks
again; but a heartbeat would only be missing, and the leader not know the client until his next one, for up to 30 s.
"""

from typing import Final

from broker.peers.protocol import ClientGone, Forward
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.requests.connection import RelayedConnection
from broker.requests.in_turn import InTurn
from broker.requests.shared_places import SharedPlaces

UNHANDLED_BYTES_MAX: Final = 64 * 1024 * 1024
"""The bytes of the requests that wait, of all nodes together."""
NEWS_BYTES_MAX: Final = 16 * 1024 * 1024
"""The bytes of what is told of clients and waits, likewise: a heartbeat has some hundreds."""

NEWS: Final = frozenset({RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT})
"""Requests by which clients say what they are: each takes the place of what was said before."""

_BYTES_OF_ONE: Final = 4 * 1024
"""A request costs as much as one more for each so many bytes that it has."""


class Room:
    """The places of what waits, and those of its bytes."""

    __slots__ = ("bytes", "places")

    def __init__(self, frames_max: int, bytes_max: int) -> None:
        self.places = SharedPlaces(frames_max)
        self.bytes = SharedPlaces(bytes_max)


Item = tuple[RelayedConnection, Forward | ClientGone, Room | None]
"""Client, frame, and the room in which it has its places; None for a `ClientGone`, of which each client has one."""


def work_of(frame: Forward | ClientGone) -> int:
    """Returns what it costs to handle the frame, counted in short requests."""
    return 1 + len(frame.body) // _BYTES_OF_ONE if isinstance(frame, Forward) else 1


def is_news(command: RemotingCommand) -> bool:
    """Tells whether a request only tells of its client and wants no response (`Forwarding.forward_copy`)."""
    return command.code in NEWS and command.is_one_way


class UnhandledForwards:
    """The forwarded requests of one node that are not handled yet."""

    __slots__ = ("_in_turn", "by_share", "news", "requests")

    def __init__(self, requests_max: int) -> None:
        """`requests_max` is the bound for all nodes together. No single node exceeds it by requests that want a
        response (`InnerLimits.forwarded_max`), but by others, and together with other nodes."""
        self._in_turn: InTurn[Item] = InTurn()
        self.by_share = self._in_turn.by_share
        """By whom the clients count as (`RelayedConnection.share`)."""
        self.requests = Room(requests_max, UNHANDLED_BYTES_MAX)
        self.news = Room(requests_max, NEWS_BYTES_MAX)
        """The room for what tells of clients (`is_news`) when `requests` is full. Others only look at both rooms."""

    def __len__(self) -> int:
        return len(self._in_turn)

    def add_request(self, relayed: RelayedConnection, frame: Forward, room: Room) -> bool:
        """Has a request wait behind all that is of the same share; returns False if there is no place for it."""
        share, size = relayed.share, len(frame.body)
        if not (room.places.has_room(share) and room.bytes.has_room(share, size)):
            return False
        room.places.take(share)
        room.bytes.take(share, size)
        # Not the slice, which would keep all that has come with it.
        frame = Forward(frame.connection, frame.host, frame.term, bytes(frame.body))
        self._in_turn.add(share, (relayed, frame, room))
        return True

    def add_gone(self, relayed: RelayedConnection, frame: ClientGone) -> None:
        """Has the end of a client wait behind all that is of the same share."""
        self._in_turn.add(relayed.share, (relayed, frame, None))

    def take(self) -> tuple[RelayedConnection, Forward | ClientGone]:
        """Removes what is next, and returns it; there must be something."""
        item = self._in_turn.take()
        self._taken(item)
        return item[:2]

    def drop(self, node: str) -> None:
        """Forgets what clients of a node have sent."""
        for item in self._in_turn.take_if(lambda item: item[0].node == node):
            self._taken(item)

    def _taken(self, item: Item) -> None:
        relayed, frame, room = item
        if isinstance(frame, Forward):
            assert room is not None, "a request waits in its place"
            room.places.free(relayed.share)
            room.bytes.free(relayed.share, len(frame.body))
