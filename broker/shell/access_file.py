"""Keeps a node's access control what its file of accounts says, also when that changes.

The file is looked at now and then and read anew when it is another; on SIGHUP in any case. One that cannot be used
changes nothing: the rules that hold go on holding, and the log says what is wrong. At the start it ends the broker.
"""

from pathlib import Path

import structlog

from broker.access.accounts import AccountsError, load
from broker.access.control import AccessControl
from broker.node.node import Node

log = structlog.get_logger("trivet.access")

_Version = tuple[int, int, int]


class AccessFile:
    """The file at ``path``; raises `AccountsError` if it cannot be used now."""

    def __init__(self, path: str, node: Node) -> None:
        self._path = Path(path)
        self._node = node
        self._version = self._found_version()
        node.access = AccessControl(load(self._path))

    def look(self) -> None:
        """Reads the file if it is another than before."""
        if self._found_version() != self._version:
            self.reload()

    def reload(self) -> None:
        """Reads the file."""
        self._version = self._found_version()
        try:
            accounts = load(self._path)
        except AccountsError as error:
            log.warning("accounts not reloaded, those from before hold", reason=str(error))
            return
        self._node.access = AccessControl(accounts)
        log.info("accounts reloaded", accounts=len(accounts.by_access_key))

    def _found_version(self) -> _Version | None:
        try:
            found = self._path.stat()
        except OSError:
            return None  # `load` says why
        return found.st_mtime_ns, found.st_size, found.st_ino
