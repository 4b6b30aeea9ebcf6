"""The format of a store: which releases can read it, in a small file beside the log.

    format = 2
    written_by = "0.2.0"
    checksum = "4ba40b18"

A text, because people read it, too; the checksum is the CRC-32 of what stands before it, as one flipped bit makes
another format of a number. Builds of 0.2.0 before its release wrote none. A store without the file has the first
format. What a format means is the group's business; here a start learns in time that it is too old for what it would
find.
"""

import tomllib
from typing import Final
from zlib import crc32

from log.errors import DamagedStateError, StoreTooNewError
from log.files.disk import Disk

PATH: Final = "format"
_CHECKSUM: Final = "checksum"
FIRST_FORMAT: Final = 1
"""The format of a store, and of a group, that does not say which one it has."""


def check_format(disk: Disk, newest_format: int) -> int:
    """Returns the store's format.

    Raises StoreTooNewError if it is above `newest_format`, DamagedStateError, DiskError.
    """
    if not disk.exists(PATH):
        return FIRST_FORMAT
    try:
        text = disk.read(PATH).decode()
        fields = tomllib.loads(text)
        number, written_by = fields["format"], fields["written_by"]
    except (ValueError, KeyError) as error:
        raise DamagedStateError(PATH, 0, f"it does not say the store's format: {error}") from error
    checked, named, _ = text.rpartition(_CHECKSUM)
    if named and fields.get(_CHECKSUM) != _checksum_of(checked):
        raise DamagedStateError(PATH, 0, "its text does not match its checksum")
    if not isinstance(number, int) or number < FIRST_FORMAT or not isinstance(written_by, str):
        raise DamagedStateError(PATH, 0, f"the store's format is {number!r}, written by {written_by!r}")
    if number > newest_format:
        raise StoreTooNewError(number, written_by, newest_format)
    return number


def write_format(disk: Disk, number: int, written_by: str) -> None:
    """Notes the store's format, durably. Raises DiskFullError, FlushError, DiskError."""
    text = f'format = {number}\nwritten_by = "{written_by}"\n'
    disk.write_durably(PATH, f'{text}{_CHECKSUM} = "{_checksum_of(text)}"\n'.encode())


def _checksum_of(text: str) -> str:
    return f"{crc32(text.encode()):08x}"
