"""SIGTERM and Ctrl-C as an event to wait for, so that both stop a command in the same clean way."""

import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import trio


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], Awaitable[None]]]:
    """While the block runs neither signal ends the process; the function yielded returns when the first one came."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:

        async def stopped() -> None:
            async for _ in received:
                return

        yield stopped


@contextlib.asynccontextmanager
async def until(stopped: Callable[[], Awaitable[None]]) -> AsyncIterator[trio.Nursery]:
    """Cancel the block when `stopped` returns, and all tasks of its nursery; these end with the block, too."""
    async with trio.open_nursery() as nursery:

        async def cancel() -> None:
            await stopped()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel)
        yield nursery
        nursery.cancel_scope.cancel()
