"""The common parts of a process of a broker and one of a name server: how it runs, and which signals it follows."""

import gc
import signal
from collections.abc import Callable
from typing import Protocol

import trio


class Server(Protocol):
    """The server that runs in the process."""

    async def serve(self) -> None:
        """Serves until it has stopped."""

    def stop(self, reason: str) -> None:
        """Begins its orderly stop."""

    def reload(self) -> None:
        """Reads again those of its files that may change while it runs."""


async def serve_until_stopped(server: Server) -> None:
    """Serves until SIGTERM or SIGINT, which stop it in order, or until cancelled. Raises what `Server.serve` does."""
    # What a start leaves behind stays for good, so that collections need not look at it. What requests leave
    # behind is mostly freed by its counts of references, so that collections may be rare.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, server.stop)
        nursery.start_soon(_reload_on_hangup, server.reload)
        await server.serve()
        nursery.cancel_scope.cancel()


async def _reload_on_hangup(reload: Callable[[], None]) -> None:
    """Calls `reload` at each SIGHUP, until cancelled."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            reload()


async def _stop_on_signal(stop: Callable[[str], None]) -> None:
    """Calls `stop` with the signal's name at the first SIGTERM or SIGINT, and returns."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            stop(signal.Signals(number).name)
            return
