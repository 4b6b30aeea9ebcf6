"""Mistakes by which something waits for ever that nobody keeps from moving, each put into the real code by a patch.

Most of them cost nobody anything that a client would notice within a run. `planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broker.reading.held_pulls import HeldPulls
from broker.replica.applied import AppliedState
from broker.replica.upkeep import Upkeep
from broker.requests.deadline import NEVER
from log.dispatch import Arrival
from raft.leader import Leader
from raft.recovery import Recovery
from tests.simulation.planting import planted


@planted("waits: who recovers asks once", "raft/recovery.py: answers may be lost")
def who_recovers_asks_once(patch: pytest.MonkeyPatch) -> None:
    original = Recovery.tick

    def tick(self: Recovery, now: int) -> None:
        if self._nonce == self._first_nonce:
            original(self, now)
        elif now >= self.deadline:
            self.deadline = now + self._state.config.election_timeout_min_ns

    patch.setattr(Recovery, "tick", tick)


@planted(
    "waits: a pull wakes for single messages", "PullRequestHoldService: notifyMessageArriving per message"
)
def pull_wakes_for_single_messages(patch: pytest.MonkeyPatch) -> None:
    original = HeldPulls._wake

    def wake(self: HeldPulls, arrivals: Iterable[Arrival]) -> None:
        original(self, [one for one in arrivals if one.end_offset - one.first_offset == 1])

    patch.setattr(HeldPulls, "_wake", wake)


@planted("waits: a preferred leader is left aside", "DLedger: preferredLeaderId")
def preferred_leader_is_left_aside(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_hand_over_to_preferred", lambda self, now: None)


@planted("waits: no snapshot but at a stop", "a log that grows for ever")
def no_snapshot_but_at_a_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppliedState, "save", lambda self: None)


@planted("waits: no checkpoint but at a stop", "StoreCheckpoint: a start that reads the whole log")
def no_checkpoint_but_at_a_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Upkeep, "due_ns", lambda self: NEVER)
