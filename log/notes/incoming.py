"""The files that a snapshot from the leader will put in the place of a store's own, written beside them beforehand.

    incoming/snapshot              -> snapshot
    incoming/recovery-notes        -> recovery-notes-<epoch>
    incoming/checkpoint            -> checkpoint
    dledger-<id>/checkpoint.new    -> dledger-<id>/checkpoint

They may be large, and so a worker writes and flushes them. What is left for `Store.swap` is to change names, which a
system does within one file system only: the log's directory may be on another. Nobody reads anything here: what a crash
leaves is discarded by the next start.
"""

from dataclasses import dataclass

from log.errors import DiskFullError
from log.files.disk import Disk
from log.notes.checkpoint import CheckpointPaths, Notes, checkpoint_paths, write_checkpoint
from log.notes.snapshot import PATH, Snapshot, write_snapshot
from log.options import StoreOptions
from log.queues.consume_queues import EmptyQueues

DIRECTORY = "incoming"
_SNAPSHOT = f"{DIRECTORY}/snapshot"


def _checkpoint(options: StoreOptions) -> CheckpointPaths:
    return CheckpointPaths(
        f"{DIRECTORY}/checkpoint",
        f"{options.dledger_directory}/checkpoint.new",
        f"{DIRECTORY}/recovery-notes",
    )


def discard_incoming(disk: Disk, options: StoreOptions) -> None:
    """Gives up what was written and not put in place. Raises DiskError."""
    disk.discard(DIRECTORY)
    disk.remove(_checkpoint(options).dledger)


@dataclass(slots=True, eq=False)
class Incoming:
    """A store that begins with entry `first_index`, behind `snapshot`, and with `queues`.

    `run` comes first, in a worker; there is one at a time.
    """

    _disk: Disk
    _options: StoreOptions
    first_index: int
    queues: EmptyQueues
    snapshot: Snapshot
    refused: DiskFullError | None = None
    """The error of a run that found no space."""

    def run(self) -> None:
        """Worker. Writes the files, durably. Raises FlushError, DiskError."""
        end_index = self.first_index - 1
        try:
            write_snapshot(self._disk, self.snapshot.applied_index, self.snapshot.data, path=_SNAPSHOT)
            notes = Notes(end_index, end_index, end_index, [], [])
            write_checkpoint(self._disk, _checkpoint(self._options), notes, 0, self.queues.notes)
        except DiskFullError as error:
            self.refused = error

    def put_in_place(self, epoch: int) -> None:
        """Gives the files their names, of which those in the notes begin with `epoch`. Raises DiskError, FlushError."""
        assert self.refused is None, "all of them are there"
        directory = self._options.dledger_directory
        self._disk.rename(_SNAPSHOT, PATH)
        for path, place in zip(_checkpoint(self._options), checkpoint_paths(directory, epoch), strict=True):
            self._disk.rename(path, place)
        for changed in (directory, "."):
            self._disk.sync_directory(changed)
