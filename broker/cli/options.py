"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

NAME_SERVER_DEFAULT = "127.0.0.1:9876"

NameServer = Annotated[
    str,
    Parameter(
        name=["--namesrv", "-n"],
        env_var="TRIVET_NAMESRV",
        help='Name servers, HOST:PORT, several joined by ";".',
    ),
]
AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON instead of a table.")]


def name_servers(text: str) -> list[str]:
    """The addresses in ``--namesrv``; raises CommandError."""
    from broker.cli.errors import USAGE, CommandError
    from broker.config import split_address

    addresses = [address.strip() for address in text.split(";") if address.strip()]
    if not addresses:
        raise CommandError("--namesrv: at least one HOST:PORT", USAGE)
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise CommandError(f"--namesrv {address}: {error}", USAGE) from None
    return addresses
