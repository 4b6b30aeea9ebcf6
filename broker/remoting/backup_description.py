"""The description of a backup of a node: the body of the response to TRIVET_BACKUP_BEGIN (code 90005), as JSON."""

import msgspec


class BackupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Entries `first_index`..`last_index` of a group's log, all committed, and the state behind the last of them."""

    group: str
    cluster: str
    node: str
    """The node that is read."""
    release: str
    """The release of Trivet that it runs."""
    format: int
    """The format of all that is in the backup (docs/upgrading.md)."""
    data_file_bytes: int
    """Positions in the log depend on it: it is that of every store into which the backup can go."""
    first_index: int
    first_position: int
    base_term: int
    """The term of the entry before the first."""
    last_index: int
    end_position: int
    snapshot_bytes: int
