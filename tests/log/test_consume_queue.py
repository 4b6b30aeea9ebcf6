"""ConsumeQueues: units, holes, time search, recovery, and bounded mappings."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.errors import DiskFullError, QueueOrderError
from log.files.mapping_pool import MappingPool
from log.formats.layout import HEADER_BYTES
from log.options import StoreOptions
from log.queues.consume_queue import Boundary, ConsumeQueue
from log.queues.consume_queues import ConsumeQueues, is_storable_topic
from tests.log.memory_disk import MemoryDisk

OPTIONS = StoreOptions(consume_queue_file_units=8, consume_queue_mappings=3)


def make_queue(disk: MemoryDisk, count: int = 0, options: StoreOptions = OPTIONS) -> ConsumeQueue:
    queue = ConsumeQueues(disk, options).make("T", 2)
    for number in range(count):
        assert queue.append(number, 100 * number + HEADER_BYTES, 50, number * 7)
    return queue


def all_units(queue: ConsumeQueue) -> list[tuple[int, int, int]]:
    units: list[tuple[int, int, int]] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        some = list(queue.units(offset, 1000))
        assert some
        units += some
        offset += len(some)
    return units


def test_golden_units(disk: MemoryDisk) -> None:
    queue = make_queue(disk)
    queue.append(0, 48, 102, 97)
    queue.append(1, 198, 103, -1320661992)
    raw = disk.read("consumequeue/T/2/" + "0" * 20)
    assert raw[:40] == struct.pack(">qiq", 48, 102, 97) + struct.pack(">qiq", 198, 103, -1320661992)
    assert len(raw) == 160


def test_units_come_back_across_files(disk: MemoryDisk) -> None:
    queue = make_queue(disk, 20)
    assert disk.list("consumequeue/T/2") == [f"{start:020d}" for start in (0, 160, 320)]
    assert all_units(queue) == [(100 * number + HEADER_BYTES, 50, number * 7) for number in range(20)]
    assert len(list(queue.units(5, 10))) == 3, "to the end of the file"
    assert list(queue.units(8, 2)) == [(848, 50, 56), (948, 50, 63)]
    assert list(queue.units(20, 1)) == list(queue.units(-1, 1)) == []
    assert queue.unit(19) == (1948, 50, 133)
    assert queue.unit(20) is None


def test_a_replay_is_ignored_and_a_hole_is_an_error() -> None:
    queue = make_queue(MemoryDisk(), 10)
    assert not queue.append(9, 1, 1, 1)
    assert not queue.append(0, 1, 1, 1)
    with pytest.raises(QueueOrderError) as error:
        queue.append(11, 1, 1, 1)
    assert (error.value.topic, error.value.queue_id, error.value.expected) == ("T", 2, 10)
    assert queue.append(10, 1048, 50, 70)
    assert all_units(queue) == [(100 * number + HEADER_BYTES, 50, number * 7) for number in range(11)]


def test_a_queue_that_begins_late_is_filled_up(disk: MemoryDisk) -> None:
    queue = make_queue(disk)
    queue.append(11, 5048, 50, 1)
    assert (queue.min_offset, queue.max_offset) == (11, 12)
    raw = disk.read(f"consumequeue/T/2/{160:020d}")
    assert raw[:60] == struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 3
    queue.correct_min(0)
    assert queue.min_offset == 11, "fillers are no messages, wherever the log begins"
    again = ConsumeQueues(disk, OPTIONS).make("T", 2)
    again.recover(0, 1 << 40)
    assert (again.min_offset, again.max_offset) == (11, 12)


def test_a_queue_told_where_it_begins_accepts_what_comes() -> None:
    queue = make_queue(MemoryDisk())
    queue.start_at(30)
    assert (queue.min_offset, queue.max_offset) == (30, 30)
    queue.append(27, 48, 50, 0)
    queue.append(28, 148, 50, 0)
    assert (queue.min_offset, queue.max_offset) == (27, 29)


def test_the_beginning_follows_the_log(disk: MemoryDisk) -> None:
    queues = ConsumeQueues(disk, OPTIONS)
    queue = queues.make("T", 2)
    for number in range(30):
        queue.append(number, 100 * number + HEADER_BYTES, 50, 0)

    def delete_before(physical_begin: int) -> int:
        queue.min_offset = queue.first_staying(physical_begin, lambda offset: True)
        return queue.remove_gone_files()

    queue.correct_min(1048)
    assert queue.min_offset == 10
    assert delete_before(1248) == 1
    assert queue.min_offset == 12
    assert disk.list("consumequeue/T/2")[0] == f"{160:020d}"
    assert delete_before(1 << 40) == 2
    assert (queue.min_offset, queue.max_offset) == (30, 30)
    assert len(disk.list("consumequeue/T/2")) == 1, "the last file stays"
    assert queue.append(30, 5048, 50, 0)
    assert queue.unit(30) == (5048, 50, 0)


times = st.lists(st.integers(0, 30), min_size=1, max_size=30).map(sorted)


@given(times, st.integers(-2, 32), st.integers(0, 5))
def test_offsets_by_time(stored: list[int], wanted: int, deleted: int) -> None:
    queue = make_queue(MemoryDisk(), len(stored))
    queue.correct_min(100 * min(deleted, len(stored) - 1) + HEADER_BYTES)
    begin = queue.min_offset

    def time_of(physical_offset: int, size: int) -> int:
        assert size == 50
        return stored[(physical_offset - HEADER_BYTES) // 100]

    kept = list(range(begin, len(stored)))
    after = [offset for offset in kept if stored[offset] >= wanted]
    before = [offset for offset in kept if stored[offset] <= wanted]
    lower = queue.offset_at_time(wanted, time_of, Boundary.LOWER)
    assert lower == (after[0] if after else queue.max_offset)
    upper = queue.offset_at_time(wanted, time_of, Boundary.UPPER)
    assert upper == (before[-1] if before else begin), "the last of several of that millisecond, too"


@pytest.mark.parametrize("end", range(21))
def test_truncation_leaves_exactly_what_the_log_has(end: int, disk: MemoryDisk) -> None:
    queue = make_queue(disk, 20)
    queue.truncate_to(100 * end + HEADER_BYTES)
    assert (queue.min_offset, queue.max_offset) == (0, end)
    again = ConsumeQueues(disk, OPTIONS).make("T", 2)
    again.recover(0, 1 << 40)
    assert again.max_offset == end, "what was cut does not come back"
    assert queue.append(end, 100 * end + HEADER_BYTES, 50, end * 7)
    assert all_units(queue) == [(100 * number + HEADER_BYTES, 50, number * 7) for number in range(end + 1)]


def test_a_full_disk_refuses_a_unit_and_changes_nothing(disk: MemoryDisk) -> None:
    queue = make_queue(disk, 8)
    disk.free_pages = 0
    for _ in range(2):
        with pytest.raises(DiskFullError):
            queue.append(8, 848, 50, 56)
    assert queue.max_offset == 8
    disk.free_pages = 10
    assert queue.append(8, 848, 50, 56)
    assert all_units(queue) == [(100 * number + HEADER_BYTES, 50, number * 7) for number in range(9)]


@pytest.mark.parametrize("free_pages", [0, 1])
def test_a_queue_whose_beginning_found_no_room_begins_once_there_is_some(free_pages: int) -> None:
    """Whose first file has its first messages elsewhere: without the fillers in their place a start finds no unit."""
    disk, options = MemoryDisk(), StoreOptions(consume_queue_file_units=1000)
    queue = make_queue(disk, options=options)
    queue.start_at(700)
    disk.free_pages = free_pages
    for _ in range(2):
        with pytest.raises(DiskFullError):
            queue.append(700, 48, 50, 0)
    assert (queue.min_offset, queue.max_offset) == (700, 700)
    disk.free_pages = 100
    assert queue.append(700, 48, 50, 0)
    assert queue.append(701, 148, 50, 0)
    again = ConsumeQueues(disk, options).make("T", 2)
    again.recover(0, 1 << 40)
    assert (again.min_offset, again.max_offset) == (700, 702)


def test_mappings_stay_bounded_with_many_queues() -> None:
    queues = ConsumeQueues(MemoryDisk(), OPTIONS)
    for number in range(20):
        for queue_id in range(30):
            queues.make("T", queue_id).append(number, HEADER_BYTES + number, 50, queue_id)
            assert len(queues.pool) <= 3
    for queue_id in range(30):
        assert all_units(queues.make("T", queue_id)) == [
            (HEADER_BYTES + number, 50, queue_id) for number in range(20)
        ]
    assert len(queues.pool) <= 3


def test_a_checkpoint_maps_no_files_again_of_queues_that_were_not_mapped_any_more(disk: MemoryDisk) -> None:
    """It is drawn up in one turn: 10,000 queues to which messages had come took a third of a second on a disk."""
    queues = ConsumeQueues(disk, OPTIONS)
    for number in range(20):  # more than fit into a file
        for queue_id in range(30):
            queues.make("T", queue_id).append(number, 1000 * number + 30 * queue_id + HEADER_BYTES, 50, 0)
            opened = queues.pool.opened
    notes, files, _ = queues.notes()
    assert queues.pool.opened == opened
    assert (len(notes), len(files)) == (30, 90)
    again = ConsumeQueues(disk.kill(), OPTIONS)
    assert again.recover(notes, 0, 1 << 40, clean_stop=True, is_whole=True) == []


def test_units_held_by_a_reader_survive_eviction() -> None:
    queues = ConsumeQueues(MemoryDisk(), OPTIONS)
    queues.make("T", 0).append(0, 48, 50, 9)
    units = queues.make("T", 0).units(0, 1)
    for queue_id in range(1, 10):
        queues.make("T", queue_id).append(0, 48, 50, queue_id)
    assert list(units) == [(48, 50, 9)]


def test_checksums_are_continued_and_found_wrong_after_any_flip(disk: MemoryDisk) -> None:
    queue = make_queue(disk)
    for number in range(13):
        queue.append(number, 100 * number + HEADER_BYTES, 50, number * 7)
        begin, checksum = queue.checksum()
        assert begin == number // 8 * 8
        assert queue.is_sound(begin, queue.max_offset, checksum)
    file = disk.files[f"consumequeue/T/2/{160:020d}"].seen
    for at in range(5 * 20):
        file[at] ^= 4
        assert not queue.is_sound(begin, 13, checksum)
        file[at] ^= 4
    assert queue.is_sound(begin, 13, checksum)


@pytest.mark.parametrize(
    ("topic", "storable"),
    [
        ("T", True),
        ("%RETRY%group-1", True),
        ("%DLQ%g|x", True),
        ("", False),
        (".", False),
        ("..", False),
        ("../../etc", False),
        ("a/b", False),
        ("a\x00b", False),
        ("t" * 256, False),
    ],
)
def test_only_names_of_directories_become_queues(topic: str, storable: bool) -> None:
    assert is_storable_topic(topic) is storable


def test_an_offset_that_is_taken_begins_a_new_life_of_the_queue() -> None:
    """The topic was deleted and made again in between, and the deletion itself does not come again."""
    queue = ConsumeQueue(MemoryDisk(), "consumequeue", "T", 2, OPTIONS, MappingPool(8))
    for number in range(10):
        queue.append(number, 100 * number + HEADER_BYTES, 50, 1)
    assert queue.append(0, 2048, 50, 1)
    assert (queue.min_offset, queue.max_offset) == (0, 1)
