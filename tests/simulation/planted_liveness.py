"""Mistakes that cost a group its availability while something is broken, each put into the real code by a patch.

Once everything is mended the group recovers from most of them. `planted_bugs` lists them.
"""

from __future__ import annotations

import pytest

from broker.node.links import _DialledLink
from broker.node.node import Node
from broker.requests.line import Line, LineState
from raft.effects import Role
from raft.election import Election
from raft.errors import ProposalLimit
from raft.leader import Leader
from raft.quorum import VoteTally
from tests.simulation.planting import planted


@planted("liveness: leads on without a majority", "dissertation 6.2: a leader steps down (check-quorum)")
def leads_on_without_a_majority(patch: pytest.MonkeyPatch) -> None:
    original = Leader.tick

    def tick(self: Leader, now: int) -> None:
        original(self, now)

    patch.setattr(Leader, "tick", tick)


@planted("liveness: no PreVote", "dissertation 9.6: whoever was cut off comes back with a greater term")
def no_pre_vote(patch: pytest.MonkeyPatch) -> None:
    original = Election.begin_pre_vote

    def begin_pre_vote(self: Election, now: int) -> bool:
        original(self, now)
        return True

    patch.setattr(Election, "begin_pre_vote", begin_pre_vote)


@planted("liveness: all voters must vote", "Raft 5.2: a majority")
def all_voters_must_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoteTally, "won", property(lambda self: all(self._votes.values())))


@planted("liveness: commit waits for all", "Raft 5.3: one slow server need not slow down the others")
def commit_waits_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raft.leader.agreed", min)


@planted("liveness: who lags holds up proposals", "a window of what is under way that counts who is gone")
def who_lags_holds_up_proposals(patch: pytest.MonkeyPatch) -> None:
    original = Leader.check_proposal

    def check_proposal(self: Leader, count: int) -> None:
        original(self, count)
        for peer in self.peers.values():
            lag = self._state.log.last_index - peer.match_index
            if lag > 20:
                raise ProposalLimit(lag, 20)

    patch.setattr(Leader, "check_proposal", check_proposal)


@planted("liveness: a dial that hangs is not repeated", "a connection attempt without a time limit")
def dial_that_hangs_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    original = Line._is_due

    def is_due(self: Line) -> None:
        if self.state is LineState.CONNECTS and self.name.startswith("peer"):
            self._deadline.due_ns += 3600 * 1_000_000_000
        else:
            original(self)

    patch.setattr(Line, "_is_due", is_due)


@planted("liveness: a broken link to a learner stays so", "a learner is nobody's voter, so nobody misses it")
def broken_link_to_a_learner_stays_so(patch: pytest.MonkeyPatch) -> None:
    original = _DialledLink.lost

    def lost(self: _DialledLink, was: LineState, reason: str) -> None:
        original(self, was, reason)
        node = self._links.node
        assert isinstance(node, Node)
        raft = node.replica.raft
        if self._peer in raft.configuration.learners and raft.role is not Role.LEADER:
            self.line.end("it is a learner")

    patch.setattr(_DialledLink, "lost", lost)
