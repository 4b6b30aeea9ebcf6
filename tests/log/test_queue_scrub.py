"""The scrub of queues: it puts right the units that are damaged, by the log, and writes no other."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from log.dispatching import queue_scrub
from log.dispatching.queue_scrub import QueueScrub, Range
from log.entries import cuts
from log.entries.entry_reads import file_beginnings
from log.errors import DiskError
from log.formats.layout import HEADER_BYTES
from log.index.index_scrub import IndexScrubber
from log.queues.consume_queue import UNIT_BYTES, ConsumeQueue
from log.queues.consume_queues import ConsumeQueues
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer

FILE_BYTES = TINY.consume_queue_file_units * UNIT_BYTES


@st.composite
def stores(draw: Any, disk: MemoryDisk) -> Store:
    """A store with some messages in some queues, all of them dispatched."""
    store, _ = Store.open(disk, TINY, NOW)
    writer = Writer(store)
    queues = st.tuples(st.sampled_from(["T", "U", "TRIVET_SYS_RAFT_LOG"]), st.integers(0, 1))
    for topic, queue_id in draw(st.lists(queues, min_size=1, max_size=60)):
        tags = draw(st.sampled_from([b"", b"TAGS\x01red"]))
        writer.send(topic, queue_id, body=bytes(draw(st.integers(1, 90))), properties=tags)
    while store.dispatched_index < store.log.last_index:
        store.dispatch(store.log.last_index, NOW)
    return store


def queue_files(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: bytes(file.seen) for path, file in disk.files.items() if "consumequeue/" in path}


def corrected(store: Store, draw: Any, first_index: int) -> list[Range]:
    """Returns what a pass from an entry on writes, in slices of any size."""
    scrub = QueueScrub(store.log, store.queues, IndexScrubber(store.index), store.options)
    scrub.begin()
    while first_index <= store.log.last_index:
        last_index = draw(st.integers(first_index, store.log.last_index))
        scrub.check(first_index, last_index)
        first_index = last_index + 1
    scrub.ended()
    assert not scrub.misses
    return scrub.corrected


@given(st.data())
def test_queues_without_damage_are_right_from_wherever_and_in_whatever_slices(data: st.DataObject) -> None:
    disk = MemoryDisk()
    store = data.draw(stores(disk))
    before = queue_files(disk)
    first = data.draw(st.integers(store.log.first_index, store.log.last_index))
    assert corrected(store, data.draw, first) == []
    assert queue_files(disk) == before


@given(st.data(), st.booleans())
def test_damaged_units_are_written_anew_and_no_other(data: st.DataObject, is_page: bool) -> None:
    disk = MemoryDisk()
    store = data.draw(stores(disk))
    before = queue_files(disk)
    queues = [queue for queue in store.queues if queue.max_offset]
    if not queues:
        return
    queue = data.draw(st.sampled_from(queues))
    offset = data.draw(st.integers(0, queue.max_offset - 1))
    start = offset * UNIT_BYTES // FILE_BYTES * FILE_BYTES
    path = f"consumequeue/{queue.topic}/{queue.queue_id}/{start:020d}"
    seen = disk.files[path].seen
    if is_page:
        # The bytes of a file of any queue, in the place of those of this one.
        other = data.draw(st.sampled_from(sorted(before)))
        units = min(queue.max_offset * UNIT_BYTES - start, FILE_BYTES)
        seen[:units] = before[other][:units]
    else:
        at = offset * UNIT_BYTES - start + data.draw(st.integers(0, UNIT_BYTES - 1))
        seen[at] ^= 1 << data.draw(st.integers(0, 7))
    changed = [
        at for at in range(0, FILE_BYTES, UNIT_BYTES) if seen[at : at + 20] != before[path][at : at + 20]
    ]
    written = corrected(store, data.draw, store.log.first_index)
    assert sorted((mapped.path, begin) for mapped, begin, _ in written) == [(path, at) for at in changed]
    assert queue_files(disk) == before


@given(st.data())
def test_a_queue_begins_with_its_first_record_in_the_log_behind_a_pass(data: st.DataObject) -> None:
    """Where units were damaged when their records went, nobody knew then how far the queue was to be cut."""
    store = data.draw(stores(MemoryDisk()))
    queues = [queue for queue in store.queues if queue.max_offset]
    staying = data.draw(st.sampled_from([index for _, index in file_beginnings(store.log)] or [0]))
    cuts.delete_before(store.log, staying)
    wanted = {}
    for queue in queues:
        held = [offset for offset in range(queue.max_offset) if store.is_unit_right(queue, offset)]
        if held:
            wanted[queue] = held[0]
            for offset in data.draw(st.sets(st.integers(0, queue.max_offset - 1))):
                queue.correct(offset, (data.draw(st.one_of(st.just(0), ANY_OFFSET)), 90, 0))
    scrub = QueueScrub(store.log, store.queues, IndexScrubber(store.index), store.options)
    scrub.begin()
    scrub.check(store.log.first_index, store.log.last_index)
    scrub.ended()
    assert {queue: queue.min_offset for queue in wanted} == wanted
    assert all(store.is_unit_right(q, n) for q in wanted for n in range(q.min_offset, q.max_offset))


@pytest.mark.parametrize("parts", [[(1, 3)], [(0, -1), (1, 3)], [(0, 1), (3, 3)]], ids=str)
def test_a_pass_that_leaves_out_entries_cuts_no_queue(parts: list[tuple[int, int]]) -> None:
    """They are damaged, or were not dispatched yet when it came by."""
    store, _ = Store.open(MemoryDisk(), TINY, NOW)
    writer = Writer(store)
    for queue_id in (0, 0, 1, 1):
        writer.send("T", queue_id, body=b"x")
    store.dispatch(3, NOW)
    scrub = QueueScrub(store.log, store.queues, IndexScrubber(store.index), store.options)
    scrub.begin()
    for first_index, last_index in parts:
        scrub.check(first_index, last_index)
    scrub.ended()
    assert [store.queues.make("T", queue_id).min_offset for queue_id in (0, 1)] == [0, 0]


def test_a_record_that_cannot_be_read_just_now_is_no_reason_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files are open, say: nobody knows then to which life of the queue its unit belongs."""
    store, _ = Store.open(MemoryDisk(), TINY, NOW)
    writer = Writer(store)
    writer.send(body=b"of an earlier life")
    store.dispatch(0, NOW)
    store.remove_topic("T")
    del writer.ends["T", 0]
    writer.send(body=b"of this life")
    store.dispatch(1, NOW)
    scrub = QueueScrub(store.log, store.queues, IndexScrubber(store.index), store.options)
    scrub.begin()

    def fails(*_: object) -> memoryview:
        raise DiskError("data", "opening", "too many open files")

    monkeypatch.setattr(queue_scrub, "record_at", fails)
    with pytest.raises(DiskError):
        scrub.check(0, 0)
    assert not scrub.misses


def queue_of(disk: MemoryDisk, count: int) -> tuple[ConsumeQueues, ConsumeQueue]:
    queues = ConsumeQueues(disk, TINY)
    queue = queues.make("T", 0)
    for offset in range(count):
        queue.append(offset, HEADER_BYTES + 100 * offset, 90, 0)
    return queues, queue


ANY_OFFSET = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def losses(draw: Any) -> tuple[int, int, int, list[int]]:
    """The messages of a queue, how many of them go, and the damage: its first offset and what its units say."""
    count = draw(st.integers(2, 60))
    begin = draw(st.integers(0, count))
    places = st.one_of(st.just(0), st.integers(0, 100 * count), ANY_OFFSET)
    return count, draw(st.integers(0, count)), begin, draw(st.lists(places, max_size=count - begin))


@given(losses())
@example((19, 19, 15, [0, 0, 1900]))
@example((8, 6, 2, [0, 0, 600]))
@example((8, 6, 0, [600]))
def test_damaged_units_have_retention_pass_no_message_and_keep_none_that_goes(
    loss: tuple[int, int, int, list[int]],
) -> None:
    count, gone, begin, damage = loss
    _, queue = queue_of(MemoryDisk(), count)
    for offset, place in enumerate(damage, begin):
        queue.correct(offset, (place, 90, 0))

    def is_right(offset: int) -> bool:
        return queue.unit(offset) == (HEADER_BYTES + 100 * offset, 90, 0)

    told = [offset for offset in range(gone) if is_right(offset)]
    queue.min_offset = queue.first_staying(100 * gone, is_right)
    assert queue.min_offset == max(told, default=-1) + 1, "as far as the last unit that is right says"


@given(st.data(), st.integers(2, 60))
def test_damaged_units_have_a_start_pass_no_message(data: st.DataObject, count: int) -> None:
    disk = MemoryDisk()
    queues, queue = queue_of(disk, count)
    notes, _, _ = queues.notes()
    # Of the last file the start itself sees it.
    for offset in range(data.draw(st.integers(1, count)), min(count, notes[0].checksum_begin)):
        queue.correct(offset, (data.draw(ANY_OFFSET), 90, 0))
    again = ConsumeQueues(disk, TINY)
    assert again.recover(notes, 0, 100 * count, clean_stop=True, is_whole=True) == []
    assert again.make("T", 0).min_offset == 0
