"""The whole store: dispatch, checkpoints, recovery of queues and index files, retention, reset."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from log.consume_queue import ConsumeQueue
from log.disk import MappedFile
from log.dispatch import Arrival
from log.entry_reads import index_at
from log.entry_recovery import RecoveryKind
from log.errors import (
    DamagedLogError,
    DamagedStateError,
    DiskFullError,
    FlushError,
    LogFault,
    QueueOrderError,
    StoreLockedError,
)
from log.hard_state import HardState
from log.mapping_pool import MappingPool
from log.mmap_disk import MmapDisk
from log.own_topics import INTERNAL_TOPIC
from log.record import pack_host
from log.retention import DataFile, RetentionPolicy, files_to_delete
from log.snapshot import Snapshot
from log.store import RecoveryReport, Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer, make_record, queue_ends
from tests.log.plain_reader import plain_hash, query_index, read_entries, read_queue, read_record

INTERNAL = INTERNAL_TOPIC.decode()


def open_store(disk: MemoryDisk | MmapDisk) -> tuple[Store, RecoveryReport]:
    store, report = Store.open(disk, TINY, NOW)
    if store.hard_state.read() is None:
        store.hard_state.write(HardState(1, "n0"))
    return store, report


def send_many(store: Store, count: int, *, seed: int = 0) -> None:
    rng = random.Random(seed)
    writer = Writer(store)
    for number in range(count):
        if number % 10 == 3:
            writer.send(INTERNAL, body=b"command %d" % number)
            continue
        writer.send(
            f"topic-{rng.randrange(3)}",
            rng.randrange(3),
            body=rng.randbytes(rng.randrange(40)),
            properties=b"UNIQ_KEY\x01u%d\x02TAGS\x01Tag%d\x02KEYS\x01k%d all"
            % (number, number % 3, number % 7),
            store_time=NOW + 100 * number,
        )


def units_of(queue: ConsumeQueue) -> list[tuple[int, int, int]]:
    units: list[tuple[int, int, int]] = []
    while queue.min_offset + len(units) < queue.max_offset:
        units += queue.units(queue.min_offset + len(units), 1000)
    return units


def derived(store: Store) -> dict[str, object]:
    """All that dispatch built, to be compared."""
    state: dict[str, object] = {
        f"{queue.topic}/{queue.queue_id}": (queue.min_offset, queue.max_offset, units_of(queue))
        for queue in sorted(store.queues, key=lambda queue: (queue.topic, queue.queue_id))
        if queue.max_offset
    }
    for topic in range(3):
        for key in [*(f"k{number}" for number in range(7)), "all", "u5", "u40"]:
            name = f"topic-{topic}"
            state[f"{name}#{key}"] = store.find_by_key(name, key, 64)
    return state


def checkpoint(store: Store, commit_index: int) -> None:
    job = store.checkpoint_job(commit_index)
    if job is None:
        assert store.checkpoint_waits
        flush(store)
        job = store.checkpoint_job(commit_index)
    assert job is not None
    job.run()
    store.checkpointed(job)


def flush(store: Store) -> int:
    job = store.log.flushes.job()
    if job is not None:
        job.run()
        store.log.flushes.done(job)
    return store.log.durable_index


# ---- dispatch --------------------------------------------------------------------------------------------


@pytest.fixture
def store(disk: MemoryDisk) -> Store:
    return open_store(disk)[0]


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
        assert record.physical_offset == entry.position + 48
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


def test_which_records_get_units_and_keys(store: Store) -> None:
    writer = Writer(store)
    properties = b"UNIQ_KEY\x01%s\x02TAGS\x01a"
    for name, flag in ((b"plain", 0), (b"prepared", 4), (b"committed", 8), (b"rolled", 12)):
        writer.send("T", 0, properties=properties % name, sys_flag=flag)
    store.dispatch(3, NOW)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert [unit[0] - 48 for unit in units_of(queue)] == [store.log.position_of(0), store.log.position_of(2)]
    found = {
        name: len(store.index.query("T", name, 8, 0, 1 << 60))
        for name in ("plain", "prepared", "committed", "rolled")
    }
    assert found == {"plain": 1, "prepared": 1, "committed": 1, "rolled": 0}


def test_tags_codes_of_delayed_messages_are_deliver_times(store: Store) -> None:
    writer = Writer(store)
    for queue_id in (0, 2, 17, 30):
        writer.send("SCHEDULE_TOPIC_XXXX", queue_id, properties=b"TAGS\x01a\x02DELAY\x013\x02")
    store.dispatch(3, NOW)
    codes = [queue.unit(0) for queue in store.queues]
    assert [unit[2] - NOW for unit in codes if unit] == [1000, 10_000, 7_200_000, 7_200_000]


def test_records_with_ipv6_hosts_long_topics_and_odd_properties(store: Store) -> None:
    v6 = pack_host("2001:db8::1", 10911)
    cases = [
        ("T", v6, b"TAGS\x01x\x02TAGS\x01last\x02", "last"),
        ("t" * 200, v6, b"XTAGS\x01no\x02TAGS\x01yes", "yes"),
        ("t" * 128, pack_host("10.0.0.1", 1), b"TAGS\x01\x02", ""),
        ("你好", pack_host("10.0.0.1", 1), "TAGS\x01标签".encode(), "标签"),
    ]
    for topic, host, properties, _ in cases:
        draft = make_record(0, topic=topic, host=host, properties=properties)
        position = store.log.next_position(len(draft))
        record = make_record(position + 48, topic=topic, host=host, properties=properties, store_time=NOW + 5)
        store.log.append(1, record)
    store.dispatch(3, NOW)
    for topic, _, _, tag in cases:
        queue = store.queues.get(topic, 0)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        assert unit[2] == plain_hash(tag)
        assert store.store_time_of(unit[0]) == NOW + 5


def test_bodies_that_are_no_records_or_name_no_queue_are_passed_over(store: Store) -> None:
    store.log.append(1, b"")
    store.log.append(1, b"x" * 200)
    store.log.append(1, bytes(300))
    for topic, queue_id in (("../../etc", 0), ("T", -1), ("T", 0)):
        position = store.log.next_position(len(make_record(0, topic=topic)))
        store.log.append(1, make_record(position + 48, topic=topic, queue_id=queue_id))
    store.log.append(1, b"end")
    dispatch = store.dispatch(6, NOW)
    assert dispatch.last_index == store.dispatched_index == 6
    assert dispatch.arrivals == [Arrival("T", 0, 0, 1)]


def test_dispatch_can_stop_at_each_command(store: Store) -> None:
    send_many(store, 40)
    stops = []
    while store.dispatched_index < 39:
        dispatch = store.dispatch(39, NOW, stop_at_internal=True)
        stops += [index for index, _ in dispatch.internal]
        assert len(dispatch.internal) <= 1
        assert dispatch.last_index == store.dispatched_index
    assert stops == [3, 13, 23, 33]


@pytest.mark.parametrize("batch", [1, 2, 7, 1000])
def test_dispatch_gives_the_same_in_any_steps(batch: int) -> None:
    whole, _ = open_store(MemoryDisk())
    send_many(whole, 100)
    whole.dispatch(99, NOW)
    store, _ = open_store(MemoryDisk())
    send_many(store, 100)
    while store.dispatched_index < 99:
        store.dispatch(min(99, store.dispatched_index + batch), NOW)
    assert derived(store) == derived(whole)


def test_a_hole_in_a_queue_is_the_leaders_bug(store: Store) -> None:
    for offset in (0, 2):
        position = store.log.next_position(len(make_record(0)))
        store.log.append(1, make_record(position + 48, queue_offset=offset))
    with pytest.raises(QueueOrderError):
        store.dispatch(1, NOW)
    assert store.dispatched_index == -1


def test_dispatch_on_a_full_disk_goes_on_where_it_stopped(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 100)
    disk.free_pages = 4
    with pytest.raises(DiskFullError):
        store.dispatch(99, NOW)
    assert store.dispatched_index == -1
    disk.free_pages = None
    dispatch = store.dispatch(99, NOW)
    assert sum(arrival.end_offset - arrival.first_offset for arrival in dispatch.arrivals) == 90
    whole, _ = open_store(MemoryDisk())
    send_many(whole, 100)
    whole.dispatch(99, NOW)
    assert derived(store) == derived(whole)


def test_queue_ends_count_what_is_not_dispatched_yet(store: Store) -> None:
    writer = Writer(store)
    for _ in range(3):
        writer.send("A", 0)
        writer.send("B", 1)
    writer.send("A", 0, sys_flag=4)
    writer.send(INTERNAL)
    store.dispatch(3, NOW)
    assert queue_ends(store) == {("A", 0): 3, ("B", 1): 3}


# ---- recovery --------------------------------------------------------------------------------------------


def test_a_clean_stop_and_start(disk: MemoryDisk) -> None:
    store, report = open_store(disk)
    assert report.log.kind is RecoveryKind.CLEAN
    assert not report.damage
    send_many(store, 100)
    store.dispatch(90, NOW)
    store.save_snapshot(80, b"state")
    before = derived(store)
    store.close(95)
    store, report = open_store(disk)
    assert report.clean_stop
    assert report.committed_index == 95
    assert report.dispatched_index == store.dispatched_index == 80, "commands behind the snapshot come again"
    assert not report.damage
    assert not report.needs_snapshot
    assert derived(store) == before
    assert store.load_snapshot() == Snapshot(80, b"state")
    dispatch = store.dispatch(95, NOW)
    assert [index for index, _ in dispatch.internal] == [83, 93]
    assert store.hard_state.read() == HardState(1, "n0")


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
            store.save_snapshot(store.dispatched_index, b"state")
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
    store.save_snapshot(99, b"state")
    if clean:
        store.close(99)
        return disk
    checkpoint(store, 99)
    return disk.kill()


def _queue_files(disk: MemoryDisk) -> list[str]:
    return [path for path in sorted(disk.files) if path.startswith("consumequeue/")]


DAMAGES: dict[str, Callable[[MemoryDisk], object]] = {
    "queue file missing": lambda disk: disk.remove(_queue_files(disk)[-1]),
    "all queues missing": lambda disk: disk.remove_tree("consumequeue"),
    "queue file cut off": lambda disk: _cut(disk, _queue_files(disk)[-1], 25),
    "queue file flipped": lambda disk: _flip(disk, _queue_files(disk)[-1], 7),
    "queue file zeroed": lambda disk: _zero(disk, _queue_files(disk)[-1]),
    "index file missing": lambda disk: disk.remove(f"index/{disk.list('index')[-1]}"),
    "first index file missing": lambda disk: disk.remove(f"index/{disk.list('index')[0]}"),
    "all index files missing": lambda disk: disk.remove_tree("index"),
    "index file flipped": lambda disk: _flip(disk, f"index/{disk.list('index')[2]}", 40 + 28 + 20 * 5 + 9),
    "index file cut off": lambda disk: _cut(disk, f"index/{disk.list('index')[1]}", 100),
    "notes missing": lambda disk: disk.remove("recovery-notes-0"),
    "notes flipped": lambda disk: _flip(disk, "recovery-notes-0", 30),
}


def _cut(disk: MemoryDisk, path: str, size: int) -> None:
    disk.files[path].seen = disk.files[path].seen[:size]


def _flip(disk: MemoryDisk, path: str, at: int) -> None:
    disk.files[path].seen[at] ^= 1


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
    _flip(after, path, 6)
    store, _ = open_store(after)
    store.dispatch(120, NOW)
    assert derived(store) == before


def test_a_log_damaged_below_the_checkpoint_shortens_queues_and_index() -> None:
    disk = _stopped(clean=False)
    sound, _ = open_store(_stopped(clean=True))
    position = sound.log.position_of(70)
    start = position - position % TINY.data_file_bytes
    _flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", position - start + 60)
    store, report = open_store(disk)
    assert report.log.kind is RecoveryKind.DAMAGED
    assert report.log.last_good_index == store.log.last_index == 69
    assert report.damage
    assert report.committed_index == 69
    assert 0 < max(unit[0] for queue in store.queues for unit in units_of(queue)) < position
    assert store.checkpoint_job(69) is None
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
        _flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", position - start + 60)
        store, first_report = open_store(disk)
        found = derived(store)
        store, report = open_store(disk.crash(lambda path, page: path.startswith(arrives)))
        assert report.log == replace(first_report.log, rebuilt_units=report.log.rebuilt_units)
        assert derived(store) == found


def test_damaged_term_vote_and_snapshot_are_errors() -> None:
    for path in (f"{TINY.dledger_directory}/currterm", "snapshot"):
        size = len(_stopped(clean=True).read(path))
        for at in range(size):
            disk = _stopped(clean=True)
            disk.files[path].seen[at] ^= 1
            with pytest.raises(DamagedStateError) as error:
                Store.open(disk, TINY, NOW)[0].load_snapshot()
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
        store.hard_state.write(HardState(2, "n1"))
    with pytest.raises(FlushError):
        store.save_snapshot(5, b"state")
    assert store.snapshot_index == -1
    with pytest.raises(FlushError):
        store.close(10)
    disk.flush_fails = False
    assert disk.read("recovery-notes-0") == notes
    store, report = open_store(disk)
    assert not report.clean_stop
    assert store.hard_state.read() == HardState(1, "n0")


# ---- reset and retention ---------------------------------------------------------------------------------


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
        assert store.load_snapshot() == Snapshot(199, b"leader's")
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


@pytest.mark.parametrize("writes", range(1, 6))
def test_a_reset_that_fails_half_way_is_reported_until_it_is_repeated(writes: int) -> None:
    disk = FailingDisk()
    store, _ = open_store(disk)
    send_many(store, 50)
    checkpoint(store, 40)
    disk.writes_left = writes
    with pytest.raises(FlushError):
        store.reset(200, 10_240, 7, {("topic-0", 0): 55}, Snapshot(199, b"leader's"))
    after = disk.kill()
    store, report = open_store(after)
    assert report.needs_snapshot
    store.reset(200, 10_240, 7, {("topic-0", 0): 55}, Snapshot(199, b"leader's"))
    store, report = open_store(after.kill())
    assert not report.needs_snapshot
    assert queue_ends(store) == {("topic-0", 0): 55}


def test_a_checkpoint_waits_for_the_flush_of_what_it_notes(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    assert store.checkpoint_job(40) is None
    send_many(store, 50, seed=1)
    store.dispatch(90, NOW)
    flush(store)
    send_many(store, 1, seed=2)  # a log that is never all durable gets its checkpoints, too
    job = store.checkpoint_job(90)
    assert job is not None
    assert job.end_index == 40
    assert store.checkpoint_job(90) is None
    job.run()
    store.checkpointed(job)
    before = derived(store)
    store, report = open_store(disk.kill())
    assert not report.damage
    assert report.committed_index == 40
    store.dispatch(90, NOW)
    assert derived(store) == before


def test_a_clean_stop_notes_what_came_after_a_checkpoint_that_waits(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    assert store.checkpoint_job(40) is None
    send_many(store, 50, seed=1)
    store.dispatch(90, NOW)
    store.save_snapshot(90, b"state")
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
        store.checkpoint_job(40)  # the index file of its keys has no room yet
    disk.free_pages = None
    given = store.checkpoint_job(40)
    for free_pages in (0, 0, None):
        disk.free_pages = free_pages
        job = store.checkpoint_job(40) or given
        assert job is not None
        assert job is given, "the one that was refused is given again"
        job.run()
        store.checkpointed(job)
        assert (job.refused is None) is (free_pages is None)
        assert store.checkpoint_waits is (free_pages == 0)
    before = derived(store)
    store, report = open_store(disk.kill())
    assert not report.damage
    assert report.committed_index == 40
    assert derived(store) == before


def test_a_stop_without_space_is_no_clean_one(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    flush(store)
    assert store.checkpoint_job(40) is not None
    disk.free_pages = 0
    with pytest.raises(LogFault):
        store.close(40)
    _, report = open_store(disk.kill())
    assert not report.clean_stop


def test_a_checkpoint_overtaken_by_a_reset_does_no_harm(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 50)
    store.dispatch(40, NOW)
    flush(store)
    job = store.checkpoint_job(40)
    assert job is not None
    store.reset(200, 10_240, 7, {("quiet", 1): 9}, Snapshot(199, b"leader's"))
    job.run()
    store.checkpointed(job)
    store, report = open_store(disk.kill())
    assert not report.damage
    assert queue_ends(store) == {("quiet", 1): 9}
    assert store.checkpoint_job(199) is not None


def test_queue_ends_survive_the_loss_of_notes_and_of_old_records(disk: MemoryDisk, store: Store) -> None:
    writer = Writer(store)
    for _ in range(11):
        writer.send("quiet")
    for _ in range(100):
        writer.send("busy")
    store.dispatch(110, NOW)
    flush(store)
    store.save_snapshot(110, b"state")
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    assert store.delete_head(policy, wall_ms=NOW + 10**9, is_delete_hour=True)
    assert store.log.first_index > 11
    store.close(110)
    disk.remove("recovery-notes-0")
    store, _ = open_store(disk)
    store.dispatch(110, NOW)
    assert queue_ends(store) == {("quiet", 0): 11, ("busy", 0): 100}


def test_expired_files_go_with_their_queues_but_not_beyond_the_snapshot(
    disk: MemoryDisk, store: Store
) -> None:
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    late = NOW + 10**9
    assert store.delete_head(policy, wall_ms=late, is_delete_hour=True) == 0, "no snapshot yet"
    store.save_snapshot(60, b"state")
    assert store.delete_head(policy, wall_ms=late, is_delete_hour=False) == 0, "neither hour nor need"
    assert store.delete_head(policy, wall_ms=late, is_delete_hour=True, needed_from_index=2) == 0, (
        "a follower needs it"
    )
    assert store.delete_head(policy, wall_ms=late, is_delete_hour=True) > 0
    assert 0 < store.log.first_index <= 61
    first = store.log.first_position
    units = [unit for queue in store.queues for unit in units_of(queue)]
    assert min(unit[0] for unit in units) >= first
    assert min(store.find_by_key("topic-0", "all", 64)) > first
    ends = queue_ends(store)
    before = derived(store)
    store.close(99)
    store, report = open_store(disk)
    assert not report.damage
    assert queue_ends(store) == ends
    assert derived(store) == before
    disk.remove_tree("consumequeue")
    disk.remove_tree("index")
    store, report = open_store(disk.kill())
    assert queue_ends(store) == ends
    assert derived(store) == before


@pytest.mark.parametrize("file", [1, 2, 4])
def test_a_damaged_header_at_the_beginning_of_a_file_does_not_keep_the_log(
    file: int, disk: MemoryDisk, store: Store
) -> None:
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    store.save_snapshot(99, b"state")
    store.close(99)
    store, _ = open_store(disk)
    start = store.log.file_starts()[file]
    _flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", 2)
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    last = store.log.file_starts()[-1]
    assert store.delete_head(policy, wall_ms=NOW + 10**9, is_delete_hour=True) > file
    assert store.log.first_position == last
    store, report = open_store(disk.kill())
    assert report.log.kind is RecoveryKind.CLEAN
    assert store.log.first_position == last


@pytest.mark.parametrize("damaged", [range(20, 60), range(30, 99), range(14, 16)], ids=str)
def test_a_run_of_damaged_units_has_retention_hide_no_message(
    damaged: range, disk: MemoryDisk, store: Store
) -> None:
    writer = Writer(store)
    for _ in range(100):
        writer.send("T", body=bytes(40))
    store.dispatch(99, NOW)
    flush(store)
    store.save_snapshot(99, b"state")
    queue = store.queues.make("T", 0)
    units = units_of(queue)
    for offset in damaged:
        queue.correct(offset, (0, 0, 0))
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=1)
    for _ in range(3):
        assert store.delete_head(policy, wall_ms=NOW + 10**9, is_delete_hour=True) == 1
        staying = [offset for offset, unit in enumerate(units) if unit[0] >= store.log.first_position]
        assert queue.min_offset <= staying[0]
        assert queue.min_offset == staying[0] or staying[0] in range(damaged.start, damaged.stop + 1)
    assert staying[0] > 20


def test_units_that_are_zero_are_damaged_and_not_of_records_that_are_gone(
    disk: MemoryDisk, store: Store
) -> None:
    writer = Writer(store)
    for _ in range(100):
        writer.send("T", body=bytes(40))
    store.dispatch(99, NOW)
    flush(store)
    store.save_snapshot(99, b"state")
    queue = store.queues.make("T", 0)
    units = units_of(queue)
    assert store.delete_head(RetentionPolicy(reserved_ms=1000), wall_ms=NOW + 10**9, is_delete_hour=True)
    assert queue.min_offset > 0
    assert store.is_gone(queue, units[queue.min_offset - 1]) is False, (
        "none is, as the first one leads into the log"
    )
    for offset in range(queue.min_offset, 100):
        queue.correct(offset, (0, 0, 0))
        with pytest.raises(DamagedLogError, match="the unit does not lead to its message"):
            store.record_of(queue, offset, (0, 0, 0))


def test_a_unit_that_knows_the_place_and_not_the_size_is_damaged(disk: MemoryDisk, store: Store) -> None:
    writer = Writer(store)
    for _ in range(3):
        writer.send("T", body=bytes(40))
    store.dispatch(2, NOW)
    queue = store.queues.make("T", 0)
    position, size, tags_code = units_of(queue)[1]
    for wrong in (0, size - 1, 1 << 20):
        unit = position, wrong, tags_code
        queue.correct(1, unit)
        assert not store.is_unit_right(queue, 1)
        with pytest.raises(DamagedLogError, match="the unit does not lead to its message"):
            store.record_of(queue, 1, unit)


def test_a_damaged_record_at_the_beginning_of_a_file_does_not_keep_the_log(
    disk: MemoryDisk, store: Store
) -> None:
    """No node of its group has it whole."""
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    store.save_snapshot(99, b"state")
    store.close(99)
    store, _ = Store.open(disk, replace(TINY, hot_bytes=0), NOW)
    start = store.log.file_starts()[1]
    _flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", 48 + 90)
    policy = RetentionPolicy(reserved_ms=1000)
    assert store.delete_head(policy, wall_ms=NOW + 10**9, is_delete_hour=True) > 1


def test_the_log_never_begins_with_an_entry_that_may_be_replaced(store: Store) -> None:
    """In seed 3019 it did: power took that entry, and another leader's shorter one belonged into the file before."""
    send_many(store, 100)
    flush(store)
    last_file_begins = index_at(store.log, store.log.file_starts()[-1])
    store.dispatch(last_file_begins - 1, NOW)
    store.save_snapshot(last_file_begins - 1, b"state")
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    store.delete_head(policy, wall_ms=NOW + 10**9, is_delete_hour=True)
    assert 0 < store.log.first_index < last_file_begins
    store.dispatch(last_file_begins, NOW)  # it is committed now
    store.delete_head(policy, wall_ms=NOW + 10**9, is_delete_hour=True)
    assert store.log.first_index == last_file_begins


def test_the_retention_rule() -> None:
    day = 24 * 3600 * 1000
    files = [
        DataFile(newest_ms=number * day, next_index=100 * (number + 1), next_position=number)
        for number in range(6)
    ]
    policy = RetentionPolicy(reserved_ms=3 * day)

    def decide(
        wall_days: float,
        used: float,
        *,
        hour: bool = False,
        covered: int = 10_000,
        policy: RetentionPolicy = policy,
    ) -> int:
        return files_to_delete(
            files,
            policy,
            wall_ms=int(wall_days * day),
            used_ratio=used,
            is_delete_hour=hour,
            covered_index=covered,
        )

    assert decide(6.5, 0.1) == 0
    assert decide(6.5, 0.1, hour=True) == 4
    assert decide(6.5, 0.8) == 4
    assert decide(3.0, 0.8) == 0
    assert decide(0.0, 0.9) == 6
    assert decide(0.0, 0.9, covered=299) == 3
    assert decide(0.0, 0.9, covered=298) == 2
    assert decide(0.0, 0.9, policy=replace(policy, files_per_pass=2)) == 2


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
