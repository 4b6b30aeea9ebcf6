"""A sequence of fixed-size mapped files, each named by the 20-digit byte position at which it begins.

The list of files is kept in memory, mappings are not: at most `mappings_max` files are mapped, the least
recently mapped is forgotten first. Forgetting never unmaps bytes that a reader or a running flush still
holds; they keep the mapping alive by reference.
"""

from log.files.disk import Disk, MappedFile
from log.formats.layout import file_name


class Segments:
    """`starts` is sorted. It may have gaps only before recovery has looked at it.

    `_mapped` and `_unsettled` have files that are in `starts`, none of them both.
    """

    __slots__ = (
        "_buffered",
        "_mapped",
        "_mappings_max",
        "_unsettled",
        "directory",
        "disk",
        "file_bytes",
        "of_other_size",
        "starts",
    )

    def __init__(
        self, disk: Disk, directory: str, file_bytes: int, mappings_max: int, *, buffered: bool = False
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self._mappings_max = mappings_max
        self._mapped: dict[int, MappedFile] = {}
        self._buffered = buffered
        self._unsettled: dict[int, MappedFile] = {}
        """Files whose bytes are, in part, only in a write buffer: read through it, whatever else is mapped."""
        found = [int(name) for name in disk.list(directory) if len(name) == 20 and name.isdigit()]
        self.starts = [start for start in found if not start % file_bytes]
        self.of_other_size = [self.path(start) for start in found if start % file_bytes]
        """Files that begin where none of these does: they were made with another size."""

    def path(self, start: int) -> str:
        return f"{self.directory}/{file_name(start)}"

    def start_of(self, position: int) -> int:
        """Returns the start of the file in which `position` lies."""
        return position - position % self.file_bytes

    def mapping(self, start: int) -> MappedFile:
        """Returns the mapping of an existing file. Raises DiskError if it vanished."""
        mapped = self._mapped.get(start) or self._unsettled.get(start)
        if mapped is None:
            mapped = self.disk.open(self.path(start), self.file_bytes, create=False)
            self._remember(start, mapped)
        elif len(self._mapped) > 1 and start in self._mapped:
            # The order of the dict is the order of use; the first is forgotten first.
            del self._mapped[start]
            self._mapped[start] = mapped
        return mapped

    def create(self, start: int) -> MappedFile:
        """Worker. Makes (or finds) the file on disk, durably, without noting it: `adopt` does that."""
        mapped = self.disk.open(self.path(start), self.file_bytes, create=True, buffered=self._buffered)
        self.disk.sync_directory(self.directory)
        return mapped

    def adopt(self, start: int, mapped: MappedFile) -> None:
        """Notes a created file as the new last one."""
        assert not self.starts or start == self.starts[-1] + self.file_bytes, (
            f"file {start} does not follow the last one, {self.starts[-1]}, of {self.file_bytes} bytes"
        )
        self.starts.append(start)
        if self._buffered:
            self._unsettled[start] = mapped
        else:
            self._remember(start, mapped)

    def obtain(self, start: int) -> MappedFile:
        """Returns the mapping of a file, which is made and noted if the last one is before it. Raises DiskError."""
        if not self.starts or self.starts[-1] < start:
            self.adopt(start, self.create(start))
        return self.mapping(start)

    def settle_before(self, start: int) -> None:
        """Maps files before `start` like any other from now on: they are written back as a whole."""
        for settled in [other for other in self._unsettled if other < start]:
            del self._unsettled[settled]

    def remove_before(self, start: int) -> int:
        """Removes files that end at or before `start`, oldest first; returns how many."""
        return self._remove([known for known in self.starts if known + self.file_bytes <= start])

    def remove_from(self, start: int) -> None:
        """Removes files that begin at or after `start`, newest first."""
        self._remove([known for known in reversed(self.starts) if known >= start])

    def remove_all(self) -> None:
        """Removes all files, in one step; durable once the directory above theirs is synced. Raises DiskError."""
        self.disk.discard(self.directory)
        self.starts = []
        self.close()

    def close(self) -> None:
        self._mapped.clear()
        self._unsettled.clear()

    def _remember(self, start: int, mapped: MappedFile) -> None:
        while len(self._mapped) >= self._mappings_max:
            del self._mapped[next(iter(self._mapped))]
        self._mapped[start] = mapped

    def _remove(self, starts: list[int]) -> int:
        """Removes files, durably, in an order in which a failure in between leaves no gap; returns how many."""
        for start in starts:
            self._mapped.pop(start, None)
            self._unsettled.pop(start, None)
            self.disk.discard(self.path(start))
            self.starts.remove(start)
        if starts:
            self.disk.sync_directory(self.directory)
        return len(starts)
