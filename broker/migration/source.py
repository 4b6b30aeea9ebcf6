"""The directory of a RocketMQ node (`storePathRootDir`): which parts of it there are, and who uses it.

The broker holds a lock on the file `lock` as long as it runs. A reader that shares that lock keeps the broker from
being started meanwhile; it needs no right to write for it.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final, Self

from broker.migration.config_files import read_config
from broker.migration.dledger import EntryFiles
from broker.migration.errors import DamagedSourceError, MigrationError, SourceInUseError
from broker.migration.source_queues import SourceQueues
from broker.migration.tables import Tables

_PREFIX: Final = "dledger-"
_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of Linux on 64 bits: type, whence, start, length, process."""


class Source:
    """A node's store, opened for reading; one that a broker uses only where that is asked for."""

    def __init__(
        self, root: Path, node: str | None = None, *, dledger: Path | None = None, may_run: bool = False
    ) -> None:
        """`dledger` is its `storePathDLedgerCommitLog` where that is elsewhere. Raises MigrationError, OSError."""
        if not root.is_dir():
            raise MigrationError(f"{root} is no directory")
        self.root = root
        self.dledger = dledger or _find(root, node)
        self.node = self.dledger.name.removeprefix(_PREFIX)
        self._lock: int | None = None
        self._holder = self._take_lock()
        if self._holder is not None and not may_run:
            raise SourceInUseError(
                f"process {self._holder} runs on {root}: stop that broker first, or copy while it runs, with "
                "--while-running or --follow"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets a broker be started on the store again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_running(self) -> bool:
        """Tells whether a broker used the store when that was last looked at."""
        return self._holder is not None

    @property
    def is_clean(self) -> bool:
        """Tells whether the broker has stopped in order."""
        return not self.is_running and not (self.root / "abort").exists()

    def has_stopped(self) -> bool:
        """Looks again whether a broker uses the store; if none does, none can be started from now on. Raises OSError.

        RocketMQ gives its lock back before it writes consumer offsets for the last time, so its process must have
        ended, too.
        """
        if self._holder is not None and not Path(f"/proc/{self._holder}").exists():
            self._holder = self._take_lock()
        return self._holder is None

    def committed_index(self) -> int:
        """Returns what DLedger's checkpoint says is committed, a lower bound; -1 if it says nothing.

        Raises DamagedSourceError, OSError.
        """
        values = _properties(self.dledger / "checkpoint")
        return _number(values, "committedIndex", self.dledger / "checkpoint")

    def voted_for(self) -> str:
        """Returns the node that this one voted for last; empty if it is not known. Raises OSError."""
        return _properties(self.dledger / "currterm").get("voteLeader", "")

    def entries(self) -> EntryFiles:
        """Returns the log. Raises MigrationError, DamagedSourceError, OSError."""
        return EntryFiles(self.dledger, self.committed_index(), is_clean=self.is_clean)

    def config(self) -> Tables:
        """Returns the tables beside the log. Raises MigrationError, DamagedSourceError, OSError."""
        return read_config(self.root)

    def queues(self) -> SourceQueues:
        """Returns the ConsumeQueues. Raises DamagedSourceError, OSError."""
        return SourceQueues(self.root / "consumequeue")

    def other_parts(self) -> list[str]:
        """Returns what else holds messages or queues here and is not taken, a sentence each. Raises OSError."""
        found = []
        plain = self.root / "commitlog"
        if plain.is_dir() and any(plain.iterdir()):
            found.append("commitlog/, which the broker wrote before DLedger was switched on")
        for name, what in (
            ("batchconsumequeue", "queues of batches (queue type BatchCQ)"),
            ("consumequeue_r", "queues in RocksDB, from which nothing is compared"),
        ):
            if (self.root / name).is_dir() and any((self.root / name).iterdir()):
                found.append(f"{name}/: {what}")
        return found

    def _take_lock(self) -> int | None:
        """Shares the lock; returns the process that holds it alone, None if there is none."""
        path = self.root / "lock"
        if not path.is_file():
            return None
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            holder: int = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[-1]
            os.close(descriptor)
            return holder
        self._lock = descriptor
        return None


def _find(root: Path, node: str | None) -> Path:
    found = sorted(path.name for path in root.glob(f"{_PREFIX}*") if path.is_dir())
    if node is not None:
        if f"{_PREFIX}{node}" not in found:
            raise MigrationError(f"{root} has no {_PREFIX}{node}; there are {', '.join(found) or 'none'}")
        return root / f"{_PREFIX}{node}"
    if len(found) == 1:
        return root / found[0]
    if found:
        raise MigrationError(f"{root} has {', '.join(found)}: say which with --node")
    if (root / "commitlog").is_dir():
        raise MigrationError(
            f"{root} is the store of a broker without DLedger, whose messages lie closer together than entries can: "
            "their ids and places in the log could not stay (docs/migrating.md)"
        )
    raise MigrationError(f"{root} has no {_PREFIX}ID directory: it is no store of a DLedger node")


def _properties(path: Path) -> dict[str, str]:
    """Returns the values of a Java properties file; none if it is missing."""
    if not path.is_file():
        return {}
    if path.stat().st_size > 1 << 16:
        raise DamagedSourceError(path, 0, f"it has {path.stat().st_size:,} bytes")
    lines = path.read_bytes().decode("latin-1").splitlines()
    pairs = (line.partition("=") for line in lines if not line.startswith(("#", "!")))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator}


def _number(values: dict[str, str], name: str, path: Path) -> int:
    text = values.get(name, "-1")
    try:
        return int(text)
    except ValueError:
        raise DamagedSourceError(path, 0, f"{name} is {text[:40]!r}, no number") from None
