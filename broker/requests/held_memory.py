"""The memory that clients make a server hold, and which connections go first when they hold too much together.

A sender that only means to hold memory stands still; one that means to get something done makes progress. So
connections that stand still go first, and then those that do not. Of either kind strangers, who have shown no account,
go before accounts; among these those of the address that holds most, since one sender can make many connections; and of
that address those that have stood still for longest, or, where they do not, that hold most. A stranger stands still
after a second without progress, an account after half a minute.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.requests.connection import Connection
from broker.requests.deadline import Time

PROGRESS_BYTES: Final = 16 * 1024
"""Less is no progress: whoever sends or takes a byte now and then holds memory all the same."""
STRANGER_STANDS_NS: Final = 1_000_000_000
ACCOUNT_STANDS_NS: Final = 30_000_000_000
"""A connection stands still when it has made no progress for so long."""
_ROOM_SHARE: Final = 8
"""An eighth of the bound is made free at a time, as long as those that go stand still: to look for them costs more than
to receive what makes them too many."""


class Held:
    """The memory that is held for one connection, and its progress."""

    __slots__ = ("mark", "progress_ns", "size")

    def __init__(self, size: int, now_ns: int) -> None:
        self.size = size
        self.mark = size
        """The size when it made progress last."""
        self.progress_ns = now_ns

    def progressed(self, now_ns: int) -> None:
        """Notes progress: the connection does not count as standing still before its time is over again."""
        self.mark = self.size
        self.progress_ns = now_ns


@dataclass(slots=True, eq=False)
class HeldMemory:
    """Counts what connections hold of one kind. `_close` is called with a connection that must go, and why."""

    _what: str
    """In words, for those who read the log."""
    _bytes_max: int
    _time: Time
    _close: Callable[[Connection, str], None]
    held: dict[Connection, Held] = field(default_factory=dict)
    total: int = 0
    """The sum of all sizes."""

    def put(self, connection: Connection, size: int) -> Held:
        """Notes how many bytes are held for a connection now, not 0; for a new one that counts as progress."""
        held = self.held.get(connection)
        if held is None:
            held = self.held[connection] = Held(0, self._time.now_ns)
            held.mark = size
        self.total += size - held.size
        held.size = size
        return held

    def drop(self, connection: Connection) -> None:
        """Forgets what was held for a connection, if anything was."""
        held = self.held.pop(connection, None)
        if held is not None:
            self.total -= held.size

    @property
    def is_too_much(self) -> bool:
        """Tells whether more is held than the bound allows, so that `make_room` has something to do."""
        return self.total > self._bytes_max

    def make_room(self) -> None:
        """Has connections closed until the rest is within the bound."""
        if not self.is_too_much:
            return
        found, enough = self.total, self._bytes_max - self._bytes_max // _ROOM_SHARE
        for connection, held, stands in list(self._in_order()):
            # Those that stand still go until an eighth is free, those that go on only as far as they must.
            if self.total <= (enough if stands else self._bytes_max):
                return
            self.drop(connection)
            idle_ms = (self._time.now_ns - held.progress_ns) // 1_000_000
            self._close(
                connection,
                f"{self._what} take {found} bytes, of which it has {held.size} and did not go on for {idle_ms} ms",
            )

    def _in_order(self) -> Iterator[tuple[Connection, Held, bool]]:
        """Yields all connections, each with whether it stands still, in the order in which they are to go."""
        now_ns = self._time.now_ns
        # An address counts with all that its connections hold: many small ones go before a single large one.
        of_share: Counter[tuple[bool, bool, str]] = Counter()
        ranked: list[tuple[tuple[bool, bool, str], Connection, Held]] = []
        for connection, held in self.held.items():
            proven = connection.is_proven
            goes_on = now_ns - held.progress_ns < (ACCOUNT_STANDS_NS if proven else STRANGER_STANDS_NS)
            rank = goes_on, proven, connection.share
            of_share[rank] += held.size
            ranked.append((rank, connection, held))

        def place(one: tuple[tuple[bool, bool, str], Connection, Held]) -> tuple[bool, bool, int, str, int]:
            (goes_on, proven, share), _, held = one
            last = -held.size if goes_on else held.progress_ns
            return goes_on, proven, -of_share[one[0]], share, last

        ranked.sort(key=place)
        for (goes_on, _, _), connection, held in ranked:
            yield connection, held, not goes_on
