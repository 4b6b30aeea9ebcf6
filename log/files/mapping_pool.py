"""The mapped files of all ConsumeQueues: thousands of queues share a few mappings."""

from dataclasses import dataclass, field
from typing import Protocol

from log.files.disk import MappedFile


class Pooled(Protocol):
    """A queue whose files are mapped here. `tail_start` is where its last file begins while that is mapped."""

    tail_start: int
    recently_used: bool
    """The last file was used since the last round of evictions."""

    def open_file(self, start: int, *, create: bool) -> MappedFile:
        """Maps the file that begins at byte `start`. Raises DiskError."""

    def let_go(self) -> None:
        """The last file is no longer mapped."""

    def evicted(self, mapped: MappedFile) -> None:
        """The last file, mapped until now, makes place for another."""


@dataclass(slots=True, eq=False)
class MappingPool:
    """The mapped files of all queues, at most `_limit`. One that was not used for a round of evictions goes (CLOCK).

    Keys are (queue, start of file); a queue is told when the mapping of its last file goes.
    """

    _limit: int
    opened: int = 0
    """The number of files that were mapped since the start."""
    _mapped: dict[tuple[Pooled, int], MappedFile] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._mapped)

    def get(self, queue: Pooled, start: int, *, create: bool = False) -> MappedFile:
        """Returns the mapping of a queue's file. Raises DiskError, also if the file is missing and not `create`."""
        key = (queue, start)
        mapped = self._mapped.get(key)
        if mapped is None:
            self.opened += 1
            # Before room is made for it: if this fails, no other queue loses its mapping.
            mapped = queue.open_file(start, create=create)
            while len(self._mapped) >= self._limit:
                self._evict_one()
            self._mapped[key] = mapped
        return mapped

    def forget(self, queue: Pooled, start: int) -> None:
        """Drops the mapping of a file that is about to be removed."""
        self._mapped.pop((queue, start), None)

    def clear(self) -> None:
        for queue, _ in self._mapped:
            queue.let_go()
        self._mapped.clear()

    def _evict_one(self) -> None:
        """Drops the oldest mapping, but passes once over the tails that were used since the last round."""
        while True:
            key = next(iter(self._mapped))
            mapped = self._mapped.pop(key)
            queue, start = key
            if queue.tail_start == start:
                if queue.recently_used:
                    queue.recently_used = False
                    self._mapped[key] = mapped
                    continue
                queue.evicted(mapped)
            return
