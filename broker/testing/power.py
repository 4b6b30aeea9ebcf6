"""A disk that can be brought back to what a loss of power would have left of it.

What was stored and not flushed lies in the operating system's page cache, which a test cannot take away. So each flush
also copies the pages that it covers, and a loss of power makes the files anew from these copies. Of all that
`log.files.disk` allows it is the plainest: whatever was not flushed, and each name whose directory was not, is gone.
The simulator's disk draws which part of it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from log.files.mmap_disk import PAGE_BYTES, MmapDisk, MmapFile
from log.files.private_files import make_directories, open_file

_ZEROS = bytes(PAGE_BYTES)
_LOCK = "lock"
"""The file of `MmapDisk.lock`, which says nothing that lasts."""


@dataclass(slots=True, eq=False)
class _Image:
    """The flushed part of a file: its pages but those of zeros, by their first byte, and its size."""

    size: int
    pages: dict[int, bytes]

    @classmethod
    def whole(cls, content: bytes) -> _Image:
        image = cls(len(content), {})
        image.take(content, 0)
        return image

    def take(self, content: bytes, begin: int) -> None:
        """Note what the pages from `begin` on hold, which is the beginning of one."""
        for at in range(0, len(content), PAGE_BYTES):
            page = content[at : at + PAGE_BYTES]
            if page == _ZEROS[: len(page)]:
                self.pages.pop(begin + at, None)
            else:
                self.pages[begin + at] = page


class Power:
    """The part of one node's store that a loss of power leaves; it outlives the node's runs.

    What is in the directory at the beginning counts as flushed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.losses = 0
        self._lock = threading.Lock()  # workers flush while the owner opens files
        self._names: dict[str, _Image] = {}
        """The files as processes see them."""
        self._synced: dict[str, _Image] = {}
        """The files as a loss of power leaves them."""
        for path in root.rglob("*"):
            if path.is_file() and path != root / _LOCK:
                self._names[path.relative_to(root).as_posix()] = _Image.whole(path.read_bytes())
        self._synced |= self._names

    def lose(self) -> None:
        """Make the store what was flushed of it. No process may use it."""
        with self._lock:
            self.losses += 1
            # Files that were made since, and whose directory nobody has synced, are gone with their names.
            for path in self._names.keys() | self._synced.keys():
                (self.root / path).unlink(missing_ok=True)
            for path, image in self._synced.items():
                make_directories((self.root / path).parent)
                with open_file(self.root / path, "wb") as file:
                    file.truncate(image.size)
                    for begin, page in image.pages.items():
                        os.pwrite(file.fileno(), page, begin)
            self._names = dict(self._synced)

    def opened(self, path: str, size: int) -> _Image:
        """Return the image of a file that was opened, and made if there was none."""
        with self._lock:
            image = self._names.setdefault(path, _Image(size, {}))
            image.size = size
            return image

    def flushed(self, image: _Image, descriptor: int, begin: int, end: int) -> None:
        """Note that this part of a file was flushed."""
        with self._lock:
            # A system writes whole pages: what else has been stored in the first and the last is durable, too.
            begin -= begin % PAGE_BYTES
            end = min(image.size, end + -end % PAGE_BYTES)
            image.take(os.pread(descriptor, max(0, end - begin), begin), begin)

    def file_flushed(self, path: str) -> None:
        """Note that a whole file was flushed, if it is still there."""
        with self._lock:
            image = self._names.get(path)
            if image is not None and (self.root / path).exists():
                image.take((self.root / path).read_bytes(), 0)

    def replaced(self, path: str, content: bytes) -> None:
        """Note that a file was replaced durably."""
        with self._lock:
            self._names[path] = self._synced[path] = _Image.whole(content)

    def removed(self, is_meant: Callable[[str], bool]) -> None:
        """Note that the files with these names were removed: durably once their directory, or the one above a
        discarded tree, is synced."""
        with self._lock:
            for path in [path for path in self._names if is_meant(path)]:
                del self._names[path]

    def renamed(self, path: str, new_path: str) -> None:
        """Note that a file has another name: durably once the directories of both are synced."""
        with self._lock:
            self._names[new_path] = self._names.pop(path)

    def synced(self, directory: str) -> None:
        """Note that the names in a directory are durable, and that directories are gone which were removed there."""
        parent = Path(directory)
        with self._lock:
            for path in self._names:
                if Path(path).parent == parent:
                    self._synced[path] = self._names[path]
            for path in self._synced.keys() - self._names.keys():
                above = Path(path).parent
                if above == parent or (parent in above.parents and not (self.root / above).exists()):
                    del self._synced[path]


class PoweredFile(MmapFile):
    """A mapped file whose flushes are noted."""

    __slots__ = ("image", "power")
    image: _Image
    power: Power

    def flush(self, begin: int, end: int) -> None:
        super().flush(begin, end)
        self.power.flushed(self.image, self._descriptor, begin, end)

    def erase(self, begin: int) -> None:
        super().erase(begin)
        self.power.flushed(self.image, self._descriptor, begin, self.size)


class PoweredDisk(MmapDisk):
    """The disk of one run of a node, whose power may be lost when it has ended."""

    file_class = PoweredFile

    def __init__(self, power: Power) -> None:
        super().__init__(power.root)
        self._power = power

    def open(self, path: str, size: int, *, create: bool, buffered: bool = False) -> MmapFile:
        file = super().open(path, size, create=create, buffered=buffered)
        assert isinstance(file, PoweredFile), "`file_class` says so"
        file.power, file.image = self._power, self._power.opened(path, size)
        return file

    def write_durably(self, path: str, *data: bytes | memoryview) -> None:
        super().write_durably(path, *data)
        self._power.replaced(path, b"".join(data))

    def flush_file(self, path: str) -> None:
        super().flush_file(path)
        self._power.file_flushed(path)

    def remove(self, path: str) -> None:
        super().remove(path)
        self._power.removed(lambda name: name == path)

    def rename(self, path: str, new_path: str) -> None:
        super().rename(path, new_path)
        self._power.renamed(path, new_path)

    def discard(self, path: str) -> None:
        super().discard(path)
        self._power.removed(lambda name: name == path or name.startswith(f"{path}/"))

    def sync_directory(self, directory: str) -> None:
        super().sync_directory(directory)
        self._power.synced(directory)
