"""The snapshot of the replicated metadata: one file, replaced as a whole, with a checksum.

    8 magic  8 applied index  8 length  4 CRC-32 of all but this field  then the data

What the data are is the state machine's business. The log may be deleted up to `applied_index` only, which never
falls: a node whose log begins behind that entry has lost state, and needs its leader's snapshot.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from log.errors import DamagedStateError, DiskFullError
from log.files.disk import Disk

PATH = "snapshot"
_MAGIC = b"TRVSNAP1"
_HEAD = struct.Struct(">8sqq")
_CHECKSUM = struct.Struct(">I")
_DATA_AT = _HEAD.size + _CHECKSUM.size


class Snapshot(NamedTuple):
    applied_index: int
    data: bytes | memoryview


def write_snapshot(disk: Disk, applied_index: int, *data: bytes | memoryview, path: str = PATH) -> None:
    """Worker. Replaces the snapshot, whose data come in pieces, durably; or writes what will replace it elsewhere.

    Raises DiskFullError, FlushError, DiskError.
    """
    head = _HEAD.pack(_MAGIC, applied_index, sum(map(len, data)))
    checksum = crc32(head)
    for piece in data:
        checksum = crc32(piece, checksum)
    disk.write_durably(path, head, _CHECKSUM.pack(checksum), *data)


@dataclass(slots=True, eq=False)
class SnapshotJob:
    """A snapshot on its way to the disk; a worker runs it, and `SnapshotFile.done` takes it back."""

    _disk: Disk
    applied_index: int
    _data: Sequence[bytes | memoryview]
    refused: DiskFullError | None = None
    """The error of a run that found no space: the old snapshot is still there."""

    def run(self) -> None:
        """Worker. Replaces the snapshot, durably. Raises FlushError, DiskError."""
        try:
            write_snapshot(self._disk, self.applied_index, *self._data)
        except DiskFullError as error:
            self.refused = error


def read_snapshot(disk: Disk) -> Snapshot | None:
    """Returns the snapshot, None if none was ever written. Raises DamagedStateError, DiskError."""
    return decode_snapshot(disk.read(PATH)) if disk.exists(PATH) else None


def decode_snapshot(raw: bytes) -> Snapshot:
    """Returns the snapshot that a file with these bytes holds. Raises DamagedStateError."""
    if len(raw) < _DATA_AT:
        raise DamagedStateError(PATH, len(raw), "it is cut off")
    magic, applied_index, length = _HEAD.unpack_from(raw)
    data = raw[_DATA_AT:]
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEAD.size)
    if magic != _MAGIC or len(data) != length or crc32(data, crc32(raw[: _HEAD.size])) != checksum:
        raise DamagedStateError(PATH, 0, "its bytes do not match their checksum")
    return Snapshot(applied_index, data)


@dataclass(slots=True, eq=False)
class SnapshotScrub:
    """Reads the snapshot, whose applied index is to be `applied_index`, and checks it."""

    _disk: Disk
    applied_index: int
    bytes: int = 0
    problem: DamagedStateError | None = None
    """The damage that `run` found."""

    def run(self) -> None:
        """Worker. Raises DiskError."""
        try:
            snapshot = read_snapshot(self._disk)
        except DamagedStateError as error:
            self.problem = error
            return
        found = -1 if snapshot is None else snapshot.applied_index
        self.bytes = 0 if snapshot is None else len(snapshot.data)
        if found < self.applied_index:  # a newer one may just have been written
            self.problem = DamagedStateError(PATH, 0, f"it reflects entry {found}, not {self.applied_index}")


@dataclass(slots=True, eq=False)
class SnapshotFile:
    """The snapshot of one store. `applied_index` is that of the one on the disk, which `read` finds; -1 without one."""

    _disk: Disk
    applied_index: int = -1

    def read(self) -> Snapshot | None:
        """Returns the snapshot on the disk, None if there is none. Raises DamagedStateError, DiskError."""
        snapshot = read_snapshot(self._disk)
        if snapshot is not None:
            self.applied_index = snapshot.applied_index
        return snapshot

    def write(self, applied_index: int, *data: bytes | memoryview) -> None:
        """Replaces the snapshot in one call. No job may be out. Raises DiskFullError, FlushError, DiskError."""
        write_snapshot(self._disk, applied_index, *data)
        self.applied_index = applied_index

    def job(self, applied_index: int, data: Sequence[bytes | memoryview]) -> SnapshotJob:
        """Returns the job that replaces the snapshot, whose data come in pieces; one at a time is out, and no
        `Store.swap` comes before it is back: it would put the older snapshot in the place of the leader's.
        """
        # The log may begin right behind the one that is there.
        assert applied_index >= self.applied_index, (
            f"a snapshot of {applied_index} in place of {self.applied_index}"
        )
        return SnapshotJob(self._disk, applied_index, data)

    def done(self, job: SnapshotJob) -> None:
        """Takes back a job whose `run` raised nothing."""
        if job.refused is None:
            self.applied_index = job.applied_index

    def replaced(self, applied_index: int) -> None:
        """Another one has taken its place on the disk. No job may be out."""
        self.applied_index = applied_index

    def scrub(self) -> SnapshotScrub:
        """Returns the check of the snapshot on the disk, for a worker to run."""
        return SnapshotScrub(self._disk, self.applied_index)
