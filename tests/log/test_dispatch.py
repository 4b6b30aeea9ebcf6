"""Dispatch: which units and keys the entries of a log get, in whatever steps."""

import pytest

from log.dispatching.dispatch import Arrival
from log.entries.entry_recovery import RecoveryKind
from log.errors import (
    DiskFullError,
    QueueOrderError,
)
from log.formats.layout import HEADER_BYTES
from log.formats.record import SYS_FLAG_PREPARED, pack_host
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer, make_record, queue_ends
from tests.log.plain_reader import plain_hash
from tests.log.stores import INTERNAL, derived, flip, open_store, send_many, units_of


def test_which_records_get_units_and_keys(store: Store) -> None:
    writer = Writer(store)
    properties = b"UNIQ_KEY\x01%s\x02TAGS\x01a"
    for name, flag in ((b"plain", 0), (b"prepared", 4), (b"committed", 8), (b"rolled", 12)):
        writer.send("T", 0, properties=properties % name, sys_flag=flag)
    store.dispatch(3, NOW)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert [unit[0] - HEADER_BYTES for unit in units_of(queue)] == [
        store.log.position_of(0),
        store.log.position_of(2),
    ]
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


def test_a_delay_begins_when_its_message_is_stored_however_late_it_is_dispatched(store: Store) -> None:
    Writer(store).send("SCHEDULE_TOPIC_XXXX", 0)
    store.dispatch(0, NOW + 60_000)
    [queue] = store.queues
    assert [due_ms - NOW for _, _, due_ms in units_of(queue)] == [1000]


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
        record = make_record(
            position + HEADER_BYTES, topic=topic, host=host, properties=properties, store_time=NOW + 5
        )
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
        store.log.append(1, make_record(position + HEADER_BYTES, topic=topic, queue_id=queue_id))
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
        store.log.append(1, make_record(position + HEADER_BYTES, queue_offset=offset))
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
    writer.send("A", 0, sys_flag=SYS_FLAG_PREPARED)
    writer.send(INTERNAL)
    store.dispatch(3, NOW)
    assert queue_ends(store) == {("A", 0): 3, ("B", 1): 3}


def _without_a_queue_and_with_a_flipped_byte(at: int) -> tuple[MemoryDisk, int, dict[str, object]]:
    """Returns the disk, where its entry 22 begins, and what was derived of the 22 entries before that one."""
    disk = MemoryDisk()
    store, _ = open_store(disk)
    send_many(store, 200)
    store.dispatch(21, NOW)
    expected = derived(store)
    store.dispatch(199, NOW)
    position = store.log.position_of(22)
    store.close(199)
    flip(disk, f"{TINY.dledger_directory}/data/{position // 2048 * 2048:020d}", position % 2048 + at)
    disk.discard("consumequeue/topic-0")
    return disk, position, expected


@pytest.mark.parametrize("at", [3, 6], ids=["magic number", "size"])
def test_a_lost_queue_is_built_up_to_an_old_entry_without_an_end(at: int) -> None:
    disk, position, expected = _without_a_queue_and_with_a_flipped_byte(at)
    store, report = open_store(disk)
    # The group sends the rest again: as where a start finds such an entry among the newest ones.
    assert (report.log.kind, report.log.last_good_index) == (RecoveryKind.DAMAGED, 21)
    assert report.log.damaged_file == f"{TINY.dledger_directory}/data/{position // 2048 * 2048:020d}"
    assert report.log.damaged_at == position % 2048
    store.cut_damage()
    while store.dispatched_index < 21:
        store.dispatch(21, NOW)
    assert derived(store) == expected


def test_a_lost_queue_is_built_beyond_a_damaged_body() -> None:
    """The entry is put back in its place once it is met; no other is given up for it."""
    disk, _, _ = _without_a_queue_and_with_a_flipped_byte(HEADER_BYTES + 90)
    store, report = open_store(disk)
    assert report.log.kind is not RecoveryKind.DAMAGED
    whole = MemoryDisk()
    other, _ = open_store(whole)
    send_many(other, 200)
    for one in (store, other):
        while one.dispatched_index < 199:
            one.dispatch(199, NOW)
    assert [units_of(queue) for queue in store.queues] == [units_of(queue) for queue in other.queues]
