"""Checkpoints: when one is written, what it may note, and what comes between."""

import pytest

from log.errors import (
    DiskFullError,
    LogFault,
)
from log.notes.snapshot import Snapshot
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, queue_ends
from tests.log.stores import derived, flush, open_store, send_many


def test_a_checkpoint_waits_for_the_flush_of_what_it_notes(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    assert store.checkpoints.job(40) is None
    send_many(store, 50, seed=1)
    store.dispatch(90, NOW)
    flush(store)
    send_many(store, 1, seed=2)  # a log that is never all durable gets its checkpoints, too
    job = store.checkpoints.job(90)
    assert job is not None
    assert job.end_index == 40
    assert store.checkpoints.job(90) is None
    job.run()
    store.checkpoints.done(job)
    before = derived(store)
    store, report = open_store(disk.kill())
    assert not report.damage
    assert report.committed_index == 40
    store.dispatch(90, NOW)
    assert derived(store) == before


def test_a_clean_stop_notes_what_came_after_a_checkpoint_that_waits(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    assert store.checkpoints.job(40) is None
    send_many(store, 50, seed=1)
    store.dispatch(90, NOW)
    store.snapshot.write(90, b"state")
    before = derived(store)
    store.close(95)
    store, report = open_store(disk.crash(lambda path, page: False))
    assert report.clean_stop
    assert not report.damage
    assert report.committed_index == 95
    assert derived(store) == before


def test_a_checkpoint_without_space_is_written_when_there_is_some(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    flush(store)
    disk.free_pages = 0
    with pytest.raises(DiskFullError):
        store.checkpoints.job(40)  # the index file of its keys has no room yet
    disk.free_pages = None
    given = store.checkpoints.job(40)
    for free_pages in (0, 0, None):
        disk.free_pages = free_pages
        job = store.checkpoints.job(40) or given
        assert job is not None
        assert job is given, "the one that was refused is given again"
        job.run()
        store.checkpoints.done(job)
        assert (job.refused is None) is (free_pages is None)
        assert store.checkpoints.waits is (free_pages == 0)
    before = derived(store)
    store, report = open_store(disk.kill())
    assert not report.damage
    assert report.committed_index == 40
    assert derived(store) == before


def test_a_stop_without_space_is_no_clean_one(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    flush(store)
    assert store.checkpoints.job(40) is not None
    disk.free_pages = 0
    with pytest.raises(LogFault):
        store.close(40)
    _, report = open_store(disk.kill())
    assert not report.clean_stop


def test_a_checkpoint_overtaken_by_a_reset_does_no_harm(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    flush(store)
    job = store.checkpoints.job(40)
    assert job is not None
    store.reset(200, 10_240, 7, {("quiet", 1): 9}, Snapshot(199, b"leader's"))
    job.run()
    store.checkpoints.done(job)
    store, report = open_store(disk.kill())
    assert not report.damage
    assert queue_ends(store) == {("quiet", 1): 9}
    assert store.checkpoints.job(199) is not None
