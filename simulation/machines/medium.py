"""The decay of bytes at rest on a disk: bits rot, and pages lie where others belong.

Most of it is to be used while the host is down: what a running process has mapped is not read from the disk again. The
methods with `page` in their names do it to a process that runs, on both images of the file.
"""

from typing import NamedTuple

from simulation.machines.inode import PAGE_BYTES, Inode
from simulation.randomness import Random

_SCANNED_DATA_FILES = 2


class Page(NamedTuple):
    """A page of a file, as it was."""

    path: str
    inode: Inode
    begin: int
    content: bytes


class Medium:
    """The files of one disk, by their names, as the medium holds them."""

    def __init__(self, names: dict[str, Inode], random: Random) -> None:
        """`names` are the disk's, which come and go."""
        self._names = names
        self._random = random

    def rot(self, prefix: str) -> str | None:
        """Flips a bit in some file whose path begins with `prefix`; returns what was done, None if there is none."""
        found = self._random_used_page(prefix)
        if found is None:
            return None
        path, inode, begin, end = found
        return self._rot(path, inode, begin, end)

    def rot_page(self, path: str, begin: int) -> str:
        """Flips a bit in the page at `begin` of a file, whoever has it mapped; returns what was done."""
        inode = self._names[path]
        used = len(inode.cached[begin : begin + PAGE_BYTES].rstrip(b"\0"))
        return self._rot(path, inode, begin, begin + used)

    def _rot(self, path: str, inode: Inode, begin: int, end: int) -> str:
        at = self._random.randrange(begin, end)
        bit = 1 << self._random.randrange(8)
        inode.cached[at] ^= bit
        inode.durable[at] = inode.cached[at]
        return f"{path} byte {at} bit {bit:#04x}"

    def misdirect(self, prefix: str) -> str | None:
        """A page of a file holds what belongs to another of its pages, as after a misdirected write."""
        found = self._random_used_page(prefix)
        if found is None:
            return None
        path, inode, begin, _ = found
        return self._misdirect(path, inode, begin)

    def misdirect_page(self, path: str, begin: int) -> str | None:
        """The page at `begin` of a file holds what belongs to another of its pages, which stays as it is."""
        return self._misdirect(path, self._names[path], begin, keeps_other=True)

    def _misdirect(self, path: str, inode: Inode, begin: int, *, keeps_other: bool = False) -> str | None:
        other = self._random.randrange(0, len(inode.cached), PAGE_BYTES)
        page = bytes(inode.cached[other : other + PAGE_BYTES])
        size = min(len(page), len(inode.cached) - begin)
        if other == begin or page[:size] == inode.cached[begin : begin + size]:
            return None
        inode.cached[begin : begin + size] = page[:size]
        inode.durable[begin : begin + size] = page[:size]
        what = f"{path} page at {begin} overwritten with the one at {other}"
        if keeps_other or self._random.random() < 0.5:
            return what
        # The write went there instead of to its own place.
        inode.cached[other : other + len(page)] = bytes(len(page))
        inode.durable[other : other + len(page)] = bytes(len(page))
        return f"{what}, which is empty now"

    def page(self, path: str, begin: int) -> Page:
        """Returns a page as it is now."""
        inode = self._names[path]
        return Page(path, inode, begin, bytes(inode.cached[begin : begin + PAGE_BYTES]))

    def is_harmed(self, page: Page) -> bool:
        """True if the file is still there, and does not hold again what it did."""
        inode = self._names.get(page.path)
        # A snapshot is not mended in its place: another file takes its name.
        if inode is None or page.path == "snapshot":
            return inode is page.inode
        return inode.cached[page.begin : page.begin + PAGE_BYTES] != page.content

    def used_pages(self, path: str) -> list[int]:
        """Returns the first bytes of the pages of a file that are not all zeros; none if there is no such file."""
        inode = self._names.get(path)
        if inode is None:
            return []
        cached = inode.cached
        return [
            begin for begin in range(0, len(cached), PAGE_BYTES) if any(cached[begin : begin + PAGE_BYTES])
        ]

    def numbered_files(self, prefix: str) -> list[str]:
        """Returns the files of a sequence that are not all zeros, by their paths, oldest first."""
        return [
            path
            for path in sorted(self._names)
            if path.startswith(prefix)
            and path[len(prefix) :].isdigit()
            and len(path) == len(prefix) + 20
            and any(self._names[path].cached)
        ]

    def _random_used_page(self, prefix: str) -> tuple[str, Inode, int, int] | None:
        pages = []
        old = self._unscanned_files()
        for path in sorted(self._names):
            inode = self._names[path]
            if path.startswith(prefix) and path not in old:
                for begin in range(0, len(inode.cached), PAGE_BYTES):
                    used = len(inode.cached[begin : begin + PAGE_BYTES].rstrip(b"\0"))
                    if used:
                        pages.append((path, inode, begin, begin + used))
        return self._random.choice(pages) if pages else None

    def _unscanned_files(self) -> dict[str, None]:
        """Returns the files that a start does not read through: damage there is found by the next reader, if at all."""
        by_directory: dict[str, list[str]] = {}
        for path in sorted(self._names):
            directory, _, name = path.rpartition("/")
            if len(name) == 20 and name.isdigit() and any(self._names[path].view):
                by_directory.setdefault(directory, []).append(path)
        unscanned: dict[str, None] = {}
        for directory, paths in by_directory.items():
            scanned = _SCANNED_DATA_FILES if directory.endswith("/data") else 1
            unscanned.update(dict.fromkeys(paths[:-scanned]))
        return unscanned
