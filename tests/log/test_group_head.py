"""The group's head in a store: queues begin with it, whatever of the log is still here, and however often it starts."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.state.snapshot import restore_queue_ends
from log import store as store_module
from log.entries.entry_reads import file_beginnings
from log.entries.expired_files import DataFile, HeadLook, RetentionPolicy, files_to_delete
from log.errors import DamagedLogError
from log.formats.layout import HEADER_BYTES, UNIT_BYTES
from log.queues.consume_queue import ConsumeQueue
from log.store import Store
from tests.examples import examples
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, Writer
from tests.log.stores import checkpoint, flush, open_store, send_many, units_of

NOTHING = RetentionPolicy(reserved_ms=1 << 60, force_ratio=1.0)
"""Deletes what is before the group's head, and no more."""


def begins(store: Store, position: int) -> dict[tuple[str, int], int]:
    """Where each queue must begin: with its first message at that position or behind it, or where it ends."""
    found = {}
    for queue in store.queues:
        units = [unit for unit in units_of(queue) if unit[0] >= position]
        found[queue.topic, queue.queue_id] = queue.max_offset - len(units)
    return found


def beginnings_of(store: Store) -> list[tuple[int, int]]:
    return list(file_beginnings(store.log)) if len(store.log.file_starts()) > 1 else []


def told(store: Store) -> dict[tuple[str, int], int]:
    return {(queue.topic, queue.queue_id): queue.min_offset for queue in store.queues if queue.max_offset}


def test_queues_begin_at_the_head_while_the_log_is_still_here(disk: MemoryDisk, store: Store) -> None:
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    expected = begins(store, store.log.file_starts()[3])
    store.raise_head(store.log.file_starts()[3])
    assert told(store) == expected
    assert store.log.first_index == 0
    assert max(expected.values()) > 0
    store.raise_head(store.log.file_starts()[2])
    assert told(store) == expected, "it never falls"
    assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False)) == 0, (
        "no snapshot covers it"
    )
    store.snapshot.write(99, b"state")
    assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False)) == 3
    assert store.log.first_position == store.head_position
    assert told(store) == expected


def test_no_file_stays_for_its_age_and_none_goes_beyond_the_head(store: Store) -> None:
    files = [DataFile(NOW, 10 * number, 1000 * number) for number in range(1, 6)]

    def count(head: int, **changes: int) -> int:
        return files_to_delete(
            files,
            HeadLook(RetentionPolicy(), now_ms=NOW, is_delete_hour=False),
            used_ratio=0.1,
            covered_index=changes.get("covered", 1000),
            waiting_position=changes.get("waiting"),
            head_position=head,
        )

    assert [count(head) for head in (0, 999, 1000, 2500, 9000)] == [0, 0, 1, 2, 5]
    assert count(3000, waiting=500) == 3, "what has waited is gone for all"
    assert count(3000, covered=18) == 1


def test_a_backup_keeps_what_is_before_the_head(store: Store) -> None:
    send_many(store, 100)
    store.dispatch(99, NOW)
    flush(store)
    store.snapshot.write(99, b"state")
    store.raise_head(store.log.file_starts()[3])
    assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False, needed_from_index=1)) == 0
    assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False)) == 3


def test_files_that_go_before_the_head_is_reached_leave_no_queue_behind() -> None:
    """Behind a snapshot, say: what is before the head is dispatched once more, and deleted before all of it is."""
    store, _ = open_store(MemoryDisk())
    writer = Writer(store)
    for _ in range(3):
        writer.send("T", body=bytes(40))
    while len(store.log.file_starts()) < 5:
        writer.send("U", body=bytes(40))
    flush(store)
    store.snapshot.write(store.log.last_index, b"state")
    store.raise_head(store.log.file_starts()[3])
    _, second = beginnings_of(store)[1]
    store.dispatch(second, NOW)
    assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False)) > 0
    assert store.log.first_position < store.head_position
    store.dispatch(store.log.last_index, NOW)
    assert told(store) == begins(store, store.head_position)
    assert told(store)["T", 0] == 3


def test_very_many_queues_begin_at_the_head_in_turns(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr(store_module, "QUEUES_AT_ONCE", 2)
    writer = Writer(store)
    while len(store.log.file_starts()) < 4:
        for queue_id in range(5):
            writer.send("T", queue_id, body=bytes(40))
    store.dispatch(store.log.last_index, NOW)
    flush(store)
    store.snapshot.write(store.log.last_index, b"state")
    head = store.log.file_starts()[2]
    store.raise_head(head)
    begun = [sum(offset > 0 for offset in told(store).values())]
    while store.head_steps is not None:
        assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False)) == 0, (
            "they are asked first"
        )
        store.step_at_head()
        begun.append(sum(offset > 0 for offset in told(store).values()))
    assert begun == [2, 4, 5]
    assert told(store) == begins(store, head)
    assert store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False)) == 2


FORCED = RetentionPolicy(reserved_ms=1 << 60, delete_ratio=-1.0, force_ratio=-1.0)
"""Deletes whatever the age, as on a disk that is nearly full."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What queues are asked and what of them is removed, as it happens."""
    calls: list[str] = []

    def watch(name: str) -> None:
        original = getattr(ConsumeQueue, name)

        def watched(self: ConsumeQueue, *arguments: Any) -> Any:
            calls.append(name)
            return original(self, *arguments)

        monkeypatch.setattr(ConsumeQueue, name, watched)

    watch("first_staying")
    watch("remove_gone_files")
    return calls


def store_of_wide_topic(store: Store) -> None:
    writer = Writer(store)
    while len(store.log.file_starts()) < 6:
        for queue_id in range(5):
            writer.send("T", queue_id, body=bytes(40))
    store.dispatch(store.log.last_index, NOW)
    flush(store)
    store.snapshot.write(store.log.last_index, b"state")


def test_what_goes_beyond_the_head_very_many_queues_are_asked_in_turns(
    monkeypatch: pytest.MonkeyPatch, store: Store, asked: list[str]
) -> None:
    monkeypatch.setattr(store_module, "QUEUES_AT_ONCE", 2)
    store_of_wide_topic(store)
    look = HeadLook(replace(FORCED, files_per_pass=3), now_ms=NOW, is_delete_hour=False)
    wanted = store.head_wanted(look)
    expected = begins(store, wanted)
    counts = []
    while store.delete_head(look) == 0:
        assert set(told(store).values()) == {0}, (
            "only this node is without them: it tells so when they are gone"
        )
        assert store.log.first_position == 0
        counts.append(len(asked))
        while store.head_steps is not None:
            store.step_at_head()
            counts.append(len(asked))
    assert counts == [2, 4, 5]
    assert store.log.first_position == wanted
    assert told(store) == expected
    assert asked[5:] == ["remove_gone_files"] * 2
    while store.head_steps is not None:
        store.step_at_head()
    assert asked[5:] == ["remove_gone_files"] * 5


def test_a_head_that_is_raised_while_queues_are_asked_of_a_deletion_counts(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(store_module, "QUEUES_AT_ONCE", 2)
    store_of_wide_topic(store)
    look = HeadLook(replace(FORCED, files_per_pass=2), now_ms=NOW, is_delete_hour=False)
    assert store.delete_head(look) == 0
    head = store.log.file_starts()[4]
    store.raise_head(head)
    while store.log.first_position < head:
        store.delete_head(look)
        while store.head_steps is not None:
            store.step_at_head()
        if store.log.first_position <= head:
            assert told(store) == begins(store, head)


def test_where_the_head_is_damage_may_hide(disk: MemoryDisk, store: Store) -> None:
    """Of the last entry that is dispatched both the index unit and the entry itself are damaged."""
    send_many(store, 100)
    starts = store.log.file_starts()
    store.dispatch(60, NOW)
    flush(store)
    expected = begins(store, starts[2])
    position, size, _ = store.log.index.unit(60)
    index_start, at = divmod(60 * UNIT_BYTES, store.options.index_file_units * UNIT_BYTES)
    directory = store.options.dledger_directory
    unit = memoryview(
        disk.files[f"{directory}/index/{index_start * store.options.index_file_units * UNIT_BYTES:020d}"].seen
    )[at : at + UNIT_BYTES]
    mapped, start = store.log.file_of(position)
    entry = mapped.buffer[position - start :][:size]
    kept = bytes(unit), bytes(entry)
    unit[:], entry[:] = bytes(len(unit)), bytes(size)
    with pytest.raises(DamagedLogError):
        store.log.end_of(60)
    store.raise_head(starts[2])
    assert told(store) == expected
    store.dispatch(61, NOW)
    assert told(store) == begins(store, starts[2])
    unit[:], entry[:] = kept  # the group has sent it again
    store.dispatch(99, NOW)
    assert told(store) == begins(store, starts[2])


@pytest.mark.parametrize("derived_is_lost", [False, True])
def test_a_start_behind_an_older_snapshot_loses_no_unit(disk: MemoryDisk, derived_is_lost: bool) -> None:
    """The head was raised behind the snapshot: a queue that it has emptied sees its records come again."""
    store, _ = open_store(disk)
    writer = Writer(store)
    for _ in range(30):
        writer.send("T", body=bytes(40))
    store.dispatch(9, NOW)
    flush(store)
    store.snapshot.write(9, b"state")
    store.dispatch(29, NOW)
    writer.send("U", body=bytes(1800))
    head = store.log.position_of(30)
    store.dispatch(30, NOW)
    flush(store)
    store.raise_head(head)
    assert told(store) == {("T", 0): 30, ("U", 0): 0}
    checkpoint(store, 30)
    disk = disk.kill()
    if derived_is_lost:
        disk.discard("consumequeue")
    store, _ = open_store(disk)
    assert store.dispatched_index == 9
    for index in (15, 20):
        store.dispatch(index, NOW)
        flush(store)
    store.snapshot.write(20, b"state")
    checkpoint(store, 20)
    store, _ = open_store(disk.kill())
    store.dispatch(30, NOW)
    store.raise_head(head)
    Writer(store).send("T", body=b"next")
    store.dispatch(31, NOW)
    assert told(store) == {("T", 0): 30, ("U", 0): 0}
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == 31


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(40))
def test_wherever_it_stops_it_begins_at_the_head_again(rng: random.Random) -> None:
    life_of_a_store(rng)


def test_in_such_a_life_queues_are_looked_at_and_lose_their_beginnings() -> None:
    looks = [life_of_a_store(random.Random(seed)) for seed in range(10)]
    assert sum(looked for looked, _ in looks) > 200
    assert sum(shortened for _, shortened in looks) > 20


def life_of_a_store(rng: random.Random) -> tuple[int, int]:
    """Steps of a life at random: what is told of each queue is a function of its records and of the head.

    Returns how often a queue was looked at, and how often it had lost messages by then.
    """
    looked = shortened = 0
    disk = MemoryDisk()
    store, _ = open_store(disk)
    ends: dict[tuple[str, int], list[int]] = {}
    head, applied, snapshot_head, snapshot_index = 0, -1, 0, -1
    heads: dict[int, int] = {}
    snapshot_ends: dict[tuple[str, int], int] = {}
    for _ in range(40):
        match rng.randrange(7):
            case 0 | 1:
                writer = Writer(store)
                for _ in range(rng.randrange(1, 12)):
                    key = (f"T{rng.randrange(2)}", rng.randrange(2))
                    positions = ends.setdefault(key, [])
                    writer.ends[key] = len(positions)
                    writer.send(*key, body=bytes(rng.randrange(60)))
                    positions.append(store.log.position_of(store.log.last_index) + HEADER_BYTES)
            case 2 | 3:
                if store.log.last_index > applied:
                    applied = rng.randrange(applied, store.log.last_index) + 1
                    store.dispatch(applied, NOW)
                    for index in sorted(heads):
                        if index <= applied:
                            head = max(head, heads[index])
                    store.raise_head(head)
            case 4:
                # The entry that says it is the one that is applied last.
                starts = [start for start, index in beginnings_of(store) if index <= applied]
                if starts and applied == store.log.last_index:
                    heads[applied] = max(head, rng.choice(starts))
                    head = heads[applied]
                    store.raise_head(head)
            case 5:
                flush(store)
                if applied >= snapshot_index and store.dispatched_index == applied:
                    store.snapshot.write(applied, b"state")
                    snapshot_head, snapshot_index = head, applied
                    snapshot_ends = {
                        (queue.topic, queue.queue_id): queue.max_offset for queue in store.queues
                    }
                    store.delete_head(HeadLook(NOTHING, now_ms=NOW, is_delete_hour=False))
                if store.log.durable_index == store.log.last_index and rng.random() < 0.5:
                    checkpoint(store, applied)
            case 6:
                if snapshot_index >= 0:
                    disk = disk.kill()
                    store, report = open_store(disk)
                    # As each start of a node does it: nothing else knows where a queue went on whose messages are gone.
                    is_newer = snapshot_index > report.queues_index
                    restore_queue_ends(store.queues, snapshot_ends, is_newer=is_newer)
                    applied, head = store.dispatched_index, snapshot_head
                    heads = {index: to for index, to in heads.items() if index <= store.log.last_index}
                    store.raise_head(head)
                    last = store.log.last_index
                    if applied < last:
                        store.dispatch(last, NOW)
                        applied = last
                        head = max([head, *heads.values()])
                        store.raise_head(head)
        for key, positions in ends.items():
            queue = store.queues.get(*key)
            known = (
                [at for at in positions if at <= store.log.position_of(applied) + HEADER_BYTES]
                if applied >= 0
                else []
            )
            if queue is not None and known and store.dispatched_index == applied:
                gone = sum(at < max(head, store.log.first_position) for at in known)
                assert (queue.min_offset, queue.max_offset) == (gone, len(known))
                assert [unit[0] for unit in units_of(queue)] == known[gone:]
                looked += 1
                shortened += gone > 0
    return looked, shortened
