"""Ten more mistakes that were fixed before anybody of those who thought of them had read a judge, a workload or a plan.

docs/planted-mistakes.md tells what drawn seeds found of them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import log.notes.snapshot
from broker.node.forwarding import Forwarding
from broker.node.relayed_clients import RelayedClients
from broker.peers.protocol import Forward
from broker.replica.applied import AppliedState
from broker.requests.connection import Connection
from broker.state.commands import UnlockQueues
from broker.state.order_locks import LockTable
from log.entries.entry_recovery import _Scan
from log.entries.flushes import Flushes
from raft.configuration import Configuration, ConfigurationHistory
from raft.core import Raft
from raft.leader import Leader
from raft.progress import Progress
from raft.reasons import Cause
from tests.simulation.planting import planted


@planted(
    "what was agreed with a leader outlives its term", "etcd: reset on becoming a candidate", part="consensus"
)
def what_was_agreed_outlives_its_term(patch: pytest.MonkeyPatch) -> None:
    """Who has stood for election in vain holds what the last leader's log was for what the next one's is."""
    original = Raft._begin_vote

    def begin_vote(self: Raft, now: int, cause: Cause) -> None:
        follower = self._follower
        original(self, now, cause)
        self._follower = follower

    patch.setattr(Raft, "_begin_vote", begin_vote)


@planted("a snapshot that could not be sent is waited for", "dgraph #2707", part="consensus")
def snapshot_that_could_not_be_sent_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leader, "snapshot_failed", lambda *_: None)


@planted("a snapshot names the members of today", "etcd: the ConfState of a snapshot", part="consensus")
def snapshot_names_the_members_of_today(patch: pytest.MonkeyPatch) -> None:
    """Not those in force where it ends."""
    original = Leader._offer_snapshot

    def offer_snapshot(self: Leader, peer: Progress) -> None:
        def newest(history: ConfigurationHistory, _: int) -> tuple[int, Configuration]:
            return history.current_index, history.current

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ConfigurationHistory, "at", newest)
            original(self, peer)

    patch.setattr(Leader, "_offer_snapshot", offer_snapshot)


@planted(
    "what a start finds in memory counts as written", "PostgreSQL: fsyncgate", flush="sync", part="storage"
)
def what_a_start_finds_counts_as_written(patch: pytest.MonkeyPatch) -> None:
    """Though the last run may have ended by a flush that failed."""
    original = _Scan.run

    def run(self: _Scan) -> None:
        original(self)
        self.noted_end = self.end

    patch.setattr(_Scan, "run", run)


@planted("a snapshot's checksum is not looked at", "camunda #6894; NATS #7549", part="storage")
def checksum_of_a_snapshot_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    class Anything(int):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    original = log.notes.snapshot.decode_snapshot

    def decode_snapshot(raw: bytes) -> log.notes.snapshot.Snapshot:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(log.notes.snapshot, "crc32", lambda *_: Anything())
            return original(raw)

    patch.setattr(log.notes.snapshot, "decode_snapshot", decode_snapshot)


@planted("a truncation leaves the note of what is flushed", "log/entries/durable_note.py", part="storage")
def truncation_leaves_the_note(patch: pytest.MonkeyPatch) -> None:
    """A start takes what the group has overruled for what was lost."""
    patch.setattr(Flushes, "lower_note", lambda *_: None)


@planted(
    "a request overtakes those of its client that wait", "KAFKA-5494: one request at a time", part="broker"
)
def request_overtakes_those_that_wait(patch: pytest.MonkeyPatch) -> None:
    original = RelayedClients.forwarded

    def forwarded(self: RelayedClients, source: str, frame: Forward) -> None:
        waiting = self.waiting
        if self._work_left > 0 and waiting:
            self.waiting = type(waiting)()
        try:
            original(self, source, frame)
        finally:
            self.waiting = waiting

    patch.setattr(RelayedClients, "forwarded", forwarded)


@planted("a leader is not told who has gone elsewhere", "RocketMQ: channel events at a proxy", part="broker")
def leader_is_not_told_who_has_gone(patch: pytest.MonkeyPatch) -> None:
    """A client of another node is a member of its consumer group until it has been silent for long."""
    original = Forwarding.client_disconnected

    def client_disconnected(self: Forwarding, connection: Connection) -> None:
        self._by_connection[connection].known_to = None
        original(self, connection)

    patch.setattr(Forwarding, "client_disconnected", client_disconnected)


@planted(
    "order: anybody gives a lock back", "RebalanceLockManager: unlock looks at the client", part="broker"
)
def anybody_gives_a_lock_back(patch: pytest.MonkeyPatch) -> None:
    def release(self: LockTable, asked: UnlockQueues) -> None:
        for topic, queue_id in asked.queues:
            self.pop((asked.group, topic, queue_id), None)

    patch.setattr(LockTable, "release", release)


@planted("what comes from the disk is applied unchecked", "Alagappan et al., FAST 2018", part="broker")
def what_comes_from_the_disk_is_applied_unchecked(patch: pytest.MonkeyPatch) -> None:
    whole: Callable[[AppliedState, int, int], int] = lambda _, upto, now_ns: upto  # noqa: E731
    patch.setattr(AppliedState, "_whole_index", whole)
