"""Retention in a store: the files at the log's head that go, with their queues, and those that stay."""

from dataclasses import replace

import pytest

from log.entries.entry_reads import index_at
from log.entries.entry_recovery import RecoveryKind
from log.entries.expired_files import DataFile, HeadLook, RetentionPolicy, files_to_delete
from log.errors import DamagedLogError
from log.formats.layout import HEADER_BYTES
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer, queue_ends
from tests.log.stores import derived, flip, flush, open_store, send_many, units_of


def test_expired_files_go_with_their_queues_but_not_beyond_the_snapshot(
    disk: MemoryDisk, store: Store
) -> None:
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    late = NOW + 10**9
    assert store.delete_head(HeadLook(policy, now_ms=late, is_delete_hour=True)) == 0, "no snapshot yet"
    store.snapshot.write(60, b"state")
    assert store.delete_head(HeadLook(policy, now_ms=late, is_delete_hour=False)) == 0, (
        "neither hour nor need"
    )
    assert store.delete_head(HeadLook(policy, now_ms=late, is_delete_hour=True, needed_from_index=2)) == 0, (
        "a follower needs it"
    )
    assert store.delete_head(HeadLook(policy, now_ms=late, is_delete_hour=True)) > 0
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
    disk.discard("consumequeue")
    disk.discard("index")
    store, report = open_store(disk.kill())
    assert queue_ends(store) == ends
    assert derived(store) == before


def test_a_file_is_as_old_as_its_last_message(store: Store) -> None:
    """Whose first message is older than what is kept may have younger ones."""
    send_many(store, 100)  # one each 100 ms
    store.dispatch(99, NOW)
    flush(store)
    store.snapshot.write(99, b"state")
    behind = [index_at(store.log, start) for start in store.log.file_starts()[1:4]]
    assert len(behind) == 3
    reserved_ms = 100_000
    policy = RetentionPolicy(reserved_ms=reserved_ms, files_per_pass=100)
    for index in behind:
        # The age of a file is that of what comes behind it: its own last message is no younger.
        oldest_ms = store.store_time_of(store.log.position_of(index) + HEADER_BYTES)
        for too_old_ms, goes in ((0, False), (1, True)):
            look = HeadLook(policy, now_ms=oldest_ms + reserved_ms + too_old_ms, is_delete_hour=True)
            assert (store.delete_head(look) > 0) is goes
        assert store.log.first_index == index


@pytest.mark.parametrize("file", [1, 2, 4])
def test_a_damaged_header_at_the_beginning_of_a_file_does_not_keep_the_log(
    file: int, disk: MemoryDisk, store: Store
) -> None:
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    store.snapshot.write(99, b"state")
    store.close(99)
    store, _ = open_store(disk)
    start = store.log.file_starts()[file]
    flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", 2)
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    last = store.log.file_starts()[-1]
    assert store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True)) > file
    assert store.log.first_position == last
    store, report = open_store(disk.kill())
    assert report.log.kind is RecoveryKind.CLEAN
    assert store.log.first_position == last


def queue_of_a_hundred(store: Store) -> ConsumeQueue:
    """A queue of a hundred messages, all that the log has; nobody needs any of them."""
    writer = Writer(store)
    for _ in range(100):
        writer.send("T", body=bytes(40))
    store.dispatch(99, NOW)
    flush(store)
    store.snapshot.write(99, b"state")
    return store.queues.make("T", 0)


@pytest.mark.parametrize("damaged", [range(20, 60), range(30, 99), range(14, 16)], ids=str)
def test_a_run_of_damaged_units_has_retention_hide_no_message(
    damaged: range, disk: MemoryDisk, store: Store
) -> None:
    queue = queue_of_a_hundred(store)
    units = units_of(queue)
    for offset in damaged:
        queue.correct(offset, (0, 0, 0))
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=1)
    for _ in range(3):
        assert store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True)) == 1
        staying = [offset for offset, unit in enumerate(units) if unit[0] >= store.log.first_position]
        assert queue.min_offset <= staying[0]
        assert queue.min_offset == staying[0] or staying[0] in range(damaged.start, damaged.stop + 1)
    assert staying[0] > 20


def test_units_that_are_zero_are_damaged_and_not_of_records_that_are_gone(
    disk: MemoryDisk, store: Store
) -> None:
    queue = queue_of_a_hundred(store)
    units = units_of(queue)
    assert store.delete_head(
        HeadLook(RetentionPolicy(reserved_ms=1000), now_ms=NOW + 10**9, is_delete_hour=True)
    )
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
    store.snapshot.write(99, b"state")
    store.close(99)
    store, _ = Store.open(disk, replace(TINY, hot_bytes=0), NOW)
    start = store.log.file_starts()[1]
    flip(disk, f"{TINY.dledger_directory}/data/{start:020d}", HEADER_BYTES + 90)
    policy = RetentionPolicy(reserved_ms=1000)
    assert store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True)) > 1


def test_the_log_never_begins_with_an_entry_that_may_be_replaced(store: Store) -> None:
    """In seed 3019 it did: power took that entry, and another leader's shorter one belonged into the file before."""
    send_many(store, 100)
    flush(store)
    last_file_begins = index_at(store.log, store.log.file_starts()[-1])
    store.dispatch(last_file_begins - 1, NOW)
    store.snapshot.write(last_file_begins - 1, b"state")
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)
    store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True))
    assert 0 < store.log.first_index < last_file_begins
    store.dispatch(last_file_begins, NOW)  # it is committed now
    store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True))
    assert store.log.first_index == last_file_begins


def test_the_retention_rule() -> None:
    day = 24 * 3600 * 1000
    files = [
        DataFile(newest_ms=number * day, next_index=100 * (number + 1), next_position=number + 1)
        for number in range(6)
    ]
    policy = RetentionPolicy(reserved_ms=3 * day)

    def decide(
        now_days: float,
        used: float,
        *,
        hour: bool = False,
        covered: int = 10_000,
        policy: RetentionPolicy = policy,
    ) -> int:
        return files_to_delete(
            files,
            HeadLook(policy, now_ms=int(now_days * day), is_delete_hour=hour),
            used_ratio=used,
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
