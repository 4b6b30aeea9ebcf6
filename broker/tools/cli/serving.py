"""One server in this process, from its settings to its end.

The servers are imported in the functions: after `broker.tools.cli.logs`, which says how structlog is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from broker.settings.loading import load, load_name_server
from broker.settings.tables import NameServerSettings, Settings
from broker.tools.cli.logs import configure_logs

if TYPE_CHECKING:
    from broker.shell.process import Server


def run_here(server: str, config: str) -> int:
    """Run the `server` of that name, "broker" or "namesrv", to its end. Returns the exit code."""
    return trio.run(run_broker if server == "broker" else run_name_server, Path(config))


async def run_name_server(config: Path | None, listen: str | None = None) -> int:
    """Run a name server until a signal; `listen` goes before what the file says. Returns the exit code."""
    from broker.shell.name_server import NameServerProcess
    from broker.shell.secret_files import warn_of_readable_secrets

    settings = NameServerSettings() if config is None else load_name_server(config)
    if listen is not None:
        settings = msgspec.structs.replace(settings, listen=listen)
    configure_logs(settings.log_level, settings.warnings)
    warn_of_readable_secrets(settings, config)
    return await _serve(NameServerProcess(settings), settings)


async def run_broker(config: Path) -> int:
    """Run a broker until a signal. Returns the exit code."""
    from broker.shell.broker_server import BrokerServer
    from broker.shell.secret_files import warn_of_readable_secrets

    settings = load(config)
    configure_logs(settings.observe.log_level, settings.warnings)
    warn_of_readable_secrets(settings, config)
    return await _serve(BrokerServer(settings), settings)


async def _serve(server: Server, settings: Settings | NameServerSettings) -> int:
    """Run a server to its end. A fault after its start is news for developers too: the log gets the whole of it."""
    import structlog

    from broker.shell.process import serve_until_stopped
    from broker.shell.secret_files import tell_what_is_open

    tell_what_is_open(settings)
    try:
        await serve_until_stopped(server)
    except Exception:
        structlog.get_logger("trivet").error("stopped by a fault", exc_info=True)
        raise
    return 0
