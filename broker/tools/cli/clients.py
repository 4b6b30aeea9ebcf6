"""``trivet client``: who is connected."""

from typing import Annotated, Literal

from cyclopts import App, Parameter

from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers
from broker.tools.cli.output import print_json, print_table, tell_missing

app = App(name="client", help="Show who is connected.", backend="trio")


@app.command(name="list")
async def list_clients(
    *,
    role: Annotated[
        Literal["consumer", "producer"] | None, Parameter(help="Only consumers, or only producers.")
    ] = None,
    group: Annotated[str | None, Parameter(help="Only those of this consumer or producer group.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """List the connected clients by group, with their addresses, languages and versions.

    Clients that announce no consumer or producer group, such as tools, are not shown. Broker groups that do not answer
    are named, and the exit code is 1.
    """
    from broker.operations.clients import connected_clients

    async with servers.groups() as groups:
        found = await connected_clients(groups)
    shown = [client for client in found if role in (None, client.role) and group in (None, client.group)]
    if json:
        print_json({"clients": shown}, groups.missing)
    else:
        print_table(
            ["role", "group", "client", "address", "language", "version"],
            [
                [one.role, one.group, one.client_id, one.address, one.language, str(one.version)]
                for one in shown
            ],
        )
    return tell_missing(groups.missing)
