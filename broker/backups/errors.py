"""The errors of backups, in sentences for whoever runs the command.

BackupError
└── DamagedBackupError   bytes of the backup are not what was written: no retry helps, another backup may
"""


class BackupError(Exception):
    """A backup cannot be taken, continued or restored here; the text says why, and what to do."""


class DamagedBackupError(BackupError):
    """`file` of a backup is not what was written."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"the backup is damaged: {file}: {reason}")
        self.file = file
        self.reason = reason
