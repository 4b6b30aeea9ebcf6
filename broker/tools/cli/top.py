"""``trivet top``: what happens in a cluster now, shown anew every few seconds."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJsonLines, Servers, check_stops
from broker.tools.cli.output import console, print_json, visible

if TYPE_CHECKING:
    from broker.operations.figures import Figures

_ROWS_MAX = 15
"""Topics and consumer groups that are shown, the busiest; --json has all."""


async def top(
    *,
    interval_s: Annotated[float, Parameter(name="--interval", help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, Parameter(help="Stop after this many looks.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJsonLines = False,
) -> int:
    """Show nodes, topics and consumer groups with their rates and lag, again and again, until Ctrl-C or --count.

    Topics are those that somebody consumes. Without a terminal each look is printed below the last.
    """
    import trio

    from broker.client.errors import ClientError
    from broker.operations.asking import Groups
    from broker.operations.figures import between, sample
    from broker.tools.cli.signals import stop_signals, until

    if not 0.1 <= interval_s <= 3600:
        raise CommandError(f"--interval {interval_s:g}: seconds, from 0.1 to 3600", USAGE)
    check_stops(count)
    screen = None if json else console()
    live: Any = None
    if screen is not None and sys.stdout.isatty():
        from rich.live import Live

        live = Live(console=screen, screen=True, auto_refresh=False)

    with stop_signals() as stopped, contextlib.nullcontext() if live is None else live:
        async with until(stopped), servers.admin() as admin:
            before = await sample(await Groups.registered(admin))
            looks = 0
            while looks != count:
                await trio.sleep(interval_s)
                try:
                    after = await sample(await Groups.registered(admin))
                except ClientError as error:
                    if live is None:
                        raise
                    # An election, or worse: the next look tells.
                    live.update(visible(f"{error}"), refresh=True)
                    continue
                figures, before, looks = between(before, after), after, looks + 1
                if live is not None:
                    live.update(_tables(figures), refresh=True)
                elif screen is not None:
                    screen.print(_tables(figures))
                else:
                    print_json(figures)
                    sys.stdout.flush()
    return 0


def _tables(figures: Figures) -> Any:
    from rich.console import Group
    from rich.table import Table

    nodes = Table(title="nodes", title_justify="left", header_style="bold")
    for column in ("group", "node", "address", "role", "term", "put/s", "got/s", "disk"):
        nodes.add_column(column, justify="right" if column in ("term", "put/s", "got/s", "disk") else "left")
    for node in figures.nodes:
        disk = "-" if node.disk_used_percent is None else f"{node.disk_used_percent:.0f} %"
        told = (f"{node.term or '-'}", f"{node.put_per_s:,.0f}", f"{node.got_per_s:,.0f}", disk)
        role = node.role or "-" if node.failure is None else "does not answer"
        nodes.add_row(*map(visible, (node.broker, node.node or "-", node.address, role, *told)))
    topics = Table(title="topics", title_justify="left", header_style="bold")
    topics.add_column("topic")
    topics.add_column("stored/s", justify="right")
    for topic in figures.topics[:_ROWS_MAX]:
        topics.add_row(visible(topic.topic), f"{topic.stored_per_s:,.1f}")
    groups = Table(title="consumer groups", title_justify="left", header_style="bold")
    groups.add_column("group")
    groups.add_column("consumed/s", justify="right")
    groups.add_column("lag", justify="right")
    for group in figures.groups[:_ROWS_MAX]:
        groups.add_row(visible(group.group), f"{group.consumed_per_s:,.1f}", f"{group.lag:,}")
    missing = [visible(f"group {one.group} is missing: {one.why}") for one in figures.missing]
    return Group(nodes, topics, groups, *missing)
