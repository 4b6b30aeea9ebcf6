"""The disk model keeps the promises of `log.files.disk`, and only those."""

from random import Random

import pytest

from log.errors import DiskError, DiskFullError, FlushError, StoreLockedError
from simulation.machines.inode import PAGE_BYTES
from simulation.machines.simulated_disk import PowerFailure, SimulatedDisk, SimulatedFile

_SIZE = 8 * PAGE_BYTES


def make(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(Random(seed))


def durable_file(disk: SimulatedDisk) -> None:
    file = disk.open("a/file", _SIZE, create=True)
    file.flush(0, _SIZE)
    disk.sync_directory("a")


def test_what_was_flushed_survives_a_power_failure() -> None:
    for seed in range(30):
        disk = make(seed)
        durable_file(disk)
        file = disk.open("a/file", _SIZE, create=False)
        file.buffer[100:200] = b"x" * 100
        file.flush(100, 200)
        disk.lose_power()
        assert disk.read("a/file")[100:200] == b"x" * 100


def test_what_was_not_flushed_may_be_lost_kept_or_torn_page_by_page() -> None:
    outcomes: dict[str, None] = {}
    for seed in range(200):
        disk = make(seed)
        durable_file(disk)
        file = disk.open("a/file", _SIZE, create=False)
        file.buffer[: 2 * PAGE_BYTES] = b"x" * 2 * PAGE_BYTES
        disk.lose_power()
        pages = [disk.read("a/file")[begin : begin + PAGE_BYTES] for begin in (0, PAGE_BYTES)]
        kept = [page.count(b"x") for page in pages]
        assert all(count % 512 == 0 for count in kept)
        if kept == [0, PAGE_BYTES]:
            outcomes["reordered"] = None
        for count in kept:
            outcomes["lost" if not count else "kept" if count == PAGE_BYTES else "torn"] = None
    assert sorted(outcomes) == ["kept", "lost", "reordered", "torn"]


def test_a_process_crash_loses_nothing() -> None:
    disk = make()
    file = disk.open("a/file", _SIZE, create=True)
    file.buffer[:3] = b"abc"
    disk.lose_process()
    assert disk.read("a/file")[:3] == b"abc"


def test_names_survive_once_their_directory_is_synced() -> None:
    kept = 0
    for seed in range(50):
        disk = make(seed)
        disk.open("a/new", _SIZE, create=True)
        durable_file(disk)
        disk.open("b/new", _SIZE, create=True)
        disk.remove("a/file")
        disk.lose_power()
        assert disk.exists("a/new")
        kept += disk.exists("b/new")
    assert 0 < kept < 50


def test_a_removed_tree_is_gone_once_its_parent_is_synced() -> None:
    disk = make()
    durable_file(disk)
    disk.discard("a")
    disk.sync_directory(".")
    disk.lose_power()
    assert not disk.exists("a")


def test_a_renamed_file_has_one_of_two_contents_until_its_directory_is_synced() -> None:
    found: dict[tuple[int, bytes], None] = {}
    for seed in range(40):
        disk = make(seed)
        disk.write_durably("state", b"old")
        disk.write_durably("beside/state", b"new")
        disk.rename("beside/state", "state")
        assert (disk.read("state"), disk.list("beside")) == (b"new", [])
        if seed % 2:
            disk.sync_directory(".")
        disk.lose_power()
        found[seed % 2, disk.read("state")] = None
    assert sorted(found) == [(0, b"new"), (0, b"old"), (1, b"new")]


def test_what_is_discarded_takes_up_space_until_it_is_removed() -> None:
    disk = make()
    durable_file(disk)
    disk.open("a/other", _SIZE, create=True)
    disk.discard("a")
    assert (disk.discarded, disk.list("a")) == (True, [])
    disk.lose_process()
    disk.remove_discarded(1, 1)
    assert disk.discarded
    disk.remove_discarded(1, 1)
    assert not disk.discarded


def test_small_files_are_replaced_as_a_whole() -> None:
    for seed in range(20):
        disk = make(seed)
        disk.write_durably("state", b"old")
        disk.arm_power_failure(1)
        with pytest.raises(PowerFailure):
            disk.write_durably("state", b"new")
        disk.lose_power()
        assert disk.read("state") == b"old"


def test_a_job_is_durable_when_it_has_ended_and_in_part_before() -> None:
    survived = 0
    for seed in range(40):
        disk = make(seed)
        durable_file(disk)
        file = disk.open("a/file", _SIZE, create=False)
        file.buffer[:3] = b"abc"
        job = disk.begin_job(lambda file=file: file.flush(0, 3))  # type: ignore[misc]
        assert bytes(disk.durable_bytes("a/file")[:3]) == bytes(3)
        file.buffer[:3] = b"xyz"  # after the flush began: it promises nothing about this
        if seed % 2:
            disk.end_job(job)
            assert bytes(disk.durable_bytes("a/file")[:3]) == b"abc"
        disk.lose_power()
        found = disk.read("a/file")[:3]
        assert found in ((b"abc", b"xyz") if seed % 2 else (bytes(3), b"abc", b"xyz"))
        survived += found == b"abc"
    assert survived


def test_a_job_flushes_before_it_writes_on() -> None:
    for seed in range(20):
        disk = make(seed)
        durable_file(disk)
        file = disk.open("a/file", _SIZE, create=False)
        file.buffer[:3] = b"abc"

        def checkpoint(disk: SimulatedDisk = disk, file: SimulatedFile = file) -> None:
            file.flush(0, 3)
            disk.write_durably("notes", b"the file is durable")

        disk.begin_job(checkpoint)
        disk.lose_power()
        assert disk.read("a/file")[:3] == b"abc"


def test_what_a_job_writes_last_is_there_for_certain_when_it_has_ended() -> None:
    found = set()
    for seed in range(20):
        disk = make(seed)
        disk.write_durably("notes", b"old")
        job = disk.begin_job(lambda disk=disk: disk.write_durably("notes", b"new"))  # type: ignore[misc]
        assert disk.read("notes") == b"new"
        assert bytes(disk.durable_bytes("notes")) == b"old"
        if seed % 2:
            disk.end_job(job)
        disk.lose_power()
        assert seed % 2 == 0 or disk.read("notes") == b"new"
        found.add(disk.read("notes"))
    assert found == {b"old", b"new"}


def test_what_a_job_has_written_before_is_there() -> None:
    disk = make()
    disk.write_durably("first", b"old")

    def checkpoint() -> None:
        disk.write_durably("first", b"new")
        disk.write_durably("second", b"new")

    disk.begin_job(checkpoint)
    assert bytes(disk.durable_bytes("first")) == b"new"
    assert not disk.durable_bytes("second")


def test_what_a_job_has_written_before_it_fails_is_there() -> None:
    disk = make()
    durable_file(disk)
    file = disk.open("a/file", _SIZE, create=False)
    disk.write_durably("first", b"old")

    def checkpoint() -> None:
        disk.write_durably("first", b"new")
        disk.failing_flushes = 1
        file.flush(0, 3)

    with pytest.raises(FlushError):
        disk.begin_job(checkpoint)
    assert bytes(disk.durable_bytes("first")) == b"new"


def test_a_job_that_ends_does_not_undo_what_came_meanwhile() -> None:
    disk = make()
    job = disk.begin_job(lambda: disk.write_durably("notes", b"of the job"))
    disk.write_durably("notes", b"newer")
    disk.end_job(job)
    assert bytes(disk.durable_bytes("notes")) == b"newer"


def test_a_flush_that_ends_late_does_not_undo_a_later_one() -> None:
    for later_is_a_job in (False, True):
        disk = SimulatedDisk(Random(1))
        file = disk.open("f", 2 * PAGE_BYTES, create=True)
        disk.sync_directory("")
        file.buffer[:] = b"1" * 2 * PAGE_BYTES
        earlier = disk.begin_job(lambda file=file: file.flush(0, 2 * PAGE_BYTES))  # type: ignore[misc]
        file.buffer[:PAGE_BYTES] = b"2" * PAGE_BYTES
        if later_is_a_job:
            disk.end_job(disk.begin_job(lambda file=file: file.flush(0, PAGE_BYTES)))  # type: ignore[misc]
        else:
            file.flush(0, PAGE_BYTES)
        assert disk.durable_bytes("f") == b"2" * PAGE_BYTES + bytes(PAGE_BYTES)
        disk.end_job(earlier)
        assert disk.durable_bytes("f") == b"2" * PAGE_BYTES + b"1" * PAGE_BYTES


def test_faults_show_as_the_errors_of_the_real_disk() -> None:
    disk = make()
    durable_file(disk)
    file = disk.open("a/file", _SIZE, create=False)
    disk.failing_flushes = 1
    with pytest.raises(FlushError):
        file.flush(0, 1)
    disk.full = True
    with pytest.raises(DiskFullError):
        file.prepare(0, _SIZE)
    disk.full = False
    disk.failing_reads = 1
    with pytest.raises(DiskError):
        disk.read("a/file")
    lock = disk.lock()
    with pytest.raises(StoreLockedError):
        disk.lock()
    lock.release()
    disk.lock()


def test_rot_and_misdirected_writes_change_one_bit_and_one_page() -> None:
    disk = make(3)
    file = disk.open("a/file", _SIZE, create=True)
    file.buffer[: 3 * PAGE_BYTES] = bytes(Random(1).randbytes(3 * PAGE_BYTES))
    before = disk.read("a/file")
    assert disk.medium.rot("a") is not None
    rotten = disk.read("a/file")
    assert sum((x ^ y).bit_count() for x, y in zip(before, rotten, strict=True)) == 1
    assert disk.medium.misdirect("a") is not None
    pages = [
        begin
        for begin in range(0, _SIZE, PAGE_BYTES)
        if disk.read("a/file")[begin : begin + PAGE_BYTES] != rotten[begin : begin + PAGE_BYTES]
    ]
    assert len(pages) == 1
    assert disk.medium.rot("nowhere") is None
