"""Mistakes about timed messages, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

import pytest

import broker.delayed.timers as timers_module
from log.timer_index import Steps, TimerIndex

__all__ = ["announced_taken_for_delivered", "due_by_a_clock_ahead", "nothing_counted_at_takeover"]


def nothing_counted_at_takeover(patch: pytest.MonkeyPatch) -> None:
    """A new leader delivers again all that the last one had announced last."""
    patch.setattr(timers_module, "count_delivered", lambda *_: 0)


def announced_taken_for_delivered(patch: pytest.MonkeyPatch) -> None:
    """A new leader believes that what the last one announced came into the log."""

    def all_of_them(replica: object, queue: object, offsets: tuple[int, ...], *_: object) -> int:
        return len(offsets)

    patch.setattr(timers_module, "count_delivered", all_of_them)


def due_by_a_clock_ahead(patch: pytest.MonkeyPatch) -> None:
    """A message that is due within a second is delivered with those that are due now."""
    original = TimerIndex.due

    def due(self: TimerIndex, steps: Steps, until_ms: int, count: int) -> list[tuple[int, int]]:
        return original(self, steps, min(until_ms + 1000, 1 << 62), count)

    patch.setattr(TimerIndex, "due", due)
