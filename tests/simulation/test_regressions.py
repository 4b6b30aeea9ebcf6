"""Bugs that the simulator found in the code of this project, each as the smallest world that shows it.

The seed that found it is named. Seeds come to mean other runs as the code changes, so each case states its faults.
"""

from dataclasses import replace
from functools import partial
from io import BytesIO
from random import Random
from typing import cast

import pytest

from broker.delayed.deliveries import count_delivered
from broker.replica.applied import AppliedState
from broker.replica.disk_space import DiskSpace
from broker.replica.trace import DIGEST_INTERVAL, ReplicaTrace
from broker.replica.upkeep import Upkeep
from broker.requests.deadline import NEVER
from broker.state.metadata import Metadata
from broker.state.release import THIS_RELEASE
from broker.state.snapshot import encode_state
from broker.state.waiting_messages import addressed_properties, without_address
from broker.state.writing import ROWS_AT_ONCE
from broker.statistics.timings import Timings
from broker.trace import CommitAdvanced, PrefixDigest, TraceHeader, TraceWriter, read_trace
from log.entries import cuts
from log.entries.entry_log import EntryLog, Run
from log.entries.entry_reads import index_at
from log.entries.entry_room import make_room
from log.entries.flushes import FlushJob
from log.errors import DamagedLogError, DiskFullError, FlushError
from log.formats.layout import HEADER_BYTES, file_name
from log.formats.record import encode_record, pack_host
from log.notes.hard_state import StoredHardState
from log.options import StoreOptions
from log.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from log.queues.consume_queues import ConsumeQueues, QueueNote
from log.store import Store
from raft.core import Raft
from simulation.findings.report import describe_finding
from simulation.machines.inode import PAGE_BYTES
from simulation.machines.simulated_disk import SimulatedDisk
from simulation.plans.plan import Fault, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import Result, run_plan, run_world
from tests.simulation import stand_ins


def quiet_plan(*faults: Fault) -> Plan:
    """40 s of steady load with these faults; behind the last one the run ends as soon as all holds."""
    plan = replace(draw_swarm_plan(1, seconds=40), faults=faults, ends_early=bool(faults))
    return replace(plan, data_file_bytes=16 * 1024, producers=2, think_ms=100, queues=2)


def check_holds(result: Result) -> None:
    assert result.violation is None, describe_finding(result, "this test")


@pytest.mark.slow
def test_messages_of_a_batch_keep_their_own_keys() -> None:
    """Seed 1, without faults: the key of a batch's envelope replaced those of its messages."""
    check_holds(run_plan(replace(quiet_plan(), think_ms=300)))


@pytest.mark.slow
def test_a_node_starts_after_retention_and_a_crash() -> None:
    """Seeds 7 and 8: the start looked for ConsumeQueue files that retention had deleted since the last checkpoint."""
    faults = [Fault(12 * SECOND, "retention", 0, SECOND, 0.1)]
    faults += [Fault(15 * SECOND, "kill", 2 * number, SECOND // 2, 0.0) for number in range(3)]
    result = run_plan(quiet_plan(*faults))
    check_holds(result)
    assert result.fault_counts["kill"] == 3


@pytest.mark.slow
def test_a_leader_still_sends_to_a_peer_whose_own_link_broke() -> None:
    """Seeds 28 and 45: the loss of the accepted link stopped sending on the dialled one, for ever."""
    world = World(quiet_plan())

    def break_accepted_link() -> None:
        leader = world.members.leader()
        assert leader is not None
        assert leader.process is not None
        inbound = leader.process.accepted_from_peers()
        assert len(inbound) == 2
        inbound[0].peer.reset()  # of one follower: a majority goes on, and nobody elects a new leader

    world.scheduler.at(8 * SECOND, break_accepted_link)
    check_holds(run_world(world))


def test_a_digest_does_not_ask_for_what_retention_deleted_first() -> None:
    """Seed 1000: a node whose snapshot covered its log deleted the head before it had summed anything up."""
    options = StoreOptions(data_file_bytes=4096, index_file_units=256)
    log, _ = EntryLog.open(SimulatedDisk(Random(1)), "log", options)
    for _ in range(100):
        log.append(1, bytes(100))
    written: list[bytes] = []
    writer = TraceWriter(written.append, TraceHeader("replica", "n0", "test", 0))
    trace = ReplicaTrace(writer, log, 0, 1, 59)
    assert cuts.delete_before(log, 60) > 0
    trace.committed(0, 99, 1)
    trace.dispatched(0, 99)
    writer.flush()
    events = [item for item in read_trace(BytesIO(b"".join(written))) if isinstance(item, CommitAdvanced)]
    assert [event.index for event in events] == [99]


def test_a_digest_waits_for_what_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 7210022: an entry and its index unit were damaged, and the node ended whose trace read them."""
    log, _ = EntryLog.open(SimulatedDisk(Random(1)), "log", StoreOptions(data_file_bytes=1 << 20))
    for _ in range(DIGEST_INTERVAL):
        log.append(1, bytes(100))
    written: list[bytes] = []
    writer = TraceWriter(written.append, TraceHeader("replica", "n0", "test", 0))
    trace = ReplicaTrace(writer, log, 0, 1, -1)
    with monkeypatch.context() as patch:

        def run(*_: object) -> Run:
            raise DamagedLogError("log", 0, "it does not hold entry 0")

        patch.setattr(EntryLog, "run", run)
        trace.dispatched(0, 900)
    trace.dispatched(0, DIGEST_INTERVAL - 1)
    writer.flush()
    events = [item for item in read_trace(BytesIO(b"".join(written))) if isinstance(item, PrefixDigest)]
    assert [event.index for event in events] == [DIGEST_INTERVAL - 1]


def test_queue_files_that_survive_out_of_order_do_not_take_the_others_with_them() -> None:
    """Seed 4: of the ConsumeQueue files made after a checkpoint a power failure left the last only."""
    options = StoreOptions(consume_queue_file_units=4)
    disk = SimulatedDisk(Random(1))
    queues = ConsumeQueues(disk, options)
    queue = queues.make("topic", 0)
    for offset in range(6):
        queue.append(offset, 100 * (offset + 1), 90, 0)
    notes, files, directories = queues.notes()
    for path in files:
        disk.flush_file(path)
    for directory in directories:
        disk.sync_directory(directory)
    for offset in range(6, 16):
        queue.append(offset, 100 * (offset + 1), 90, 0)
    disk.remove("consumequeue/topic/0/" + file_name(8 * 20))
    disk.lose_process()
    again = ConsumeQueues(disk, options)
    assert again.recover(notes, 0, 700, clean_stop=False, is_whole=True) == []
    found = again.get("topic", 0)
    assert found is not None
    assert (found.min_offset, found.max_offset) == (0, 6)
    assert [found.unit(offset) for offset in range(6)] == [(100 * (n + 1), 90, 0) for n in range(6)]


def _noted_queue(disk: SimulatedDisk, units: int) -> tuple[ConsumeQueue, list[QueueNote]]:
    """A queue with a checkpoint of its first units: unit n is that of the 90 bytes at 100 * (n + 1)."""
    queues = ConsumeQueues(disk, StoreOptions(consume_queue_file_units=1024))
    queue = queues.make("offers", 2)
    for offset in range(units):
        queue.append(offset, 100 * (offset + 1), 90, 0)
    notes, files, directories = queues.notes()
    for path in files:
        disk.flush_file(path)
    for directory in directories:
        disk.sync_directory(directory)
    return queue, notes


def _check_that_the_next_unit_finds_its_place(
    disk: SimulatedDisk, notes: list[QueueNote], units: int
) -> None:
    queues = ConsumeQueues(disk, StoreOptions(consume_queue_file_units=1024))
    assert queues.recover(notes, 0, 100 * (units + 1), clean_stop=False, is_whole=True) == []
    queue = queues.make("offers", 2)
    assert (queue.min_offset, queue.max_offset) == (0, units)
    assert queue.append(units, 100 * (units + 1), 90, 0)
    assert [queue.unit(offset) for offset in range(units + 1)] == [
        (100 * (n + 1), 90, 0) for n in range(units + 1)
    ]


def test_what_stands_behind_the_noted_units_of_a_queue_is_not_taken_for_a_unit() -> None:
    """Seed 235: power was lost, and with it a unit behind the checkpoint, all but a byte in which a bit had flipped.

    What was left named position 0, which is before the end of what was dispatched: each start kept it, and dispatch
    passed its message over as one that the queue had.
    """
    disk = SimulatedDisk(Random(1))
    queue, notes = _noted_queue(disk, 4)
    file = disk.open(f"{queue.directory}/{file_name(0)}", 1024 * UNIT_BYTES, create=False)
    file.buffer[4 * UNIT_BYTES : 5 * UNIT_BYTES] = UNIT.pack(0, 0x2100, 0)
    disk.lose_process()
    _check_that_the_next_unit_finds_its_place(disk, notes, 4)


@pytest.mark.parametrize("seed", range(8))
def test_a_unit_torn_between_two_pages_is_not_taken_for_one(seed: int) -> None:
    """The same by a power failure alone: position and size are in two pages, of which the second was written first."""
    assert (614 * UNIT_BYTES + 8) % PAGE_BYTES == 0
    disk = SimulatedDisk(Random(seed))
    queue, notes = _noted_queue(disk, 614)
    queue.append(614, 100 * 615, 90, 0)
    file = disk.open(f"{queue.directory}/{file_name(0)}", 1024 * UNIT_BYTES, create=False)
    file.flush(614 * UNIT_BYTES + 8, 615 * UNIT_BYTES)  # the kernel writes back what it likes
    disk.lose_power()
    _check_that_the_next_unit_finds_its_place(disk, notes, 614)


@pytest.mark.parametrize("seed", range(8))
def test_a_flush_that_succeeds_says_nothing_of_an_earlier_one_that_failed(seed: int) -> None:
    """Seeds 34, 1054, 1101: a start took a flush of pages that only looked clean for their durability."""
    options = StoreOptions(data_file_bytes=32768, index_file_units=256)
    disk = SimulatedDisk(Random(seed))
    log, _ = EntryLog.open(disk, "dledger", options)
    for _ in range(60):
        log.append(1, bytes(200))
    job = log.flushes.job()
    assert job is not None
    disk.failing_flushes = 1
    with pytest.raises(FlushError):
        job.run()
    disk.lose_process()
    again, _ = EntryLog.open(disk, "dledger", options, clean_stop=False, checkpoint_index=None)
    if again.damaged:
        cuts.cut_damage(again)
    promised = again.durable_index
    disk.lose_power()
    last, _ = EntryLog.open(disk, "dledger", options, clean_stop=False, checkpoint_index=None)
    assert last.last_index >= promised
    assert not last.damaged


_SMALL_FILES = StoreOptions(data_file_bytes=32768, index_file_units=256)


def _store_before_a_flush(disk: SimulatedDisk) -> tuple[Store, FlushJob]:
    """A store with 60 entries and the flush of them, which has not begun."""
    store, _ = Store.open(disk, _SMALL_FILES, now_ms=0)
    store.hard_state.write(StoredHardState(1, "n0"))
    for _ in range(60):
        store.log.append(1, bytes(200))
    job = store.log.flushes.job()
    assert job is not None
    return store, job


def _assert_what_a_start_promises_survives_power(disk: SimulatedDisk) -> None:
    disk.lose_process()
    store, report = Store.open(disk, _SMALL_FILES, now_ms=0)
    assert not report.clean_stop
    if store.log.damaged:
        cuts.cut_damage(store.log)
    promised = store.log.durable_index
    disk.lose_power()
    store, _ = Store.open(disk, _SMALL_FILES, now_ms=0)
    assert store.log.last_index >= promised


@pytest.mark.parametrize("seed", range(8))
def test_a_stop_after_a_failed_flush_is_not_taken_for_a_clean_one(seed: int) -> None:
    """It fails while the node stops: the checkpoint's flush of the same pages succeeded, and vouched for them."""
    disk = SimulatedDisk(Random(seed))
    store, job = _store_before_a_flush(disk)
    disk.failing_flushes = 1
    with pytest.raises(FlushError):
        job.run()
    store.close(store.log.last_index)
    _assert_what_a_start_promises_survives_power(disk)


@pytest.mark.parametrize("seed", range(8))
def test_a_checkpoint_beside_a_failed_flush_vouches_for_nothing_of_it(seed: int) -> None:
    """Its thread runs to the end when the flush of another has failed: its own flush of the same pages succeeded."""
    disk = SimulatedDisk(Random(seed))
    store, job = _store_before_a_flush(disk)
    checkpoint = store.checkpoints.job(store.log.last_index)
    disk.failing_flushes = 1
    with pytest.raises(FlushError):
        job.run()
    if checkpoint is not None:
        checkpoint.run()
    store.abandon()
    _assert_what_a_start_promises_survives_power(disk)


@pytest.mark.parametrize("damage", [bytes(32), b"\x07" * 32, b"one bit"])
def test_a_damaged_unit_of_an_old_entry_is_written_anew_from_the_log(damage: bytes) -> None:
    """Seed 2: a start does not look at them, and whoever read one later stopped the node, again and again."""
    options = StoreOptions(data_file_bytes=4096, index_file_units=256)
    disk = SimulatedDisk(Random(1))
    log, _ = EntryLog.open(disk, "dledger", options)
    for number in range(200):
        log.append(1 + number // 50, bytes(60 + number % 7))
    places = [(log.position_of(index), log.end_of(index)) for index in range(200)]
    disk.lose_process()
    units = disk.open("dledger/index/" + file_name(0), 256 * 32, create=False)
    for index in range(40, 60):
        if damage == b"one bit":
            units.buffer[32 * index + 12 + index % 8] ^= 4  # in its position, its size or its own index
        else:
            units.buffer[32 * index : 32 * (index + 1)] = damage
    again, _ = EntryLog.open(disk, "dledger", options, clean_stop=False, checkpoint_index=None)
    assert again.term_starts() == [(0, 1), (50, 2), (100, 3), (150, 4)]
    assert [(again.position_of(index), again.end_of(index)) for index in range(200)] == places
    assert [index_at(again, begin) for begin, _ in places] == list(range(200))


def test_what_retention_took_while_it_waited_does_not_hide_what_was_delivered() -> None:
    """Seed 25: the first message of a batch was gone, and the others of the batch were delivered again."""
    log, _ = EntryLog.open(SimulatedDisk(Random(1)), "dledger", StoreOptions(data_file_bytes=4096))
    queues = ConsumeQueues(SimulatedDisk(Random(2)), StoreOptions())
    queue = queues.make("waiting", 0)
    for number in range(3):
        position = _append_record(log, number, addressed_properties(b"", "true", 0), b"waiting")
        queue.append(number, position, log.end_position - position, 0)
        while number == 0 and len(log.file_starts()) < 2:
            _append_record(log, 9, b"")  # the first lies in another file than the others
    _append_record(log, 9, b"")
    announced = log.last_index
    for number in range(2):
        _append_record(log, number, b"")  # what was delivered of the three
    for _ in range(60):
        _append_record(log, 9, b"")
    store = stand_ins.store(log=log)
    store.record_of = partial(Store.record_of, store)
    store.is_gone = partial(Store.is_gone, store)
    replica = stand_ins.replica(store=store)
    assert count_delivered(replica, queue, (0, 1, 2), announced, without_address) == 2
    assert cuts.delete_before(log, index_at(log, log.file_starts()[1])) == 1
    assert count_delivered(replica, queue, (0, 1, 2), announced, without_address) == 2


def _append_record(log: EntryLog, number: int, properties: bytes, topic: bytes = b"true") -> int:
    """The position of a record, which has the number as its offset, too."""
    body = b"%d" % number * 100
    host = pack_host("10.0.0.1", 1)
    size = 75 + 2 * len(host) + len(body) + len(topic) + len(properties)
    position = log.next_position(size) + HEADER_BYTES
    record = encode_record(topic, 0, 0, number, position, 0, number, host, 0, host, 0, 0, body, properties)
    log.append(1, record)
    return position


def test_a_membership_change_on_a_full_disk_is_refused_as_a_whole() -> None:
    """Seed 65: raft had counted its entry when the log had no room for it, and the leader fell over the difference."""
    log, _ = EntryLog.open(disk := SimulatedDisk(Random(1)), "dledger", StoreOptions(data_file_bytes=16384))
    disk.full = True
    while True:
        try:
            make_room(log, 4096)
        except DiskFullError:
            break
        log.append(1, bytes(4096 - HEADER_BYTES))  # never fails
    end = log.last_index, log.end_position
    with pytest.raises(DiskFullError):
        make_room(log, 4096)
    assert (log.last_index, log.end_position) == end
    disk.full = False
    make_room(log, 4096)
    log.append(1, bytes(4096 - HEADER_BYTES))


def test_a_snapshot_does_not_say_that_it_reflects_less_than_it_does() -> None:
    """Seed 36: before a start had dispatched again, retention saved the newer state under the older index.

    The start after that applied the commands in between a second time.
    """
    store = stand_ins.store(dispatched_index=5, log=stand_ins.stand_in(durable_index=9))
    upkeep = Upkeep(store, cast("Raft", None), cast(DiskSpace, None), 0, THIS_RELEASE)
    basis = stand_ins.stand_in(store=store, disk_space=None, timings=Timings())
    state = AppliedState(basis, Metadata(), 9, {}, upkeep, THIS_RELEASE, ROWS_AT_ONCE)
    state.save()
    assert upkeep.snapshot_due_ns() == NEVER, "the snapshot of 9 stays"
    state.index = 9
    state.save()
    assert upkeep.waiting_snapshot is not None
    index, pieces = upkeep.waiting_snapshot
    assert (index, b"".join(pieces.all())) == (9, encode_state(state.metadata, {}, store.queues))
