"""Every error that log/ raises on purpose, in one place.

An error says whose fault it is and whether a retry may help. What only a bug of the caller can cause is an
assertion and not in this list.

    LogFault
    ├── DiskError            the machine: an operation of the file system failed
    │   ├── DiskFullError        no space; a retry helps once space was freed, nothing was written
    │   ├── FlushError           fsync failed, writes may be lost; never retry, stop the node
    │   └── StoreLockedError     another process uses this store; stop that one first
    ├── DamagedFileError     bytes on this disk are not what was written: file, offset and reason say where
    │   ├── DamagedLogError      the entry log (repair it from the group)
    │   │   └── DamagedEntryError    an entry that this log had whole: read it again when the group has repaired it
    │   └── DamagedStateError    term and vote, snapshot (never guessed: that breaks Raft)
    ├── DamagedRangeError    bytes from a peer fail their checks: ask again
    │   └── MisplacedRangeError  the peer's data files have another size: the operator's fault, no retry
    ├── StoreTooNewError     a newer release wrote this store; start it with that one, nothing was touched
    ├── RecordError          bytes are no valid message record; the sender's fault
    ├── EntryTooLargeError   an entry that no file can hold; the sender's fault, no retry
    ├── OutOfRangeError      not in this store: deleted, or not written yet
    └── QueueOrderError      a record would leave a hole in its queue: the leader's bug
"""

import errno


class LogFault(Exception):  # noqa: N818 - the root of the tree is a fault of any kind, not always an error
    """Base of all errors of this package."""


class DiskError(LogFault):
    """An operation of the file system failed; `path` is relative to the store root."""

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{operation} of {path!r} failed: {reason}")
        self.path = path
        self.operation = operation
        self.reason = reason


class DiskFullError(DiskError):
    """No space left; nothing was written. A retry helps once space was freed."""


NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
"""The system's errors that say so."""


def disk_error(path: str, operation: str, error: OSError) -> DiskError:
    """Returns what an operation of the system has failed with."""
    kind = DiskFullError if error.errno in NO_SPACE else DiskError
    return kind(path, operation, error.strerror or str(error))


class FlushError(DiskError):
    """A flush failed: pages may be lost although they look written. Never acknowledge, never retry: stop."""


class StoreLockedError(DiskError):
    """Another process holds the lock of this store."""


class DamagedFileError(LogFault):
    """`file` (relative to the store root) holds bytes at `offset` that nobody wrote."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedLogError(DamagedFileError):
    """Damage in the entry log; a group of several nodes can repair it."""


class DamagedEntryError(DamagedLogError):
    """An entry that was whole does not match its header or checksum any more; `position` is where it begins."""

    def __init__(self, file: str, offset: int, reason: str, position: int) -> None:
        super().__init__(file, offset, reason)
        self.position = position


class DamagedStateError(DamagedFileError):
    """Damage in a small file whose content must not be guessed (term and vote, snapshot)."""


class DamagedRangeError(LogFault):
    """A run of entries from a peer fails its checks at byte `offset` of the run."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"entries received are damaged at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class MisplacedRangeError(DamagedRangeError):
    """Entries of a log that has its data files' ends elsewhere: that node's data files have another size."""

    def __init__(self, offset: int, reason: str, data_file_bytes: int) -> None:
        LogFault.__init__(
            self,
            f"{reason}: this node has data files of {data_file_bytes} bytes, and the sender those of another size. "
            "storage.data_file_bytes must be the same on all nodes of a group: give the node where it differs that of "
            "the others, and an empty store (nothing was changed)",
        )
        self.offset = offset
        self.reason = reason


class StoreTooNewError(LogFault):
    """The store has a format that this release does not read."""

    def __init__(self, number: int, written_by: str, newest: int) -> None:
        super().__init__(
            f"the store has format {number}, written by release {written_by} of Trivet; this release reads formats "
            f"up to {newest}: start the node with that release or a later one (nothing was changed)"
        )


class RecordError(LogFault):
    """Bytes are no valid message record."""


class EntryTooLargeError(LogFault):
    """An entry of `size` bytes does not fit into a data file."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"an entry of {size} bytes does not fit: the data files hold entries up to {limit} bytes"
        )
        self.size = size
        self.limit = limit


class OutOfRangeError(LogFault):
    """The entry or position that was asked for is not in this store: deleted by retention, or not written yet."""


class QueueOrderError(LogFault):
    """A ConsumeQueue unit would leave a hole; `expected` is the queue's end."""

    def __init__(self, topic: str, queue_id: int, offset: int, expected: int) -> None:
        super().__init__(f"queue {topic}/{queue_id} ends at {expected} but a record claims offset {offset}")
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.expected = expected
