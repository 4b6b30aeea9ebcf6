"""A small file of opaque bytes, replaced as a whole, with a checksum: state that belongs beside the log.

8 magic  4 CRC-32 of the data  then the data
"""

from zlib import crc32

from log.errors import DamagedStateError
from log.files.disk import Disk

_MAGIC = b"TRVSTAT1"
_DATA_AT = len(_MAGIC) + 4


def write_state(disk: Disk, path: str, data: bytes) -> None:
    """Replaces the file, durably. Raises DiskFullError, FlushError, DiskError."""
    disk.write_durably(path, b"".join((_MAGIC, crc32(data).to_bytes(4, "big"), data)))


def read_state(disk: Disk, path: str) -> bytes | None:
    """Returns the file's data, None if it was never written. Raises DamagedStateError, DiskError."""
    if not disk.exists(path):
        return None
    raw = disk.read(path)
    data = raw[_DATA_AT:]
    if raw[: len(_MAGIC)] != _MAGIC or crc32(data).to_bytes(4, "big") != raw[len(_MAGIC) : _DATA_AT]:
        raise DamagedStateError(path, 0, "its bytes do not match their checksum")
    return data
