"""The file of accounts, which says what clients of a server may do.

The shell looks at the file every few seconds and reads it anew when it has changed, and at each SIGHUP. A file that
cannot be used changes nothing: the accounts from before stay in force, and the log says what is wrong with the file.
Only at the start such a file ends the broker.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio

from broker.access.accounts import Accounts, AccountsError, load

log = structlog.get_logger("trivet.access")

_LOOK_S: Final = 5.0
"""The file is looked at this often, in seconds."""

_Version = tuple[int, int, int]


class AccessFile:
    """Hands `use` the accounts in the file at `path`, now and whenever the file changes."""

    def __init__(self, path: str, use: Callable[[Accounts], None]) -> None:
        """Raises `AccountsError` if the file cannot be used."""
        self._path = Path(path)
        self._use = use
        self._version = self._found_version()
        self._complaint = ""
        """Why the file could not be used when it was read last."""
        use(load(self._path))

    async def watch(self) -> None:
        """Looks at the file now and then, until it is cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            self.look()

    def look(self) -> None:
        """Reads the file if it has changed since it was read last."""
        if self._found_version() != self._version:
            self._read()

    def reload(self) -> None:
        """Reads the file, and tells what is wrong with it although that was told before."""
        self._complaint = ""
        self._read()

    def _read(self) -> None:
        """Reads the file. If it cannot be used, the accounts from before stay in force."""
        # Before it is read: what changes meanwhile is seen at the next look.
        self._version = self._found_version()
        try:
            accounts = load(self._path)
        except AccountsError as error:
            # It is looked at again, changed or not: a process that was out of descriptors may open it now, and of a
            # mode that was set right its version says nothing.
            self._version = None
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("accounts not reloaded, those from before hold", reason=self._complaint)
            return
        self._complaint = ""
        self._use(accounts)
        log.info("accounts reloaded", accounts=len(accounts.by_access_key))

    def _found_version(self) -> _Version | None:
        try:
            found = self._path.stat()
        except OSError:
            return None  # `load` says why
        return found.st_mtime_ns, found.st_size, found.st_ino
