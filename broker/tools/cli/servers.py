"""``trivet namesrv`` and ``trivet broker``: one server in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from broker.tools.cli.options import check_address


async def namesrv(
    *,
    listen: Annotated[
        str | None, Parameter(help="Where to listen, HOST:PORT (default 127.0.0.1:9876).")
    ] = None,
    config: Annotated[Path | None, Parameter(help="TOML, or RocketMQ's key=value file.")] = None,
) -> int:
    """Run a name server until SIGTERM or Ctrl-C.

    Brokers register with it and clients ask it for routes. It keeps nothing but key-value configuration.
    """
    import msgspec

    from broker.settings.reading import load_name_server
    from broker.settings.tables import NameServerSettings
    from broker.shell.name_server import serve
    from broker.shell.secret_files import warn_of_readable_secrets
    from broker.tools.cli.logs import configure_logs

    settings = NameServerSettings() if config is None else load_name_server(config)
    if listen is not None:
        check_address(listen, f"--listen {listen}")
        settings = msgspec.structs.replace(settings, listen=listen)
    configure_logs(settings.log_level, settings.warnings)
    warn_of_readable_secrets(settings, config)
    await _serve(serve, settings)
    return 0


async def broker(
    *, config: Annotated[Path, Parameter(help="TOML, or RocketMQ's key=value broker.conf.")]
) -> int:
    """Run one broker of a group until SIGTERM or Ctrl-C.

    Every node of a group has a file of its own, which differs in the node's id, addresses and store. See
    docs/configuration.md for what can stand in it.
    """
    from broker.settings.reading import load
    from broker.shell.broker_server import serve
    from broker.shell.secret_files import warn_of_readable_secrets
    from broker.tools.cli.logs import configure_logs

    settings = load(config)
    configure_logs(settings.observe.log_level, settings.warnings)
    warn_of_readable_secrets(settings, config)
    await _serve(serve, settings)
    return 0


async def _serve(serve: Callable[..., Awaitable[None]], settings: object) -> None:
    """Run a server to its end. A fault after its start is news for developers too: the log gets the whole of it."""
    import structlog
    import trio

    started = False
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, settings)
            started = True
    except Exception:
        if started:
            structlog.get_logger("trivet").error("stopped by a fault", exc_info=True)
        raise
