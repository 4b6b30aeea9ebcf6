"""Recording: events into batches of bytes, without I/O."""

import zlib
from collections.abc import Callable, Sequence

import cbor2

from broker.trace.format import (
    APPEND,
    COMMIT,
    DIGEST,
    DISPATCH,
    F_APPEND,
    F_COMMIT_OFFSET,
    F_FETCH_OFFSET,
    F_HEAD,
    F_READ,
    F_TAIL,
    FAIL,
    FAULT,
    INFO,
    INVOKE,
    NOTE,
    OK,
    RESET,
    ROLE,
    START,
    STOP,
    TRUNCATE,
    TraceHeader,
)


class TraceWriter:
    """Encodes events into batches of bytes for ``write``; does no I/O and keeps no time.

    Every method takes ``time_ns`` (monotonic nanoseconds of the header's clock). An ``invoke_*`` method
    returns the operation id that its completion names; ids count up from 0 within a writer. An operation is
    one attempt: a retry is a new operation with the same values. Record the invocation before the request can
    leave, the completion after the response has arrived; an operation without completion counts as of unknown
    outcome.

    Call :meth:`flush` at a turn's end or on a timer, and before the process ends: what is buffered is lost in
    a crash, which is safe for completions (unknown outcome) and costs only the last events of a replica. For
    invocations it is not: flush them before a crash that is part of the test.
    """

    __slots__ = (
        "_buffer",
        "_buffered_events",
        "_header",
        "_next_operation",
        "_since_mark",
        "_sync_bytes",
        "_write",
    )

    def __init__(
        self,
        write: Callable[[bytes], object],
        header: TraceHeader,
        *,
        buffered_events: int = 256,
        sync_bytes: int = 4 << 20,
    ) -> None:
        assert 1 <= buffered_events <= 65_535, (
            f"{buffered_events} events have another head than `flush` takes off"
        )
        self._write = write
        self._header = header.encode()
        self._buffered_events = buffered_events
        self._sync_bytes = sync_bytes
        self._since_mark = 0
        """Bytes that were written since the last header."""
        self._next_operation = 0
        """The number of the next operation: all below it have begun."""
        self._buffer: list[tuple[object, ...]] = []
        """Fewer than `buffered_events`, but for the moment in which one is added."""
        write(self._header)

    def flush(self) -> None:
        """Encode what is buffered and hand it to ``write``; whatever ``write`` raises passes through."""
        buffer = self._buffer
        if not buffer:
            return
        count = len(buffer)
        encoded = cbor2.dumps(buffer)
        self._buffer = []
        head = 1 if count < 24 else 2 if count < 256 else 3  # bytes of the array's head (RFC 8949, 3)
        if self._since_mark >= self._sync_bytes:
            self._since_mark = 0
            self._write(self._header)
        self._since_mark += len(encoded) - head
        self._write(encoded[head:])

    def _add(self, record: tuple[object, ...]) -> None:
        buffer = self._buffer
        buffer.append(record)
        if len(buffer) >= self._buffered_events:
            self.flush()

    # Client operations --------------------------------------------------------------------------------------

    def _end(self, record: tuple[int, int, int, *tuple[object, ...]]) -> None:
        # A reader would take it for one whose beginning was lost, and believe it.
        assert 0 <= record[2] < self._next_operation, f"operation {record[2]} has not begun here"
        self._add(record)

    def _invoke(
        self, time_ns: int, process: str, function: int, key: str, argument: object, group: str | None
    ) -> int:
        operation = self._next_operation
        self._next_operation = operation + 1
        self._add((INVOKE, time_ns, operation, process, function, key, argument, group))
        return operation

    def invoke_append(self, time_ns: int, process: str, key: str, values: Sequence[str]) -> int:
        """Append one or many values atomically to ``key``: "topic/queue", or "topic/" if the broker picks.

        All ``invoke_`` methods return the operation's id.
        """
        return self._invoke(time_ns, process, F_APPEND, key, values, None)

    def invoke_read(
        self, time_ns: int, process: str, key: str, offset: int, *, filtered: bool = False
    ) -> int:
        """A pull at ``offset``.

        ``filtered``: the reader asked to leave out some messages, so gaps mean nothing.
        """
        return self._invoke(time_ns, process, F_READ, key, (offset, filtered), None)

    def invoke_tail(self, time_ns: int, process: str, key: str) -> int:
        """A query of the queue's end (max offset: one past the last message)."""
        return self._invoke(time_ns, process, F_TAIL, key, None, None)

    def invoke_head(self, time_ns: int, process: str, key: str) -> int:
        """A query of the queue's first offset still kept (min offset)."""
        return self._invoke(time_ns, process, F_HEAD, key, None, None)

    def invoke_commit_offset(self, time_ns: int, process: str, key: str, group: str, offset: int) -> int:
        """Store ``offset`` as the consumer group's offset in the queue."""
        return self._invoke(time_ns, process, F_COMMIT_OFFSET, key, offset, group)

    def invoke_fetch_offset(self, time_ns: int, process: str, key: str, group: str) -> int:
        """Ask for the consumer group's stored offset in the queue."""
        return self._invoke(time_ns, process, F_FETCH_OFFSET, key, None, group)

    def ok_append(self, time_ns: int, operation: int, base_offset: int, key: str | None = None) -> None:
        """The append was acknowledged: its first value is at ``base_offset``, the others follow.

        ``key`` is given when the broker picked it.
        """
        self._end((OK, time_ns, operation, base_offset, key))

    def ok_read(
        self,
        time_ns: int,
        operation: int,
        next_offset: int,
        offsets: int | Sequence[int],
        values: Sequence[str],
        end: int | None = None,
    ) -> None:
        """The messages returned, in order. ``offsets``: the first one if they are contiguous, else one for
        each value.

        ``next_offset`` is where the response says to go on. With no values, ``next_offset`` <= the asked offset
        states that the queue ended there or before; a larger one says only that the reader was sent forward.
        ``end``: the queue's end as this response states it, given only where it is to be judged like a tail
        query.
        """
        self._end((OK, time_ns, operation, (next_offset, offsets, values, end), None))

    def ok_tail(self, time_ns: int, operation: int, offset: int) -> None:
        """The queue ended at ``offset``."""
        self._end((OK, time_ns, operation, offset, None))

    def ok_head(self, time_ns: int, operation: int, offset: int) -> None:
        """The queue began at ``offset``."""
        self._end((OK, time_ns, operation, offset, None))

    def ok_commit_offset(self, time_ns: int, operation: int) -> None:
        """The broker confirmed the stored offset.

        A one-way commit has no confirmation: leave it without completion.
        """
        self._end((OK, time_ns, operation, None, None))

    def ok_fetch_offset(self, time_ns: int, operation: int, offset: int | None) -> None:
        """The stored offset, or None if the consumer group has none."""
        self._end((OK, time_ns, operation, offset, None))

    def fail(self, time_ns: int, operation: int, reason: str | None = None) -> None:
        """The operation certainly did not and will not take effect. If in doubt it is :meth:`info`."""
        self._end((FAIL, time_ns, operation, reason))

    def info(self, time_ns: int, operation: int, reason: str | None = None) -> None:
        """The operation may have taken effect, or may still: timeout, lost connection, any ambiguous answer."""
        self._end((INFO, time_ns, operation, reason))

    # Replicas -----------------------------------------------------------------------------------------------

    def start(self, time_ns: int, term: int, last_index: int, commit_index: int) -> None:
        """The node (re)started with this durable state. Without a ``stop`` before it, it had crashed."""
        self._add((START, time_ns, term, last_index, commit_index))

    def stop(self, time_ns: int) -> None:
        """The node stopped in order."""
        self._add((STOP, time_ns))

    def role(
        self, time_ns: int, role: str, term: int, leader: str | None, last_index: int, last_term: int
    ) -> None:
        """The node is leader, candidate, precandidate, follower or learner of ``term``; its log ends so."""
        self._add((ROLE, time_ns, role, term, leader, last_index, last_term))

    def append(
        self, time_ns: int, first_index: int, last_index: int, term: int, digest: int | None = None
    ) -> None:
        """Entries ``first_index..last_index``, all of ``term``, joined the log.

        ``digest``: CRC-32 of their bytes.
        """
        self._add((APPEND, time_ns, first_index, last_index, term, digest))

    def truncate(self, time_ns: int, last_index: int) -> None:
        """Every entry after ``last_index`` left the log."""
        self._add((TRUNCATE, time_ns, last_index))

    def commit(self, time_ns: int, index: int, term: int) -> None:
        """The node's commit index rose to ``index``; ``term`` is the node's current term."""
        self._add((COMMIT, time_ns, index, term))

    def digest(self, time_ns: int, index: int, digest: int) -> None:
        """CRC-32 of all committed entries up to ``index``: at the same indices on every replica."""
        self._add((DIGEST, time_ns, index, digest))

    def reset(self, time_ns: int, first_index: int) -> None:
        """The log was replaced by a snapshot; it is empty and will begin at ``first_index``."""
        self._add((RESET, time_ns, first_index))

    def dispatch(self, time_ns: int, index: int) -> None:
        """Committed entries up to ``index`` are visible to readers."""
        self._add((DISPATCH, time_ns, index))

    # Drivers: demo, chaos tests, simulator ------------------------------------------------------------------

    def fault(self, time_ns: int, name: str, targets: Sequence[str] = (), detail: str = "") -> None:
        """A fault was done to these nodes, or ended: kill, restart, pause, resume, partition, heal, ..."""
        self._add((FAULT, time_ns, name, targets, detail))

    def note(self, time_ns: int, text: str) -> None:
        """A remark for the reader of a report."""
        self._add((NOTE, time_ns, text))


def extend_digest(digest: int, entry_bytes: bytes | memoryview) -> int:
    """The rolling CRC-32 of :meth:`TraceWriter.digest`: from 0, over the entries' stored bytes in order."""
    return zlib.crc32(entry_bytes, digest)
