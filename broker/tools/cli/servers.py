"""``trivet namesrv`` and ``trivet broker``, as the command line's parser knows them: their options and their helps."""

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
    from broker.tools.cli.serving import run_name_server

    if listen is not None:
        check_address(listen, f"--listen {listen}")
    return await run_name_server(config, listen)


async def broker(
    *, config: Annotated[Path, Parameter(help="TOML, or RocketMQ's key=value broker.conf.")]
) -> int:
    """Run one broker of a group until SIGTERM or Ctrl-C.

    Every node of a group has a file of its own, which differs in the node's id, addresses and store. See
    docs/configuration.md for what can stand in it.
    """
    from broker.tools.cli.serving import run_broker

    return await run_broker(config)
