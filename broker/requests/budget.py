"""A bound on requests that wait inside of a node for something to happen, so that waiting costs a bounded memory."""

from typing import Final

import msgspec

from broker.remoting.command import RemotingCommand
from broker.requests.errors import OverloadedError

REQUESTS_MAX: Final = 20_000
BYTES_MAX: Final = 32 * 1024 * 1024

_OVERHEAD_BYTES: Final = 512
"""The memory of a waiting request beside its header and body, roughly."""


class Budget:
    """Counts what waits at one place: so many requests at most, of together so many bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_requests_max", "_taken", "_what")

    def __init__(self, what: str, requests_max: int = REQUESTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        """`what` they wait for, in words, for those that are refused."""
        self._what = what
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._count = 0
        self._taken: dict[int, tuple[int, int]] = {}
        """By the identity of a request that waits, how often, and its size when it came: its header may be made another
        form of it."""
        self._bytes = 0

    def take(self, command: RemotingCommand) -> None:
        """One more request waits. Raises `OverloadedError`, which a client is told as SYSTEM_BUSY."""
        times, size = self._taken.get(id(command)) or (0, waiting_bytes(command))
        if self._count >= self._requests_max or self._bytes + size > self._bytes_max:
            raise OverloadedError(f"{self._count} requests of {self._bytes} bytes wait for {self._what}")
        self._taken[id(command)] = times + 1, size
        self._count += 1
        self._bytes += size

    def give_back(self, command: RemotingCommand) -> None:
        """A request that was counted waits no more."""
        assert id(command) in self._taken, "only what was taken is given back"
        times, size = self._taken.pop(id(command))
        if times > 1:
            self._taken[id(command)] = times - 1, size
        self._count -= 1
        self._bytes -= size


def waiting_bytes(command: RemotingCommand) -> int:
    """Returns roughly what a request takes of the memory while it waits."""
    header = command.header
    if isinstance(header, bytes | msgspec.Raw):  # as it came
        length = len(header)
    elif isinstance(header, dict):  # its fields were looked at: all of them are texts
        length = sum(len(name) + len(value) for name, value in header.items())
    else:
        length = 0
    return len(command.body) + length + _OVERHEAD_BYTES
