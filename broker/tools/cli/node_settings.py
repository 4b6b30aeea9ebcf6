"""``trivet config``: the settings of running brokers, and the few that may change meanwhile (docs/configuration.md)."""

import dataclasses
import sys
from typing import Annotated

from cyclopts import App, Parameter

from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers, check_address
from broker.tools.cli.orders import Yes, confirm
from broker.tools.cli.output import print_json, print_table, visible

app = App(name="config", help="Show and change settings of running brokers.", backend="trio")

Node = Annotated[
    str | None, Parameter(name="--node", help="Only the broker at this address, HOST:PORT; else all.")
]


@app.command
async def get(
    *names: Annotated[str, Parameter(help="Settings to show; without any, those that are no defaults.")],
    everything: Annotated[bool, Parameter(name="--all", negative="", help="All of them.")] = False,
    node: Node = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show settings in force and where each is from: the default, the broker's file, a change at run time.

    They have RocketMQ's names where it has one. Secrets are told to nobody. The exit code is 1 for a name that no
    broker has, and where a registered broker does not answer, which is named.
    """
    from broker.operations.settings import settings_in_force

    if node is not None:
        check_address(node, f"--node {node}")
    async with servers.admin() as admin:
        nodes = await settings_in_force(admin, address=node)
    rows = [
        {"address": one.address, **dataclasses.asdict(setting)}
        for one in nodes
        for setting in one.settings
        if setting.name in names or (not names and (everything or setting.origin != "default"))
    ]
    silent = [{"address": one.address, "why": one.failure} for one in nodes if one.failure is not None]
    if json:
        print_json({"settings": rows, "missing": silent})
    elif rows or not names:
        columns = ["address", "name", "value", "origin", "changeable"]
        print_table(columns, [[row[column] for column in columns] for row in rows])
    for missing in silent:
        print(visible(f"trivet: {missing['why']}"), file=sys.stderr)
    # Behind the rows: those that brokers have are shown all the same.
    unknown = sorted(set(names) - {str(row["name"]) for row in rows})
    if unknown:
        raise CommandError(f"no broker has a setting {', '.join(unknown)}", FAILED)
    return FAILED if silent else 0


@app.command(name="set")
async def set_settings(
    *assignments: Annotated[str, Parameter(help="NAME=VALUE, each.")],
    node: Node = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Change settings of running brokers; each broker takes all of them or none. They are kept, and hold after a
    restart.

    A setting that cannot change while a broker runs is refused with the reason; `trivet config get --all` says which
    can.
    """
    from broker.operations.settings import change_settings

    if node is not None:
        check_address(node, f"--node {node}")
    wanted: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name.strip():
            raise CommandError(f"{assignment}: needs the form NAME=VALUE", USAGE)
        if name.strip() in wanted:
            raise CommandError(f"{name.strip()}: given twice", USAGE)
        wanted[name.strip()] = value.strip()
    if not wanted:
        raise CommandError("give at least one NAME=VALUE", USAGE)
    of = f"the broker at {node}" if node else "all brokers"
    confirm(f"Set {', '.join(f'{name} = {value}' for name, value in wanted.items())} at {of}?", yes=yes)
    async with servers.admin() as admin:
        changed = await change_settings(admin, wanted, address=node)
    if json:
        print_json({"changed": changed, "settings": wanted})
    else:
        print(f"changed at {', '.join(changed)}")
    return 0
