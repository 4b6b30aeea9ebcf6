"""The world around the client, as a protocol: clocks, waiting, tasks, connections and randomness.

The client's logic must run unchanged on Trio and in the deterministic simulator, so it is written against this small
protocol and imports neither. The protocol keeps Trio's semantics, the strictest that are in use:

- A task group is left only when all its tasks have ended; a task that raises cancels the others.
- Cancellation is an exception raised at an await, belongs to the scope that was cancelled, and must not be swallowed.
- A scope with ``shield=True`` keeps the cancellation of outer scopes away.

`Event.wait` is the only way in which the client's hot path blocks: who waits for a call waits on one event that the
task reading the connection sets. So a call costs neither a task nor a scope, and one that nobody waits for no event.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

Buffer = bytes | bytearray | memoryview


def drop_bytes(buffers: list[Buffer], count: int) -> list[Buffer]:
    """Return the buffers without their first ``count`` bytes; nothing is copied."""
    for index, buffer in enumerate(buffers):
        size = len(buffer)
        if count < size:
            return [memoryview(buffer)[count:], *buffers[index + 1 :]] if count else buffers[index:]
        count -= size
    assert count == 0, "more bytes were written than given"
    return []


class Event(Protocol):
    """A flag that is set once and wakes everyone who waits for it."""

    def set(self) -> None:
        """Set the flag; does nothing the second time."""

    def is_set(self) -> bool:
        """Tell whether `set` was called."""

    async def wait(self) -> object:
        """Return once the flag is set."""


class CancelScope(Protocol):
    """A ``with`` block whose awaits can be cancelled from outside or by a deadline."""

    @property
    def cancelled_caught(self) -> bool:
        """Tell, after the block, whether this scope's own cancellation ended it."""

    def cancel(self) -> None:
        """Cancel the block now."""

    def __enter__(self) -> CancelScope: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...


class TaskGroup(Protocol):
    """Tasks that end together. A single exception leaves the group as it is, not inside an exception group."""

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start ``function(*arguments)`` as a task of the group."""

    def cancel(self) -> None:
        """Cancel all tasks of the group, the body of its ``async with`` included."""


class ByteStream(Protocol):
    """A connection's bytes.

    One task reads, one writes; `write_nowait` and `send_all` are never used at the same time.
    """

    def write_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Write what fits without waiting; returns the number of bytes taken, which may be 0. Raises OSError."""

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Write all buffers in order. Raises OSError when the connection is lost; if cancelled, a part is written."""

    async def receive_some(self) -> bytes:
        """Return some bytes, or ``b""`` at the end of the stream. Raises OSError when the connection is lost."""

    def close(self) -> None:
        """Close at once; a task that waits in the stream gets an OSError. Does nothing the second time."""


class Runtime(Protocol):
    """Clocks, tasks, connections. ``random`` is the only source of randomness, so a seed fixes what the client does."""

    random: random.Random

    def now_ns(self) -> int:
        """Return the monotonic time in nanoseconds."""

    def wall_ms(self) -> int:
        """Return the wall clock's time in milliseconds since 1970."""

    def process_id(self) -> int:
        """Return the number of this process, for the ids of the client and of its messages."""

    def local_address(self) -> str:
        """Return an IPv4 address of this machine in dotted form, for the same ids."""

    def event(self) -> Event:
        """Return a new event that is not set."""

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds; 0 only lets other tasks run and notices a cancellation."""

    def task_group(self, *, shielded: bool = False) -> AbstractAsyncContextManager[TaskGroup]:
        """Return a new task group, to be entered with ``async with``.

        With ``shielded`` a cancellation from outside reaches the body but not the tasks, which run until
        `TaskGroup.cancel`. So connections outlive the cancelled block of their client while it is being closed.
        """

    def move_on_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        """Return a scope that is left quietly after so many seconds; with ``math.inf`` only `cancel` ends it early."""

    async def connect(self, address: str) -> ByteStream:
        """Open a connection to ``"host:port"``. Raises OSError."""
