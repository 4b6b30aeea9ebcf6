"""Mistakes of other systems' consensus and storage, from their trackers, each put into the real code by a patch.

They were chosen when all judges were there, and say what those are worth: `planted_bugs` lists them, `detection` hunts
them.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.replica.recovering_file import RecoveringFile
from broker.replica.start import ReplicaStart
from broker.replica.start import start_from_disk as original_start
from log.entries.segments import Segments
from raft import effects as fx
from raft.configuration import ConfigurationHistory
from raft.core import Raft
from raft.durability import PersistedIndex
from raft.follower import Follower
from raft.leader import Leader
from raft.messages import AppendRequest, AppendResponse, Message, SnapshotRequest
from raft.reasons import Cause
from raft.terms import LogTerms
from tests.simulation.planting import planted


@planted("a configuration outlives its entry", "camunda #57393, canonical/raft #250", part="consensus")
def configuration_outlives_its_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConfigurationHistory, "truncate", lambda *_: False)


@planted("a conflicting entry survives a snapshot", "hashicorp/raft #697, #704", part="consensus")
def conflicting_entry_survives_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Whoever has an entry of that index keeps it and all behind it, whatever its term."""
    original = Follower.install_snapshot

    def install_snapshot(self: Follower, request: SnapshotRequest) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                LogTerms, "matches", lambda log, index, _: log.first_index - 1 <= index <= log.last_index
            )
            original(self, request)

    patch.setattr(Follower, "install_snapshot", install_snapshot)


@planted("a vote goes with the leadership", "redpanda #14", part="consensus")
def vote_goes_with_the_leadership(patch: pytest.MonkeyPatch) -> None:
    """A leader that steps down in its term may vote in it again."""
    original = Raft._become_follower

    def become_follower(self: Raft, term: int, now: int, cause: Cause) -> None:
        led = term == self.term
        original(self, term, now, cause)
        if led:
            self._state.vote = None
            self._state.effects.append(fx.SaveHardState(term, None))

    patch.setattr(Raft, "_become_follower", become_follower)


@planted("any answer confirms a read", "etcd: ReadIndex without its context", part="consensus")
def any_answer_confirms_a_read(patch: pytest.MonkeyPatch) -> None:
    """Also one to a heartbeat that was sent before the read came."""
    original = Leader.append_response

    def append_response(self: Leader, response: AppendResponse, now: int) -> None:
        original(self, response, now)
        peer = self.peers.get(response.source)
        if peer is not None and peer.acknowledged_round < self._round:
            peer.acknowledged_round = self._round
            self._confirm_reads()

    patch.setattr(Leader, "append_response", append_response)


@planted("learners count for a commit", "dissertation 4.2.1; raft-rs: a quorum of all", part="consensus")
def learners_count_for_a_commit(patch: pytest.MonkeyPatch) -> None:
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        voting, leaves = self._voting_peers, self._leaving
        self._voting_peers = [peer for node, peer in self.peers.items() if node not in leaves]
        try:
            original(self)
        finally:
            self._voting_peers = voting

    patch.setattr(Leader, "update_commit", update_commit)


@planted(
    "a leader counts itself before its flush",
    "dissertation 10.2.1; etcd: asynchronous storage writes",
    flush="sync",
    part="consensus",
)
def leader_counts_itself_before_its_flush(patch: pytest.MonkeyPatch) -> None:
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        persisted = self._state.persisted
        index, persisted.index = persisted.index, self._state.log.last_index
        try:
            original(self)
        finally:
            persisted.index = index

    patch.setattr(Leader, "update_commit", update_commit)


@planted("a leader that leaves counts itself", "dissertation 4.2.2", part="consensus")
def leader_that_leaves_counts_itself(patch: pytest.MonkeyPatch) -> None:
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        votes, self.votes_itself = self.votes_itself, True
        try:
            original(self)
        finally:
            self.votes_itself = votes

    patch.setattr(Leader, "update_commit", update_commit)


@planted("a refused append is no sign of its leader", "redpanda #30817", part="consensus")
def refused_append_is_no_sign_of_its_leader(patch: pytest.MonkeyPatch) -> None:
    """Who lacks entries stands for election against the leader that is about to send them."""
    original = Raft.step

    def step(self: Raft, message: Message, now: int) -> None:
        election, sent = self._election, len(self.pending)
        deadline, contact = election.deadline, election._leader_contact
        original(self, message, now)
        if isinstance(message, AppendRequest) and self.leader == message.source:
            sends = [effect.message for effect in self.pending[sent:] if isinstance(effect, fx.Send)]
            if any(isinstance(answer, AppendResponse) and not answer.success for answer in sends):
                election.deadline, election._leader_contact = deadline, contact

    patch.setattr(Raft, "step", step)


@planted("a restart knows committed members only", "TiKV: changes count when applied", part="storage")
def restart_knows_committed_members_only(patch: pytest.MonkeyPatch) -> None:
    def start_from_disk(*arguments: Any) -> ReplicaStart:
        start = original_start(*arguments)
        known = [known for known in start.configurations if known[0] <= start.commit_index]
        return start._replace(configurations=known or start.configurations[:1])

    patch.setattr("broker.replica.replica.start_from_disk", start_from_disk)


@planted("a truncation leaves the flushed index", "redpanda #2937", flush="sync", part="storage")
def truncation_leaves_the_flushed_index(patch: pytest.MonkeyPatch) -> None:
    original = PersistedIndex.cut

    def cut(self: PersistedIndex, last_index: int) -> None:
        index = self.index
        original(self, last_index)
        self.index = index

    patch.setattr(PersistedIndex, "cut", cut)


@planted("a new file's name is not flushed", "ALICE (OSDI 2014): LevelDB, etcd", flush="sync", part="storage")
def name_of_a_new_file_is_not_flushed(patch: pytest.MonkeyPatch) -> None:
    def create(self: Segments, start: int) -> Any:
        return self.disk.open(self.path(start), self.file_bytes, create=True, buffered=self._buffered)

    patch.setattr(Segments, "create", create)


@planted("lost pages are not noticed", "etcd #14143, NuRaft #185", flush="async", part="storage")
def lost_pages_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """After a power failure a node goes on with what is left, as if it had acknowledged no more."""
    patch.setattr(RecoveringFile, "_power_was_lost", lambda *_: False)
    patch.setattr(RecoveringFile, "_pages_were_lost", lambda *_: False)
