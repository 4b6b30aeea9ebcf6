"""The files of a store are replaced by those that were written beside them; a process may die between any two steps."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from log.entries.expired_files import HeadLook, RetentionPolicy
from log.files.mmap_disk import MmapDisk
from log.notes.snapshot import Snapshot
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer, queue_ends
from tests.log.stores import checkpoint, flush, open_store, send_many

LEADERS = Snapshot(199, b"leader's")
ENDS = {("topic-0", 0): 55, ("quiet", 1): 9}
STEPS = ("open", "write_durably", "flush_file", "remove", "rename", "discard", "sync_directory")


class Death(BaseException):
    """Ends the process before a step of its disk."""


class DyingDisk(MemoryDisk):
    steps_left = 1 << 30
    is_inside = False

    def _counted(self, name: str) -> Callable[..., Any]:
        original: Callable[..., Any] = getattr(super(), name)

        def call(*arguments: Any, **options: Any) -> Any:
            if self.is_inside:
                return original(*arguments, **options)
            if not self.steps_left:
                raise Death
            self.steps_left -= 1
            self.is_inside = True
            try:
                return original(*arguments, **options)
            finally:
                self.is_inside = False

        return call

    def __getattribute__(self, name: str) -> Any:
        return self._counted(name) if name in STEPS else super().__getattribute__(name)


def filled() -> tuple[DyingDisk, Store]:
    disk = DyingDisk()
    store, _ = open_store(disk)
    send_many(store, 50)
    store.dispatch(45, NOW)
    store.snapshot.write(40, b"own")
    checkpoint(store, 45)
    return disk, store


def replace(store: Store) -> None:
    queues = store.queues.empty()
    queues.add(ENDS.items())
    incoming = store.incoming(200, queues, LEADERS)
    incoming.run()
    assert incoming.refused is None
    store.swap(incoming, 10_240, 7)
    store.discard_incoming()


def test_a_process_that_dies_between_any_two_steps_leaves_a_store_that_starts() -> None:
    outcomes: dict[tuple[bool, bool, int], None] = {}
    for steps in range(200):
        disk, store = filled()
        expected = queue_ends(store)
        disk.steps_left = steps
        try:
            replace(store)
            is_dead = False
        except Death:
            is_dead = True
        after = disk.kill()
        store, report = open_store(after)
        assert not after.list("incoming")
        outcomes[is_dead, report.needs_snapshot, store.log.first_index] = None
        if report.needs_snapshot:
            assert (store.log.first_index, store.log.last_index) == (200, 199)
            replace(store)
        if store.log.first_index == 0:
            assert store.snapshot.read() == Snapshot(40, b"own")
            store.dispatch(45, NOW)
            assert queue_ends(store) == expected
            assert store.log.last_index == 49
            continue
        assert store.snapshot.read() == LEADERS
        assert queue_ends(store) == ENDS
        Writer(store, term=8).send("topic-0")
        store.dispatch(200, NOW)
        assert queue_ends(store) == {**ENDS, ("topic-0", 0): 56}
        if not is_dead:
            break
    assert list(outcomes) == [(True, False, 0), (True, True, 200), (True, False, 200), (False, False, 200)]


def test_the_steps_of_a_swap_are_few_however_much_is_replaced() -> None:
    taken = []
    for count in (30, 900):
        disk = DyingDisk()
        store, _ = open_store(disk)
        send_many(store, count)
        store.dispatch(count - 1, NOW)
        checkpoint(store, count - 1)
        queues = store.queues.empty()
        queues.add({(f"T{number}", 0): number for number in range(count)}.items())
        incoming = store.incoming(2_000, queues, Snapshot(1_999, bytes(count * 1000)))
        incoming.run()
        begin = disk.steps_left
        store.swap(incoming, 1 << 20, 7)
        taken.append(begin - disk.steps_left)
        assert len(store.queues) == count
    assert taken[0] == taken[1] <= 30


def test_what_a_checkpoint_notes_that_is_late_is_of_the_epoch_before() -> None:
    disk, store = filled()
    store.dispatch(49, NOW)
    job = store.checkpoints.job(49)
    if job is None:
        flush = store.log.flushes.job()
        assert flush is not None
        flush.run()
        store.log.flushes.done(flush)
        job = store.checkpoints.job(49)
    assert job is not None
    replace(store)
    job.run()
    store.checkpoints.done(job)
    store, report = open_store(disk.kill())
    assert not report.needs_snapshot
    assert not report.damage
    assert queue_ends(store) == ENDS


def test_what_is_removed_takes_up_space_until_a_worker_has_been_there() -> None:
    disk, store = filled()
    before = store.has_discarded
    replace(store)
    steps = 0
    while store.has_discarded:
        job = store.removal_job(3, 1 << 20)
        job.run()
        assert job.failure is None
        steps += 1
    assert (before, steps > 5) == (False, True)
    assert disk.list(".") == sorted(
        {path.partition("/")[0] for path in disk.files if not path.startswith("incoming")}
    )
    assert TINY.dledger_directory in disk.list(".")


def test_a_start_without_room_frees_the_space_of_what_was_removed_first() -> None:
    disk, store = filled()
    replace(store)
    after = disk.kill()
    store, _ = open_store(after)
    assert store.has_discarded, "a worker does it"
    after = after.kill()
    after.free_bytes = 1 << 20
    store, _ = open_store(after)
    assert not store.has_discarded


def test_a_disk_that_is_full_of_what_was_removed_takes_no_more_of_the_log() -> None:
    disk, store = filled()
    store.snapshot.write(45, b"own")
    flush(store)
    disk.free_bytes = 0
    policy = RetentionPolicy(reserved_ms=10**12, files_per_pass=1)

    def delete() -> int:
        return store.delete_head(HeadLook(policy, now_ms=NOW, is_delete_hour=False))

    assert [delete(), delete()] == [1, 0]
    store.removal_job(100, 1 << 30).run()
    assert delete() == 1


def test_a_checkpoint_that_is_being_written_is_left_to_its_worker(tmp_path: Path) -> None:
    """The name that its notes have until they are whole was removed by the swap, and the node stopped for it."""
    disk = MmapDisk(tmp_path / "store")
    store, _ = open_store(disk)
    send_many(store, 20)
    flush(store)
    store.dispatch(15, NOW)
    checkpoint(store, 15)
    (tmp_path / "store/recovery-notes-0.tmp").touch()
    (tmp_path / "store/recovery-notes-0-rebuilding").touch()  # left behind by an older release
    replace(store)
    left = {path.name for path in (tmp_path / "store").glob("recovery-notes-*")}
    assert left == {"recovery-notes-1", "recovery-notes-0.tmp"}


def test_a_log_on_another_file_system_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The swap failed there behind its note that it had begun, and so did each start from then on."""
    disk = MmapDisk(tmp_path / "store")
    store, _ = open_store(disk)
    send_many(store, 20)
    replaced = Path.replace
    elsewhere = tmp_path / "store" / TINY.dledger_directory

    def replace_within(self: Path, target: Path) -> Path:
        if (elsewhere in self.parents) != (elsewhere in target.parents):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", replace_within)
    replace(store)
    store.close(199)
    store, report = open_store(MmapDisk(tmp_path / "store"))
    assert (store.snapshot.applied_index, report.needs_snapshot) == (199, False)
    assert not (elsewhere / "checkpoint.new").exists()
