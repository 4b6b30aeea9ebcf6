"""Checkpoints: a store notes now and then what its files hold, which makes the next start short (docs/storage.md).

* `recovery-notes-<epoch>`, our own: how far log, queues and index files were on disk at one moment, with
  checksums. It alone is read at start. Damaged or missing, it costs time and nothing else: all is built
  from the log.
* DLedger's `checkpoint` (endIndex, committedIndex) and RocketMQ's `checkpoint` (times), for their tools.
* `abort` exists while a store is open; found at start it says that the last stop was not a clean one.

A job flushes first and writes the notes last, so that they never promise more than the disk holds. Its
`committed_index` bounds what is noted of the log: entries behind it may still be truncated. The data files of
the log it does not flush: that their entries are durable only the log's own flushes can tell, and a job runs when
they have (`Store.checkpoint_job`).

Without a checkpoint only the next start takes longer. So one that finds no space on the disk waits for some, and ends
nothing: a disk that others have filled must not stop a node that can still answer those who read.
"""

import json
import struct
from dataclasses import dataclass
from zlib import crc32

from log.consume_queues import QueueNote
from log.disk import Disk
from log.errors import DamagedStateError, DiskFullError
from log.index_files import IndexNote
from log.small_files import encode_values

NOTES = "recovery-notes-"
"""The name of the notes, which ends with the log's epoch: a checkpoint that is still being written when the log is
replaced notes it in a file that nobody reads any more."""
ABORT = "abort"
STORE_CHECKPOINT = "checkpoint"
_STORE_CHECKPOINT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Notes:
    """Entries and index units up to `end_index` are durable, and committed up to `committed_index`.

    The queue and index files that are noted hold exactly the records up to `dispatched_index`.
    """

    end_index: int
    committed_index: int
    dispatched_index: int
    queues: list[QueueNote]
    index_files: list[IndexNote]


def encode_notes(notes: Notes) -> bytes:
    """Returns the notes as a line of JSON and a line with its CRC-32."""
    body = json.dumps(
        {
            "endIndex": notes.end_index,
            "committedIndex": notes.committed_index,
            "dispatchedIndex": notes.dispatched_index,
            "queues": notes.queues,
            "indexFiles": [(file.name, file.header.hex(), file.checksum) for file in notes.index_files],
        }
    ).encode()
    return b"%s\n%08x\n" % (body, crc32(body))


def notes_path(epoch: int) -> str:
    return f"{NOTES}{epoch}"


def remove_other_notes(disk: Disk, epoch: int) -> None:
    """Removes the notes of earlier epochs. Raises DiskError."""
    for name in disk.list("."):
        if name.startswith(NOTES) and name != notes_path(epoch):
            disk.remove(name)


def read_notes(disk: Disk, epoch: int) -> Notes | None:
    """Returns the notes of an epoch, None if there are none. Raises DamagedStateError, DiskError."""
    path = notes_path(epoch)
    if not disk.exists(path):
        return None
    raw = disk.read(path)
    body, _, checksum = raw.partition(b"\n")
    if checksum != b"%08x\n" % crc32(body):
        raise DamagedStateError(path, 0, "its bytes do not match their checksum")
    values = json.loads(body)
    return Notes(
        end_index=values["endIndex"],
        committed_index=values["committedIndex"],
        dispatched_index=values["dispatchedIndex"],
        queues=[QueueNote(*note) for note in values["queues"]],
        index_files=[
            IndexNote(name, bytes.fromhex(header), checksum)
            for name, header, checksum in values["indexFiles"]
        ],
    )


class CheckpointJob:
    """A checkpoint on its way to the disk; a worker runs it, and `Store.checkpointed` takes it back."""

    __slots__ = (
        "_directories",
        "_disk",
        "_dledger_path",
        "_files",
        "_notes",
        "_notes_path",
        "_store_time",
        "end_index",
        "refused",
    )

    def __init__(
        self,
        disk: Disk,
        dledger_directory: str,
        notes: Notes,
        files: list[str],
        directories: list[str],
        store_time: int,
        epoch: int,
    ) -> None:
        self._disk = disk
        self._dledger_path = f"{dledger_directory}/checkpoint"
        self._files = files
        self._directories = directories
        self._notes = notes
        self._notes_path = notes_path(epoch)
        self._store_time = store_time
        self.end_index = notes.end_index
        self.refused: DiskFullError | None = None
        """The error of its last run if that found no space; it may run again then."""

    def run(self) -> None:
        """Worker. Flushes, then notes. Raises FlushError, DiskError: nothing was noted then, nor if it is `refused`."""
        self.refused = None
        try:
            self._run()
        except DiskFullError as error:
            self.refused = error

    def _run(self) -> None:
        # The notes come last: they must never promise more than the disk holds.
        for path in self._files:
            self._disk.flush_file(path)
        for directory in self._directories:
            self._disk.sync_directory(directory)
        times = struct.pack(">qqq", self._store_time, self._store_time, self._store_time)
        self._disk.write_durably(STORE_CHECKPOINT, times.ljust(_STORE_CHECKPOINT_BYTES, b"\0"))
        values = {"endIndex": self._notes.end_index, "committedIndex": self._notes.committed_index}
        self._disk.write_durably(self._dledger_path, encode_values(values))
        self._disk.write_durably(self._notes_path, encode_notes(self._notes))
