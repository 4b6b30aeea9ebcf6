"""``trivet console``: a cluster in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker.tools.cli.errors import FAILED, CommandError
from broker.tools.cli.options import DEFAULT_NAME_SERVERS, NameServers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    from broker.console.options import ConsoleOptions


async def console(
    *,
    listen: Annotated[str, Parameter(help="Where browsers find it, HOST:PORT; port 0 takes a free one.")] = (
        "127.0.0.1:9880"
    ),
    writable: Annotated[
        bool, Parameter(negative="", help="Whether it may change anything: send, reset, redrive, delete.")
    ] = False,
    audit: Annotated[Path | None, Parameter(help="Write down changes in this file; else on stderr.")] = None,
    reports: Annotated[
        Path | None, Parameter(help="Show the reports of simulations and analyses in this directory.")
    ] = None,
    accounts: Annotated[
        Path | None, Parameter(help="Show the brokers' file of accounts to administrators, without secrets.")
    ] = None,
    host: Annotated[
        list[str] | None,
        Parameter(help="A name under which browsers ask for it; may be repeated.", negative=""),
    ] = None,
    certificate: Annotated[
        str, Parameter(help="Certificate to show to browsers, PEM.", show_default=False)
    ] = "",
    key: Annotated[str, Parameter(help="Its private key, PEM.", show_default=False)] = "",
    allow_plaintext: Annotated[
        bool, Parameter(negative="", help="Serve others in the clear, as behind a proxy that encrypts.")
    ] = False,
    servers: NameServers = DEFAULT_NAME_SERVERS,
) -> int:
    """Serve a page that shows the cluster until Ctrl-C: its health, topics, messages, consumer groups, dead letters.

    It changes nothing unless it is --writable, and has no account of its own: where brokers have accounts, whoever uses
    it signs in with one, and may do what that account may. See docs/console.md.
    """
    from broker.console.options import ConsoleOptions

    options = ConsoleOptions(
        name_servers=tuple(servers.addresses()),
        tls=servers.tls_context(),
        listen=listen,
        certificate=certificate,
        key=key,
        allow_plaintext=allow_plaintext,
        host_names=tuple(host or ()),
        writable=writable,
        audit_file=audit,
        reports=reports,
        accounts=accounts,
    )
    import trio

    from broker.tools.cli.signals import stop_signals

    with stop_signals() as stopped:
        async with trio.open_nursery() as nursery:
            address = await start_console(nursery, options, stopped)
            print(f"READY {address}", flush=True)
    return 0


def require_console() -> None:
    """Raise CommandError where the console's libraries are not installed: better before anything has begun."""
    from importlib.util import find_spec

    for package in ("starlette", "hypercorn"):
        if find_spec(package) is None:
            raise CommandError(
                f"the console needs {package}, which is not installed: pip install 'trivet[console]' "
                "(in a checkout: '.[console]')",
                FAILED,
            )


async def start_console(
    nursery: trio.Nursery, options: ConsoleOptions, stopped: Callable[[], Awaitable[None]]
) -> str:
    """Serve a console until `stopped` returns; returns its address once it listens. Raises CommandError where its
    libraries are not installed, OSError.
    """
    require_console()
    from broker.console.server import serve
    from broker.tools.cli.logs import configure_logs

    configure_logs("info")
    address: str = await nursery.start(serve, options, stopped)
    return address
