"""Queues of a topic that was deleted and made again: what a start builds, or goes through anew, is of the last life.

A store notes how far its queues were built, and commands are applied again from its snapshot on, which is older. So a
start goes through records of earlier lives of a queue, whose deletion it has yet to come to.
"""

from __future__ import annotations

from typing import Any

import pytest

from log.dispatching.dispatch import Dispatch, Dispatcher
from log.entries.entry_reads import record_at
from log.errors import DamagedLogError, FlushError
from log.formats.own_topics import INTERNAL_TOPIC
from log.notes.checkpoint import ABORT, notes_path, rebuilding_path
from log.notes.snapshot import Snapshot
from log.queues.consume_queue import UNIT_BYTES
from log.queues.consume_queues import ConsumeQueues
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer
from tests.log.stores import checkpoint, flush, open_store, units_of
from tests.log.test_queue_scrub import queue_of

_DELETE = b"delete T"


def _apply(store: Store, to_index: int) -> None:
    """As a replica does: a topic goes before what comes behind its deletion gets units."""
    while store.dispatched_index < to_index:
        dispatch = store.dispatch(to_index, NOW, stop_at_internal=True)
        for _, record in dispatch.internal:
            if _DELETE in bytes(record):
                store.remove_topic("T")


def _live(store: Store, lives: tuple[int, ...]) -> None:
    """So many messages in each life of a queue; between two of them its topic goes."""
    writer = Writer(store)
    for number, count in enumerate(lives):
        if number:
            writer.send(INTERNAL_TOPIC.decode(), body=_DELETE)
            del writer.ends["T", 0]
        for message in range(count):
            key = b"UNIQ_KEY\x01life %d, message %d" % (number, message)
            writer.send("T", body=b"life %d, message %d" % (number, message), properties=key)
    _apply(store, store.log.last_index)


def _bodies(store: Store) -> list[bytes]:
    queue = store.queues.get("T", 0)
    assert queue is not None
    return [bytes(record_at(store.log, unit[0], unit[1])) for unit in units_of(queue)]


@pytest.mark.parametrize(
    "lives", [(9, 4), (4, 9), (5, 5), (3, 8, 2), (8, 3, 5), (2, 2, 2, 40), (40, 2, 2, 2)]
)
@pytest.mark.parametrize("snapshot_index", [-1, 1, 3])
@pytest.mark.parametrize("damaged", ["", "consumequeue/T/0/", "index/", "newer index/"])
def test_a_start_comes_to_the_last_life(lives: tuple[int, ...], snapshot_index: int, damaged: str) -> None:
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _live(store, lives)
    last = store.log.last_index
    before = _bodies(store)
    assert len(before) == lives[-1]
    assert all(b"life %d" % (len(lives) - 1) in body for body in before)
    flush(store)
    checkpoint(store, last)
    if snapshot_index >= 0:
        store.snapshot.write(snapshot_index, Snapshot(snapshot_index, b"state").data)
    disk = disk.kill()
    harmed = [path for path in sorted(disk.files) if damaged and path.startswith(damaged.split()[-1])]
    for path in harmed[damaged.startswith("newer") :]:
        disk.files[path].seen[:] = bytes(len(disk.files[path].seen))
    store, report = open_store(disk)
    assert bool(report.damage) is (len(harmed) > damaged.startswith("newer"))
    # Before the commands are applied again a reader finds what was there, and nothing of an earlier life.
    assert _bodies(store) == before
    _apply(store, last)
    assert _bodies(store) == before
    writer = Writer(store)
    writer.send("T", body=b"one more")
    _apply(store, store.log.last_index)
    assert _bodies(store)[:-1] == before
    assert b"one more" in _bodies(store)[-1]


def _checkpointed_over_files(messages: int) -> tuple[MemoryDisk, Store, list[bytes]]:
    """A queue with files of eight messages each, noted by a checkpoint."""
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _live(store, (3, messages))
    flush(store)
    checkpoint(store, store.log.last_index)
    last = store.log.last_index
    store.snapshot.write(last, Snapshot(last, b"state").data)
    return disk, store, _bodies(store)


def test_an_older_file_that_is_not_the_noted_one_is_found() -> None:
    """The checksum of a checkpoint is that of the last file; the search for its end comes by the one before."""
    disk, _, before = _checkpointed_over_files(11)
    disk = disk.kill()
    first = min(path for path in disk.files if path.startswith("consumequeue/T/0/"))
    disk.files[first].seen[:] = bytes(len(disk.files[first].seen))
    store, report = open_store(disk)
    assert "consumequeue/T/0 was built again" in report.damage
    assert _bodies(store) == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_file_that_is_missing_between_others_is_made_again(clean: bool) -> None:
    disk, store, before = _checkpointed_over_files(29)
    if clean:
        store.close(store.log.last_index)
    disk = disk.kill()
    _, missing, *_ = sorted(path for path in disk.files if path.startswith("consumequeue/T/0/"))
    disk.remove(missing)
    store, report = open_store(disk)
    assert "consumequeue/T/0 was built again" in report.damage
    assert _bodies(store) == before


def _without_a_file() -> tuple[MemoryDisk, list[str], list[bytes]]:
    """Returns the disk of a queue that lacks its second file, the files that it had, and its records."""
    disk, _, before = _checkpointed_over_files(29)
    disk = disk.kill()
    files = sorted(path for path in disk.files if path.startswith("consumequeue/T/0/"))
    disk.remove(files[1])
    disk.sync_directory("consumequeue/T/0")
    return disk, files, before


@pytest.mark.parametrize("fails", ["behind the start", "before the flush", "in the middle"])
@pytest.mark.parametrize("kept", range(4))
def test_power_fails_where_a_start_has_built_a_queue_again(
    monkeypatch: pytest.MonkeyPatch, fails: str, kept: int
) -> None:
    """The notes tell of the queue still, and of the files that it has now any may be on the disk, and any not."""
    disk, files, before = _without_a_file()

    def lost(*_: object) -> None:
        raise FlushError("consumequeue/T/0", "flush", "power is lost")

    with monkeypatch.context() as patch:
        if fails == "in the middle":
            patch.setattr(Dispatcher, "run", lost)
        elif fails == "before the flush":
            patch.setattr(ConsumeQueues, "flush", lost)
        if fails == "behind the start":
            open_store(disk)
        else:
            with pytest.raises(FlushError):
                open_store(disk)
    disk = disk.crash(lambda path, page: path == files[kept])
    store, report = open_store(disk)
    assert ("consumequeue/T/0 was built again" in report.damage) is (fails != "behind the start")
    assert _bodies(store) == before
    assert not report.clean_stop
    disk = disk.kill()
    store, report = open_store(disk)
    assert not report.damage
    assert _bodies(store) == before


def test_files_before_a_missing_one_go_when_the_notes_do_not_tell_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, _, before = _without_a_file()

    def lost(*_: object) -> None:
        raise FlushError(".", "flush", "power is lost")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryDisk, "rename", lost)
        with pytest.raises(FlushError):
            open_store(disk)
    store, _ = open_store(disk.kill())
    assert _bodies(store) == before


@pytest.mark.parametrize("lost", range(4))
def test_what_a_start_built_before_it_met_damage_is_built_again(
    monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """It begins once more then, with a scan of all files; what it has built is in the page cache alone."""
    disk, files, before = _without_a_file()
    run, is_met = Dispatcher.run, False

    def run_once(self: Dispatcher, *arguments: Any, **options: Any) -> Dispatch:
        nonlocal is_met
        dispatch = run(self, *arguments, **options)
        if not is_met:
            is_met = True
            disk.sync_directory("consumequeue/T")  # nobody asked: the files that it removed do not come back
            raise DamagedLogError("data", 0, "no entry begins here")
        return dispatch

    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "run", run_once)
        store, _ = open_store(disk)
    assert is_met
    assert _bodies(store) == before
    store, _ = open_store(disk.crash(lambda path, page: path != files[lost]))
    assert _bodies(store) == before


def test_an_older_release_finds_no_notes_while_queues_are_built_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It builds all from the log, and notes that in a file which counts for later starts."""
    disk, _, before = _without_a_file()

    def lost(*_: object, **__: object) -> None:
        raise FlushError("consumequeue/T/0", "flush", "power is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "run", lost)
        with pytest.raises(FlushError):
            open_store(disk)
    disk = disk.kill()
    assert disk.exists(ABORT)
    assert not disk.exists(notes_path(0))
    put_aside = disk.files.pop(rebuilding_path(0))  # an older release does not know it
    store, report = open_store(disk)
    assert not report.clean_stop
    _apply(store, store.log.last_index)
    assert _bodies(store) == before
    writer = Writer(store)
    writer.send("T", body=b"one more")
    _apply(store, store.log.last_index)
    more = _bodies(store)
    store.close(store.log.last_index)
    disk.files[rebuilding_path(0)] = put_aside
    store, report = open_store(disk)
    assert report.clean_stop
    assert not report.damage
    assert _bodies(store) == more


def test_files_that_retention_removed_and_power_brought_back_are_no_hole() -> None:
    disk = MemoryDisk()
    _, queue = queue_of(disk, 29)
    disk.remove(f"{queue.directory}/{8 * UNIT_BYTES:020d}")
    again = ConsumeQueues(disk, TINY).make(queue.topic, queue.queue_id)
    assert again.restore(17, 29, lambda: pytest.fail("nothing noted goes"))
    assert (again.min_offset, again.max_offset) == (17, 29)
    assert disk.list(queue.directory) == [f"{first * UNIT_BYTES:020d}" for first in (16, 24)]


def test_a_checkpoint_while_entries_come_again_tells_what_the_queues_have() -> None:
    """The deletion is among them, and the topic's queue has the messages behind it already."""
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _live(store, (3, 8))
    last, before = store.log.last_index, _bodies(store)
    flush(store)
    checkpoint(store, last)
    disk = disk.kill()
    store, _ = open_store(disk)
    _apply(store, 6)
    assert _bodies(store) == before
    checkpoint(store, last)
    store.snapshot.write(6, Snapshot(6, b"state").data)
    store, _ = open_store(disk.kill())
    _apply(store, last)
    assert _bodies(store) == before


@pytest.mark.parametrize("lost", range(4))
def test_power_fails_when_entries_came_again(lost: int) -> None:
    """What the notes tell of is on the disk still, though the topic's deletion was among the entries."""
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _live(store, (3, 29))
    last, before = store.log.last_index, _bodies(store)
    flush(store)
    checkpoint(store, last)
    disk = disk.kill()
    files = sorted(path for path in disk.files if path.startswith("consumequeue/T/0/"))
    store, _ = open_store(disk)
    _apply(store, last)
    assert _bodies(store) == before
    store, report = open_store(disk.crash(lambda path, page: path != files[lost]))
    assert not report.damage
    assert _bodies(store) == before


def test_a_topic_that_was_deleted_does_not_come_back_with_its_entries() -> None:
    disk = MemoryDisk()
    store, _ = open_store(disk)
    _live(store, (3,))
    writer = Writer(store)
    writer.send(INTERNAL_TOPIC.decode(), body=_DELETE)
    writer.send("U")
    last = store.log.last_index
    _apply(store, last)
    flush(store)
    checkpoint(store, last)
    store, _ = open_store(disk.kill())
    _apply(store, last)
    assert [(queue.topic, queue.max_offset) for queue in store.queues] == [("U", 1)]


def test_files_of_a_deleted_topic_do_not_come_back_beside_new_ones() -> None:
    """Power fails behind a deletion, and what was removed is still there: only the new life's first file is another."""
    disk, store, before = _checkpointed_over_files(20)
    last = store.log.last_index
    writer = Writer(store)
    writer.send(INTERNAL_TOPIC.decode(), body=_DELETE)
    del writer.ends["T", 0]
    for number in range(8):
        writer.send("T", body=b"life 2, message %d" % number)
    _apply(store, store.log.last_index)
    # The queue's new file reaches the disk, what the log has behind the checkpoint does not.
    disk = disk.crash(lambda path, page: path == f"consumequeue/T/0/{0:020d}")
    store, report = open_store(disk)
    assert store.log.last_index == last
    assert "consumequeue/T/0 was built again" in report.damage
    assert _bodies(store) == before


def test_files_of_an_earlier_life_do_not_come_back_beside_those_of_the_next_one() -> None:
    """The same where the queue itself finds that a new life begins: the topic's deletion is not applied twice."""
    disk, store, before = _checkpointed_over_files(20)
    last = store.log.last_index
    writer = Writer(store)
    del writer.ends["T", 0]
    for number in range(8):
        writer.send("T", body=b"life 2, message %d" % number)
    store.dispatch(store.log.last_index, NOW)
    assert len(_bodies(store)) == 8
    disk = disk.crash(lambda path, page: path == f"consumequeue/T/0/{0:020d}")
    store, report = open_store(disk)
    assert store.log.last_index == last
    assert "consumequeue/T/0 was built again" in report.damage
    assert _bodies(store) == before


@pytest.mark.parametrize("clean", [True, False])
def test_a_first_file_that_was_lost_is_made_again(clean: bool) -> None:
    """The log has its records still, so that retention has not taken it."""
    disk, store, before = _checkpointed_over_files(29)
    if clean:
        store.close(store.log.last_index)
    disk = disk.kill()
    disk.remove(min(path for path in disk.files if path.startswith("consumequeue/T/0/")))
    store, report = open_store(disk)
    assert "consumequeue/T/0 was built again" in report.damage
    assert _bodies(store) == before
