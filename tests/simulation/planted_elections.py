"""Mistakes about elections and membership, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.replica.members import Members
from broker.replica.replica import Replica
from log.notes.hard_state import HardStateFile, StoredHardState
from raft import effects as fx
from raft.configuration import Change
from raft.core import Raft
from raft.election import Election
from raft.leader import Clip, Leader
from raft.messages import AppendRequest, Message, VoteRequest
from raft.quorum import VoteTally
from raft.state import NodeState
from tests.simulation.planting import planted


@planted("vote not persisted", "DLedger MemberState: a failed vote write is logged and passed over")
def vote_not_persisted(patch: pytest.MonkeyPatch) -> None:
    original = HardStateFile.write

    def write(self: HardStateFile, state: StoredHardState) -> None:
        original(self, replace(state, vote=""))

    patch.setattr(HardStateFile, "write", write)


@planted("term and vote not saved", "DLedger: term and vote without fsync")
def term_and_vote_not_saved(patch: pytest.MonkeyPatch) -> None:
    def save(self: Replica, effect: fx.SaveHardState) -> None:
        pass

    patch.setattr(Replica, "_save_term_and_vote", save)


@planted("double vote", "Raft 5.2: first come, first served")
def double_vote(patch: pytest.MonkeyPatch) -> None:
    original = Election._may_grant

    def may_grant(self: Election, request: VoteRequest, now: int) -> bool:
        vote, self._state.vote = self._state.vote, None
        try:
            return original(self, request, now)
        finally:
            self._state.vote = vote

    patch.setattr(Election, "_may_grant", may_grant)


@planted("vote without looking at the log", "Raft 5.4.1")
def vote_without_looking_at_the_log(patch: pytest.MonkeyPatch) -> None:
    original = Election._may_grant

    def may_grant(self: Election, request: VoteRequest, now: int) -> bool:
        return original(self, request._replace(last_index=1 << 40, last_term=1 << 40), now)

    patch.setattr(Election, "_may_grant", may_grant)


@planted("votes not counted", "Raft 5.2: a majority of votes")
def votes_counted_without_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoteTally, "won", property(lambda self: True))


@planted("lost no-op", "Raft 5.4.2, 8: DLedger appends none at the start of a term")
def lost_noop(patch: pytest.MonkeyPatch) -> None:
    """A new leader appends nothing, and serves at once: it does not know what is committed."""
    original = Leader.__init__

    def init(self: Leader, state: NodeState, clip: Clip, now: int) -> None:
        original(self, state, clip, now)
        state.log.truncate(state.log.last_index - 1)
        state.log_effects_pending = False
        assert isinstance(state.effects.pop(), fx.AppendNoop)
        self._term_begin_index = 0

    def change_role(self: Replica, effect: fx.RoleChanged) -> None:
        original_change(self, effect)
        if effect.role is fx.Role.LEADER:
            self.leadership.start_serving()

    original_change = Replica._change_role
    patch.setattr(Leader, "__init__", init)
    patch.setattr(Replica, "_change_role", change_role)


@planted("membership change before commit", "dissertation 4.1; the bug in single-server changes of 2015")
def membership_change_before_commit(patch: pytest.MonkeyPatch) -> None:
    """A change is begun while the one before is not committed, or before anything of the term is."""
    original = Leader.propose_configuration

    def propose(self: Leader, change: Change, now: int) -> int:
        state = self._state
        index, begin = state.configurations.current_index, self._term_begin_index
        state.configurations.current_index, self._term_begin_index = -1, -1
        try:
            return original(self, change, now)
        finally:
            self._term_begin_index = begin
            if state.configurations.current_index == -1:
                state.configurations.current_index = index

    patch.setattr(Leader, "propose_configuration", propose)


@planted("old terms are heard", "Raft 5.1: stale terms are rejected")
def old_terms_are_heard(patch: pytest.MonkeyPatch) -> None:
    original = Raft._enter_term_of

    def enter_term_of(self: Raft, message: Message, now: int) -> bool:
        if isinstance(message, AppendRequest) and message.term < self.term and self._leader is None:
            return True
        return original(self, message, now)

    patch.setattr(Raft, "_enter_term_of", enter_term_of)


@planted(
    "release: format raised when a majority reads it",
    "a feature gate that looks at the nodes it hears from (CockroachDB, etcd's cluster version: all members)",
)
def format_raised_for_a_majority(patch: pytest.MonkeyPatch) -> None:
    def common_format(self: Members) -> int | None:
        formats = sorted([self._newest_format, *self._formats.values()])
        return formats[len(formats) // 2]

    patch.setattr(Members, "common_format", common_format)
