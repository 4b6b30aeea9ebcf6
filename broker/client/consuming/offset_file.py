"""Offsets of a broadcast consumer, kept in a file on its own machine.

Members of a broadcasting consumer group have no common offsets, so brokers keep none. The file has format and name of
RocketMQ's `LocalFileOffsetStore` (``offsets.json``, beside it the version before as ``offsets.json.bak``). So a
consumer can go on where a Java one has stopped, and the other way round. A checksum is added, which others ignore: a
damaged offset would look like any other.

- A new version is written beside and flushed. Then the old one takes the place of the backup, and the new one that of
  the old one, each in one step. A crash at any moment leaves a whole file.
- When the file is damaged, that is logged and the backup is taken: some messages come again. If the backup is not whole
  either the consumer does not start: to begin at its ``start`` could leave messages out, which people must decide.
- Two consumers with one file would undo each other's offsets; the second one is refused.

The consumer itself knows only the protocol `LocalOffsets`. Files are read and written in a worker thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from broker.client.errors import DamagedOffsets, UsageError
from broker.client.message import MessageQueue
from broker.remoting.admin_bodies import QueueOffsets
from broker.remoting.bodies import MessageQueue as WireQueue
from broker.remoting.errors import RemotingError
from log.files.replacement import sync

logger = logging.getLogger("trivet.client")

Result = TypeVar("Result")

_CHECKSUM = re.compile(rb',"crc32":([0-9]+)\}\s*\Z')


@runtime_checkable
class LocalOffsets(Protocol):
    """A store for the offsets of a broadcast consumer."""

    async def load(self) -> dict[MessageQueue, int]:
        """Return what was stored last. Raises DamagedOffsets, OSError, UsageError (in use by another consumer)."""

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace all that is stored; the new offsets are durable when it returns. Raises OSError."""

    def close(self) -> None:
        """End the use of the store."""


class OffsetFile:
    """Keeps the offsets of a broadcast consumer in the file ``path``; one consumer at a time may use it.

    A directory that does not exist is made. `load` and `store` work in a worker thread of Trio.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.backup = self.path.with_name(self.path.name + ".bak")
        self.problem: DamagedOffsets | None = None
        """The damage because of which the last `load` took the backup; None if the file was whole."""
        self._lock: int | None = None
        self._is_whole = False

    async def load(self) -> dict[MessageQueue, int]:
        """Return the offsets of the file, or of its backup if the file is damaged or gone; none if neither exists.

        Raises DamagedOffsets when the file is damaged and there is no backup or it is damaged, too; OSError; UsageError
        while another consumer uses the file.
        """
        return await _in_thread(self.load_now)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Replace the file by a new version, which is on the disk when this returns. Raises OSError."""
        await _in_thread(functools.partial(self.store_now, dict(offsets)))

    def close(self) -> None:
        """Release the lock, so that others can use the file."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def load_now(self) -> dict[MessageQueue, int]:
        """Do what `load` does, in the caller's thread. Raises what it raises."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # The system takes it back when the process ends, however that ends.
        self._take_lock()
        try:
            return self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> dict[MessageQueue, int]:
        self.problem = None
        self._is_whole = False
        try:
            found = _read(self.path)
        except DamagedOffsets as damage:
            backup = _read(self.backup)
            if backup is None:
                raise
            self.problem = damage
            logger.warning("%s; going on from %s", damage, self.backup)
            return backup
        if found is None:
            return _read(self.backup) or {}
        self._is_whole = True
        return found

    def store_now(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Do what `store` does, in the caller's thread. Raises OSError."""
        new = self.path.with_name(self.path.name + ".tmp")
        with new.open("wb") as file:
            file.write(_encode(offsets))
            file.flush()
            os.fsync(file.fileno())
        if self._is_whole:  # a damaged file must not take the place of a whole backup
            link = self.path.with_name(self.path.name + ".bak.tmp")
            with contextlib.suppress(FileNotFoundError):
                link.unlink()
            # A second name first, so that the file itself is never missing.
            os.link(self.path, link)
            link.replace(self.backup)
        new.replace(self.path)
        # The new names are on the disk only when their directory is.
        sync(self.path.parent)
        self._is_whole = True

    def _take_lock(self) -> None:
        lock = os.open(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise UsageError(f"{self.path}: another consumer keeps its offsets there") from error
            raise
        self._lock = lock


async def _in_thread(function: Callable[[], Result]) -> Result:
    import trio  # as the consumer's runtime: nothing here is needed in the simulator

    return await trio.to_thread.run_sync(function)


def _encode(offsets: Mapping[MessageQueue, int]) -> bytes:
    wire = {WireQueue(queue.broker_name, queue.queue_id, queue.topic): at for queue, at in offsets.items()}
    table = QueueOffsets(wire).encode()
    return table[:-1] + b',"crc32":%d}\n' % zlib.crc32(table)


def _read(path: Path) -> dict[MessageQueue, int] | None:
    """Return the offsets in one file, None when there is no such file. Raises DamagedOffsets, OSError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    checksum = _CHECKSUM.search(data)
    if checksum is not None:
        data = data[: checksum.start()] + b"}"
        if zlib.crc32(data) != int(checksum[1]):
            raise DamagedOffsets(str(path), "what it holds does not match its checksum")
    try:
        offsets = QueueOffsets.decode(data).offsets
    except RemotingError as error:
        raise DamagedOffsets(str(path), str(error)) from error
    if not data.strip() or any(at < 0 or queue.queue_id < 0 for queue, at in offsets.items()):
        raise DamagedOffsets(str(path), "it is empty, or a number in it is negative")
    return {MessageQueue(queue.topic, queue.broker_name, queue.queue_id): at for queue, at in offsets.items()}
