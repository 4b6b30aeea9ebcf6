"""One server in this process, from its settings to its end.

The servers are imported in the functions: after `broker.tools.cli.logs`, which says how structlog is loaded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import trio

from broker.settings.reading import load, load_name_server
from broker.settings.tables import NameServerSettings
from broker.tools.cli.logs import configure_logs


def run_here(server: str, config: str) -> int:
    """Run the `server` of that name, "broker" or "namesrv", to its end. Returns the exit code."""
    return trio.run(run_broker if server == "broker" else run_name_server, Path(config))


async def run_name_server(config: Path | None, listen: str | None = None) -> int:
    """Run a name server until a signal; `listen` goes before what the file says. Returns the exit code."""
    from broker.shell.name_server import serve
    from broker.shell.secret_files import warn_of_readable_secrets

    settings = NameServerSettings() if config is None else load_name_server(config)
    if listen is not None:
        settings = msgspec.structs.replace(settings, listen=listen)
    configure_logs(settings.log_level, settings.warnings)
    warn_of_readable_secrets(settings, config)
    await _serve(serve, settings)
    return 0


async def run_broker(config: Path) -> int:
    """Run a broker until a signal. Returns the exit code."""
    from broker.shell.broker_server import serve
    from broker.shell.secret_files import warn_of_readable_secrets

    settings = load(config)
    configure_logs(settings.observe.log_level, settings.warnings)
    warn_of_readable_secrets(settings, config)
    await _serve(serve, settings)
    return 0


async def _serve(serve: Callable[..., Awaitable[None]], settings: object) -> None:
    """Run a server to its end. A fault after its start is news for developers too: the log gets the whole of it."""
    import structlog

    started = False
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, settings)
            started = True
    except Exception:
        if started:
            structlog.get_logger("trivet").error("stopped by a fault", exc_info=True)
        raise
