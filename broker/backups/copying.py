"""A backup being read from a node: which request comes next, and what its response becomes. Whoever drives it owns the
connection, so that tests do without one.

It begins anew with another node as often as need be: what is in the directory stays, and the next node goes on behind
it.
"""

from typing import Final

import msgspec

from broker.backups.directory import BackupWriter
from broker.backups.errors import BackupError
from broker.backups.manifest import Manifest
from broker.remoting.backup_description import BackupDescription
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from log.errors import DamagedRangeError
from log.formats.entry_range import check_range

Request = tuple[int, dict[str, str]]
"""Code and fields."""

_MISSING: Final = "a field of the response is missing or no number"


class BackupCopy:
    """Reads one backup into a directory, one request at a time."""

    def __init__(self, directory: BackupWriter, group: str, commit_index: int) -> None:
        """`commit_index`: the last entry of the group to which the backup must reach at least. Raises BackupError if
        the directory holds another group's backup, or one of entries that the group does not have."""
        directory.check_group(group, commit_index)
        self._directory = directory
        self._commit_index = commit_index
        self.description: BackupDescription | None = None
        """The description of what the node has that is read now; None until it has told it."""
        self._compared = False
        self._snapshot = bytearray()
        self.read_bytes = 0
        """The bytes of the log that this command has read."""
        self.manifest: Manifest | None = None
        """Set when the backup is complete."""

    def restart(self) -> None:
        """Goes on with another node, or on another connection."""
        self.description = None
        self._snapshot = bytearray()

    def next_request(self) -> Request | None:
        """Returns the request to make now; None when the backup is complete."""
        directory, description = self._directory, self.description
        if self.manifest is not None:
            return None
        if description is None:
            # Of a node that has applied less than is here the rest could not be asked for: it is to catch up first.
            wanted = (
                self._commit_index if directory.is_empty else max(self._commit_index, directory.last_index)
            )
            return RequestCode.TRIVET_BACKUP_BEGIN, {"commitIndex": str(wanted)}
        if not self._compared:
            return RequestCode.TRIVET_BACKUP_LOG, {"index": str(directory.last_index)}
        if directory.last_index < description.last_index:
            return RequestCode.TRIVET_BACKUP_LOG, {"index": str(directory.last_index + 1)}
        return RequestCode.TRIVET_BACKUP_SNAPSHOT, {"offset": str(len(self._snapshot))}

    def answered(self, response: RemotingCommand) -> None:
        """Takes the response to the last request, which was done. Raises BackupError, OSError."""
        if self.description is None:
            self._begun(response)
        elif not self._compared or self._directory.last_index < self.description.last_index:
            self._log_read(response)
        else:
            self._snapshot += response.body
            if len(self._snapshot) >= self.description.snapshot_bytes:
                self.manifest = self._directory.finish(self.description, bytes(self._snapshot))

    def _begun(self, response: RemotingCommand) -> None:
        try:
            description = msgspec.json.decode(response.body, type=BackupDescription)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BackupError(f"the node's response is not understood: {error}") from error
        self._directory.begin(description)
        # The entries that are here must be the group's: the last of them, if it still has it, says so for all.
        self._compared = self._directory.is_empty or description.first_index > self._directory.last_index
        self.description = description

    def _log_read(self, response: RemotingCommand) -> None:
        directory, description = self._directory, self.description
        assert description is not None, "a node has said what it has"
        first = directory.last_index + (1 if self._compared else 0)
        try:
            position = int(response.fields["position"])
            entries = check_range(response.body, first, position, description.data_file_bytes)
        except (KeyError, ValueError):
            raise BackupError(_MISSING) from None
        except DamagedRangeError as error:
            raise BackupError(f"{description.node} sent entries that are damaged: {error}") from error
        if self._compared:
            directory.append(entries)
        else:
            directory.check_same(entries)
            self._compared = True
            directory.append(entries, skip=1)
        self.read_bytes += len(response.body)
