"""The ends of queues whose messages are all gone: a start takes them from what is newest, notes or snapshot."""

from __future__ import annotations

import pytest

from broker.state.metadata import Metadata
from broker.state.snapshot import decode_state, encode_state, restore_queue_ends
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, Writer, queue_ends
from tests.log.stores import flush, open_store


def _send(store: Store, topic: str, messages: int) -> None:
    writer = Writer(store)
    for _ in range(messages):
        writer.send(topic)
    store.dispatch(store.log.last_index, NOW)
    flush(store)


def _checkpoint(store: Store) -> None:
    job = store.checkpoints.job(store.log.last_index)
    assert job is not None
    job.run()
    store.checkpoints.done(job)


def _snapshot(store: Store) -> None:
    store.snapshot.write(store.log.last_index, encode_state(Metadata(), {}, store.queues))


def _lose_head(store: Store) -> None:
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    assert store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True))


def _start(disk: MemoryDisk) -> Store:
    """After a crash."""
    store, report = open_store(disk.kill())
    snapshot = store.snapshot.read()
    assert snapshot is not None
    is_newer = snapshot.applied_index > report.queues_index
    restore_queue_ends(store.queues, decode_state(snapshot.data).queue_ends, is_newer=is_newer)
    return store


@pytest.mark.parametrize("messages", [0, 3])
def test_a_queue_is_not_that_of_an_earlier_life_of_its_topic(messages: int) -> None:
    """The notes are of the earlier life, the head of the log went with both (simulator, seed 9400166)."""
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _send(store, "T", 31)
    _checkpoint(store)
    store.remove_topic("T")
    _send(store, "T", messages)
    _send(store, "other", 200)
    _snapshot(store)
    _lose_head(store)
    assert store.log.first_index > 31 + messages
    ends = queue_ends(store)
    store = _start(disk)
    store.dispatch(store.log.last_index, NOW)
    assert queue_ends(store) == ends
    assert ends.get(("T", 0), 0) == messages


def test_notes_that_are_newer_than_the_snapshot_count() -> None:
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _send(store, "T", 31)
    _snapshot(store)
    _send(store, "T", 2)
    _checkpoint(store)
    disk.discard("consumequeue")
    assert queue_ends(_start(disk)) == {("T", 0): 33}


def test_what_follows_the_snapshot_in_the_log_is_dispatched_again() -> None:
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _send(store, "T", 31)
    _checkpoint(store)
    _send(store, "other", 200)
    _snapshot(store)
    _lose_head(store)
    _send(store, "T", 2)
    store = _start(disk)
    store.dispatch(store.log.last_index, NOW)
    assert queue_ends(store) == {("T", 0): 33, ("other", 0): 200}
