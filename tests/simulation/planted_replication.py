"""Mistakes about replication and acknowledgements, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.node.links import AcceptedLink, PeerLinks
from broker.node.node import Node
from broker.peers.protocol import Hello
from broker.replica.replica import Replica
from log.entries.flushes import FlushJob
from log.errors import FlushError
from raft import effects as fx
from raft.follower import Follower
from raft.leader import Leader
from raft.messages import AppendRequest
from raft.terms import LogTerms
from tests.raft.mistakes import truncation_by_any_request
from tests.simulation.planting import planted


@planted("commit by counting an older term", "Raft 5.4.2; DLedger")
def commit_by_counting_an_older_term(patch: pytest.MonkeyPatch) -> None:
    original = Leader.update_commit

    def update_commit(self: Leader) -> None:
        begin, self._term_begin_index = self._term_begin_index, 0
        try:
            original(self)
        finally:
            self._term_begin_index = begin

    patch.setattr(Leader, "update_commit", update_commit)


@planted("commit by one disk", "Raft 5.3: a majority")
def commit_by_one_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("raft.leader.agreed", max)


@planted("commit beyond what is agreed", "Raft figure 2: min(leaderCommit, last new)")
def commit_beyond_what_is_agreed(patch: pytest.MonkeyPatch) -> None:
    original = Follower.append

    def append(self: Follower, request: AppendRequest) -> None:
        original(self, request)
        state = self._state
        index = min(request.commit_index, state.log.last_index)
        if index > state.commit_index:
            state.advance_commit(index)

    patch.setattr(Follower, "append", append)


planted("truncation by a stale append", "Raft 5.3: only conflicting entries go")(truncation_by_any_request)


@planted("truncation below commit", "DLedger #316")
def truncation_below_commit(patch: pytest.MonkeyPatch) -> None:
    original = Follower.append

    def append(self: Follower, request: AppendRequest) -> None:
        log = self._state.log
        if (
            request.spans
            and request.prev_index < self._state.commit_index
            and request.prev_index >= log.first_index
        ):
            self._state.effects.append(fx.TruncateLog(request.prev_index))
        original(self, request)

    patch.setattr(Follower, "append", append)


@planted("previous entry not looked at", "Raft 5.3: consistency check")
def appended_without_looking_at_the_previous_entry(patch: pytest.MonkeyPatch) -> None:
    def matches(self: LogTerms, index: int, term: int) -> bool:
        return index <= self.last_index

    patch.setattr(LogTerms, "matches", matches)


@planted("conflicting entries kept", "Raft 5.3: conflicting entries are deleted")
def conflicting_entries_kept(patch: pytest.MonkeyPatch) -> None:
    def first_difference(self: LogTerms, prev_index: int, spans: Any) -> int:
        return max(prev_index + 1, self.last_index + 1)

    patch.setattr(LogTerms, "first_difference", first_difference)


@planted("follower acknowledges before its flush", "DLedger: quorum of page caches", flush="sync")
def follower_acknowledges_before_its_flush(patch: pytest.MonkeyPatch) -> None:
    original = Follower.acknowledge

    def acknowledge(self: Follower) -> None:
        persisted = self._state.persisted
        index, persisted.index = persisted.index, self._state.log.last_index
        try:
            self._answer_due = self._answer_due or self._agreed_index > self._acknowledged_index
            original(self)
        finally:
            persisted.index = index

    patch.setattr(Follower, "acknowledge", acknowledge)


@planted("acknowledged before the flush", "RocketMQ: SYNC_FLUSH has no effect", flush="sync")
def everybody_acknowledges_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    original = Replica.turn

    def turn(self: Replica, now_ns: int, group_ms: int, send: Callable[[], None]) -> None:
        self.durability.sync = False
        original(self, now_ns, group_ms, send)

    patch.setattr(Replica, "turn", turn)


@planted("failed flush passed over", "RocketMQ #5235", flush="sync")
def failed_flush_passed_over(patch: pytest.MonkeyPatch) -> None:
    original = FlushJob.run

    def run(self: FlushJob) -> None:
        try:
            original(self)
        except FlushError:
            pass

    patch.setattr(FlushJob, "run", run)


@planted("peer forgotten after its link broke", "found here, seeds 28 and 45")
def peer_forgotten_after_its_link_broke(patch: pytest.MonkeyPatch) -> None:
    def peer_lost(self: Node, node: str) -> None:
        self._relayed.link_lost(node)
        self.replica.peer_disconnected(node, self.time.now_ns)
        self._forwarding.link_lost(node)

    def accepted_link_up(self: PeerLinks, link: AcceptedLink, hello: Hello) -> None:
        # Nor is it remembered when the peer dials again.
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Replica, "peer_connected", lambda *_: None)
            original(self, link, hello)

    original = PeerLinks.accepted_link_up
    patch.setattr(Node, "peer_lost", peer_lost)
    patch.setattr(PeerLinks, "accepted_link_up", accepted_link_up)
