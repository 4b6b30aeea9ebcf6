"""A bound on the requests that wait inside a node for something to happen, and so on the memory that waiting takes."""

from typing import Final

import msgspec

from broker.remoting.command import RemotingCommand
from broker.requests.connection import Connection
from broker.requests.errors import OverloadedError
from broker.requests.shared_places import SharedPlaces

REQUESTS_MAX: Final = 40_000
BYTES_MAX: Final = 64 * 1024 * 1024

_OVERHEAD_BYTES: Final = 512
"""The memory of a waiting request beside its header and body, roughly."""


class Budget:
    """Bounds the requests that wait for one thing, by their number and by their bytes. No address takes all the room
    from others (`SharedPlaces`).
    """

    __slots__ = ("_bytes", "_taken", "_what", "places")

    def __init__(self, what: str, requests_max: int = REQUESTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        """`what` ends the text of a refusal: "7 requests of 5120 bytes wait for `what`"."""
        self._what = what
        self.places = SharedPlaces(requests_max)
        self._bytes = SharedPlaces(bytes_max)
        self._taken: dict[int, tuple[int, int]] = {}
        """By the identity of a waiting request, how often it waits, and its size when it came: its header may be turned
        into another form meanwhile."""

    def take(self, connection: Connection, command: RemotingCommand) -> None:
        """Counts one more waiting request, for the address that its connection is from.

        Raises `OverloadedError`, which a client is told as SYSTEM_BUSY.
        """
        share = connection.share
        # One request may wait more than once, as for the responses of several clients.
        times, size = self._taken.get(id(command)) or (0, waiting_bytes(command))
        if not (self.places.has_room(share) and self._bytes.has_room(share, size)):
            raise OverloadedError(
                f"{self.places.taken} requests of {self._bytes.taken} bytes wait for {self._what}"
            )
        self._taken[id(command)] = times + 1, size
        self.places.take(share)
        self._bytes.take(share, size)

    def free(self, connection: Connection, command: RemotingCommand) -> None:
        """Counts a request that was taken once less, as it waits no more."""
        assert id(command) in self._taken, "only what was taken is freed"
        times, size = self._taken.pop(id(command))
        if times > 1:
            self._taken[id(command)] = times - 1, size
        self.places.free(connection.share)
        self._bytes.free(connection.share, size)


def waiting_bytes(command: RemotingCommand) -> int:
    """Returns roughly how many bytes of memory a request takes while it waits."""
    header = command.header
    if isinstance(header, bytes | msgspec.Raw):  # as it came
        length = len(header)
    elif isinstance(header, dict):  # its fields were looked at: all of them are texts
        length = sum(len(name) + len(value) for name, value in header.items())
    else:
        length = 0
    return len(command.body) + length + _OVERHEAD_BYTES
