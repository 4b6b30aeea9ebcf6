"""The events that whoever is on call is told of: each has a counter by its reason, and a line in the log.

This is the one place for both, so that none has only one of them; docs/operations.md says of each what to do. What
happens often is told once in `TOLD_EVERY_NS` for each kind and reason, with the number of those that were left out in
between, and always counted.
"""

from enum import Enum
from typing import Final

import structlog

log = structlog.get_logger("trivet.events")

TOLD_EVERY_NS: Final = 10_000_000_000
"""A reader of the log sees that something goes on, and a flood of it fills no disk."""


class Event(Enum):
    """The kinds. The value is the line in the log; with underscores it is the name of the counter."""

    ROLE_CHANGED = "role"
    LEADER_LOST = "leader lost"
    STEPPED_DOWN = "stepped down"
    SLOW_FLUSH = "slow flush"
    STALLED_TURN = "stalled turn"
    STALLED_LOOP = "stalled loop"
    SLOW_PEER = "slow peer"
    CLOCK_JUMP = "clock jump"
    CONNECTION_REFUSED = "connection refused"
    DAMAGED_FRAME = "damaged frame"
    DISK_FULL = "disk full"

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.value.replace(" ", "_")


class Events:
    """What has happened on one node since it started."""

    def __init__(self) -> None:
        self.counts: dict[tuple[Event, str], int] = {}
        """By kind and reason; reasons are few, and never what a client sent."""
        self._told: dict[tuple[Event, str], tuple[int, int]] = {}
        """By kind and reason, when the last warning was written (ns), and the count then."""

    def note(self, event: Event, reason: str, **facts: object) -> None:
        """Counts a change that is no trouble by itself, and tells of each."""
        self._count(event, reason)
        log.info(event.value, reason=reason, **facts)

    def warn(self, event: Event, reason: str, now_ns: int, **facts: object) -> None:
        """Counts trouble, and warns of it unless the same was told a moment ago."""
        count = self._count(event, reason)
        told = self._told.get((event, reason))
        if told is not None:
            told_ns, told_count = told
            if now_ns - told_ns < TOLD_EVERY_NS:
                return
            if count > told_count + 1:
                facts["not_told"] = count - told_count - 1
        self._told[event, reason] = now_ns, count
        log.warning(event.value, reason=reason, **facts)

    def count(self, event: Event) -> int:
        """Returns how often it has happened, for whatever reason."""
        return sum(count for (kind, _), count in self.counts.items() if kind is event)

    def _count(self, event: Event, reason: str) -> int:
        key = (event, reason)
        count = self.counts[key] = self.counts.get(key, 0) + 1
        return count
