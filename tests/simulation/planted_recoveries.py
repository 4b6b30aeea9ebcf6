"""Mistakes about votes, learners and nodes that come back with less, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

import pytest

from broker.replica.recovering_file import RecoveringFile
from raft.configuration import AddLearner, Change, PromoteLearner
from raft.core import Raft
from raft.election import Election
from raft.leader import Leader
from raft.messages import AppendResponse, Message, VoteResponse
from raft.progress import Progress
from raft.quorum import VoteTally
from raft.recovery import Recovery
from raft.recovery_loss import Loss
from tests.simulation.planting import planted


@planted("a vote of an earlier term counted", "Raft 5.2: a vote is for one term", part="consensus")
def vote_of_an_earlier_term_counted(patch: pytest.MonkeyPatch) -> None:
    original = Election.count

    def count(self: Election, response: VoteResponse, now: int) -> bool:
        asked = self._state.term + 1 if response.pre_vote else self._state.term
        return original(self, response._replace(request_term=asked), now)

    patch.setattr(Election, "count", count)


@planted("a PreVote counted as a vote", "dissertation 9.6: it promises nothing", part="consensus")
def pre_vote_counted_as_a_vote(patch: pytest.MonkeyPatch) -> None:
    original = Election.count

    def count(self: Election, response: VoteResponse, now: int) -> bool:
        if response.pre_vote and self._votes is not None and self._pre_votes is None:
            response = response._replace(pre_vote=False, request_term=self._state.term)
        return original(self, response, now)

    patch.setattr(Election, "count", count)


@planted(
    "an acknowledgement of an earlier term counted", "Raft 5.1: stale terms are rejected", part="consensus"
)
def acknowledgement_of_an_earlier_term_counted(patch: pytest.MonkeyPatch) -> None:
    original = Raft.step

    def step(self: Raft, message: Message, now: int) -> None:
        """One that says what nobody can have said to this leader is left out all the same."""
        leader = self._leader
        if (
            leader is not None
            and isinstance(message, AppendResponse)
            and message.success
            and message.term < self.term
            and message.log_index <= self._state.log.last_index
        ):
            message = message._replace(term=self.term, round=min(message.round, leader._round))
        original(self, message, now)

    patch.setattr(Raft, "step", step)


@planted("a re-added learner has its old progress", "dissertation 4.2.1; etcd tracker", part="consensus")
def readded_learner_has_its_old_progress(patch: pytest.MonkeyPatch) -> None:
    """The leader keeps what it knew of a member that left, and goes on with it when a node of that name comes."""
    propose, dismiss = Leader.propose_configuration, Leader._dismiss_removed_peers
    left: dict[tuple[int, str], Progress] = {}

    def dismiss_removed_peers(self: Leader) -> None:
        left.update({(id(self), node): self.peers[node] for node in self._leaving})
        dismiss(self)

    def propose_configuration(self: Leader, change: Change, now: int) -> int:
        index = propose(self, change, now)
        old = left.get((id(self), change.node))
        if isinstance(change, AddLearner) and old is not None:
            old.leaving_index = None
            old.connected = self.peers[change.node].connected
            self.peers[change.node] = old
            self._update_peers(now)
        return index

    patch.setattr(Leader, "_dismiss_removed_peers", dismiss_removed_peers)
    patch.setattr(Leader, "propose_configuration", propose_configuration)


@planted("a learner is promoted while it recovers", "raft/recovery.py, Members", part="consensus")
def learner_promoted_while_it_recovers(patch: pytest.MonkeyPatch) -> None:
    original = Leader.propose_configuration

    def propose_configuration(self: Leader, change: Change, now: int) -> int:
        if isinstance(change, PromoteLearner) and change.node in self.peers:
            self.peers[change.node].recovering = False
        return original(self, change, now)

    patch.setattr(Leader, "propose_configuration", propose_configuration)


@planted("recovery ends before the leader's commit", "raft/recovery.py, Entries", part="consensus")
def recovery_ends_before_the_leaders_commit(patch: pytest.MonkeyPatch) -> None:
    def is_over(self: Recovery, *, leads: bool) -> bool:
        return not self.is_mute and (leads or self._state.leader is not None)

    patch.setattr(Recovery, "is_over", is_over)


@planted("what a recovering peer had acknowledged counts", "raft/recovery.py, Entries", part="consensus")
def old_acknowledgements_of_a_recovering_peer_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "peer_recovers", lambda *_: None)


@planted("votes of recovering nodes count as others", "Protocol-Aware Recovery, 2018", part="consensus")
def votes_of_recovering_nodes_count_as_others(patch: pytest.MonkeyPatch) -> None:
    original = VoteTally.record

    def record(self: VoteTally, voter: str, granted: bool, *, marked: bool = False) -> None:
        original(self, voter, granted)

    patch.setattr(VoteTally, "record", record)


@planted("a restart forgets the recovery", "MongoDB, etcd: a flag in memory", part="consensus")
def restart_forgets_the_recovery(patch: pytest.MonkeyPatch) -> None:
    original = RecoveringFile.keep

    def keep(self: RecoveringFile, loss: Loss | None) -> None:
        original(self, None)

    patch.setattr(RecoveringFile, "keep", keep)
