"""Mistakes by which a node that came back with less than it promised breaks a promise, each put into the real code by a
patch: each takes one rule out of raft/recovery.py.

`planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raft.configuration import ConfigurationHistory
from raft.follower import Follower
from raft.leader import Leader
from raft.quorum import VoteTally
from raft.recovery import Recovery
from raft.recovery_loss import Loss
from raft.state import NodeState
from tests.simulation.planting import planted


@planted(
    "a new disk votes once a majority has told its terms", "raft/recovery.py, An empty disk", part="consensus"
)
def new_disk_votes_once_a_majority_has_told(patch: pytest.MonkeyPatch) -> None:
    """And acknowledges as others do: one who has its former vote may not have been heard."""
    patch.setattr(Recovery, "votes_are_known", property(lambda self: self.loss is not Loss.ALL))


@planted("a new disk takes its vote for unused", "raft/recovery.py, An empty disk", part="consensus")
def new_disk_takes_its_vote_for_unused(patch: pytest.MonkeyPatch) -> None:
    original = Recovery.__init__

    def init(self: Recovery, state: NodeState, loss: Loss, now: int) -> None:
        original(self, state, loss, now)
        self.vote_is_used = True

    patch.setattr(Recovery, "__init__", init)


@planted("a marked vote is repeated unmarked", "raft/recovery.py, An empty disk", part="consensus")
def marked_vote_is_repeated_unmarked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "forgets_votes", property(lambda self: False))


@planted(
    "a new disk acknowledges before its votes are known", "raft/recovery.py, An empty disk", part="consensus"
)
def new_disk_acknowledges_before_its_votes_are_known(patch: pytest.MonkeyPatch) -> None:
    def holds(self: Follower) -> int:
        return min(self._agreed_index, self._state.persisted.index)

    patch.setattr(Follower, "_holds", holds)


@planted("only the candidate's voters are unanimous", "raft/recovery.py, Unanimity", part="consensus")
def only_the_candidates_voters_are_unanimous(patch: pytest.MonkeyPatch) -> None:
    original = VoteTally.__init__

    def init(self: VoteTally, voters: Sequence[str], others: Sequence[str] = ()) -> None:
        original(self, voters)

    patch.setattr(VoteTally, "__init__", init)
    patch.setattr(VoteTally, "needs", lambda *_: [])


@planted("members that are not flushed commit alone", "raft/recovery.py, Unanimity", part="consensus")
def members_that_are_not_flushed_commit_alone(patch: pytest.MonkeyPatch) -> None:
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ConfigurationHistory, "previous", property(lambda history: history.current))
            original(self)

    patch.setattr(Leader, "update_commit", update_commit)


@planted("a voter goes whoever of the others recovers", "raft/recovery.py, Members", part="consensus")
def voter_goes_whoever_of_the_others_recovers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "_check_votes_without", lambda *_: None)


@planted(
    "a new disk recovers with what is committed already", "raft/recovery.py, An empty disk", part="consensus"
)
def new_disk_recovers_with_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Not with an entry that nobody who has a vote of its former self can have."""
    patch.setattr(Leader, "append_for", lambda self, _: self._state.commit_index)
