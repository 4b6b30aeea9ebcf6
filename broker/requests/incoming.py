"""The bound on the memory for frames that are not whole, for all connections of a server together.

A frame has 16 MiB at most, so that one connection takes no more than that. But ten thousand connections that each
send a frame without its last byte would take all memory there is. Beyond `INCOMPLETE_BYTES_MAX` the connection that
holds most is closed: a message under way has 4 MiB by default, and who means to hold memory holds more than others.
"""

from collections.abc import Callable
from typing import Final

from broker.requests.connection import Connection

INCOMPLETE_BYTES_MAX: Final = 256 * 1024 * 1024


class IncompleteFrames:
    """Counts what each connection holds. `close` is called with a connection that must go, and why."""

    def __init__(self, close: Callable[[Connection, str], None], bytes_max: int | None = None) -> None:
        self._close = close
        self._bytes_max = INCOMPLETE_BYTES_MAX if bytes_max is None else bytes_max
        self._held: dict[Connection, int] = {}
        self._total = 0

    def holds(self, connection: Connection, size: int) -> None:
        """Notes that `size` bytes of a frame that is not whole are held for a connection now; 0 when it has ended."""
        self._total += size - self._held.pop(connection, 0)
        if not size:
            return
        self._held[connection] = size
        if self._total > self._bytes_max:
            most = max(self._held, key=self._held.__getitem__)
            held = self._held.pop(most)
            reason = f"frames that are not whole take {self._total} bytes, and it holds most of them, {held}"
            self._total -= held
            self._close(most, reason)
