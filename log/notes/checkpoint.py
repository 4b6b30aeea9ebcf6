"""Checkpoints: a store notes now and then what its files hold, which makes the next start short (docs/storage.md).

* `recovery-notes-<epoch>`, our own: how far log, queues and index files were on disk at one moment, with
  checksums. It alone is read at start. Damaged or missing, it costs time and nothing else: all is built
  from the log. Until queues that a start builds again are on the disk it has another name (`rebuilding_path`).
* DLedger's `checkpoint` (endIndex, committedIndex) and RocketMQ's `checkpoint` (times), for their tools.
* `abort` exists while a store is open; found at start it says that the last stop was not a clean one.

A job flushes first and writes the notes last, so that they never promise more than the disk holds. Its
`committed_index` bounds what is noted of the log: entries behind it may still be truncated. The data files of
the log it does not flush: that their entries are durable only the log's own flushes can tell, and a job runs when
they have (`Checkpoints.job`).

Without a checkpoint only the next start takes longer. So one that finds no space on the disk waits for some, and ends
nothing: a disk that others have filled must not stop a node that can still answer those who read.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from log.dispatching.dispatch import Dispatcher
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import record_at
from log.errors import DamagedLogError, DamagedStateError, DiskFullError, LogFault, RecordError
from log.files.disk import Disk
from log.files.small_files import encode_values
from log.formats.layout import HEADER_BYTES
from log.formats.record import peek
from log.index.index_files import DIRECTORY as INDEX_DIRECTORY
from log.index.index_files import IndexFiles, IndexNote
from log.options import StoreOptions
from log.queues.consume_queues import ConsumeQueues, QueueNote, encode_queue_notes

NOTES = "recovery-notes-"
"""The name of the notes, which ends with the log's epoch: a checkpoint that is still being written when the log is
replaced notes it in a file that nobody reads any more."""
_REBUILDING = "-rebuilding"
ABORT = "abort"
STORE_CHECKPOINT = "checkpoint"
_STORE_CHECKPOINT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Notes:
    """Entries and index units up to `end_index` are durable, and committed up to `committed_index`.

    The queue and index files that are noted hold exactly the records up to `dispatched_index`, which is committed, too:
    always dispatched_index <= end_index.
    """

    end_index: int
    committed_index: int
    dispatched_index: int
    queues: list[QueueNote]
    index_files: list[IndexNote]


def encode_notes(notes: Notes, queues: Sequence[bytes] | None) -> Iterator[bytes]:
    """Yields the notes as a line of JSON and a line with its CRC-32; `queues` are its queues if they are encoded."""
    values = {
        "endIndex": notes.end_index,
        "committedIndex": notes.committed_index,
        "dispatchedIndex": notes.dispatched_index,
        "indexFiles": [(file.name, file.header.hex(), file.checksum) for file in notes.index_files],
    }
    checksum = 0
    separator = json.dumps(values).encode()[:-1] + b', "queues": ['
    for some in encode_queue_notes(notes.queues) if queues is None else queues:
        for piece in (separator, some):
            checksum = crc32(piece, checksum)
            yield piece
        separator = b", "
    end = b"]}" if separator == b", " else separator + b"]}"
    yield b"%s\n%08x\n" % (end, crc32(end, checksum))


def notes_path(epoch: int) -> str:
    return f"{NOTES}{epoch}"


def rebuilding_path(epoch: int) -> str:
    """Returns the name of the notes while queues that they tell of are built again.

    What a start after a crash finds of these may be in part on the disk, so it builds again all queues that are noted.
    An older release reads no file of this name, and builds all from the log.
    """
    return f"{notes_path(epoch)}{_REBUILDING}"


def are_put_aside(disk: Disk, epoch: int) -> bool:
    """True if the notes of an epoch tell nothing of the queues' files. Those that an older release has written since
    count again."""
    return disk.exists(rebuilding_path(epoch)) and not disk.exists(notes_path(epoch))


def put_aside(disk: Disk, epoch: int) -> None:
    """Has the notes of an epoch, if they do, tell nothing of the queues' files any more, durably.

    Needs no space on the disk. Raises DiskError, FlushError.
    """
    _rename(disk, notes_path(epoch), rebuilding_path(epoch))


def put_back(disk: Disk, epoch: int) -> None:
    """Has notes that are put aside tell of the queues' files again, durably. Raises as `put_aside`."""
    _rename(disk, rebuilding_path(epoch), notes_path(epoch))


def _rename(disk: Disk, path: str, new_path: str) -> None:
    if disk.exists(path):
        disk.rename(path, new_path)
        disk.sync_directory(".")


def remove_other_notes(disk: Disk, epoch: int) -> None:
    """Removes the notes of earlier epochs, and those of this one that were put aside. Raises DiskError.

    A worker may be writing such notes: what it has under another name until they are whole is left to it.
    """
    for name in disk.list("."):
        number = name.removeprefix(NOTES).removesuffix(_REBUILDING)
        if name.startswith(NOTES) and number.isdigit() and name != notes_path(epoch):
            disk.remove(name)


def read_notes(disk: Disk, epoch: int) -> Notes | None:
    """Returns the notes of an epoch, put aside or not, None if there are none. Raises DamagedStateError, DiskError."""
    path = rebuilding_path(epoch) if are_put_aside(disk, epoch) else notes_path(epoch)
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


class CheckpointPaths(NamedTuple):
    """The files of a checkpoint."""

    store: str
    dledger: str
    notes: str


def checkpoint_paths(dledger_directory: str, epoch: int) -> CheckpointPaths:
    """Returns the files of the checkpoints of an epoch."""
    return CheckpointPaths(STORE_CHECKPOINT, f"{dledger_directory}/checkpoint", notes_path(epoch))


def write_checkpoint(
    disk: Disk, paths: CheckpointPaths, notes: Notes, store_time: int, queues: Sequence[bytes] | None = None
) -> None:
    """Worker. Writes all three, durably; `queues` are those of the notes if they are encoded.

    Raises DiskFullError, FlushError, DiskError.
    """
    times = struct.pack(">qqq", store_time, store_time, store_time)
    disk.write_durably(paths.store, times.ljust(_STORE_CHECKPOINT_BYTES, b"\0"))
    values = {"endIndex": notes.end_index, "committedIndex": notes.committed_index}
    disk.write_durably(paths.dledger, encode_values(values))
    disk.write_durably(paths.notes, *encode_notes(notes, queues))


@dataclass(slots=True, eq=False)
class CheckpointJob:
    """A checkpoint on its way to the disk; a worker runs it, and `Checkpoints.done` takes it back."""

    _disk: Disk
    _paths: CheckpointPaths
    _notes: Notes
    _files: list[str]
    _directories: list[str]
    _store_time: int
    end_index: int = field(init=False)
    refused: DiskFullError | None = None
    """The error of its last run if that found no space; it may run again then."""

    def __post_init__(self) -> None:
        self.end_index = self._notes.end_index

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
        write_checkpoint(self._disk, self._paths, self._notes, self._store_time)


@dataclass(slots=True, eq=False)
class Checkpoints:
    """The checkpoints of one store, one at a time.

    It is drawn up by what queues and index files hold then, `waits` until the entries that it notes are durable, and is
    out with a worker until `done` takes it back. If there was no space for it on the disk it waits again. So `_job` is
    there while it `waits` or is out.
    """

    _disk: Disk
    _options: StoreOptions
    _log: EntryLog
    _queues: ConsumeQueues
    _index: IndexFiles
    _dispatcher: Dispatcher
    _job: CheckpointJob | None = None
    """The one that waits or is out."""
    noted_index: int = field(init=False)
    """The last entry that is noted on the disk as durable; never one behind the log's end."""
    waits: bool = False
    """One is drawn up; `job` returns it once the entries that it notes are durable."""

    def __post_init__(self) -> None:
        self.noted_index = self._log.first_index - 1

    def job(self, commit_index: int) -> CheckpointJob | None:
        """Returns a checkpoint, which makes the next start short.

        Returns None while one is out, while damage is not cut, and as long as it `waits` for the flush of what it
        notes: ask again after each flush. Raises DiskFullError, after which it may be asked for again.

        Only a flush job that came back makes an entry durable. A flush by the checkpoint itself would prove nothing:
        beside or after a flush job that fails, it may succeed without writing the same pages.
        """
        if self._log.damaged:
            return None
        if self._job is None:
            self._job = self._draw_up(commit_index)
            self.waits = True
        if not self.waits or self._log.durable_index < self._job.end_index:
            return None
        self.waits = False
        return self._job

    @property
    def awaits_flush(self) -> bool:
        """One is drawn up, and a flush must come back before `job` returns it."""
        return self.waits and self._job is not None and self._log.durable_index < self._job.end_index

    def _draw_up(self, commit_index: int) -> CheckpointJob:
        """Notes queues and index files as they are now; the files that it takes to be flushed are not listed again.

        Raises DiskFullError (index entries that are not in their file yet find no room there): nothing was taken then.
        """
        log, built_index = self._log, self._dispatcher.built_index
        # What was dispatched is committed, even if the group has not said so again since the start.
        end_index = min(max(commit_index, built_index), log.last_index)
        # First what may fail: queues do not list files a second time.
        index_notes, index_files = self._index.notes()
        queue_notes, files, directories = self._queues.notes()
        if self._index.new_files:
            self._index.new_files = False
            directories.append(INDEX_DIRECTORY)
        store_time = 0
        if log.first_index <= built_index <= log.last_index:
            try:
                record = record_at(log, log.position_of(built_index) + HEADER_BYTES)
                store_time = peek(record).store_timestamp
            except (RecordError, DamagedLogError):
                pass  # an entry that is no record has no time; readers of the file see "unknown"
        return CheckpointJob(
            self._disk,
            checkpoint_paths(self._options.dledger_directory, log.epoch),
            Notes(end_index, end_index, built_index, queue_notes, index_notes),
            [*log.unit_files_since(self.noted_index + 1), *files, *index_files],
            directories,
            store_time,
        )

    def done(self, job: CheckpointJob) -> None:
        """Takes back a job whose `run` raised nothing; `job` returns it again if it was refused."""
        if job is not self._job:
            return  # the store was reset while it ran
        assert not self.waits, "a checkpoint comes back that was not out"
        assert job.end_index <= self._log.last_index, (
            f"entries up to {job.end_index} were noted as committed, and the log was cut to {self._log.last_index}"
        )
        if job.refused is not None:
            self.waits = True
            return
        self._job = None
        self.noted_index = max(self.noted_index, job.end_index)

    def begin_anew(self, end_index: int) -> None:
        """The log is replaced by one that begins behind `end_index`, whose notes are on the disk.

        A job that is out comes back for nothing, as it notes an epoch that is over.
        """
        self._job = None
        self.waits = False
        self.noted_index = end_index

    def write(self, commit_index: int) -> None:
        """Writes a checkpoint at once; everything in the log must be durable. Raises DiskError, FlushError."""
        is_older = self.waits
        job = self.job(commit_index)
        if job is None:
            raise LogFault("a checkpoint is still out")
        job.run()
        if job.refused is not None:
            raise job.refused
        self.done(job)
        if is_older:  # what it flushed is not flushed again, and it does not note what came since
            self.write(commit_index)
