"""Mistakes that a tester thought of who had not looked at the judges, each put into the real code by a patch.

They were hunted as they were, with what the simulator was then; `planted_bugs` lists them, `detection` hunts them.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.delayed.delays import DelayService
from broker.state.topic_rules import SCHEDULE_TOPIC
from log.queues.timer_index import _Run
from raft.effects import Effect
from raft.leader import Leader
from raft.read_index import ReadQueue
from tests.simulation.planting import planted


@planted("a read joins the round under way", "etcd: reads that are batched", part="consensus")
def read_joins_the_round_under_way(patch: pytest.MonkeyPatch) -> None:
    """Answers that were given before it came confirm it."""
    original = ReadQueue.begin_round

    def begin_round(self: ReadQueue, round_number: int, commit_index: int) -> None:
        under_way = self.open_round
        original(self, round_number, commit_index)
        if under_way is not None:
            self.open_round = under_way

    patch.setattr(ReadQueue, "begin_round", begin_round)


@planted("learners confirm reads", "raft-rs: a quorum of all", part="consensus")
def learners_confirm_reads(patch: pytest.MonkeyPatch) -> None:
    original = Leader._confirm_reads

    def confirm_reads(self: Leader) -> None:
        voting, self._voting_peers = self._voting_peers, list(self.peers.values())
        try:
            original(self)
        finally:
            self._voting_peers = voting

    patch.setattr(Leader, "_confirm_reads", confirm_reads)


@planted("reads that wait for their round are not refused", "whoever asked waits for ever", part="consensus")
def reads_that_wait_are_not_refused(patch: pytest.MonkeyPatch) -> None:
    """The leadership ends, and nobody tells them."""
    original = ReadQueue.abandon

    def abandon(self: ReadQueue) -> list[Effect]:
        self.waiting = []
        return original(self)

    patch.setattr(ReadQueue, "abandon", abandon)


@planted(
    "a run of timers has the end of its last unit",
    "a maximum of what is sorted otherwise",
    part="storage",
    actor="scheduler",
)
def run_of_timers_has_the_end_of_its_last_unit(patch: pytest.MonkeyPatch) -> None:
    """Units that a delivery did not know count as done with it."""
    original = _Run.__init__

    def init(self: _Run, *arguments: Any) -> None:
        original(self, *arguments)
        self.last_offset = int(self.offsets[-1])

    patch.setattr(_Run, "__init__", init)


@planted(
    "a long delayed message holds up its level",
    "a limit without its exception",
    part="broker",
    actor="courier",
)
def long_delayed_message_holds_up_its_level(patch: pytest.MonkeyPatch) -> None:
    original = DelayService._deliver_due

    def deliver_due(self: DelayService, level: int) -> int:
        queue = self._leadership.store.queues.get(SCHEDULE_TOPIC, level - 1)
        unit = None if queue is None else queue.unit(self._next[level])
        is_due = unit is not None and level not in self._under_way and unit[2] <= self._time.group_ms
        if is_due and unit is not None and unit[1] > self._leadership.limits.delivery_bytes_max:
            return self._time.now_ns
        return original(self, level)

    patch.setattr(DelayService, "_deliver_due", deliver_due)
