"""Power fails in the middle of each cut of the log: at every step, with every part of what is not durable yet.

A step is whatever makes something durable. Power fails right before it, and once more behind the last one. What is not
durable then, pages and names of files, arrives on the disk or not, each by itself: all combinations are tried. From
each the store must start, with all that a flush covered and that the cut was to leave.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest

from log.entries import cuts
from log.entries.entry_reads import record_at
from log.entries.entry_recovery import RecoveryKind
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.formats.layout import HEADER_BYTES
from log.notes.hard_state import StoredHardState
from log.notes.snapshot import Snapshot
from log.options import StoreOptions
from log.store import RecoveryReport, Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer, queue_ends

Change = tuple[str, int]

FLUSHED = 39
"""The last entry that a flush covered; some follow that only the page cache has, as always with asynchronous flush."""

ALL_TRIED_MAX = 9
"""Of more changes that may arrive or not, some combinations are drawn."""


class PowerFailure(BaseException):
    """Ends the world in the middle of a cut."""


class FailingDisk(MemoryDisk):
    """Fails before the step that `steps_left` counts down to."""

    steps_left = -1

    def step(self) -> None:
        if not self.steps_left:
            raise PowerFailure
        self.steps_left -= 1


def open_store(disk: MemoryDisk, options: StoreOptions) -> tuple[Store, RecoveryReport]:
    store, report = Store.open(disk, options, NOW)
    assert "a flush has covered" not in report.log.reason, "nothing that was cut is missed"
    return store, report


def started(disk: MemoryDisk, options: StoreOptions) -> Store:
    """Starts as a node does whose group has what is given up: behind a gap of what was not flushed, or half cut."""
    store, report = open_store(disk, options)
    assert not report.needs_snapshot
    store.cut_damage()
    return store


def flush(store: Store) -> None:
    job = store.log.flushes.job()
    assert job is not None
    job.run()
    store.log.flushes.done(job)


def send(store: Store, number: int, word: bytes, term: int = 1) -> None:
    """Appends a message; those of one number have one size, so that one could stand in another's place."""
    Writer(store, term).send(body=b"%s %02d" % (word, number) * 15, properties=b"KEYS\x01k%02d\x02" % number)


def filled(options: StoreOptions, *, noted: bool = True) -> tuple[FailingDisk, Store]:
    """A store with entries up to `FLUSHED`, and 3 more; `noted`: the first 36 are in a checkpoint and a snapshot."""
    disk = FailingDisk()
    store, _ = open_store(disk, options)
    store.hard_state.write(StoredHardState(1, "n0"))
    for number in range(FLUSHED + 1):
        send(store, number, b"flushed")
    flush(store)
    store.log.flushes.flush_note()
    if noted:
        store.dispatch(35, NOW)
        store.snapshot.write(35, b"state")
        job = store.checkpoints.job(35)
        assert job is not None
        job.run()
        store.checkpoints.done(job)
    for number in range(FLUSHED + 1, FLUSHED + 4):
        send(store, number, b"written")
    store.log.flushes.write_back()
    for path in store.log.unit_files_since(0):
        disk.flush_file(path)  # nobody asks for that, and the kernel may do it at any time
    return disk, store


def bodies(store: Store, last_index: int | None = None) -> dict[int, tuple[int, bytes]]:
    """The entries' terms and records, by index."""
    log = store.log
    indices = range(log.first_index, 1 + (log.last_index if last_index is None else last_index))
    return {
        index: (log.term_of(index), bytes(record_at(log, log.position_of(index) + HEADER_BYTES)))
        for index in indices
    }


def disks_after(
    prepare: Callable[[], tuple[FailingDisk, Store]], cut: Callable[[Store], object]
) -> Iterator[tuple[bool, MemoryDisk]]:
    """Yields (True if the cut had ended, the disk) for each step and each part of what was not durable then."""
    for steps in range(100):
        disk, store = prepare()
        disk.steps_left = steps
        ended = False
        try:
            cut(store)
            ended = True
        except PowerFailure:
            pass
        for arrived in combinations(changes(disk)):
            yield ended, disk.crash(only(arrived))
        if ended:
            assert steps > 0, "a cut takes some steps"
            return


def only(arrived: set[Change]) -> Callable[[str, int], bool]:
    """What `MemoryDisk.crash` asks: which changes arrive."""
    return lambda path, page: (path, page) in arrived


def changes(disk: MemoryDisk) -> list[Change]:
    """All that is not durable."""
    found: list[Change] = []

    def ask(path: str, page: int) -> bool:
        found.append((path, page))
        return True

    disk.crash(ask)
    return found


def combinations(found: list[Change]) -> Iterator[set[Change]]:
    if len(found) <= ALL_TRIED_MAX:
        for chosen in product((False, True), repeat=len(found)):
            yield {change for change, arrives in zip(found, chosen, strict=True) if arrives}
        return
    rng = random.Random(1)
    yield from ({change} for change in found)
    yield from (set(found) - {change} for change in found)
    for _ in range(1 << ALL_TRIED_MAX):
        share = rng.random()
        yield {change for change in found if rng.random() < share}


@pytest.fixture(params=[False, True], ids=["mapped", "write buffer"])
def options(request: pytest.FixtureRequest) -> StoreOptions:
    return replace(TINY, write_buffer=request.param)


def goes_on(store: Store, disk: MemoryDisk, options: StoreOptions) -> None:
    """The store takes a new leader's entries, and the next start finds them."""
    send(store, min(store.log.last_index + 1, 99), b"goes on", term=9)
    flush(store)
    expected = bodies(store)
    again, report = open_store(disk.crash(lambda path, page: False), options)
    assert report.log.kind is RecoveryKind.CLEAN
    assert bodies(again) == expected


@pytest.mark.slow
def test_the_head_goes(options: StoreOptions) -> None:
    _, store = filled(options)
    whole = bodies(store)
    policy = RetentionPolicy(reserved_ms=1000, files_per_pass=100)

    def cut(store: Store) -> None:
        assert store.delete_head(HeadLook(policy, now_ms=NOW + 10**9, is_delete_hour=True)) >= 3

    begins = set()
    for ended, after in disks_after(lambda: filled(options), cut):
        store = started(after, options)
        assert store.log.last_index >= FLUSHED
        found = bodies(store, FLUSHED)
        assert found == {index: whole[index] for index in found}
        begins.add((ended, store.log.first_index))
        # What is not in the queue's files any more is built again, from the log's beginning on.
        store.dispatch(FLUSHED, NOW)
        queue = store.queues.get("T", 0)
        assert queue is not None
        assert queue.max_offset == FLUSHED + 1
        assert queue.min_offset <= store.log.first_index
        for index in found:
            unit = queue.unit(index)
            assert unit is not None
            assert unit[0] == store.log.position_of(index) + HEADER_BYTES
            assert store.find_by_key("T", f"k{index:02d}", 64)[-1:] == [unit[0]]
        goes_on(store, after, options)
    _, store = filled(options)
    cut(store)
    first = store.log.first_index
    assert first > 10
    assert begins == {(False, 0), (False, first), (True, first)}


@pytest.mark.parametrize("last_index", [41, 38, 20, 3, -1])
def test_the_tail_goes_and_another_leaders_comes(options: StoreOptions, last_index: int) -> None:
    # Nothing of it is committed, so nothing is dispatched or noted either.
    def prepare() -> tuple[FailingDisk, Store]:
        return filled(options, noted=False)

    def cut(store: Store) -> None:
        cuts.truncate(store.log, last_index)
        send(store, last_index + 1, b"another", term=2)
        flush(store)

    _, store = prepare()
    before = bodies(store)
    cut(store)
    behind = bodies(store)
    for ended, after in disks_after(prepare, cut):
        store = started(after, options)
        found = bodies(store)
        assert store.log.last_index >= min(last_index, FLUSHED)
        assert all(entry in (before.get(index), behind.get(index)) for index, entry in found.items())
        if ended:
            assert found == behind
        goes_on(store, after, options)


@pytest.mark.slow
def test_everything_goes_for_a_snapshot(options: StoreOptions) -> None:
    _, store = filled(options)
    whole = bodies(store)

    def cut(store: Store) -> None:
        store.reset(200, 10_240, 7, {("T", 0): 55}, Snapshot(199, b"leader's"))

    kinds = set()
    for ended, after in disks_after(lambda: filled(options), cut):
        store, report = open_store(after, options)
        kinds.add((ended, report.needs_snapshot, store.log.first_index))
        if store.log.first_index == 0:
            assert store.log.last_index >= FLUSHED
            assert bodies(store, FLUSHED) == {index: whole[index] for index in range(FLUSHED + 1)}
            continue
        if report.needs_snapshot:
            assert store.log.last_index == 199
            cut(store)
        assert store.snapshot.read() == Snapshot(199, b"leader's")
        assert queue_ends(store) == {("T", 0): 55}
        goes_on(store, after, options)
    assert kinds == {(False, False, 0), (False, True, 200), (True, False, 200)}


def damaged(options: StoreOptions) -> tuple[FailingDisk, Store]:
    """A store that was started on a log whose entry 30 is damaged."""
    disk, store = filled(options)
    position = store.log.position_of(30)
    start = position - position % options.data_file_bytes
    after = disk.crash(lambda path, page: True)
    path = f"{options.dledger_directory}/data/{start:020d}"
    after.files[path].seen[position - start + HEADER_BYTES] ^= 1
    after.files[path].durable[:] = after.files[path].seen
    failing = FailingDisk()
    failing.files = after.files
    store, report = open_store(failing, options)
    assert report.log.kind is RecoveryKind.DAMAGED
    assert report.log.last_good_index == 29
    return failing, store


@pytest.mark.slow
def test_what_is_behind_damage_goes(options: StoreOptions) -> None:
    _, store = filled(options)
    whole = bodies(store)
    for _, after in disks_after(lambda: damaged(options), lambda store: store.cut_damage()):
        store = started(after, options)
        assert store.log.last_index == 29
        assert bodies(store) == {index: whole[index] for index in range(30)}
        goes_on(store, after, options)
