"""The real disk: files mapped with mmap.

Durability: `fdatasync` writes back the pages dirtied through the mapping too (Linux, and POSIX where the
page cache is unified), and unlike `mmap.flush` it releases the GIL, so that the owner's thread goes on
while a worker waits.

Preparation: `posix_fallocate` reserves blocks first, so that a full disk shows as ENOSPC in a call and
never as SIGBUS at a store through the mapping. Then `madvise(MADV_POPULATE_WRITE)` makes the pages present
and writable in one system call; it is called through ctypes because `mmap.madvise` keeps the GIL. Where the
kernel lacks it (before Linux 5.14, other systems) the pages are simply faulted in by the writer.

Buffered files: stores go to anonymous memory, `write_back` hands them to the kernel with `pwrite`. The writer
then never waits for the page cache (a page under write-back, a page to be read first), and pays with memory.

Closing: a mapping with exported slices cannot be unmapped, so `close` only forgets it, and the interpreter
unmaps it when the last slice dies. To unmap a file of the log whose pages are all there takes some 60 ms of CPU for a
gigabyte, and to let the file's pages go as long again if it was removed: a worker does that (`Unmapping`).
"""

import contextlib
import ctypes
import errno
import fcntl
import io
import mmap
import os
import shutil
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from log.errors import NO_SPACE, DiskError, FlushError, StoreLockedError, disk_error
from log.files import private_files, replacement
from log.files.disk import DiskUsage, StoreLock

PAGE_BYTES = mmap.PAGESIZE
_MADV_NORMAL = 0
_MADV_RANDOM = 1
_MADV_COLD = 20
_MADV_POPULATE_READ = 22
_MADV_POPULATE_WRITE = 23
_ALONE_BYTES_MAX = 256 * 1024
"""The most bytes that are prepared without reading ahead where a file begins: the first step of a ConsumeQueue."""
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_NO_BYTES = memoryview(b"")
_NO_RENAME = NO_SPACE | {errno.EXDEV, errno.EBUSY}
"""A full disk may lack the space for a name more, and what is mounted stays where it is."""
_OF_THE_SYSTEM = "lost+found"
"""What is mounted has this directory, which only root may look into or remove."""
_TRASH = "trash"
"""The directory of what was discarded: files and trees, named by numbers."""

_UNMAPPED_LATER_BYTES = 16 * 1024 * 1024
"""Mappings of so many bytes and more are left to a worker."""
_UNMAPPED_LATER_MAX = 16
"""The most mappings left to a worker. In a start none comes: then whoever gives one up unmaps it himself."""

LOCKED_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""Two files of the log in its usual size: what is being written, what is ready for the writer, and what was written
last, which consumers read."""


@contextlib.contextmanager
def _failing(path: str, operation: str) -> Iterator[None]:
    """Raises what the operation fails with as a DiskError."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, operation, error) from error


class MmapFile:
    """`log.files.disk.MappedFile` over a file descriptor and a shared mapping.

    Methods without a text are described there, with what they raise: DiskFullError, FlushError, DiskError.
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_buffered",
        "_descriptor",
        "_locker",
        "_map",
        "_unmapping",
        "buffer",
        "path",
        "size",
    )

    def __init__(
        self,
        path: str,
        descriptor: int,
        size: int,
        locker: "MemoryLocker",
        unmapping: "Unmapping",
        *,
        buffered: bool = False,
    ) -> None:
        # Until the file is mapped the descriptor is the caller's: `close` leaves it alone if mapping fails.
        self._descriptor = -1
        self._map = None
        self._buffered = buffered
        self._locker = locker
        self._unmapping = unmapping
        self._map = mmap.mmap(-1 if buffered else descriptor, size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._descriptor = descriptor
        self.buffer = memoryview(self._map)
        self.path = path
        self.size = size

    def prepare(self, begin: int, end: int, *, touch: bool = True) -> None:
        begin -= begin % PAGE_BYTES
        end = min(self.size, end + -end % PAGE_BYTES)
        if begin >= end or self._map is None:
            return
        with _failing(self.path, "allocation"):
            os.posix_fallocate(self._descriptor, begin, end - begin)
        if touch:
            # Without this call the writer takes the page faults itself, and is right all the same.
            # What lies behind in a new file is a hole: to read it ahead fills the page cache with megabytes of zeros
            # for each queue that begins. Long runs are better read ahead, in larger pages. Later steps of a file have
            # no such advice: with it brokers took a tenth more CPU a message, in the system's page faults.
            begins_a_queue = begin == 0 and end <= _ALONE_BYTES_MAX
            if begins_a_queue:
                self._advise(begin, end, _MADV_RANDOM)
            self._advise(begin, end, _MADV_POPULATE_WRITE)
            if begins_a_queue:
                self._advise(begin, end, _MADV_NORMAL)
            self._locker.lock(self, begin, end)

    def read(self, begin: int, end: int) -> bytes:
        with _failing(self.path, "reading"):
            return os.pread(self._descriptor, end - begin, begin)

    def stored_until(self, begin: int) -> int:
        try:
            return os.lseek(self._descriptor, begin, os.SEEK_HOLE)
        except OSError:
            return begin  # some file systems do not know

    def load(self, begin: int, end: int) -> None:
        self._advise(begin, end, _MADV_POPULATE_READ)

    def cool(self, begin: int, end: int) -> None:
        if not self._buffered:
            self._advise(begin, end, _MADV_COLD)

    def _advise(self, begin: int, end: int, advice: int) -> None:
        """The result is ignored: older kernels lack some advice, and none of it is needed to be right."""
        mapped = self._map  # keeps the mapping alive while the kernel works on it
        begin -= begin % PAGE_BYTES
        if _LIBC is not None and mapped is not None and begin < end:
            _LIBC.madvise(ctypes.c_void_p(self._address + begin), ctypes.c_size_t(end - begin), advice)

    def lock(self, begin: int, end: int) -> bool:
        """Keeps whole pages in memory; False, with ctypes' errno, where the system does not allow it."""
        mapped = self._map
        return mapped is None or _LIBC is None or not _LIBC.mlock(*self._place(begin, end))

    def unlock(self, begin: int, end: int) -> None:
        """Lets pages go again."""
        mapped = self._map  # keeps the mapping alive, as above
        if mapped is not None and _LIBC is not None:
            _LIBC.munlock(*self._place(begin, end))

    def _place(self, begin: int, end: int) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
        return ctypes.c_void_p(self._address + begin), ctypes.c_size_t(end - begin)

    def write_back(self, begin: int, end: int) -> None:
        if not self._buffered:
            return
        with _failing(self.path, "writing"):
            while begin < end:
                begin += os.pwrite(self._descriptor, self.buffer[begin:end], begin)

    def rewrite(self, begin: int, end: int) -> None:
        buffer = self.buffer
        for page in range(begin - begin % PAGE_BYTES, end, PAGE_BYTES):
            buffer[page] = buffer[page]  # a store makes the page dirty, whatever it stores

    def flush(self, begin: int, end: int) -> None:
        # fdatasync knows no ranges; the kernel writes only what is dirty, and that is what the caller waits
        # for.
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise FlushError(self.path, "flush", error.strerror or str(error)) from error

    def erase(self, begin: int) -> None:
        with _failing(self.path, "erasing"):
            os.ftruncate(self._descriptor, begin)
            os.ftruncate(self._descriptor, self.size)
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._map is not None:
            self._unmapping.take(self._map)
        self._map = None
        self.buffer = _NO_BYTES

    def __del__(self) -> None:
        self.close()


class _FileLock:
    """`log.files.disk.StoreLock`: a lock of the system on the file `lock`, held as long as its descriptor is open."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Unmapping:
    """Mappings that were given up, until a worker lets them go. Any thread."""

    def __init__(self) -> None:
        self._mappings: list[mmap.mmap] = []

    def __bool__(self) -> bool:
        return bool(self._mappings)

    def take(self, mapping: mmap.mmap) -> None:
        """Keeps a mapping if it is a large one, and few are kept."""
        if len(mapping) >= _UNMAPPED_LATER_BYTES and len(self._mappings) < _UNMAPPED_LATER_MAX:
            self._mappings.append(mapping)

    def let_go(self) -> None:
        """Worker. Unmaps what was taken."""
        while self._mappings:
            self._mappings.pop()


class MemoryLocker:
    """Keeps the newest prepared pages in memory (mlock), as many as `window_bytes` and as the system allows.

    What was prepared before is let go again: it is written and read by few, and with all of it locked a machine would
    have nothing left for what is read. Unmapping a file lets its pages go, too.
    """

    def __init__(self, *, wanted: bool, window_bytes: int = LOCKED_BYTES_MAX) -> None:
        self._wanted = wanted and _LIBC is not None
        self._window_bytes = window_bytes
        self._locked: deque[tuple[weakref.ref[MmapFile], int, int, int]] = deque()
        """Ranges of pages, the first locked first, each with how much was locked up to its end since the start.

        A worker and the owner of a store come here: the sum is a difference, which a range that one of them has not
        seen makes wrong for as long as that range is here, and no longer.
        """
        self.failure = ""
        """The reason why pages are not locked although it was wanted; the system's limit may be too low."""

    def lock(self, file: MmapFile, begin: int, end: int) -> None:
        """Any thread. Gives up for good at the first refusal."""
        if not self._wanted:
            return
        total = (self._locked[-1][3] if self._locked else 0) + end - begin
        self._locked.append((weakref.ref(file), begin, end, total))
        while len(self._locked) > 1 and self._locked_bytes() > self._window_bytes:
            other, first, last, _ = self._locked.popleft()
            mapped = other()
            if mapped is not None:
                mapped.unlock(first, last)
        if not file.lock(begin, end):
            self._wanted = False
            self.failure = os.strerror(ctypes.get_errno())

    def _locked_bytes(self) -> int:
        (_, begin, end, first_total), (_, _, _, last_total) = self._locked[0], self._locked[-1]
        return last_total - first_total + end - begin


class MmapDisk:
    """`log.files.disk.Disk` below the directory `root`, which is created if missing.

    Methods without a text are described there, with what they raise: StoreLockedError, DiskFullError, FlushError,
    DiskError.

    With `lock_memory` the pages made ready for the writer are locked into memory, of them the newest
    `locked_bytes_max`, as far as the system allows.
    """

    file_class: type[MmapFile] = MmapFile
    """The class of the files that `open` makes; tests that take a store's power away have a kind of their own
    (broker/testing/power.py)."""

    def __init__(
        self, root: str | Path, *, lock_memory: bool = False, locked_bytes_max: int = LOCKED_BYTES_MAX
    ) -> None:
        self._root = Path(root)
        self._root_name = str(self._root)
        self.locker = MemoryLocker(wanted=lock_memory, window_bytes=locked_bytes_max)
        self._being_written: dict[Path, object] = {}
        """Temporary files of `write_durably`, each with a token of the call that has it: a worker and the owner of a
        store, which is reset beside a checkpoint, may write one file at a time."""
        absolute = self._root.absolute()
        with _failing(str(root), "creation"):
            missing = [path for path in (absolute, *absolute.parents) if not path.exists()]
            private_files.make_directories(self._root)
        # Each directory that was made is a name in the one above it, and durable once that is synced.
        for created in missing:
            self._sync(created.parent, str(root))
        trash = self.list(_TRASH)
        self._unmapping = Unmapping()
        self._has_trash = bool(trash)
        self._removal_failed = False
        self._next_discarded = 1 + max((int(name) for name in trash if name.isdecimal()), default=0)

    def open(self, path: str, size: int, *, create: bool, buffered: bool = False) -> MmapFile:
        # Names are joined as text here and in `size`: a start opens a file for every queue.
        name = f"{self._root_name}/{path}"
        flags = os.O_RDWR | os.O_CLOEXEC
        with _failing(path, "opening"):
            try:
                descriptor = os.open(name, flags)
            except FileNotFoundError:
                if not create:
                    raise
                full = self._root / path
                private_files.make_directories(full.parent)
                descriptor = os.open(full, flags | os.O_CREAT, private_files.FILE_MODE)
            try:
                present = os.fstat(descriptor).st_size
                if present > size:
                    raise DiskError(path, "opening", f"it has {present} bytes, not {size}")
                if present < size:
                    os.ftruncate(descriptor, size)
                return self.file_class(
                    path, descriptor, size, self.locker, self._unmapping, buffered=buffered
                )
            except BaseException:
                os.close(descriptor)
                raise

    def list(self, directory: str) -> "list[str]":
        try:
            names = (path.name for path in (self._root / directory).iterdir())
            return sorted(name for name in names if name != _OF_THE_SYSTEM)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise disk_error(directory, "listing", error) from error

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def size(self, path: str) -> int:
        with _failing(path, "examination"):
            return os.stat(f"{self._root_name}/{path}").st_size  # noqa: PTH116

    def read(self, path: str) -> bytes:
        with _failing(path, "reading"):
            return (self._root / path).read_bytes()

    def write_durably(self, path: str, *data: bytes | memoryview) -> None:
        full = self._root / path
        temporary = self._take_temporary(full)
        try:
            private_files.make_directories(full.parent)
            with io.BufferedWriter(private_files.open_file(temporary, "wb")) as file:
                file.writelines(data)
                file.flush()
                try:
                    os.fsync(file.fileno())
                except OSError as error:
                    if error.errno in NO_SPACE:
                        raise  # found out late, and nobody has relied on this file yet
                    raise FlushError(path, "flush", error.strerror or str(error)) from error
            temporary.replace(full)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise disk_error(path, "writing", error) from error
        finally:
            del self._being_written[temporary]
        self._sync(full.parent, path)

    def _take_temporary(self, full: Path) -> Path:
        """Returns a temporary name beside `full` that no other call uses now."""
        token = object()
        number = 0
        while True:
            temporary = full.with_name(f"{full.name}.tmp{number or ''}")
            if self._being_written.setdefault(temporary, token) is token:
                return temporary
            number += 1

    def flush_file(self, path: str) -> None:
        try:
            descriptor = os.open(self._root / path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FlushError(path, "flush", error.strerror or str(error)) from error

    def remove(self, path: str) -> None:
        with _failing(path, "removal"):
            (self._root / path).unlink(missing_ok=True)

    def rename(self, path: str, new_path: str) -> None:
        with _failing(path, "renaming"):
            (self._root / path).replace(self._root / new_path)

    @property
    def discarded(self) -> bool:
        return self._has_trash or bool(self._unmapping)

    @property
    def frees_space(self) -> bool:
        return self._has_trash and not self._removal_failed

    def discard(self, path: str) -> None:
        full, trash = self._root / path, self._root / _TRASH
        try:
            # What a link leads to may be on another file system, and the link was put there on purpose: both stay.
            if full.is_symlink():
                _remove(full)
            # A change of name is short whatever is in it, and a worker takes its time with the rest.
            elif full.exists():
                private_files.make_directories(trash)
                full.rename(trash / str(self._next_discarded))
                self._next_discarded += 1
                self._has_trash = True
        except OSError as error:
            if error.errno not in _NO_RENAME:
                raise disk_error(path, "removal", error) from error
            with _failing(path, "removal"):
                _remove(full)

    def remove_discarded(self, files_max: int, bytes_max: int) -> None:
        self._unmapping.let_go()
        # First, as the owner may discard more meanwhile.
        self._has_trash = False
        removal = _Removal(files_max, bytes_max)
        failures: list[OSError] = []
        try:
            with os.scandir(self._root / _TRASH) as entries:
                for entry in entries:
                    try:
                        if not removal.is_removed(entry):
                            self._has_trash = True
                            break
                    except OSError as error:
                        failures.append(error)  # what cannot be removed keeps nothing else
        except FileNotFoundError:
            pass
        except OSError as error:
            failures.append(error)
        self._removal_failed = bool(failures)
        if failures:
            self._has_trash = True
            raise disk_error(_TRASH, "removal", failures[0]) from failures[0]

    def sync_directory(self, directory: str) -> None:
        path = self._root / directory
        if not path.exists():
            return
        # The directory itself may be new, and so may be its parents up to the store root.
        while True:
            self._sync(path, directory)
            if path == self._root or path == path.parent:
                return
            path = path.parent

    def usage(self) -> DiskUsage:
        with _failing(".", "examination"):
            usage = shutil.disk_usage(self._root)
        # What the system keeps for its administrator, or a quota for others, is neither used nor free.
        return DiskUsage(total_bytes=usage.used + usage.free, free_bytes=usage.free)

    def lock(self) -> StoreLock:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._root / "lock", flags, private_files.FILE_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_size == 0:
                    os.write(descriptor, b"lock")  # as `DefaultMessageStore` leaves it
            except BaseException:
                os.close(descriptor)
                raise
        except BlockingIOError as error:
            raise StoreLockedError("lock", "locking", f"another process uses {self._root}") from error
        except OSError as error:
            raise disk_error("lock", "locking", error) from error
        return _FileLock(descriptor)

    def _sync(self, directory: Path, name: str) -> None:
        try:
            replacement.sync(directory)
        except FileNotFoundError:
            return  # removed meanwhile; what was in it needs no name any more
        except OSError as error:
            raise FlushError(name, "flush of the directory", error.strerror or str(error)) from error


def _remove(path: Path) -> None:
    """Removes a file, or what is in a directory: a link or what is mounted may have been put there on purpose."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for inner in path.iterdir():
        if inner.name == _OF_THE_SYSTEM:
            continue
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        else:
            inner.unlink()


class _Removal:
    """The removal of a part of a tree."""

    def __init__(self, files_max: int, bytes_max: int) -> None:
        self._files_left = files_max
        self._bytes_left = bytes_max

    def is_removed(self, entry: os.DirEntry[str]) -> bool:
        """Removes a file, or a directory and all that is in it; returns False if it had to end before that.

        Raises OSError.
        """
        if self._files_left <= 0 or self._bytes_left <= 0:
            return False
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as inner:
                if not all(map(self.is_removed, inner)):
                    return False
            os.rmdir(entry.path)  # noqa: PTH106
        else:
            self._bytes_left -= 512 * entry.stat(follow_symlinks=False).st_blocks
            os.unlink(entry.path)  # noqa: PTH108
        self._files_left -= 1
        return True
