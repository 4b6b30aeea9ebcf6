"""The bytes that wait for a link to another node, by whose they are: a link takes what comes in its order, and one
client's sends may fill it.

The link says how much it has not sent yet, and not of whom. What is left is what was queued last.
"""

from collections import deque
from typing import Final

from broker.requests.connection import Buffer, Connection
from broker.requests.shared_places import SharedPlaces

_NOBODY: Final = ""
"""The share of bytes of which nobody knows who has queued them."""


class UnsentForwards:
    """The bytes that clients of this node have queued for one other node, by their shares (`Connection.share`)."""

    __slots__ = ("_counted", "_frames", "_link", "_most", "_outbox", "_outbox_bytes", "_shares")

    def __init__(self, most: int) -> None:
        """`most` is the number of bytes that may wait at a time."""
        self._most = most
        self._link: Connection | None = None
        """The link by which the rest goes; another one whenever it is made anew."""
        self._frames: deque[tuple[str, int]] = deque()
        """(share, bytes) of what may not be sent yet, oldest first."""
        self._shares = SharedPlaces(most)
        """The bytes of `_frames`, by share."""
        self._outbox: list[Buffer] = []
        self._counted = self._outbox_bytes = 0
        """The number of buffers of `_outbox` that were counted, and their bytes."""

    def has_room(self, link: Connection, share: str, size: int) -> bool:
        """Tells whether a client of that share may queue so many bytes on the link, as it is now."""
        unsent = link.unsent_bytes + self._bytes_of_this_turn(link.outbox)
        # A link that was made anew: what was queued on the former one is lost, and whose the bytes on this one are is
        # not known.
        if link is not self._link:
            self._link, self._shares = link, SharedPlaces(self._most)
            self._frames.clear()
            self.queued(_NOBODY, unsent)
        frames, shares = self._frames, self._shares
        # While those behind a frame are as long as all that is unsent, the frame itself has gone.
        while frames and shares.taken - frames[0][1] >= unsent:
            shares.free(*frames.popleft())
        return shares.has_room(share, size)

    def queued(self, share: str, size: int) -> None:
        """Notes what was queued on that link; `has_room` was asked."""
        self._frames.append((share, size))
        self._shares.take(share, size)

    def _bytes_of_this_turn(self, outbox: list[Buffer]) -> int:
        """Counts what is in an outbox, each buffer once: it is another list in the next turn."""
        if outbox is not self._outbox:
            self._outbox, self._counted, self._outbox_bytes = outbox, 0, 0
        new = outbox[self._counted :]
        self._counted += len(new)
        self._outbox_bytes += sum(map(len, new))
        return self._outbox_bytes
