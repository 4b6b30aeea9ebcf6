"""The file of accounts, which says what clients of a node may do.

The shell looks at the file every few seconds and reads it anew when it has changed, and at each SIGHUP. A file that
cannot be used changes nothing: the accounts from before stay in force, and the log says what is wrong with the file.
Only at the start such a file ends the broker.
"""

from pathlib import Path

import structlog

from broker.access.accounts import Accounts, AccountsError, load
from broker.access.control import AccessControl
from broker.node.node import Node
from broker.settings.tables import AclSettings

log = structlog.get_logger("trivet.access")

_Version = tuple[int, int, int]


class AccessFile:
    """Sets `Node.access` from the file at `path`, now and whenever the file changes."""

    def __init__(self, acl: AclSettings, node: Node) -> None:
        """Raises `AccountsError` if the file cannot be used."""
        self._path = Path(acl.file)
        self._acl = acl
        self._node = node
        self._version = self._found_version()
        node.access = self._control(load(self._path))

    def look(self) -> None:
        """Reads the file if it has changed since it was read last."""
        if self._found_version() != self._version:
            self.reload()

    def reload(self) -> None:
        """Reads the file. If it cannot be used, the accounts from before stay in force."""
        self._version = self._found_version()
        try:
            accounts = load(self._path)
        except AccountsError as error:
            log.warning("accounts not reloaded, those from before hold", reason=str(error))
            return
        self._node.access = self._control(accounts)
        log.info("accounts reloaded", accounts=len(accounts.by_access_key))

    def _control(self, accounts: Accounts) -> AccessControl:
        return AccessControl(
            accounts,
            whole_frames=self._acl.signatures == "frame",
            encrypted_only=not self._acl.allow_plaintext,
        )

    def _found_version(self) -> _Version | None:
        try:
            found = self._path.stat()
        except OSError:
            return None  # `load` says why
        return found.st_mtime_ns, found.st_size, found.st_ino
