"""Mistakes by which something waits for ever that nobody keeps from moving, each put into the real code by a patch.

Most of them cost nobody anything that a client would notice within a run. `planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from broker.reading.held_pulls import HeldPulls
from broker.replica.applied import AppliedState
from broker.replica.log_head import LogHead
from broker.replica.upkeep import Upkeep
from broker.requests.deadline import NEVER
from log.dispatching.dispatch import Arrival
from log.entries.expired_files import HeadLook
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
            self.deadline = now + self._state.options.election_timeout_min_ns

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


@planted("waits: only a full disk has anything deleted", "DefaultMessageStore: deleteWhen")
def only_a_full_disk_has_anything_deleted(patch: pytest.MonkeyPatch) -> None:
    def may_delete(self: HeadLook, used_ratio: float) -> bool:
        return used_ratio > min(self.policy.delete_ratio, self.policy.force_ratio)

    patch.setattr(HeadLook, "may_delete", may_delete)


@planted("waits: a follower keeps what its leader deletes", "a log that grows where nobody looks")
def follower_keeps_what_its_leader_deletes(patch: pytest.MonkeyPatch) -> None:
    original = LogHead._delete

    def delete(self: LogHead, *arguments: Any) -> int | None:
        return original(self, *arguments) if self._leadership.serving else 0

    patch.setattr(LogHead, "_delete", delete)
