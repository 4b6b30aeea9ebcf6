"""Mistakes about what is durable first, what is kept, and whose bytes they are, each put into the real code by a patch.

`planted_bugs` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.remoting.pieces import Pieces
from broker.replica.upkeep import Upkeep
from broker.retention import waited_for
from broker.state.metadata import Metadata
from broker.state.topic_rules import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.entries.entry_recovery import LogBegin, write_begin
from log.entries.flushes import Flushes
from log.errors import DiskFullError
from log.formats.entry_range import EntryRange
from log.notes.checkpoint import Checkpoints
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from raft.durability import PersistedIndex
from tests.simulation.planting import planted


@planted("bytes of another term accepted", "bodies are read after a truncation", part="storage")
def bytes_of_another_term_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntryRange, "has_terms", lambda *_: True)


@planted("a flush vouches for what replaced its entries", "a flush before a truncation", part="storage")
def flush_vouches_for_what_replaced_its_entries(patch: pytest.MonkeyPatch) -> None:
    original = PersistedIndex.flushed

    def flushed(self: PersistedIndex, index: int, generation: int) -> bool:
        return original(self, index, self.generation)

    truncated = Flushes.truncated

    def not_drawn_back(self: Flushes) -> None:
        job = self._job
        last_index = None if job is None else job.last_index
        truncated(self)
        if job is not None and last_index is not None:
            job.last_index = last_index

    patch.setattr(Flushes, "truncated", not_drawn_back)
    patch.setattr(PersistedIndex, "flushed", flushed)


@planted("the head goes before the new beginning is noted", "a crash between the two", part="storage")
def head_goes_before_the_new_beginning_is_noted(patch: pytest.MonkeyPatch) -> None:
    original = cuts.delete_before

    def delete_before(log: EntryLog, index: int) -> int:
        noted: list[tuple[Any, ...]] = []
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(cuts, "write_begin", lambda *arguments: noted.append(arguments))
            removed = original(log, index)
        for arguments in noted:
            write_begin(*arguments)
        return removed

    patch.setattr(cuts, "delete_before", delete_before)


@planted("a reset is not noted before it begins", "a crash in the middle of one", part="storage")
def reset_is_not_noted_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    def write(disk: Any, path: str, begin: LogBegin) -> None:
        if not begin.pending:
            write_begin(disk, path, begin)

    patch.setattr(cuts, "write_begin", write)


def _without(topic: str) -> Callable[[pytest.MonkeyPatch], None]:
    original = waited_for._queues

    def queues(store: Store, metadata: Metadata) -> Iterator[tuple[ConsumeQueue, int]]:
        return (pair for pair in original(store, metadata) if pair[0].topic != topic)

    return lambda patch: patch.setattr(waited_for, "_queues", queues)


planted(
    "age takes open half messages",
    "RocketMQ: half messages of more than 72 h",
    actor="transactor",
    part="storage",
)(_without(HALF_TOPIC))
planted(
    "age takes delayed messages",
    "RocketMQ: delays longer than the log is kept",
    actor="courier",
    part="storage",
)(_without(SCHEDULE_TOPIC))
planted(
    "age takes timed messages", "delivered later than the log is kept", actor="scheduler", part="storage"
)(_without(TIMER_TOPIC))


@planted(
    "a snapshot is written before its entries are durable",
    "broker/replica/upkeep.py",
    flush="async",
    part="storage",
)
def snapshot_before_its_entries_are_durable(patch: pytest.MonkeyPatch) -> None:
    original = Upkeep.keep_snapshot

    def keep_snapshot(self: Upkeep, applied_index: int, state: Pieces, took_ns: int) -> None:
        original(self, applied_index, state, took_ns)
        try:
            self._store.snapshot.write(applied_index, *state.all())
        except DiskFullError:
            return
        self.waiting_snapshot = None

    patch.setattr(Upkeep, "keep_snapshot", keep_snapshot)


@planted("a checkpoint is written before its entries are durable", "log/notes/checkpoint.py", part="storage")
def checkpoint_before_its_entries_are_durable(patch: pytest.MonkeyPatch) -> None:
    original = Checkpoints.job

    def job(self: Checkpoints, commit_index: int) -> Any:
        flushes = self._log.flushes
        durable, flushes.durable_index = flushes.durable_index, 1 << 62
        try:
            return original(self, commit_index)
        finally:
            flushes.durable_index = durable

    patch.setattr(Checkpoints, "job", job)


@planted("the head goes without a snapshot of it", "section 7: log compaction", part="storage")
def head_goes_without_a_snapshot_of_it(patch: pytest.MonkeyPatch) -> None:
    original = Store.delete_head

    def delete_head(self: Store, *arguments: Any, **named: Any) -> int:
        snapshot = self.snapshot
        covered, snapshot.applied_index = snapshot.applied_index, 1 << 62
        try:
            return original(self, *arguments, **named)
        finally:
            snapshot.applied_index = covered

    patch.setattr(Store, "delete_head", delete_head)
