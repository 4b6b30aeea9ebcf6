"""The entry log's recovery after a crash: torn tails, damage, missing files, lost pages."""

import random
from dataclasses import replace

import pytest

from log.entries import cuts
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import record_at
from log.entries.entry_recovery import LogRecovery, RecoveryKind
from log.errors import DamagedRangeError, DamagedStateError, DiskError
from log.formats.layout import HEADER_BYTES
from log.options import StoreOptions
from tests.log.memory_disk import PAGE, MemoryDisk, MemoryMapped

FILE = 1024
OPTIONS = StoreOptions(
    data_file_bytes=FILE,
    index_file_units=8,
    prepare_ahead_bytes=512,
    prepare_step_bytes=128,
    data_mappings=2,
)
BODIES = [bytes([number]) * (30 + 7 * number % 90) for number in range(1, 31)]


def written(bodies: list[bytes] = BODIES) -> MemoryDisk:
    disk = MemoryDisk()
    log, _ = EntryLog.open(disk, "d", OPTIONS)
    for number, body in enumerate(bodies):
        log.append(1 + number // 10, body)
    return disk


def recover(
    disk: MemoryDisk, checkpoint: int | None = None, *, clean: bool = False
) -> tuple[EntryLog, LogRecovery]:
    return EntryLog.open(disk, "d", OPTIONS, clean_stop=clean, checkpoint_index=checkpoint)


def contents(log: EntryLog) -> list[bytes]:
    return [
        bytes(record_at(log, log.position_of(index) + HEADER_BYTES))
        for index in range(log.first_index, log.last_index + 1)
    ]


def place_of(index: int, bodies: list[bytes] = BODIES) -> tuple[str, int]:
    """(path, offset in the file) of an entry."""
    log, _ = EntryLog.open(written(bodies), "d", OPTIONS)
    position = log.position_of(index)
    return f"d/data/{position - position % FILE:020d}", position % FILE


def flip(disk: MemoryDisk, path: str, at: int, bit: int = 0) -> None:
    disk.files[path].seen[at] ^= 1 << bit


def test_a_sound_log_comes_back_whole() -> None:
    log, report = recover(written())
    assert report.kind is RecoveryKind.CLEAN
    assert report.damaged_file is None
    assert contents(log) == BODIES
    assert log.term_starts() == [(0, 1), (10, 2), (20, 3)]
    assert log.append(3, b"more") == len(BODIES)


@pytest.mark.parametrize("clean", [False, True])
def test_what_a_start_finds_in_the_page_cache_is_stored_again(
    monkeypatch: pytest.MonkeyPatch, *, clean: bool
) -> None:
    """Behind a flush that failed pages may be clean that are not on the disk: a flush alone writes none of them. What a
    stop in order vouches for needs it not."""
    disk = written()
    stored: set[tuple[str, int]] = set()

    def rewrite(mapped: MemoryMapped, begin: int, end: int) -> None:
        stored.update((mapped.path, byte) for byte in range(begin, end))

    monkeypatch.setattr(MemoryMapped, "rewrite", rewrite)
    log, _ = recover(disk, clean=clean)
    last = log.position_of(log.last_index)
    entry = {
        (f"d/data/{last - last % FILE:020d}", byte) for byte in range(last % FILE, log.end_position % FILE)
    }
    assert entry
    assert stored & entry == (set() if clean else entry)


@pytest.mark.parametrize("from_end", [1, 2])
def test_every_flipped_byte_in_the_last_entries_is_found(from_end: int) -> None:
    index = len(BODIES) - from_end
    path, begin = place_of(index)
    for at in range(begin, begin + HEADER_BYTES + len(BODIES[index])):
        disk = written()
        flip(disk, path, at, bit=at % 8)
        log, report = recover(disk)
        if from_end == 1:
            assert report.kind is RecoveryKind.TORN_TAIL
        else:
            assert report.kind is RecoveryKind.DAMAGED
            assert report.later_index == len(BODIES) - 1
        assert (report.damaged_file, report.damaged_at) == (path, begin)
        assert report.last_good_index == log.last_index == index - 1
        assert contents(log) == BODIES[:index]


def test_a_torn_tail_is_cut_and_stays_cut() -> None:
    path, begin = place_of(len(BODIES) - 1)
    for kept in range(1, HEADER_BYTES + len(BODIES[-1])):
        disk = written()
        file = disk.files[path].seen
        file[begin + kept :] = bytes(len(file) - begin - kept)
        log, report = recover(disk)
        assert log.last_index == len(BODIES) - 2
        assert report.kind in (RecoveryKind.TORN_TAIL, RecoveryKind.CLEAN)
        assert not any(file[begin:])
        assert log.append(3, b"new") == len(BODIES) - 1
        again, report = recover(disk.kill())
        assert report.kind is RecoveryKind.CLEAN
        assert contents(again) == [*BODIES[:-1], b"new"]


def test_entries_noted_by_a_checkpoint_are_never_taken_for_a_torn_tail() -> None:
    path, begin = place_of(len(BODIES) - 1)
    for damage in ("flip", "zero"):
        disk = written()
        if damage == "flip":
            flip(disk, path, begin + 50)
        else:
            disk.files[path].seen[begin:] = bytes(FILE - begin)
        before = bytes(disk.files[path].seen)
        log, report = recover(disk, checkpoint=len(BODIES) - 1)
        assert report.kind is RecoveryKind.DAMAGED
        assert str(len(BODIES) - 1) in report.reason
        assert disk.read(path) == before, "damage is left for somebody to look at"
        with pytest.raises(AssertionError, match="cut_damage comes before any append"):
            log.append(3, b"x")
        cuts.cut_damage(log)
        assert log.append(3, b"x") == len(BODIES) - 1


def test_damage_in_the_middle_is_reported_and_cut_only_when_told() -> None:
    path, begin = place_of(12)
    disk = written()
    flip(disk, path, begin + 60)
    log, report = recover(disk)
    assert report.kind is RecoveryKind.DAMAGED
    assert (report.damaged_file, report.damaged_at) == (path, begin)
    assert "checksum" in report.reason
    assert contents(log) == BODIES[:12]
    assert log.term_starts() == [(0, 1), (10, 2)]
    cuts.cut_damage(log)
    for number in range(12, len(BODIES)):
        log.append(1 + number // 10, BODIES[number])
    again, report = recover(disk.kill())
    assert report.kind is RecoveryKind.CLEAN
    assert contents(again) == BODIES


def test_a_group_repairs_what_was_cut() -> None:
    leader, _ = recover(written())
    path, begin = place_of(9)
    disk = written()
    flip(disk, path, begin + HEADER_BYTES)
    log, _ = recover(disk)
    cuts.cut_damage(log)
    while log.last_index < leader.last_index:
        first = log.last_index + 1
        last = leader.run(first, leader.last_index, 300).last_index
        log.append_range(
            log.check_range(bytes(leader.run(first, last).body), first, leader.position_of(first))
        )
    assert contents(log) == BODIES
    assert log.end_position == leader.end_position
    assert log.term_starts() == leader.term_starts()


def test_a_zeroed_page_of_any_file_is_damage_if_something_follows() -> None:
    starts = sorted(written().list("d/data"))
    assert len(starts) > 2
    for number, name in enumerate(starts):
        disk = written()
        disk.files[f"d/data/{name}"].seen[: FILE // 2] = bytes(FILE // 2)
        log, report = recover(disk, checkpoint=-1)
        assert contents(log) == BODIES[: log.last_index + 1]
        assert report.last_good_index < len(BODIES) - 1
        if number < len(starts) - 1:
            assert report.kind is RecoveryKind.DAMAGED
        assert report.kind is not RecoveryKind.CLEAN


def test_a_missing_data_file_is_named() -> None:
    names = written().list("d/data")[:-1]
    assert len(names) > 1
    for name in names:
        disk = written()
        disk.remove(f"d/data/{name}")
        log, report = recover(disk)
        assert report.kind is RecoveryKind.DAMAGED
        assert report.damaged_file == f"d/data/{name}"
        assert "missing" in report.reason
        assert contents(log) == BODIES[: log.last_index + 1]
        cuts.cut_damage(log)
        assert log.append(3, b"x") == report.last_good_index + 1


def test_a_missing_last_data_file_is_damage_if_a_checkpoint_had_it() -> None:
    disk = written()
    disk.remove(f"d/data/{disk.list('d/data')[-1]}")
    _, report = recover(disk, checkpoint=len(BODIES) - 1)
    assert report.kind is RecoveryKind.DAMAGED


def test_a_truncated_data_file_is_found() -> None:
    name = written().list("d/data")[0]
    for size in (0, 1, 47, 100, FILE // 2):
        disk = written()
        file = disk.files[f"d/data/{name}"]
        file.seen = file.seen[:size]
        log, report = recover(disk)
        assert report.kind is RecoveryKind.DAMAGED
        assert report.damaged_file == f"d/data/{name}"
        assert contents(log) == BODIES[: log.last_index + 1]


@pytest.mark.parametrize("file_bytes", [2 * FILE, 3 * FILE])
def test_a_log_whose_files_have_another_size_is_refused_and_left_alone(file_bytes: int) -> None:
    """As if the first file went on where it ends: all behind it would be cut off, and its own size was lost."""
    disk = written()
    with pytest.raises(DiskError, match=f"{file_bytes} bytes"):
        EntryLog.open(disk, "d", replace(OPTIONS, data_file_bytes=file_bytes))
    log, report = recover(disk)
    assert report.kind is RecoveryKind.CLEAN
    assert contents(log) == BODIES


@pytest.mark.parametrize("units", [3, 16, 24])
def test_index_files_of_another_size_are_made_anew(units: int) -> None:
    log, report = EntryLog.open(written(), "d", replace(OPTIONS, index_file_units=units))
    assert report.kind is RecoveryKind.CLEAN
    assert contents(log) == BODIES


def test_missing_stale_or_damaged_index_files_are_rebuilt() -> None:
    names = written().list("d/index")
    assert len(names) > 1
    sound = {name: written().read(f"d/index/{name}") for name in names}
    for name in names:
        for damage in ("missing", "zero", "short"):
            disk = written()
            path = f"d/index/{name}"
            if damage == "missing":
                disk.remove(path)
            elif damage == "zero":
                disk.files[path].seen[:] = bytes(len(sound[name]))
            else:
                disk.files[path].seen = disk.files[path].seen[:40]
            log, report = recover(disk)
            assert report.kind is RecoveryKind.CLEAN
            assert report.rebuilt_units > 0
            assert contents(log) == BODIES
            assert {name: disk.read(f"d/index/{name}") for name in disk.list("d/index")} == sound


def test_a_clean_stop_bounds_the_scan() -> None:
    last = len(BODIES) - 1
    _, unclean = recover(written(), checkpoint=last)
    log, clean = recover(written(), checkpoint=last, clean=True)
    assert clean.scanned_entries < unclean.scanned_entries < len(BODIES)
    assert contents(log) == BODIES
    _, behind = recover(written(), checkpoint=2)
    assert behind.scanned_entries == len(BODIES), "never less than what came after the checkpoint"


@pytest.mark.parametrize("seed", range(60))
def test_power_failures_lose_nothing_that_was_flushed(seed: int) -> None:
    """Unflushed pages arrive or not, at random; what was durable is there, and what is there was written."""
    rng = random.Random(seed)
    options = StoreOptions(
        data_file_bytes=4 * PAGE, index_file_units=64, prepare_ahead_bytes=PAGE, prepare_step_bytes=PAGE
    )
    disk = MemoryDisk()
    log, _ = EntryLog.open(disk, "d", options)
    model: list[tuple[int, bytes]] = []
    term = 1
    durable = -1
    for _ in range(rng.randrange(1, 60)):
        action = rng.random()
        if action < 0.8:
            body = rng.randbytes(rng.randrange(1, 1500))
            log.append(term, body)
            model.append((term, body))
        elif action < 0.9:
            job = log.flushes.job()
            if job is not None:
                job.run()
                durable = log.flushes.done(job)
        elif durable < log.last_index:
            cuts.truncate(log, rng.randrange(durable, log.last_index))
            del model[log.last_index + 1 :]
            term += 1
    share = rng.random()
    after = disk.crash(lambda path, page: rng.random() < share)
    log, report = EntryLog.open(after, "d", options)
    assert log.last_index >= durable
    assert log.last_index < len(model)
    for index in range(log.last_index + 1):
        expected_term, expected = model[index]
        assert log.term_of(index) == expected_term
        assert bytes(record_at(log, log.position_of(index) + HEADER_BYTES)) == expected
    cuts.cut_damage(log)
    log.append(term, b"goes on")
    again, report = EntryLog.open(after.kill(), "d", options)
    assert report.kind is RecoveryKind.CLEAN
    assert again.last_index == log.last_index


def test_a_truncation_is_durable_when_it_returns() -> None:
    """Or entries of an older term could come back behind new ones; no simulation sees it: docs/planted-mistakes.md."""
    options = StoreOptions(data_file_bytes=4 * PAGE, index_file_units=64)
    disk = MemoryDisk()
    log, _ = EntryLog.open(disk, "d", options)
    for number in range(10):
        log.append(1, bytes([number]) * 1000)
    job = log.flushes.job()
    assert job is not None
    job.run()
    assert log.flushes.done(job) == 9
    cuts.truncate(log, 2)
    again, report = EntryLog.open(disk.crash(lambda path, page: False), "d", options)
    assert (again.last_index, report.kind) == (2, RecoveryKind.CLEAN)


@pytest.mark.parametrize("damaged", [False, True])
def test_the_unit_of_an_entry_that_was_lost_does_not_speak_against_the_next_one(damaged: bool) -> None:
    """Power fails twice: behind a write of the index that the entry did not have, and before one of the index again."""
    disk = MemoryDisk()
    log, _ = recover(disk)
    for body in (b"kept", b"lost", b"lost, too"):
        log.append(1, body)
    path, begin = "d/data/00000000000000000000", log.position_of(1)
    if damaged:
        flip(disk, path, begin + HEADER_BYTES)
    else:
        disk.files[path].seen[begin:] = bytes(FILE - begin)
    disk = disk.kill()
    log, report = recover(disk)
    assert report.kind is (RecoveryKind.DAMAGED if damaged else RecoveryKind.CLEAN)
    cuts.cut_damage(log)
    assert log.last_index == 0
    log.append(2, b"next")
    job = log.flushes.job()
    assert job is not None
    job.run()
    assert log.flushes.done(job) == 1
    log, report = recover(disk.crash(lambda path, page: False))
    assert report.kind is RecoveryKind.CLEAN
    assert contents(log) == [b"kept", b"next"]
    assert log.last_term == 2


def test_a_reset_that_a_crash_interrupts_is_reported_until_it_is_repeated() -> None:
    class Crash(Exception):  # noqa: N818
        pass

    def crash() -> None:
        raise Crash

    disk = written()
    log, _ = recover(disk)
    with pytest.raises(Crash):
        cuts.reset(log, 100, 5000, 4, crash)
    for _ in range(2):
        disk = disk.kill()
        log, report = recover(disk, checkpoint=len(BODIES) - 1)
        assert report.kind is RecoveryKind.RESET_PENDING
        assert (log.first_index, log.last_index, log.end_position) == (100, 99, 5000)
        with pytest.raises(AssertionError, match="cut_damage comes before any append"):
            log.append(4, b"x")
    cuts.reset(log, 200, 7000, 5)
    log.append(5, b"x")
    log, report = recover(disk.kill())
    assert report.kind is RecoveryKind.CLEAN
    assert (log.first_index, log.last_index, log.first_position, log.base_term) == (200, 200, 7000, 5)


def test_a_damaged_begin_file_is_an_error() -> None:
    disk = written()
    flip(disk, "d/begin", 12)
    with pytest.raises(DamagedStateError):
        recover(disk)


def test_a_store_without_a_begin_file_begins_with_its_first_file() -> None:
    disk = written()
    log, _ = recover(disk)
    cuts.delete_before(log, 20)
    first, position = log.first_index, log.first_position
    assert first > 0
    disk.remove("d/begin")
    log, report = recover(disk.kill())
    assert report.kind is RecoveryKind.CLEAN
    assert (log.first_index, log.first_position) == (first, position)


def test_a_crash_while_files_are_deleted_leaves_the_new_beginning() -> None:
    disk = written()
    old = {path: bytes(file.seen) for path, file in disk.files.items()}
    log, _ = recover(disk)
    cuts.delete_before(log, 20)
    for path, data in old.items():  # the removals were lost, the new beginning was not
        if path not in disk.files:
            disk.open(path, len(data), create=True).buffer[:] = data
    again, report = recover(disk.kill())
    assert report.kind is RecoveryKind.CLEAN
    assert again.first_index == log.first_index
    assert contents(again) == BODIES[log.first_index :]
    assert len(disk.kill().list("d/data")) >= len(again.file_starts())


def test_garbage_from_a_peer_never_gets_in() -> None:
    log, _ = recover(written())
    rng = random.Random(1)
    for _ in range(200):
        with pytest.raises(DamagedRangeError):
            log.check_range(rng.randbytes(rng.randrange(200)), log.last_index + 1, log.end_position)
