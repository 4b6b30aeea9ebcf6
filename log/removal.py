"""The space of what was removed, freed in steps.

A store removes trees and large files by a step that is short (`Disk.discard`): tens of thousands of names, or the
blocks of a gigabyte, take a file system long enough to be missed by whoever waits for the node. A worker does that
afterwards. What a stop leaves the next start goes on with.
"""

from log.disk import Disk
from log.errors import DiskError


class RemovalJob:
    """A step of it."""

    __slots__ = ("_bytes_max", "_disk", "_files_max", "failure")

    def __init__(self, disk: Disk, files_max: int, bytes_max: int) -> None:
        self._disk = disk
        self._files_max = files_max
        self._bytes_max = bytes_max
        self.failure: DiskError | None = None
        """The error of the run. Nothing but space depends on it."""

    def run(self) -> None:
        """Worker."""
        try:
            self._disk.remove_discarded(self._files_max, self._bytes_max)
        except DiskError as error:
            self.failure = error
