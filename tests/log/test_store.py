"""The whole store: stops and starts, recovery of queues and index files, reset."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from log.dispatching.dispatch import Arrival
from log.entries.entry_recovery import RecoveryKind
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.errors import (
    DamagedStateError,
    FlushError,
    StoreLockedError,
)
from log.files.disk import MappedFile
from log.files.mapping_pool import MappingPool
from log.files.mmap_disk import MmapDisk
from log.formats.layout import HEADER_BYTES, UNIT_BYTES
from log.notes.hard_state import StoredHardState
from log.notes.snapshot import Snapshot
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer, queue_ends
from tests.log.plain_reader import plain_hash, query_index, read_entries, read_queue, read_record
from tests.log.stores import INTERNAL, checkpoint, derived, flip, flush, open_store, send_many, units_of


def test_an_independent_reader_agrees_with_the_store(tmp_path: Path) -> None:
    store, _ = open_store(MmapDisk(tmp_path))
    send_many(store, 120)
    dispatch = store.dispatch(store.log.last_index, NOW)
    entries = read_entries(tmp_path / TINY.dledger_directory)
    assert [entry.index for entry in entries] == list(range(120))
    queues: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}
    keys: dict[tuple[str, str], list[int]] = {}
    internal = []
    for entry in entries:
        record = read_record(entry.body)
        assert record.physical_offset == entry.position + HEADER_BYTES
        if record.topic == INTERNAL:
            internal.append((entry.index, entry.body))
            continue
        unit = (
            record.queue_offset,
            record.physical_offset,
            record.size,
            plain_hash(record.properties["TAGS"]),
        )
        queues.setdefault((record.topic, record.queue_id), []).append(unit)
        for key in {record.properties["UNIQ_KEY"], *record.properties["KEYS"].split()}:
            keys.setdefault((record.topic, key), []).append(record.physical_offset)
    for (topic, queue_id), units in queues.items():
        assert read_queue(tmp_path, topic, queue_id) == units
        queue = store.queues.get(topic, queue_id)
        assert queue is not None
        assert units_of(queue) == [unit[1:] for unit in units]
    for (topic, key), offsets in keys.items():
        assert query_index(tmp_path, TINY.index_slots, topic, key) == offsets[::-1]
        assert store.index.query(topic, key, 64, 0, 1 << 60) == offsets[::-1][:64]
    assert [(index, bytes(view)) for index, view in dispatch.internal] == internal
    assert sorted(dispatch.arrivals) == sorted(
        Arrival(topic, queue_id, 0, len(units)) for (topic, queue_id), units in queues.items()
    )
    store.close(store.log.last_index)


def test_a_clean_stop_and_start(disk: MemoryDisk) -> None:
    store, report = open_store(disk)
    assert report.log.kind is RecoveryKind.CLEAN
    assert not report.damage
    send_many(store, 100)
    store.dispatch(90, NOW)
    store.snapshot.write(80, b"state")
    before = derived(store)
    store.close(95)
    store, report = open_store(disk)
    assert report.clean_stop
    assert report.committed_index == 95
    assert report.dispatched_index == store.dispatched_index == 80, "commands behind the snapshot come again"
    assert not report.damage
    assert not report.needs_snapshot
    assert derived(store) == before
    assert store.snapshot.read() == Snapshot(80, b"state")
    dispatch = store.dispatch(95, NOW)
    assert [index for index, _ in dispatch.internal] == [83, 93]
    assert store.hard_state.read() == StoredHardState(1, "n0")


@pytest.mark.parametrize("sent", [0, 10])
def test_an_orderly_stop_vouches_for_one_start(disk: MemoryDisk, sent: int) -> None:
    """A run that a crash ends is marked as one, even if it came to nothing, and whatever the run before it was."""
    store, _ = open_store(disk)
    send_many(store, 100)
    store.dispatch(99, NOW)
    store.close(99)
    for starts in range(2):
        store, report = open_store(disk)
        assert report.clean_stop is (starts == 0)
        send_many(store, sent)
        store.abandon()
    _, report = open_store(disk)
    assert not report.clean_stop


@pytest.mark.parametrize("clean", [True, False])
def test_a_checkpoint_behind_a_start_looks_at_new_units_only(
    disk: MemoryDisk, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the start has found sound is not read again: thousands of queues that stand idle would be one long turn."""
    store, _ = open_store(disk)
    send_many(store, 100)
    store.dispatch(99, NOW)
    checkpoint(store, 99)
    if clean:
        store.close(99)
    else:
        store.abandon()
    store, _ = open_store(disk)
    mapped: list[str] = []
    pool_get = MappingPool.get

    def get(pool: MappingPool, queue: ConsumeQueue, start: int, *, create: bool = False) -> MappedFile:
        mapped.append(f"{queue.topic}/{queue.queue_id}")
        return pool_get(pool, queue, start, create=create)

    monkeypatch.setattr(MappingPool, "get", get)
    Writer(store).send("topic-1", 2, body=b"new", store_time=NOW + 20_000)
    store.dispatch(100, NOW)
    checkpoint(store, 100)
    assert set(mapped) == {"topic-1/2"}
    before = derived(store)
    store.abandon()
    store, report = open_store(disk)
    assert not report.damage
    assert derived(store) == before


def test_two_processes_cannot_open_one_store(tmp_path: Path) -> None:
    store, _ = open_store(MmapDisk(tmp_path))
    with pytest.raises(StoreLockedError):
        Store.open(MmapDisk(tmp_path), TINY, NOW)
    store.close(-1)
    Store.open(MmapDisk(tmp_path), TINY, NOW)[0].abandon()


def test_a_killed_process_loses_nothing(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 60)
    store.dispatch(40, NOW)
    checkpoint(store, 45)
    send_many(store, 60, seed=1)
    store.dispatch(110, NOW)
    before = derived(store)
    store, report = open_store(disk.kill())
    assert not report.clean_stop
    assert not report.damage
    assert report.committed_index == 45
    assert store.log.last_index == 119
    store.dispatch(110, NOW)
    assert derived(store) == before


@pytest.mark.parametrize("seed", range(25))
def test_power_failures_keep_what_was_flushed_and_rebuild_the_rest(seed: int) -> None:
    rng = random.Random(seed)
    disk = MemoryDisk()
    store, _ = open_store(disk)
    reference, _ = open_store(MemoryDisk())
    committed = durable = -1
    for round_number in range(rng.randrange(1, 6)):
        for each in (store, reference):
            send_many(each, 30, seed=round_number)
        if rng.random() < 0.7:
            durable = flush(store)
        if rng.random() < 0.7:
            committed = max(committed, rng.randrange(durable + 1) if durable >= 0 else -1)
            if committed > store.dispatched_index:
                store.dispatch(committed, NOW)
        if rng.random() < 0.6:
            checkpoint(store, committed)
        if rng.random() < 0.3 and store.dispatched_index >= 0:
            store.snapshot.write(store.dispatched_index, b"state")
    share = rng.choice([0.0, 0.3, 0.8, 1.0])
    store, report = open_store(disk.crash(lambda path, page: rng.random() < share))
    assert store.log.last_index >= durable
    assert report.committed_index <= committed
    store.cut_damage()
    if committed >= 0:
        if committed > store.dispatched_index:
            store.dispatch(committed, NOW)
        reference.dispatch(committed, NOW)
        assert derived(store) == derived(reference)


def _stopped(*, clean: bool) -> MemoryDisk:
    disk = MemoryDisk()
    store, _ = open_store(disk)
    send_many(store, 100)
    store.dispatch(99, NOW)
    store.snapshot.write(99, b"state")
    if clean:
        store.close(99)
        return disk
    checkpoint(store, 99)
    return disk.kill()


def _queue_files(disk: MemoryDisk) -> list[str]:
    return [path for path in sorted(disk.files) if path.startswith("consumequeue/")]


DAMAGES: dict[str, Callable[[MemoryDisk], object]] = {
    "queue file missing": lambda disk: disk.remove(_queue_files(disk)[-1]),
    "all queues missing": lambda disk: disk.discard("consumequeue"),
    "queue file cut off": lambda disk: _cut(disk, _queue_files(disk)[-1], 25),
    "queue file flipped": lambda disk: flip(disk, _queue_files(disk)[-1], 7),
    "queue file zeroed": lambda disk: _zero(disk, _queue_files(disk)[-1]),
    "index file missing": lambda disk: disk.remove(f"index/{disk.list('index')[-1]}"),
    "first index file missing": lambda disk: disk.remove(f"index/{disk.list('index')[0]}"),
    "all index files missing": lambda disk: disk.discard("index"),
    "index file flipped": lambda disk: flip(disk, f"index/{disk.list('index')[2]}", 40 + 28 + 20 * 5 + 9),
    "index file cut off": lambda disk: _cut(disk, f"index/{disk.list('index')[1]}", 100),
    "notes missing": lambda disk: disk.remove("recovery-notes-0"),
    "notes flipped": lambda disk: flip(disk, "recovery-notes-0", 30),
}


def _cut(disk: MemoryDisk, path: str, size: int) -> None:
    disk.files[path].seen = disk.files[path].seen[:size]


def _zero(disk: MemoryDisk, path: str) -> None:
    disk.files[path].seen[:] = bytes(len(disk.files[path].seen))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_queue_and_index_files_are_built_again(damage: str, clean: bool) -> None:
    sound, report = open_store(_stopped(clean=clean))
    assert not report.damage
    disk = _stopped(clean=clean)
    DAMAGES[damage](disk)
    store, report = open_store(disk)
    if damage != "notes missing":
        assert report.damage
    if store.dispatched_index < 99:
        store.dispatch(99, NOW)
    assert derived(store) == derived(sound)
    store.close(99)
    store, report = open_store(disk)
    assert not report.damage
    assert derived(store) == derived(sound)


def test_queue_files_written_after_the_checkpoint_are_not_believed() -> None:
    disk = _stopped(clean=False)
    store, _ = open_store(disk)
    writer = Writer(store)
    for _ in range(20):
        writer.send("topic-0", 0)
    writer.send("new-topic", 5)
    store.dispatch(120, NOW)
    before = derived(store)
    after = disk.kill()
    path = next(path for path in _queue_files(after) if path.startswith("consumequeue/new-topic/5/"))
    flip(after, path, 6)
    store, _ = open_store(after)
    store.dispatch(120, NOW)
    assert derived(store) == before


def test_a_log_damaged_below_the_checkpoint_shortens_queues_and_index() -> None:
    disk = _stopped(clean=False)
    sound, _ = open_store(_stopped(clean=True))
    position = sound.log.position_of(70)
    start = position - position % TINY.data_file_bytes
    flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", position - start + 60)
    store, report = open_store(disk)
    assert report.log.kind is RecoveryKind.DAMAGED
    assert report.log.last_good_index == store.log.last_index == 69
    assert report.damage
    assert report.committed_index == 69
    assert 0 < max(unit[0] for queue in store.queues for unit in units_of(queue)) < position
    assert store.checkpoints.job(69) is None
    store.cut_damage()
    while store.log.last_index < 99:
        first = store.log.last_index + 1
        last = sound.log.run(first, 99, 500).last_index
        data = bytes(sound.log.run(first, last).body)
        store.log.append_range(store.log.check_range(data, first, sound.log.position_of(first)))
    store.dispatch(99, NOW)
    assert derived(store) == derived(sound)
    store.close(99)
    assert open_store(disk)[1].log.kind is RecoveryKind.CLEAN


@pytest.mark.parametrize("arrives", ["", "index/", "consumequeue/"])
def test_a_start_on_damage_can_be_repeated(arrives: str) -> None:
    """The first start shortens queues and index, and power fails before the damage is cut: some of it is on the disk.

    Where the damage begins with the first record of a noted index file, and that file was gone while the queues were as
    noted, the next start fell: it looked in the log for the first record to be indexed, which is behind the log's end.
    """
    sound, _ = open_store(_stopped(clean=True))
    for index in range(60, 100):
        disk = _stopped(clean=False)
        position = sound.log.position_of(index)
        start = position - position % TINY.data_file_bytes
        flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", position - start + 60)
        store, first_report = open_store(disk)
        found = derived(store)
        store, report = open_store(disk.crash(lambda path, page: path.startswith(arrives)))
        assert report.log == replace(first_report.log, rebuilt_units=report.log.rebuilt_units)
        assert derived(store) == found


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_of_which_nothing_tells_a_term_ends_there(clean: bool) -> None:
    """An old entry between those of two terms is damaged, and its unit, too: its group can help a node that starts."""
    disk = MemoryDisk()
    store, _ = open_store(disk)
    for term, messages in ((1, 3), (3, 60)):
        writer = Writer(store, term)
        for _ in range(messages):
            writer.send()
    store.dispatch(62, NOW)
    store.snapshot.write(62, b"state")
    position = store.log.position_of(3)
    assert (
        store.log.end_of(3) < store.log.file_starts()[1] < store.log.file_starts()[-TINY.unclean_scan_files]
    )
    if clean:
        store.close(62)
    else:
        checkpoint(store, 62)
    disk = disk.kill()
    flip(disk, f"{TINY.dledger_directory}/data/{0:020d}", position)
    flip(disk, f"{TINY.dledger_directory}/index/{0:020d}", 3 * UNIT_BYTES)
    store, report = open_store(disk)
    assert (report.log.kind, report.log.last_good_index) == (RecoveryKind.DAMAGED, 2)
    store.cut_damage()
    Writer(store, 3).send()
    assert store.log.term_starts() == [(0, 1), (3, 3)]


def test_damaged_term_vote_and_snapshot_are_errors() -> None:
    for path in (f"{TINY.dledger_directory}/currterm", "snapshot"):
        size = len(_stopped(clean=True).read(path))
        for at in range(size):
            disk = _stopped(clean=True)
            disk.files[path].seen[at] ^= 1
            with pytest.raises(DamagedStateError) as error:
                Store.open(disk, TINY, NOW)[0].snapshot.read()
            assert error.value.file == path
            assert ("docs/operations.md" in str(error.value)) == path.endswith("currterm")
    disk = _stopped(clean=True)
    disk.remove(f"{TINY.dledger_directory}/currterm")
    with pytest.raises(DamagedStateError):
        Store.open(disk, TINY, NOW)


def test_failed_flushes_are_never_taken_for_success(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 20)
    checkpoint(store, -1)
    notes = disk.read("recovery-notes-0")
    disk.flush_fails = True
    with pytest.raises(FlushError):
        store.hard_state.write(StoredHardState(2, "n1"))
    with pytest.raises(FlushError):
        store.snapshot.write(5, b"state")
    assert store.snapshot.applied_index == -1
    with pytest.raises(FlushError):
        store.close(10)
    disk.flush_fails = False
    assert disk.read("recovery-notes-0") == notes
    store, report = open_store(disk)
    assert not report.clean_stop
    assert store.hard_state.read() == StoredHardState(1, "n0")


def test_a_snapshot_replaces_a_store(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    store.reset(
        200, 10_240, 7, {("topic-0", 0): 55, ("quiet", 1): 9}, Snapshot(applied_index=199, data=b"leader's")
    )
    for _ in range(2):
        assert (store.log.first_index, store.log.last_index, store.log.base_term) == (200, 199, 7)
        assert queue_ends(store) == {("topic-0", 0): 55, ("quiet", 1): 9}
        assert store.index.query("topic-0", "all", 64, 0, 1 << 60) == []
        assert store.snapshot.read() == Snapshot(199, b"leader's")
        assert store.dispatched_index == 199
        disk = disk.kill()
        store, report = open_store(disk)
        assert not report.needs_snapshot
        assert not report.damage
    writer = Writer(store, term=8)
    writer.send("topic-0", 0, properties=b"KEYS\x01all\x02")
    dispatch = store.dispatch(200, NOW)
    assert dispatch.arrivals == [Arrival("topic-0", 0, 55, 56)]
    queue = store.queues.get("topic-0", 0)
    assert queue is not None
    assert queue.unit(55) is not None
    assert queue.unit(54) is None
    store.close(200)
    store, report = open_store(disk)
    assert not report.damage
    assert queue_ends(store) == {("topic-0", 0): 56, ("quiet", 1): 9}


class FailingDisk(MemoryDisk):
    """After `writes_left` files were written, writing fails."""

    writes_left = 1 << 30

    def write_durably(self, path: str, *data: bytes | memoryview) -> None:
        if not self.writes_left:
            raise FlushError(path, "flush", "power is gone")
        self.writes_left -= 1
        super().write_durably(path, *data)


@pytest.mark.parametrize("writes", range(6))
def test_a_reset_that_fails_half_way_is_reported_until_it_is_repeated(writes: int) -> None:
    """Four files are written beside those that they will replace, before anything is given up."""
    disk = FailingDisk()
    store, _ = open_store(disk)
    send_many(store, 50)
    checkpoint(store, 40)
    disk.writes_left = writes
    with pytest.raises(FlushError):
        store.reset(200, 10_240, 7, {("topic-0", 0): 55}, Snapshot(199, b"leader's"))
    after = disk.kill()
    store, report = open_store(after)
    assert report.needs_snapshot == (writes == 5)
    assert store.log.last_index == (199 if writes == 5 else 49)
    store.reset(200, 10_240, 7, {("topic-0", 0): 55}, Snapshot(199, b"leader's"))
    store, report = open_store(after.kill())
    assert not report.needs_snapshot
    assert queue_ends(store) == {("topic-0", 0): 55}


def test_queue_ends_survive_the_loss_of_notes_and_of_old_records(disk: MemoryDisk, store: Store) -> None:
    writer = Writer(store)
    for _ in range(11):
        writer.send("quiet")
    for _ in range(100):
        writer.send("busy")
    store.dispatch(110, NOW)
    flush(store)
    store.snapshot.write(110, b"state")
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    assert store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True))
    assert store.log.first_index > 11
    store.close(110)
    disk.remove("recovery-notes-0")
    store, _ = open_store(disk)
    store.dispatch(110, NOW)
    assert queue_ends(store) == {("quiet", 0): 11, ("busy", 0): 100}


def test_topics_can_be_removed(disk: MemoryDisk, store: Store) -> None:
    writer = Writer(store)
    for queue_id in range(3):
        writer.send("gone", queue_id)
        writer.send("kept", queue_id)
    store.dispatch(5, NOW)
    store.remove_topic("gone")
    assert store.queues.get("gone", 0) is None
    assert disk.list("consumequeue") == ["kept"]
    writer.send("gone", 0)
    store.dispatch(6, NOW)
    assert store.queues.make("gone", 0).max_offset == 2
