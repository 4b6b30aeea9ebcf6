"""The note of how far the log is durable: what it tells of damage at the end, and that it never claims too much."""

import pytest

from log.entries import cuts
from log.entries.durable_note import NOTE_FILE
from log.entries.entry_log import EntryLog
from log.entries.entry_recovery import LogRecovery, RecoveryKind
from log.errors import FlushError
from log.options import StoreOptions
from log.store import Store
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import NOW, TINY, Writer

FILE = 1024
OPTIONS = StoreOptions(
    data_file_bytes=FILE,
    index_file_units=16,
    prepare_ahead_bytes=512,
    prepare_step_bytes=128,
    data_mappings=2,
)
NOTE = f"d/{NOTE_FILE}"


def opened(disk: MemoryDisk) -> tuple[EntryLog, LogRecovery]:
    return EntryLog.open(disk, "d", OPTIONS)


def append(log: EntryLog, count: int, term: int = 1) -> None:
    for _ in range(count):
        log.append(term, b"entry %03d" % (log.last_index + 1))


def flush(log: EntryLog) -> None:
    job = log.flushes.job()
    assert job is not None
    job.run()
    log.flushes.done(job)


def flushed(count: int = 10, *, behind: int = 0) -> tuple[MemoryDisk, EntryLog]:
    """A log of `count` entries that a flush covers, and `behind` that none does."""
    disk = MemoryDisk()
    log, _ = opened(disk)
    append(log, count)
    flush(log)
    append(log, behind)
    return disk, log


def empty_from(disk: MemoryDisk, log: EntryLog, index: int) -> None:
    """Makes zeros of all from an entry on, as if it had never been written."""
    file = disk.files[f"d/data/{0:020d}"]
    begin = log.position_of(index)
    assert log.end_position < FILE
    file.seen[begin:] = file.durable[begin:] = bytes(FILE - begin)


@pytest.mark.parametrize("behind", [0, 2])
@pytest.mark.parametrize("gone", ["zeros", "a bit"])
def test_damage_in_the_last_entries_that_a_flush_covered_is_no_unfinished_write(
    behind: int, gone: str
) -> None:
    disk, log = flushed(behind=behind)
    if gone == "a bit":
        if behind:
            empty_from(disk, log, 10)
        disk.files[f"d/data/{0:020d}"].seen[log.position_of(9) + 50] ^= 1
    else:
        empty_from(disk, log, 8)
    before = bytes(disk.files[f"d/data/{0:020d}"].seen)
    log, report = opened(disk.kill())
    assert report.kind is RecoveryKind.DAMAGED
    assert report.reason.endswith("but a flush has covered entries up to 9")
    assert log.last_index == (8 if gone == "a bit" else 7)
    assert bytes(disk.files[f"d/data/{0:020d}"].seen) == before, "nothing was changed: an operator may look"


def test_damage_that_was_cut_is_found_once() -> None:
    disk, log = flushed()
    empty_from(disk, log, 8)
    log, _ = opened(disk)
    cuts.cut_damage(log)
    again, report = opened(disk.crash(lambda path, page: False))
    assert (report.kind, again.last_index) == (RecoveryKind.CLEAN, 7)
    append(log, 1)
    flush(log)
    empty_from(disk, log, 8)
    assert opened(disk.kill())[1].kind is RecoveryKind.DAMAGED, "the new epoch has a note, too"


def test_what_no_flush_covered_is_an_unfinished_write() -> None:
    disk, log = flushed(behind=3)
    disk.files[f"d/data/{0:020d}"].seen[log.position_of(10) + 50] ^= 1
    empty_from(disk, log, 11)
    log, report = opened(disk.kill())
    assert (report.kind, log.last_index) == (RecoveryKind.TORN_TAIL, 9)


def test_a_power_failure_leaves_the_note_that_was_flushed() -> None:
    disk, log = flushed()
    assert log.flushes.note_waits
    job = log.flushes.note_job()
    assert job is not None
    assert log.flushes.job() is None, "one job is out at a time"
    job.run()
    log.flushes.done(job)
    assert (log.flushes.note_waits, log.flushes.note_job()) == (False, None)
    append(log, 2)
    flush(log)
    after = disk.crash(lambda path, page: False)
    empty_from(after, log, 10)
    again, report = opened(after)
    assert (report.kind, again.last_index) == (RecoveryKind.CLEAN, 9), (
        "nothing durable says that more was there"
    )
    after = disk.crash(lambda path, page: False)
    empty_from(after, log, 9)
    assert opened(after)[1].kind is RecoveryKind.DAMAGED


def test_an_orderly_stop_leaves_the_whole_note() -> None:
    disk = MemoryDisk()
    store, _ = Store.open(disk, TINY, NOW)
    writer = Writer(store)
    for _ in range(3):
        writer.send(body=b"body")
    store.close(-1)
    note = f"{TINY.dledger_directory}/{NOTE_FILE}"
    assert disk.files[note].durable == disk.files[note].seen != bytes(20)


def test_an_entry_that_was_cut_while_its_flush_ran_is_not_noted() -> None:
    disk, log = flushed()
    append(log, 3)
    job = log.flushes.job()
    assert job is not None
    cuts.truncate(log, 7)
    append(log, 1, term=2)
    job.run()
    log.flushes.done(job)
    again, report = opened(disk.kill())
    assert (report.kind, again.last_index) == (RecoveryKind.CLEAN, 8)
    empty_from(disk, log, 8)
    assert opened(disk.kill())[1].kind is not RecoveryKind.DAMAGED
    empty_from(disk, log, 7)
    assert opened(disk.kill())[1].kind is RecoveryKind.DAMAGED


def test_a_truncation_that_cannot_note_it_changes_nothing_of_the_log() -> None:
    disk, log = flushed()
    before = bytes(disk.files[f"d/data/{0:020d}"].seen)
    disk.flush_fails = True
    with pytest.raises(FlushError):
        cuts.truncate(log, 5)
    assert bytes(disk.files[f"d/data/{0:020d}"].seen) == before


def test_a_log_that_was_reset_does_not_miss_what_it_had() -> None:
    disk, log = flushed()
    cuts.reset(log, 5, 512, 1)
    again, report = opened(disk.kill())
    assert (report.kind, again.last_index) == (RecoveryKind.CLEAN, 4)


@pytest.mark.parametrize("at", [0, 12, 19])
def test_a_damaged_note_says_nothing(at: int) -> None:
    disk, log = flushed()
    disk.files[NOTE].seen[at] ^= 0x10
    empty_from(disk, log, 8)
    assert opened(disk.kill())[1].kind is RecoveryKind.CLEAN
