"""The slowness of a node itself, told and counted, and told to raft, which would put it down to others.

Raft measures silence by the calls that it gets. A node that stood still, since its process was stopped, its machine had
no time for it, or it waited for its disk, hears of heartbeats late, and seems to have lost its leader or its majority.
`Raft.paused` says so, and the cause of what follows is right (raft/reasons.py).
"""

from dataclasses import dataclass
from typing import Final

from broker.requests.deadline import MS
from broker.statistics.events import EventKind, Events
from raft.core import Raft
from raft.reasons import Reason

STALLED_NS: Final = 250_000_000
"""A turn or a wait that is longer takes a quarter of the shortest election timeout by default: two such in a row, and
heartbeats are late. No turn takes a tenth of it under any load."""

SLOW_FLUSH_NS: Final = 500_000_000
"""Acknowledgements wait for a flush of the log. A disk that takes half a second is in trouble, or shared with somebody
who is."""


@dataclass(slots=True, eq=False)
class Slowness:
    """The slowness of one node."""

    _raft: Raft
    _events: Events
    _noting_ns: int = 0
    """The time for which the node has waited until term and vote were durable, since it last stood still."""

    def woke(self, late_ns: int, now_ns: int) -> None:
        """Tells raft that the node was called that long after its deadline. Operators are told, too, unless it waited
        for its disk most of that time: of that they know by `noted`."""
        # At least half of the time was a wait for the disk.
        if 2 * self._noting_ns >= late_ns:
            reason = Reason.SLOW_FLUSH  # told when it happened
        else:
            reason = Reason.LOOP_STALLED
            self._events.warn(EventKind.STALLED_LOOP, "called late", now_ns, late_ms=late_ns // MS)
        self._noting_ns = 0
        self._raft.paused(reason, late_ns, now_ns)

    def turned(self, took_ns: int, now_ns: int) -> None:
        """Tells of a turn, begun at `now_ns`, if it took too long."""
        if took_ns > STALLED_NS:
            self._events.warn(EventKind.STALLED_TURN, "turn", now_ns, took_ms=took_ns // MS)

    def flushed(self, what: str, took_ns: int, now_ns: int) -> None:
        """Tells of a job of a thread, which makes something durable or ready, if it took too long; the node went on
        meanwhile."""
        if took_ns > SLOW_FLUSH_NS:
            self._events.warn(EventKind.SLOW_FLUSH, what, now_ns, took_ms=took_ns // MS)

    def noted(self, took_ns: int, now_ns: int) -> None:
        """Tells, and remembers, that the node waited too long for its term and vote to be durable."""
        if took_ns > STALLED_NS:
            self._noting_ns += took_ns
            self._events.warn(EventKind.SLOW_FLUSH, "term and vote", now_ns, took_ms=took_ns // MS)
