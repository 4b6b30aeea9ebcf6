"""The space of what was removed, freed in steps.

A store removes trees and large files by a step that is short (`Disk.discard`): tens of thousands of names, or the
blocks of a gigabyte, take a file system long enough to be missed by whoever waits for the node. A worker does that
afterwards. What a stop leaves the next start goes on with.
"""

from dataclasses import dataclass

from log.errors import DiskError
from log.files.disk import Disk


@dataclass(slots=True, eq=False)
class RemovalJob:
    """A step of the removal: a worker frees the space of some of the files that were discarded."""

    _disk: Disk
    _files_max: int
    _bytes_max: int
    failure: DiskError | None = None
    """The error of the run. Nothing but space depends on it."""

    def run(self) -> None:
        """Worker. Removes some files; an error is kept in `failure`."""
        try:
            self._disk.remove_discarded(self._files_max, self._bytes_max)
        except DiskError as error:
            self.failure = error
