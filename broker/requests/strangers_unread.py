"""The bound on the responses that strangers leave unread, for all connections of a server together.

A connection whose responses wait is read from no more beyond some megabytes, but who sends requests and reads nothing
can make many connections, and needs no account to be refused. A connection that has shown an account is not counted:
what it may ask for is bounded otherwise.

A response counts when its request has been handled, and most are written right behind that. So what is counted is too
much, and what really waits is looked at when it seems to be more than is allowed.

For the others there are other bounds. A client that has an account, or needs none, is only not read from, and is closed
as idle in the end (`ClientSessions.sweep`); one whose requests are forwarded is closed by `Forwarding.relayed`.
"""

from collections.abc import Callable
from typing import Final

from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.held_memory import PROGRESS_BYTES, HeldMemory

STRANGERS_UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024


class StrangersUnread:
    """Counts what waits for each stranger. `close` is called with a connection that must go, and why."""

    __slots__ = ("_memory", "_time")

    def __init__(
        self, time: Time, close: Callable[[Connection, str], None], bytes_max: int | None = None
    ) -> None:
        self._time = time
        self._memory = HeldMemory(
            "unread responses to strangers",
            STRANGERS_UNREAD_BYTES_MAX if bytes_max is None else bytes_max,
            time,
            close,
        )

    def close_if_too_much(self, connection: Connection) -> None:
        """Counts what waits for a connection, whose requests have just been handled; closes who stands still if all
        that waits is too much.
        """
        self._look_at(connection)
        memory = self._memory
        if memory.is_too_much:
            # Much of what was counted may have been written since.
            for other in list(memory.held):
                self._look_at(other)
            memory.make_room()

    def lost(self, connection: Connection) -> None:
        """Forgets a connection that has ended."""
        self._memory.drop(connection)

    def _look_at(self, connection: Connection) -> None:
        unread = 0 if connection.is_proven else connection.unread_bytes
        if not unread:
            self._memory.drop(connection)
            return
        held = self._memory.put(connection, unread)
        # What is written right behind this turn is no sign that its reader stands still.
        if not connection.unsent_bytes or held.mark - unread >= PROGRESS_BYTES:
            held.progressed(self._time.now_ns)
        held.mark = max(held.mark, unread)
