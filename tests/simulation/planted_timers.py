"""Mistakes about timed messages, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

import pytest

import broker.delayed.timers as timers_module
from broker.replica.group_clock import GroupClock
from log.queues.timer_index import Steps, TimerIndex
from tests.simulation.planting import planted


@planted("timer: judged by the leader's wall clock", "found here: a clock two hours ahead", actor="scheduler")
def judged_by_the_leaders_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Times are what each node's own wall clock shows: one that jumps cuts delays short, or draws them out."""
    original = GroupClock.read

    def read(self: GroupClock, now_ns: int, wall_ms: int) -> int:
        original(self, now_ns, wall_ms)
        return wall_ms

    patch.setattr(GroupClock, "read", read)


@planted("timer: a new leader's own wall clock", "store timestamps are the broker's own")
def a_new_leader_s_own_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Who begins to lead asks no more what the others say, but goes on from there as it should."""

    def lead(self: GroupClock, now_ns: int) -> int:
        self.leads = self.is_agreed = True
        self._now_ns = now_ns
        self._time_ns = now_ns + self._wall_offset_ms * 1_000_000
        return self._time_ns // 1_000_000

    patch.setattr(GroupClock, "lead", lead)


@planted("timer: a clock that stood still is not believed", "CLOCK_MONOTONIC stands still in a suspend")
def a_clock_that_stood_still_is_not_believed(patch: pytest.MonkeyPatch) -> None:
    """A follower takes all that the words of a leader whose machine was suspended are behind for their way."""
    patch.setattr(GroupClock, "_have_long_been_late", lambda self, now_ns: False)


@planted("timer: nothing counted at takeover", "timer progress saved now and then", actor="scheduler")
def nothing_counted_at_takeover(patch: pytest.MonkeyPatch) -> None:
    """A new leader delivers again all that the last one had announced last."""
    patch.setattr(timers_module, "count_delivered", lambda *_: 0)


@planted("timer: announced taken for delivered", "progress saved before delivery", actor="scheduler")
def announced_taken_for_delivered(patch: pytest.MonkeyPatch) -> None:
    """A new leader believes that what the last one announced came into the log."""

    def all_of_them(replica: object, queue: object, offsets: tuple[int, ...], *_: object) -> int:
        return len(offsets)

    patch.setattr(timers_module, "count_delivered", all_of_them)


@planted("timer: due by a clock ahead", "precision of a second, downwards", actor="scheduler")
def due_by_a_clock_ahead(patch: pytest.MonkeyPatch) -> None:
    """A message that is due within a second is delivered with those that are due now."""
    original = TimerIndex.due

    def due(self: TimerIndex, steps: Steps, until_ms: int, count: int) -> list[tuple[int, int]]:
        return original(self, steps, min(until_ms + 1000, 1 << 62), count)

    patch.setattr(TimerIndex, "due", due)
