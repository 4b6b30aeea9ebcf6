"""SIGTERM and Ctrl-C as an event to wait for, so that both stop a command in the same clean way."""

import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterator

import trio


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], Awaitable[None]]]:
    """While the block runs neither signal ends the process; the function yielded returns when the first one came."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as received:

        async def stopped() -> None:
            async for _ in received:
                return

        yield stopped
