"""``trivet cluster``: a local name server and its groups as child processes."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from broker.tools.cli.errors import FAILED, USAGE, CommandError
from broker.tools.cli.run_directory import reuse_directory
from broker.tools.cli.signals import stop_signals, until

if TYPE_CHECKING:
    from broker.console.options import ConsoleOptions
    from broker.tools.cluster.layout import LocalClusterOptions
    from broker.tools.cluster.local import LocalCluster

NODES_MAX = 9
"""More nodes than a group ever needs. Each node is a process, and a typing mistake must not start hundreds of them."""
PROCESSES_MAX = 27


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class _Page:
    """The page in a browser that shows the cluster."""

    console: Annotated[
        bool, Parameter(negative="", help="Serve a page that shows the cluster, on this machine alone.")
    ] = False
    console_port: Annotated[int, Parameter(help="Its port; 0 takes a free one.")] = 9880
    writable: Annotated[
        bool,
        Parameter(
            negative="",
            help="Whether that page may change anything; changes are written down in DIR/console.jsonl.",
        ),
    ] = False

    def check(self) -> None:
        """Raise CommandError for options that do not go together, or where the page's libraries are missing."""
        from broker.tools.cli.console import require_console

        if not 0 <= self.console_port <= 65535:
            raise CommandError(f"--console-port {self.console_port}: a port from 0 to 65535", USAGE)
        if self.writable and not self.console:
            raise CommandError("--writable is about the page of --console", USAGE)
        if self.console:
            require_console()

    def options(self, directory: Path, name_server: str) -> ConsoleOptions:
        """The options of the page for the cluster in that directory."""
        from broker.console.options import ConsoleOptions

        return ConsoleOptions(
            name_servers=(name_server,),
            listen=f"127.0.0.1:{self.console_port}",
            writable=self.writable,
            audit_file=directory / "console.jsonl",
        )


_NO_PAGE = _Page()


async def cluster(
    *,
    dir: Annotated[Path, Parameter(help="Where settings, stores, logs and traces go; reused if there.")],
    nodes: Annotated[int, Parameter(help="Brokers in each group: its machines.")] = 3,
    groups: Annotated[
        int, Parameter(help="Groups, each with a broker on every machine; their leaders are spread.")
    ] = 1,
    namesrv_port: Annotated[int, Parameter(help="The name server's port; 0 takes a free one.")] = 9876,
    port: Annotated[
        int, Parameter(help="The first broker's port, the next ones 10 higher each; 0 takes free ones.")
    ] = 10911,
    flush: Annotated[Literal["sync", "async"], Parameter(help="When a message is acknowledged.")] = "async",
    trace: Annotated[bool, Parameter(help="Whether replicas write DIR/traces/nX.trace.")] = False,
    metrics: Annotated[
        bool,
        Parameter(
            negative="", help="Serve metrics and health checks, and write DIR/prometheus.yml for Prometheus."
        ),
    ] = False,
    vip: Annotated[
        bool, Parameter(negative="", help="Serve clients two ports below each broker's, too.")
    ] = False,
    page: _Page = _NO_PAGE,
    ready_timeout: Annotated[float, Parameter(help="Seconds until the group must serve.")] = 60.0,
) -> int:
    """Run a local name server and its groups until Ctrl-C, which stops them cleanly.

    When leaders serve and every node is registered, one line is printed: READY and a JSON object with the name
    server's address and each node's id, pid, address and role, with several groups its group and machine, and with
    --console the address of the page. A server that dies is reported and left dead; start it again with the command
    that the report gives.
    """
    import msgspec

    from broker.settings.tables import StorageSettings
    from broker.tools.cluster.layout import LocalClusterOptions

    _check_sizes(nodes, groups)
    for name, value in (("--namesrv-port", namesrv_port), ("--port", port)):
        if not 0 <= value <= 65535 - nodes * groups * 10:
            raise CommandError(f"{name} {value}: a port from 0 to {65535 - nodes * groups * 10}", USAGE)
    if not ready_timeout > 0:
        raise CommandError(f"--ready-timeout {ready_timeout:g}: seconds, more than 0", USAGE)
    page.check()
    storage = StorageSettings(data_file_bytes=64 * 1024 * 1024)
    options = LocalClusterOptions(
        dir,
        nodes=nodes,
        groups=groups,
        name_server_port=namesrv_port,
        port=port,
        storage=msgspec.structs.replace(storage, flush=flush),
        trace_directory=dir / "traces" if trace else None,
        metrics=metrics,
        change=lambda settings: msgspec.structs.replace(
            settings, node=msgspec.structs.replace(settings.node, vip=vip)
        ),
    )
    reuse_directory(dir, "cluster")
    return await _run_until_stopped(options, page if page.console else None, ready_timeout)


def _check_sizes(nodes: int, groups: int) -> None:
    from broker.tools.cluster.layout import GROUPS_MAX

    if not 1 <= nodes <= NODES_MAX:
        raise CommandError(f"--nodes {nodes}: from 1 to {NODES_MAX}", USAGE)
    if not 1 <= groups <= GROUPS_MAX:
        raise CommandError(f"--groups {groups}: from 1 to {GROUPS_MAX}", USAGE)
    if nodes * groups > PROCESSES_MAX:
        limit = f"{nodes * groups} processes, and {PROCESSES_MAX} at most"
        raise CommandError(f"--groups {groups} with --nodes {nodes}: {limit}", USAGE)


async def _run_until_stopped(options: LocalClusterOptions, page: _Page | None, ready_timeout_s: float) -> int:
    """Runs the cluster, says READY when it serves, and tells of servers that die; returns the command's exit code.

    `page` is the console's page of it, if one is wanted.
    """
    import trio

    from broker.tools.cli.console import start_console
    from broker.tools.cluster.local import LocalCluster

    serves = False
    with stop_signals() as stopped:
        async with LocalCluster(options) as local, until(stopped) as nursery:
            await local.wait_ready(ready_timeout_s)  # raises for a server that ends meanwhile
            serves = True
            report = await local.ready_report()
            if page is not None:
                shown = page.options(options.directory, local.name_server_address)
                report["console"] = await start_console(nursery, shown, trio.sleep_forever)
            print("READY " + json.dumps(report), flush=True)
            await _report_deaths(local)
        # Until it serves, a server that is stopped may not even know yet what it is to do at a signal.
        in_order = (0, None) if serves else (0, None, -signal.SIGTERM)
        unclean = [child for child in local.children() if child.return_code not in in_order]
        for child in unclean:
            if child.expected_to_end:
                print(f"trivet: {child.how_it_ended()}", file=sys.stderr)
    return FAILED if any(child.expected_to_end for child in unclean) else 0


async def _report_deaths(local: LocalCluster) -> None:
    """Tells of each server that dies, and how it is started again."""
    async for child in local.deaths:
        node = local.nodes.get(child.name)
        again = (
            f"trivet broker --config {node.settings_path}"
            if node is not None
            else f"trivet namesrv --config {local.layout.name_server_settings_path}"
        )
        print(f"trivet: {child.how_it_ended()}; start it again with: {again}", file=sys.stderr, flush=True)
