"""The errors of a migration, in sentences for whoever runs the command.

MigrationError
├── SourceInUseError      a broker runs on the store: stop it and run the command again
└── DamagedSourceError    bytes of the store are not what RocketMQ writes: no retry helps, another node's store may
"""

from pathlib import Path


class MigrationError(Exception):
    """A store cannot be taken over, or not with these options; the text says why, and what to do."""


class SourceInUseError(MigrationError):
    """Another process holds the lock of the store."""


class DamagedSourceError(MigrationError):
    """`file` of the source is not what RocketMQ writes, at byte `offset`."""

    def __init__(self, file: Path, offset: int, reason: str) -> None:
        super().__init__(f"{file} at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason
