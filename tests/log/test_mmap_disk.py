"""The real disk: what `log.files.disk` promises, on a real file system."""

import ctypes
import errno
import gc
import mmap
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from log.errors import DiskError, DiskFullError, FlushError, StoreLockedError
from log.files.disk import DiskUsage
from log.files.mmap_disk import PAGE_BYTES, MmapDisk
from tests.log.messages import NOW
from tests.log.stores import open_store, send_many


@pytest.fixture
def disk(tmp_path: Path) -> MmapDisk:
    return MmapDisk(tmp_path / "store")


def test_mappings_of_one_file_see_each_other(disk: MmapDisk, tmp_path: Path) -> None:
    first = disk.open("a/b", 8192, create=True)
    second = disk.open("a/b", 8192, create=False)
    first.buffer[5000:5005] = b"hello"
    assert bytes(second.buffer[5000:5005]) == b"hello"
    assert disk.read("a/b")[5000:5005] == b"hello"
    first.flush(5000, 5005)
    assert (tmp_path / "store/a/b").stat().st_size == 8192
    assert (disk.size("a/b"), disk.exists("a/b"), disk.list("a")) == (8192, True, ["b"])


def test_opening_checks_presence_and_size(disk: MmapDisk, tmp_path: Path) -> None:
    with pytest.raises(DiskError):
        disk.open("absent", 100, create=False)
    (tmp_path / "store/short").write_bytes(b"abc")
    assert bytes(disk.open("short", 8, create=False).buffer) == b"abc\0\0\0\0\0"
    with pytest.raises(DiskError):
        disk.open("short", 4, create=False)


def test_preparing_allocates_blocks_and_keeps_bytes(disk: MmapDisk, tmp_path: Path) -> None:
    mapped = disk.open("f", 64 * PAGE_BYTES, create=True)
    mapped.buffer[PAGE_BYTES : PAGE_BYTES + 3] = b"abc"
    mapped.prepare(10, 8 * PAGE_BYTES + 1)
    assert (tmp_path / "store/f").stat().st_blocks * 512 >= 9 * PAGE_BYTES
    assert bytes(mapped.buffer[PAGE_BYTES : PAGE_BYTES + 3]) == b"abc"
    mapped.prepare(0, 64 * PAGE_BYTES, touch=False)
    mapped.prepare(5, 5)


@pytest.mark.skipif(sys.platform != "linux", reason="mincore")
def test_preparing_little_reads_nothing_ahead(disk: MmapDisk, tmp_path: Path) -> None:
    size = 1500 * PAGE_BYTES
    file = disk.open("queue", size, create=True)
    file.prepare(0, PAGE_BYTES)
    file.buffer[0] = 1
    in_memory = (ctypes.c_ubyte * 1500)()
    with (tmp_path / "store" / "queue").open("r+b") as opened, mmap.mmap(opened.fileno(), size) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        libc = ctypes.CDLL(None, use_errno=True)
        assert not libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), in_memory)
        del first
    assert sum(page & 1 for page in in_memory) == 1


def test_a_full_disk_is_an_error_of_preparing(disk: MmapDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    mapped = disk.open("f", PAGE_BYTES, create=True)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError) as error:
        mapped.prepare(0, 1)
    assert error.value.path == "f"


def test_a_failed_flush_is_an_error(disk: MmapDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    mapped = disk.open("f", PAGE_BYTES, create=True)
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FlushError):
        mapped.flush(0, 1)
    with pytest.raises(FlushError):
        disk.flush_file("f")
    with pytest.raises(FlushError):
        disk.write_durably("g", b"x")
    with pytest.raises(FlushError):
        disk.sync_directory(".")
    assert not disk.exists("g")


def test_erasing_zeroes_to_the_end(disk: MmapDisk) -> None:
    mapped = disk.open("f", 4 * PAGE_BYTES, create=True)
    mapped.buffer[:] = b"x" * mapped.size
    mapped.erase(100)
    assert bytes(mapped.buffer) == b"x" * 100 + bytes(4 * PAGE_BYTES - 100)
    assert disk.size("f") == 4 * PAGE_BYTES


def test_slices_outlive_the_file_and_the_mapping(disk: MmapDisk) -> None:
    mapped = disk.open("f", PAGE_BYTES, create=True)
    mapped.buffer[:3] = b"abc"
    view = mapped.buffer[:3]
    disk.remove("f")
    mapped.close()
    mapped.close()
    assert bytes(view) == b"abc"


def test_descriptors_are_given_back(disk: MmapDisk) -> None:
    def open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()  # what other tests have left must not be given back in between
    before = open_descriptors()
    for _ in range(50):
        disk.open("f", PAGE_BYTES, create=True).flush(0, 1)
        disk.flush_file("f")
        disk.sync_directory(".")
    assert open_descriptors() == before


def test_files_are_replaced_as_a_whole(disk: MmapDisk) -> None:
    disk.write_durably("d/small", b"one")
    disk.write_durably("d/small", b"two")
    assert disk.read("d/small") == b"two"
    assert disk.list("d") == ["small"]
    disk.remove("d/small")
    disk.remove("d/small")
    disk.discard("d")
    disk.discard("d")
    disk.flush_file("d/small")
    assert disk.list("d") == []


def test_a_file_that_two_threads_write_is_that_of_the_last(
    disk: MmapDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is on its way in a worker when a snapshot from the leader replaces the store with its notes."""
    fsync = os.fsync

    def flush_while_another_writes(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        disk.write_durably("state", b"other")
        assert disk.read("state") == b"other"
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flush_while_another_writes)
    disk.write_durably("state", b"mine")
    assert disk.read("state") == b"mine"
    assert disk.list(".") == ["state"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which directory a descriptor is")
def test_the_directories_of_a_new_store_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, None] = {}
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = None
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    MmapDisk(tmp_path / "new" / "store")
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "new")]
    synced.clear()
    MmapDisk(tmp_path / "new" / "store")
    assert not synced


def test_the_lock_excludes_and_is_released(disk: MmapDisk, tmp_path: Path) -> None:
    lock = disk.lock()
    with pytest.raises(StoreLockedError):
        MmapDisk(tmp_path / "store").lock()
    lock.release()
    lock.release()
    MmapDisk(tmp_path / "store").lock().release()


def test_a_lock_file_that_finds_no_room_is_an_error_that_keeps_no_lock(
    disk: MmapDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        with pytest.raises(DiskFullError):
            disk.lock()
    disk.lock().release()


def test_usage_is_counted_as_df_does(disk: MmapDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for the administrator is not used: of 1,000, 300 are, and of the rest 100 may be."""
    found = SimpleNamespace(total=1_000, used=300, free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: found)
    assert disk.usage() == DiskUsage(total_bytes=400, free_bytes=100)


def test_a_write_buffer_reaches_the_file_when_it_is_written_back(disk: MmapDisk) -> None:
    mapped = disk.open("f", 4 * PAGE_BYTES, create=True, buffered=True)
    mapped.prepare(0, 4 * PAGE_BYTES)
    mapped.buffer[10:13] = b"abc"
    mapped.buffer[PAGE_BYTES : PAGE_BYTES + 3] = b"def"
    assert disk.read("f") == bytes(4 * PAGE_BYTES)
    mapped.write_back(10, 13)
    assert disk.read("f")[:16] == bytes(10) + b"abc" + bytes(3)
    assert disk.read("f")[PAGE_BYTES : PAGE_BYTES + 3] == bytes(3), "only what was asked for"
    other = disk.open("f", 4 * PAGE_BYTES, create=False)
    assert bytes(other.buffer[10:13]) == b"abc"


def test_advice_leaves_the_content_alone(tmp_path: Path) -> None:
    disk = MmapDisk(tmp_path, lock_memory=True)
    mapped = disk.open("f", 4 * PAGE_BYTES, create=True)
    mapped.prepare(0, 4 * PAGE_BYTES)
    mapped.buffer[:] = b"x" * (4 * PAGE_BYTES)
    mapped.load(100, 3 * PAGE_BYTES + 1)
    mapped.cool(0, 4 * PAGE_BYTES)
    mapped.load(4 * PAGE_BYTES, 4 * PAGE_BYTES)
    assert bytes(mapped.buffer) == b"x" * (4 * PAGE_BYTES)


def locked_bytes() -> int:
    """Of this process, as the kernel counts."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck")
    )
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_only_the_newest_prepared_pages_stay_locked(tmp_path: Path) -> None:
    disk = MmapDisk(tmp_path, lock_memory=True, locked_bytes_max=4 * PAGE_BYTES)
    before = locked_bytes()
    one = disk.open("one", 8 * PAGE_BYTES, create=True)
    one.prepare(0, PAGE_BYTES)
    if disk.locker.failure:
        pytest.skip(f"no memory may be locked: {disk.locker.failure}")
    assert locked_bytes() - before == PAGE_BYTES
    for page in range(1, 8):
        one.prepare(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
    assert locked_bytes() - before == 4 * PAGE_BYTES
    other = disk.open("other", 8 * PAGE_BYTES, create=True)
    for page in range(0, 8, 2):
        other.prepare(page * PAGE_BYTES, (page + 2) * PAGE_BYTES)
    del one
    assert locked_bytes() - before == 4 * PAGE_BYTES
    other.prepare(0, 8 * PAGE_BYTES)
    assert locked_bytes() - before == 8 * PAGE_BYTES, "what is prepared at once is never let go at once"
    del other
    gc.collect()
    assert locked_bytes() == before
    third = disk.open("third", PAGE_BYTES, create=True)
    third.prepare(0, PAGE_BYTES)
    assert locked_bytes() - before == PAGE_BYTES, "files that are gone do no harm"


def tree(disk: MmapDisk, path: str, files: int) -> None:
    for number in range(files):
        disk.open(f"{path}/{number % 3}/{number}", PAGE_BYTES, create=True)


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_what_is_discarded_is_gone_at_once_and_its_space_in_steps(disk: MmapDisk, tmp_path: Path) -> None:
    disk.discard("missing")
    assert names(tmp_path / "store") == []
    tree(disk, "queues", 9)
    mapped = disk.open("data/0", PAGE_BYTES, create=True)
    mapped.buffer[:3] = b"abc"
    disk.discard("queues")
    disk.discard("data/0")
    assert (disk.list("queues"), disk.list("data")) == ([], [])
    tree(disk, "queues", 1)
    steps = 0
    while disk.discarded:
        before = len(names(tmp_path / "store/trash"))
        disk.remove_discarded(2, 1 << 30)
        assert before - 3 <= len(names(tmp_path / "store/trash")) < before
        steps += 1
    assert steps >= 6
    assert names(tmp_path / "store/trash") == []
    assert disk.list("queues/0") == ["0"]
    assert bytes(mapped.buffer[:3]) == b"abc"
    mapped.flush(0, PAGE_BYTES)


def test_files_go_by_their_size_too_one_at_least(disk: MmapDisk) -> None:
    for number in range(3):
        disk.open(f"f{number}", 64 * PAGE_BYTES, create=True).prepare(0, 64 * PAGE_BYTES)
        disk.discard(f"f{number}")
    for left in (2, 1, 0):
        disk.remove_discarded(100, PAGE_BYTES)
        assert len(disk.list("trash")) == left
    assert not disk.discarded


def test_what_an_earlier_process_has_discarded_is_found(disk: MmapDisk, tmp_path: Path) -> None:
    for _ in range(12):
        disk.write_durably("f", b"x")
        disk.discard("f")
    disk = MmapDisk(tmp_path / "store")
    assert disk.discarded
    disk.write_durably("f", b"x")
    disk.discard("f")
    assert len(disk.list("trash")) == 13
    disk.remove_discarded(100, 1 << 30)
    assert not MmapDisk(tmp_path / "store").discarded


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EXDEV, errno.EBUSY])
def test_what_cannot_be_renamed_is_removed_at_once(
    number: int, disk: MmapDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(number, os.strerror(number))

    tree(disk, "queues", 4)
    disk.write_durably("f", b"x")
    monkeypatch.setattr(Path, "rename", refuse)
    disk.discard("queues")
    disk.discard("f")
    assert (disk.list("queues"), disk.exists("f"), disk.discarded) == ([], False, False)


def test_a_directory_that_is_elsewhere_stays_there(disk: MmapDisk, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store/data").symlink_to(tmp_path / "elsewhere")
    disk.open("data/0", PAGE_BYTES, create=True)
    disk.discard("data")
    assert disk.list("data") == []
    disk.open("data/1", PAGE_BYTES, create=True)
    assert names(tmp_path / "elsewhere") == ["1"]


def test_what_fails_to_be_removed_is_tried_again(disk: MmapDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.write_durably("f", b"x")
    disk.discard("f")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(DiskError):
            disk.remove_discarded(1, 1)
    assert disk.discarded
    disk.remove_discarded(1, 1)
    assert disk.list("trash") == []


def test_what_cannot_be_removed_keeps_nothing_else(disk: MmapDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that failed kept all that was removed later, and retention from what a full disk asks for, for ever."""
    for name in ("stuck", "b", "c"):
        disk.write_durably(name, name.encode())
        disk.discard(name)
    unlink, scandir = os.unlink, os.scandir
    with scandir(disk._root / "trash") as entries:
        stuck = next(entry.path for entry in entries)  # what is met first each time

    def fail(path: str) -> None:
        if path == stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path)

    seen = [(disk.discarded, disk.frees_space)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(DiskError):
            disk.remove_discarded(100, 1 << 30)
        assert len(disk.list("trash")) == 1
    seen.append((disk.discarded, disk.frees_space))  # it is tried again, and nobody waits for it
    disk.remove_discarded(100, 1 << 30)
    seen.append((disk.discarded, disk.frees_space))
    assert seen == [(True, True), (True, False), (False, False)]


def test_what_the_system_keeps_where_something_is_mounted_stays(
    disk: MmapDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be removed by others than root, and a log that was to be replaced failed at each start."""

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    (tmp_path / "store/data/lost+found").mkdir(parents=True)
    disk.open("data/0", PAGE_BYTES, create=True)
    monkeypatch.setattr(Path, "rename", refuse)
    disk.discard("data")
    assert names(tmp_path / "store/data") == ["lost+found"]


def test_what_the_system_keeps_there_is_none_of_the_store(tmp_path: Path) -> None:
    """Where a directory of a store is mounted: whoever is not root can neither list it nor remove it."""
    for place in ("index", "consumequeue", "dledger-n0"):
        (tmp_path / "store" / place / "lost+found").mkdir(parents=True)
    store, _ = open_store(MmapDisk(tmp_path / "store"))
    send_many(store, 20)
    store.dispatch(19, NOW)
    store.close(19)
    store, report = open_store(MmapDisk(tmp_path / "store"))
    assert not report.damage
    assert (tmp_path / "store/index/lost+found").is_dir()
    store.close(19)


def test_a_file_takes_the_place_of_another(disk: MmapDisk) -> None:
    disk.write_durably("beside/new", b"new")
    disk.write_durably("state", b"old")
    disk.rename("beside/new", "state")
    assert (disk.read("state"), disk.list("beside")) == (b"new", [])
    with pytest.raises(DiskError):
        disk.rename("beside/new", "state")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is mapped")
def test_a_large_mapping_that_is_given_up_is_unmapped_by_a_worker(disk: MmapDisk) -> None:
    def mapped() -> int:
        return sum("-given-up" in line for line in Path("/proc/self/maps").read_text().splitlines())

    size = 16 << 20
    large = disk.open("large-given-up", size, create=True)
    small = disk.open("small-given-up", PAGE_BYTES, create=True)
    held = large.buffer[:3]
    assert (mapped(), disk.discarded) == (2, False)
    del large, small
    assert (mapped(), disk.discarded) == (1, True)
    disk.remove_discarded(1, 1)
    assert (mapped(), disk.discarded) == (1, False), "a slice is held"
    del held
    assert mapped() == 0
    files = [disk.open(f"{number}-given-up", size, create=True) for number in range(20)]
    del files
    assert mapped() == 16, "where no worker comes they do not pile up"
    disk.remove_discarded(1, 1)
    assert mapped() == 0
