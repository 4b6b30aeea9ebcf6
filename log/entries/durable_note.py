"""The note of how far the log is on the disk for certain, in a small file beside it: what tells damage from an
unfinished write.

Where the chain of entries breaks and nothing whole follows, the log itself cannot say whether the rest was ever there:
a page that a power failure left out and one that was lost later look alike. So `durable` has, in one sector,

    8 epoch of the log   8 index of the last entry that a flush has covered   4 CRC-32 of both

The note is stored right behind the flush that it rests on, before anything is acknowledged, and only into the page
cache: that costs nothing, and a crash of the process leaves it exact. It becomes durable when the log rests for a
moment, and with an orderly stop. A power failure may leave an older one. That says less, and never too much, as

    a note never names an entry that was not durable at that time, and is lowered durably before the log is truncated;
    every other cut begins a new epoch, in which notes of earlier ones are void.

TigerBeetle keeps a second copy of each header for the same question, and Alagappan et al. (Protocol-Aware Recovery for
Consensus-Based Storage, FAST 2018) an identifier per entry. Both are on the disk before an acknowledgement, which would
cost this log a second flush for each.
"""

import struct
from zlib import crc32

from log.files.disk import Disk, MappedFile

NOTE_FILE = "durable"
_PLACE = struct.Struct(">qq")
_CHECKSUM = struct.Struct(">I")
_BYTES = _PLACE.size + _CHECKSUM.size


class DurableNote:
    """The note of one log. `index` is what was stored last, -1 before."""

    __slots__ = ("_epoch", "_flushed", "_mapped", "index")

    def __init__(self, disk: Disk, directory: str) -> None:
        """Opens the file, or makes it. Raises DiskError, DiskFullError, FlushError."""
        path = f"{directory}/{NOTE_FILE}"
        is_new = not disk.exists(path)
        self._mapped: MappedFile = disk.open(path, _BYTES, create=True)
        self._mapped.prepare(0, _BYTES)
        if is_new:
            disk.sync_directory(directory)
        self._epoch = self.index = -1
        self._flushed = (-1, -1)
        """Epoch and index in the newest note that a flush covers, or would: after one that fails the node stops."""

    def read(self, epoch: int) -> int | None:
        """Returns the index that was noted in `epoch`; None if none was, or if the file is damaged."""
        place = bytes(self._mapped.buffer[: _PLACE.size])
        if _CHECKSUM.unpack_from(self._mapped.buffer, _PLACE.size)[0] != crc32(place):
            return None
        noted_epoch, index = _PLACE.unpack(place)
        return index if noted_epoch == epoch else None

    def store(self, epoch: int, index: int) -> None:
        """Notes in the page cache that entries up to `index` are durable."""
        assert epoch >= self._epoch, f"a note of epoch {epoch}, behind one of {self._epoch}"
        self._epoch, self.index = epoch, index
        place = _PLACE.pack(epoch, index)
        self._mapped.buffer[:_BYTES] = place + _CHECKSUM.pack(crc32(place))

    @property
    def is_flushed(self) -> bool:
        """True if a power failure leaves the note as it is."""
        return self._flushed == (self._epoch, self.index)

    def flush_range(self) -> tuple[MappedFile, int, int]:
        """Returns what the caller flushes now, to make the note durable."""
        self._flushed = (self._epoch, self.index)
        return self._mapped, 0, _BYTES

    def flush(self) -> None:
        """Makes the note durable. Raises FlushError."""
        mapped, begin, end = self.flush_range()
        mapped.flush(begin, end)

    def close(self) -> None:
        """Forgets the mapping."""
        self._mapped.close()
