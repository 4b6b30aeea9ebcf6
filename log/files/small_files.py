"""Small files of name = value lines, with a checksum over them.

DLedger keeps its term, vote and checkpoint as Java properties text; so do we, with one
more line, `checksum` (CRC-32 of all lines before it, 8 hexadecimal digits), because a bit flipped in a vote
must be an error and not another vote. Java readers ignore the additional name.
"""

from collections.abc import Mapping
from zlib import crc32

from log.errors import DamagedStateError
from log.files.disk import Disk

_CHECKSUM = b"checksum="


def write_values(disk: Disk, path: str, values: Mapping[str, int | str]) -> None:
    """Replaces the file durably. Raises DiskError, FlushError."""
    disk.write_durably(path, encode_values(values))


def encode_values(values: Mapping[str, int | str]) -> bytes:
    """Returns the file's content: a line for each value, and the line of the checksum."""
    lines = []
    for name, value in values.items():
        text = str(value)
        assert text.isprintable(), f"{name} must be plain text, not {text!r}"
        assert text.isascii(), f"{name} must be plain text, not {text!r}"
        assert not set(text) & set("\\=:#! "), f"{name} would need escapes in Java properties: {text!r}"
        lines.append(f"{name}={text}\n")
    body = "".join(lines).encode()
    return body + _CHECKSUM + b"%08x\n" % crc32(body)


def read_values(disk: Disk, path: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Returns the values, None if there is no such file.

    Raises DamagedStateError, also when one of `names` is missing, and DiskError.
    """
    if not disk.exists(path):
        return None
    raw = disk.read(path)
    body, separator, checksum = raw.rpartition(_CHECKSUM)
    if not separator or checksum != b"%08x\n" % crc32(body):
        raise DamagedStateError(path, 0, f"its {len(raw)} bytes do not match their checksum")
    values = {}
    for line in body.decode("ascii").splitlines():
        name, _, value = line.partition("=")
        values[name] = value
    # The checksum vouches for what was written, which may be another program's, or another release's.
    for name in names:
        if name not in values:
            raise DamagedStateError(path, 0, f"it lacks {name}")
    return values


def integer(values: Mapping[str, str], name: str, path: str) -> int:
    """Returns one value as a number. Raises DamagedStateError."""
    try:
        return int(values[name])
    except ValueError as error:
        raise DamagedStateError(path, 0, f"{name} is {values[name]!r}, no number") from error
