"""The events that whoever is on call is told of: each has a counter by its reason, and a line in the log.

This is the one place for both, so that none has only one of them; docs/operations.md says of each what to do. What
happens often is told once in `TOLD_EVERY_NS` for each kind, reason and source, with the number of those that were left
out in between, and always counted.
"""

from enum import Enum
from typing import Final

import structlog

log = structlog.get_logger("trivet.events")

TOLD_EVERY_NS: Final = 10_000_000_000
"""A reader of the log sees that something goes on, and a flood of it fills no disk."""

_SOURCES_MAX: Final = 1000
"""So many kinds, reasons and sources are told apart; the one that was told first gives way to the next."""


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
    REQUEST_REFUSED = "request refused"
    """By accounts and secrets."""

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.value.replace(" ", "_")


class Events:
    """What has happened on one node since it started."""

    def __init__(self) -> None:
        self.counts: dict[tuple[Event, str], int] = {}
        """By kind and reason; reasons are few, and never what a client sent."""
        self._told: dict[tuple[Event, str, str], list[int]] = {}
        """By kind, reason and source, in the order of their last lines: when that was written (ns), and how often it
        has happened since."""

    def note(self, event: Event, reason: str, **facts: object) -> None:
        """Counts a change that is no trouble by itself, and tells of each."""
        self._count(event, reason)
        log.info(event.value, reason=reason, **facts)

    def warn(self, event: Event, reason: str, now_ns: int, *, source: str = "", **facts: object) -> None:
        """Counts trouble, and warns of it unless the same was told a moment ago.

        `source` is where it comes from, such as an address: a flood from one hides none from another.
        """
        self._count(event, reason)
        key = (event, reason, source)
        told = self._told.get(key)
        if told is not None:
            told_ns, left_out = told
            if now_ns - told_ns < TOLD_EVERY_NS:
                told[1] += 1
                return
            if left_out:
                facts["not_told"] = left_out
            del self._told[key]
        elif len(self._told) >= _SOURCES_MAX:
            del self._told[next(iter(self._told))]
        self._told[key] = [now_ns, 0]
        if source:
            facts["source"] = source
        log.warning(event.value, reason=reason, **facts)

    def count(self, event: Event) -> int:
        """Returns how often it has happened, for whatever reason."""
        return sum(count for (kind, _), count in self.counts.items() if kind is event)

    def _count(self, event: Event, reason: str) -> int:
        key = (event, reason)
        count = self.counts[key] = self.counts.get(key, 0) + 1
        return count
