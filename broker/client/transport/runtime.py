"""What the client needs of the world around it: clocks, waiting, tasks, connections and randomness.

The client's logic must run unchanged on Trio and in the deterministic simulator, so it is written against this small
protocol and imports neither. The protocol keeps Trio's semantics, the strictest that are in use:

- A task group is left only when all its tasks have ended; a task that raises cancels the others.
- Cancellation is an exception raised at an await, belongs to the scope that was cancelled, and must not be swallowed.
- A scope with ``shield=True`` keeps the cancellation of outer scopes away.

`Event.wait` is the only way in which the client's hot path blocks: a call waits on one event that the task reading the
connection sets, so that a call costs neither a task nor a scope.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Event(Protocol):
    """A flag that is set once and wakes everyone who waits for it."""

    def set(self) -> None:
        """Set the flag; does nothing the second time."""

    def is_set(self) -> bool:
        """Whether `set` was called."""

    async def wait(self) -> object:
        """Return once the flag is set."""


class CancelScope(Protocol):
    """A ``with`` block whose awaits can be cancelled from outside or by a deadline."""

    @property
    def cancelled_caught(self) -> bool:
        """After the block: whether it was left by this scope's own cancellation."""

    def cancel(self) -> None:
        """Cancel the block now."""

    def __enter__(self) -> CancelScope: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...


class TaskGroup(Protocol):
    """Tasks that end together. An exception that leaves the group alone leaves it bare, not inside a group."""

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Start ``function(*arguments)`` as a task of the group."""

    def cancel(self) -> None:
        """Cancel all tasks of the group, the body of its ``async with`` included."""


class ByteStream(Protocol):
    """One connection. One task reads, one writes; `write_nowait` and `send_all` are never used at the same time."""

    def write_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Write what fits without waiting; returns the number of bytes taken, 0 when none. Raises OSError."""

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Write all buffers in order. Raises OSError when the connection is lost; cancelled, some are written."""

    async def receive_some(self) -> bytes:
        """Some bytes, or ``b""`` at the end of the stream. Raises OSError when the connection is lost."""

    def close(self) -> None:
        """Close at once; a task that waits in the stream gets an OSError. Does nothing the second time."""


class Runtime(Protocol):
    """The world. ``random`` is the only source of randomness, so that a seed fixes everything that the client does."""

    random: random.Random

    def now_ns(self) -> int:
        """Monotonic time in nanoseconds."""

    def wall_ms(self) -> int:
        """Wall clock in milliseconds since 1970."""

    def process_id(self) -> int:
        """Number of this process, for the client's identity and the ids of its messages."""

    def local_address(self) -> str:
        """An IPv4 address of this machine in dotted form, for the same."""

    def event(self) -> Event:
        """A new event, not set."""

    async def sleep(self, seconds: float) -> None:
        """Wait; 0 only lets other tasks run and notices a cancellation."""

    def task_group(self, *, shielded: bool = False) -> AbstractAsyncContextManager[TaskGroup]:
        """A new task group, to be entered with ``async with``.

        ``shielded``: cancellation from outside reaches the body but not the tasks, which run until `TaskGroup.cancel`;
        so that connections outlive the cancelled block that they belong to for as long as closing it takes.
        """

    def move_on_after(self, seconds: float, *, shield: bool = False) -> CancelScope:
        """A scope that is left quietly after that time; ``math.inf`` for one that is only cancelled by hand."""

    async def connect(self, address: str) -> ByteStream:
        """Open a connection to ``"host:port"``. Raises OSError."""
