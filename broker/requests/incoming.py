"""The bound on the memory for frames that are not whole, for all connections of a server together.

A frame has 16 MiB at most, so that one connection takes no more than that. But ten thousand connections that each
send a frame without its last byte would take all memory there is. Beyond `INCOMPLETE_BYTES_MAX` some are closed, and
which ones `held_memory` says: not those whose frames are growing, as long as others' are not.
"""

from collections.abc import Callable
from typing import Final

from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.held_memory import PROGRESS_BYTES, HeldMemory

INCOMPLETE_BYTES_MAX: Final = 256 * 1024 * 1024


class IncompleteFrames:
    """Counts what each connection holds. `close` is called with a connection that must go, and why."""

    __slots__ = ("_memory", "_time")

    def __init__(
        self, time: Time, close: Callable[[Connection, str], None], bytes_max: int | None = None
    ) -> None:
        self._time = time
        self._memory = HeldMemory(
            "frames that are not whole",
            INCOMPLETE_BYTES_MAX if bytes_max is None else bytes_max,
            time,
            close,
        )

    def holds(self, connection: Connection, size: int, *, anew: bool = False) -> None:
        """Notes that `size` bytes of a frame that is not whole are held for a connection now; 0 when it has ended.

        `anew` says that the frame is another one than before.
        """
        memory = self._memory
        # Another frame than before begins with progress: the one before it has become whole.
        if anew or not size:
            memory.drop(connection)
        if not size:
            return
        held = memory.put(connection, size)
        # Whoever sends a byte now and then makes no progress.
        if held.size - held.mark >= PROGRESS_BYTES:
            held.progressed(self._time.now_ns)
        memory.make_room()
