"""The console as a server: starlette's application on hypercorn's Trio worker.

A browser that does not read must hold nothing: hypercorn writes where no cancellation reaches it, so the kernel is told
to close a connection on which nothing could be sent for `WRITE_S_MAX`. It does so on Linux; elsewhere such a connection
stays until its other end is gone.
"""

import logging
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import trio
from hypercorn.config import Config
from hypercorn.trio import serve as serve_app

from broker.console.app import Console
from broker.console.audit import AuditLog
from broker.console.options import ConsoleOptions
from broker.console.seats import Seats
from broker.remoting.addresses import join_address, split_address
from broker.shell.sockets import listen

WRITE_S_MAX: Final = 20
_BACKLOG: Final = 100
_GRACE_S: Final = 1.0
"""Seconds that requests may still take when the server stops."""


async def serve(
    options: ConsoleOptions,
    stopped: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stopped` returns; tells the page's address once it listens. Raises OSError, AuditError."""
    audit = AuditLog(options.audit_file, time.time_ns)
    try:
        async with trio.open_nursery() as nursery:
            seats = Seats(options, nursery)
            console = Console(options, seats, await seats.open(None), audit, trio.current_time)

            async def over() -> None:
                await stopped()
                console.end()

            nursery.start_soon(console.sweep)
            descriptor, address = _listen(options.listen)
            await nursery.start(
                partial(
                    serve_app,
                    cast(Any, console.app()),  # hypercorn and starlette have types of their own for it
                    _config(options, descriptor),
                    shutdown_trigger=over,
                )
            )
            task_status.started(f"{'https' if options.is_encrypted else 'http'}://{address}/")
    finally:
        audit.close()


def _listen(address: str) -> tuple[int, str]:
    """Return a listening socket's descriptor, which hypercorn takes over, and the address. Raises OSError."""
    # Before hypercorn does so: of two consoles at one address the second one fails here, and says why.
    listener = listen(address, _BACKLOG)
    # Connections have these options of the socket on which they are accepted.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, WRITE_S_MAX * 1000)
    port = listener.getsockname()[1]
    return listener.detach(), join_address(split_address(address)[0], port)


def _config(options: ConsoleOptions, descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.backlog = _BACKLOG
    config.certfile = options.certificate or None
    config.keyfile = options.key or None
    config.alpn_protocols = ["http/1.1"]
    config.include_server_header = False
    config.graceful_timeout = _GRACE_S
    config.ssl_handshake_timeout = 10.0
    config.errorlog = logging.getLogger("trivet.console")
    return config
