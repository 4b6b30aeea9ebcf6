"""A disk in memory with a page cache, for crash tests: what was not flushed may be lost, page by page.

`crash` gives the disk that a machine finds after a power failure; faults are switched on by attributes.
"""

import mmap
from collections.abc import Callable
from copy import copy
from typing import Final, cast

from log.errors import DiskError, DiskFullError, FlushError, StoreLockedError
from log.files.disk import DiskUsage

PAGE = 4096


_LARGE: Final = 1 << 27


def _zeros(size: int) -> bytearray:
    """A very large file is of pages that the system makes when they are touched, as a disk's are: to fill hundreds of
    megabytes would be the longest turn of a benchmark. Of smaller files a touch costs nothing: what a message costs is
    measured with them."""
    return bytearray(size) if size < _LARGE else cast(bytearray, memoryview(mmap.mmap(-1, size)))


class _File:
    def __init__(self, size: int) -> None:
        self.seen = _zeros(size)
        self.durable = _zeros(size)
        self.allocated: set[int] = set()
        self.named = False


NAME = -1
"""In place of a page, where `crash` asks for a file's creation or removal."""


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0] or "."


class MemoryMapped:
    def __init__(self, disk: "MemoryDisk", path: str, file: _File, *, buffered: bool = False) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        self.size = len(file.seen)
        self.buffer = memoryview(bytearray(self.size) if buffered else file.seen)
        self.loads: list[tuple[int, int]] = []
        self.cooled: list[tuple[int, int]] = []

    def prepare(self, begin: int, end: int, *, touch: bool = True) -> None:
        pages = set(range(begin // PAGE, (min(end, self.size) + PAGE - 1) // PAGE)) - self._file.allocated
        self._disk.prepares += 1
        if self._disk.free_pages is not None:
            if len(pages) > self._disk.free_pages:
                raise DiskFullError(self.path, "allocation", "no space left")
            self._disk.free_pages -= len(pages)
        self._file.allocated |= pages

    def read(self, begin: int, end: int) -> bytes:
        return bytes(self._file.seen[begin:end])

    def stored_until(self, begin: int) -> int:
        """Pages that are all zero count as holes."""
        while begin < self.size and any(self._file.seen[begin - begin % PAGE : begin - begin % PAGE + PAGE]):
            begin += PAGE - begin % PAGE
        return min(begin, self.size)

    def load(self, begin: int, end: int) -> None:
        self.loads.append((begin, end))

    def cool(self, begin: int, end: int) -> None:
        self.cooled.append((begin, end))

    def rewrite(self, begin: int, end: int) -> None:
        """A failed flush leaves its pages dirty here."""

    def write_back(self, begin: int, end: int) -> None:
        self._file.seen[begin:end] = self.buffer[begin:end]

    def flush(self, begin: int, end: int) -> None:
        self._disk.flush_file(self.path, self._file)

    def erase(self, begin: int) -> None:
        self._file.seen[begin:] = self.buffer[begin:] = bytes(self.size - begin)
        self._disk.flush_file(self.path, self._file)

    def close(self) -> None:
        self.buffer = memoryview(b"")


class _Lock:
    def __init__(self, disk: "MemoryDisk") -> None:
        self._disk = disk

    def release(self) -> None:
        self._disk.locked = False


class MemoryDisk:
    """`log.files.disk.Disk`; `flush_fails` makes every flush raise, `free_pages` limits what can be allocated."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self._removed: dict[str, _File] = {}
        """Files whose removal is not durable."""
        self._removed_trees: list[str] = []
        self.flush_fails = False
        self.free_pages: int | None = None
        self.has_no_names_left = False
        """No file can be made, as in a directory that would have to grow."""
        self.locked = False
        self.prepares = 0
        self.discarded_files = 0
        """How many take up space; nobody asks what was in them."""
        self.total_bytes = 1 << 40
        self.free_bytes = 1 << 39

    def step(self) -> None:
        """Comes right before something becomes durable: a test that ends the world there overrides it."""

    def crash(self, keep: Callable[[str, int], bool]) -> "MemoryDisk":
        """Returns the disk after a power failure. `keep(path, page)` says which unflushed pages arrived; it is asked
        with `NAME` for a file whose creation or removal was not made durable."""
        after = MemoryDisk()
        after.discarded_files = self.discarded_files
        for path in sorted(self.files.keys() | self._removed.keys()):
            file = self.files.get(path)
            if (file is None or not file.named) and not keep(path, NAME):
                file = self._removed.get(path)
            if file is None:
                continue
            survivor = after.files[path] = _File(len(file.seen))
            survivor.durable[: len(file.durable)] = file.durable[: len(file.seen)]
            for begin in range(0, len(file.seen), PAGE):
                piece = bytes(file.seen[begin : begin + PAGE])
                if piece != file.durable[begin : begin + PAGE] and keep(path, begin // PAGE):
                    survivor.durable[begin : begin + PAGE] = piece
            survivor.seen[:] = survivor.durable
            survivor.named = True
        return after

    def kill(self) -> "MemoryDisk":
        """The disk after a crash of the process only: the page cache survives."""
        return self.crash(lambda path, page: True)

    # ---- log.files.disk.Disk -------------------------------------------------------------------------------

    def open(self, path: str, size: int, *, create: bool, buffered: bool = False) -> MemoryMapped:
        file = self.files.get(path)
        if file is None:
            if not create:
                raise DiskError(path, "opening", "no such file")
            if self.has_no_names_left:
                raise DiskFullError(path, "opening", "no space left")
            file = self.files[path] = _File(size)
        if len(file.seen) > size:
            raise DiskError(path, "opening", "too long")
        if len(file.seen) < size:
            file.seen = file.seen + bytearray(size - len(file.seen))
            file.durable = file.durable + bytearray(size - len(file.durable))
        return MemoryMapped(self, path, file, buffered=buffered)

    def list(self, directory: str) -> "list[str]":
        prefix = "" if directory == "." else directory + "/"
        names = {path[len(prefix) :].split("/")[0]: None for path in self.files if path.startswith(prefix)}
        return sorted(names)

    def exists(self, path: str) -> bool:
        return path in self.files

    def size(self, path: str) -> int:
        if path not in self.files:
            raise DiskError(path, "examination", "no such file")
        return len(self.files[path].seen)

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise DiskError(path, "reading", "no such file")
        return bytes(self.files[path].seen)

    def write_durably(self, path: str, *data: bytes | memoryview) -> None:
        if self.flush_fails:
            raise FlushError(path, "flush", "input/output error")
        if self.free_pages == 0:
            raise DiskFullError(path, "writing", "no space left on the device")
        self.step()
        self._removed.pop(path, None)
        whole = b"".join(data)
        file = self.files[path] = _File(len(whole))
        file.seen[:] = whole
        file.durable[:] = whole
        file.named = True

    def flush_file(self, path: str, file: _File | None = None) -> None:
        if self.flush_fails:
            raise FlushError(path, "flush", "input/output error")
        self.step()
        file = file or self.files.get(path)
        if file is not None:
            file.durable[:] = file.seen

    def remove(self, path: str) -> None:
        file = self.files.pop(path, None)
        if file is not None and file.named:
            self._removed[path] = file

    def rename(self, path: str, new_path: str) -> None:
        if path not in self.files:
            raise DiskError(path, "renaming", "no such file")
        file = self.files[path]
        self.remove(path)
        replaced = self.files.pop(new_path, None)
        if replaced is not None and replaced.named:
            self._removed[new_path] = replaced
        self.files[new_path] = renamed = copy(file)  # the same bytes
        renamed.named = False

    def discard(self, path: str) -> None:
        for name in [name for name in self.files if name == path or name.startswith(path + "/")]:
            self.remove(name)
            self.discarded_files += 1
        self._removed_trees.append(path)

    @property
    def discarded(self) -> bool:
        return self.discarded_files > 0

    @property
    def frees_space(self) -> bool:
        return self.discarded_files > 0

    def remove_discarded(self, files_max: int, bytes_max: int) -> None:
        self.discarded_files = max(0, self.discarded_files - files_max)

    def sync_directory(self, directory: str) -> None:
        if self.flush_fails:
            raise FlushError(directory, "flush", "input/output error")
        self.step()
        trees = [tree for tree in self._removed_trees if _directory_of(tree) == directory]
        for path in [*self._removed]:
            gone_with_tree = any(path.startswith(f"{tree}/") for tree in trees)
            if gone_with_tree or _directory_of(path) == directory:
                del self._removed[path]
        self._removed_trees = [tree for tree in self._removed_trees if tree not in trees]
        for path, file in self.files.items():
            if _directory_of(path) == directory:
                file.named = True

    def usage(self) -> DiskUsage:
        return DiskUsage(self.total_bytes, self.free_bytes)

    def lock(self) -> _Lock:
        if self.locked:
            raise StoreLockedError("lock", "locking", "in use")
        self.locked = True
        return _Lock(self)
