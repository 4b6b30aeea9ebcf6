"""The events that whoever is on call is told of: each has a counter by its reason, and a line in the log.

This is the one place for both, so that none has only one of them; docs/operations.md says of each what to do. What
happens often is told once in `TOLD_EVERY_NS` for each kind, reason and source, or a few times, and the number of those
that were left out is told when that time is over. All are counted. So whoever reaches a port cannot fill the log, which
would hide what matters: addresses count as elsewhere (`broker.remoting.addresses.share_of`), and sources beyond
`SOURCES_MAX` share one place, as an attacker may have many of them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

import structlog

from broker.remoting.addresses import share_of

log = structlog.get_logger("trivet.events")

TOLD_EVERY_NS: Final = 10_000_000_000
"""The time between lines about one thing: a reader of the log sees that it goes on, and a flood of it fills no disk."""

SOURCES_MAX: Final = 1000
"""The most combinations of kind, reason and source that are told apart at a time."""

OTHERS: Final = "others"


class EventKind(Enum):
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
    CONNECTION_CLOSED = "connection closed"
    LINK_CLOSED = "link of a peer closed"
    REQUEST_FAILED = "request failed"
    REQUEST_NOT_JUDGED = "request not judged"
    REPLY_NOT_STORED = "reply not stored"
    DAMAGED_FRAME = "damaged frame"
    DISK_FULL = "disk full"
    DAMAGE_FOUND = "damage found"
    """Bytes on this node's disk are not those that were written."""
    DAMAGE_REPAIRED = "damage repaired"
    DELIVERIES_WAIT = "deliveries wait"
    """The next message of a delay level, or of the timers, is damaged, and those behind it wait, too; or a half message
    whose check is due; or the log takes none of them now."""
    DAMAGE_LEFT = "damage left"
    """Damaged entries of which no node that this one can ask has a whole copy."""
    TRACE_STOPPED = "trace stopped"
    """`observe.trace` could not be written, and the node goes on without it."""
    REQUEST_REFUSED = "request refused"
    """For want of an account, a permission or a secret."""

    @property
    def label(self) -> str:
        """The name in metrics."""
        return self.value.replace(" ", "_")


@dataclass(slots=True)
class _Told:
    """The lines about one kind, reason and source in the `TOLD_EVERY_NS` before `until_ns`, and those left out."""

    until_ns: int
    lines: int = 0
    left_out: int = 0


class Events:
    """The events of one node since it started."""

    def __init__(self) -> None:
        self.counts: dict[tuple[EventKind, str], int] = {}
        """By kind and reason; reasons are few, and never what a client sent."""
        self._told: dict[tuple[EventKind, str, str], _Told] = {}
        """By kind, reason and what the source counts as, in the order of `until_ns`."""

    def note(self, event: EventKind, reason: str, **facts: object) -> None:
        """Counts a change that is no trouble by itself, and writes a line about each."""
        self._count(event, reason)
        log.info(event.value, reason=reason, **facts)

    def warn(
        self,
        event: EventKind,
        reason: str,
        now_ns: int,
        *,
        source: str = "",
        at_once: int = 1,
        **facts: object,
    ) -> None:
        """Counts trouble, and warns of it unless the same was told `at_once` times a moment ago.

        `source` is where it comes from, such as an address: a flood from one hides none from another.
        """
        left_out = self._left_out(event, reason, now_ns, source, at_once)
        if left_out is not None:
            _write(event, reason, source, left_out, facts)

    def admits(self, event: EventKind, reason: str, now_ns: int, *, source: str) -> bool:
        """Counts as `warn` does. Returns True where `warn` would write a line: the caller writes its own instead."""
        left_out = self._left_out(event, reason, now_ns, source, 1)
        if left_out:
            _write(event, reason, source, left_out, {})
        return left_out is not None

    def sweep(self, now_ns: int) -> None:
        """Writes how many lines were left out, where no further event has told that; to be called every few seconds."""
        while self._told:
            key, told = next(iter(self._told.items()))
            if told.until_ns > now_ns:
                return
            del self._told[key]
            if told.left_out:
                _write(*key, told.left_out, {})

    def _left_out(self, event: EventKind, reason: str, now_ns: int, source: str, at_once: int) -> int | None:
        """Counts trouble; returns how much of it was left out until now, or None if this is left out, too."""
        self._count(event, reason)
        key = (event, reason, share_of(source))
        left_out = 0
        told = self._told.get(key)
        if told is not None and told.until_ns <= now_ns:
            left_out = told.left_out
            del self._told[key]
            told = None
        # Of sources beyond a bound one count is kept for all: whoever has many addresses fills neither memory nor log.
        if told is None and len(self._told) >= SOURCES_MAX:
            self.sweep(now_ns)
            if len(self._told) >= SOURCES_MAX:
                key = (event, reason, OTHERS)
                told = self._told.get(key)
        if told is None:
            told = self._told[key] = _Told(now_ns + TOLD_EVERY_NS)
        if told.lines >= at_once:
            told.left_out += 1
            return None
        told.lines += 1
        return left_out

    def count(self, event: EventKind) -> int:
        """Returns how often it has happened, for whatever reason."""
        return sum(count for (kind, _), count in self.counts.items() if kind is event)

    def _count(self, event: EventKind, reason: str) -> None:
        self.counts[event, reason] = self.counts.get((event, reason), 0) + 1


def _write(event: EventKind, reason: str, source: str, left_out: int, facts: dict[str, object]) -> None:
    if left_out:
        facts["not_told"] = left_out
    if source:
        facts["source"] = source
    log.warning(event.value, reason=reason, **facts)
