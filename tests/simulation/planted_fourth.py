"""A fourth ten of other systems' trackers, chosen in the product's code alone: whoever chose them had read no judge, no
workload, no plan and no list of those before.

docs/planted-mistakes.md tells of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.consumer_groups.locks_processor import LocksProcessor
from broker.node.ports import StoredMessages
from broker.offsets.commits import OffsetCommits
from broker.replica.applied import AppliedState
from broker.replica.durability import Durability
from broker.replica.replica import Replica
from broker.replica.upkeep import Upkeep
from broker.requests.deadline import NEVER
from broker.retention.waited_for import _queues as original_queues
from broker.state.commands import Command
from broker.state.metadata import Metadata
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC
from broker.transactions.decisions import Decisions
from log.dispatching.dispatch import Arrival, Dispatch
from log.entries.flushes import Flushes, FlushJob
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from raft.core import Raft
from raft.effects import TruncateLog
from tests.simulation.planting import planted


@planted("a peer that comes back to a leader stays away", "Redpanda #3307", part="consensus")
def peer_that_comes_back_to_a_leader_stays_away(patch: pytest.MonkeyPatch) -> None:
    """The leader knows that it is there, and forgets it with its term: later it asks it for no vote, and leads without
    a word to it.
    """
    original = Raft.peer_connected

    def peer_connected(self: Raft, peer: str) -> None:
        was_away = peer in self._state.unreachable
        original(self, peer)
        if was_away and self._leader is not None:
            self._state.unreachable.add(peer)

    patch.setattr(Raft, "peer_connected", peer_connected)


@planted(
    "entries in the place of as many are not held",
    "Redpanda #2937, #16105",
    flush="async",
    part="consensus",
)
def entries_in_the_place_of_as_many_are_not_held(patch: pytest.MonkeyPatch) -> None:
    """A follower looks at where its log ends, not at whether it was cut in between, and never acknowledges them."""
    original = Replica._truncate_log

    def truncate_log(self: Replica, effect: TruncateLog) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Durability, "cut", lambda _: None)
            original(self, effect)

    patch.setattr(Replica, "_truncate_log", truncate_log)


@planted(
    "commands are applied behind a whole slice of messages",
    "liftbridge #367, KAFKA-13198",
    part="consensus",
)
def commands_are_applied_behind_a_whole_slice(patch: pytest.MonkeyPatch) -> None:
    """A topic's deletion takes the messages of the topic that was made again in the same slice, on whoever is late."""
    original, dispatch = AppliedState.apply, Store.dispatch

    def dispatch_through(self: Store, *arguments: Any, **options: Any) -> Dispatch:
        return dispatch(self, *arguments, **(options | {"stop_at_internal": False}))

    def apply(
        self: AppliedState,
        upto: int,
        now_ns: int,
        group_ms: int,
        applied: Callable[[int, Command, Any], None],
    ) -> list[Arrival]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Store, "dispatch", dispatch_through)
            return original(self, upto, now_ns, group_ms, applied)

    patch.setattr(AppliedState, "apply", apply)


@planted(
    "a flush goes over the last data file alone",
    "yugabyte-db #3490, leveldb #193",
    flush="sync",
    part="storage",
)
def flush_goes_over_the_last_file_alone(patch: pytest.MonkeyPatch) -> None:
    """What was appended to the file before, just before the log went on to a new one, counts as flushed."""
    original = Flushes.job

    def job(self: Flushes) -> FlushJob | None:
        flush = original(self)
        if flush is not None:
            del flush._ranges[:-1]
        return flush

    patch.setattr(Flushes, "job", job)


@planted("a delay level that has delivered nothing holds no file", "RocketMQ #9006", part="storage")
def level_that_has_delivered_nothing_holds_no_file(patch: pytest.MonkeyPatch) -> None:
    """Retention knows a level by its progress, of which there is none before the first delivery."""

    def queues(store: StoredMessages, metadata: Metadata) -> Iterator[tuple[ConsumeQueue, int]]:
        for queue, pending in original_queues(store, metadata):
            if queue.topic != SCHEDULE_TOPIC or queue.queue_id + 1 in metadata.delays:
                yield queue, pending

    patch.setattr("broker.retention.waited_for._queues", queues)


@planted("a snapshot does not wait for the log", "etcd #9673, #1795", flush="async", part="storage")
def snapshot_does_not_wait_for_the_log(patch: pytest.MonkeyPatch) -> None:
    """It may tell of entries that no disk has: when power fails everywhere, others get their indices, and this node
    takes them for applied.
    """

    def snapshot_due_ns(self: Upkeep) -> int:
        waits = self.waiting_snapshot is not None and not self.snapshot_is_out and self._incoming is None
        return self._no_space_until_ns if waits else NEVER

    patch.setattr(Upkeep, "snapshot_due_ns", snapshot_due_ns)


@planted("a repeated send is not looked for among timers", "Azure Service Bus #266", part="broker")
def repeated_send_is_not_looked_for_among_timers(patch: pytest.MonkeyPatch) -> None:
    """Where it waits until its time has come; a message that waits for a delay level is found."""
    patch.setattr("broker.sending.repeated_sends._HIDDEN_TOPICS", (SCHEDULE_TOPIC, HALF_TOPIC))


@planted("what nobody waits for is staged behind a deletion", "KAFKA-2000, franz-go #1364", part="broker")
def what_nobody_waits_for_is_staged_behind_a_deletion(patch: pytest.MonkeyPatch) -> None:
    """The topic, or the consumer group, that is made again has the consumer offset of the one before."""
    original = OffsetCommits.stage

    def stage(self: OffsetCommits, group: str, topic: str, queue_id: int, offset: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(OffsetCommits, "_check_not_deleted", lambda *_: None)
            original(self, group, topic, queue_id, offset)

    patch.setattr(OffsetCommits, "stage", stage)


@planted("transaction: a lost decision stays under way", "KAFKA-5351", part="broker")
def lost_decision_stays_under_way(patch: pytest.MonkeyPatch) -> None:
    """When its leader leads again it waits for it: nobody is asked, and who decides anew hears nothing, or of an
    outcome that never was.
    """
    original = Decisions._role_changed

    def role_changed(self: Decisions) -> None:
        under_way = self._deciding.copy()
        original(self)
        self._deciding.update(under_way)

    patch.setattr(Decisions, "_role_changed", role_changed)


@planted(
    "each leader counts the time of order locks from its own beginning", "etcd #9395, #9888", part="broker"
)
def time_of_order_locks_begins_with_each_leader(patch: pytest.MonkeyPatch) -> None:
    """The lock of a consumer that has died lives for as long as earlier leaders have served."""
    original = LocksProcessor._role_changed

    def role_changed(self: LocksProcessor) -> None:
        term = self._term
        original(self)
        if self._term != term:
            self._began_ms = 0

    patch.setattr(LocksProcessor, "_role_changed", role_changed)
