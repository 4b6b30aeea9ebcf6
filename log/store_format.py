"""The format of a store: which releases can read it, in a small file beside the log.

    format = 2
    written_by = "0.2.0"

A text, because people read it, too. A store without the file has the first format. What a format means is the group's
business; here a start learns in time that it is too old for what it would find.
"""

import tomllib
from typing import Final

from log.disk import Disk
from log.errors import DamagedStateError, StoreTooNewError

PATH: Final = "format"
FIRST_FORMAT: Final = 1
"""The format of a store, and of a group, that does not say which one it has."""


def check_format(disk: Disk, newest_format: int) -> int:
    """Returns the store's format.

    Raises StoreTooNewError if it is above `newest_format`, DamagedStateError, DiskError.
    """
    if not disk.exists(PATH):
        return FIRST_FORMAT
    try:
        fields = tomllib.loads(disk.read(PATH).decode())
        number, written_by = fields["format"], fields["written_by"]
    except (ValueError, KeyError) as error:
        raise DamagedStateError(PATH, 0, f"it does not say the store's format: {error}") from error
    if not isinstance(number, int) or number < FIRST_FORMAT or not isinstance(written_by, str):
        raise DamagedStateError(PATH, 0, f"the store's format is {number!r}, written by {written_by!r}")
    if number > newest_format:
        raise StoreTooNewError(number, written_by, newest_format)
    return number


def write_format(disk: Disk, number: int, written_by: str) -> None:
    """Notes the store's format, durably. Raises DiskFullError, FlushError, DiskError."""
    disk.write_durably(PATH, f'format = {number}\nwritten_by = "{written_by}"\n'.encode())
