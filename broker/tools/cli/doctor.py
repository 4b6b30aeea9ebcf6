"""``trivet doctor``: what is wrong with a cluster, or soon will be, and what to do."""

from typing import Annotated

from cyclopts import Parameter

from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers
from broker.tools.cli.output import console, print_json, visible


async def doctor(
    *,
    expect: Annotated[
        list[str] | None,
        Parameter(
            help="A broker group that must be there, known to a name server; may be repeated.", negative=""
        ),
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Look for what is wrong with a cluster, and say what to do about it.

    It looks at name servers, nodes, names, the addresses that clients are given, replicas, clocks, disks, open files,
    releases and formats, certificates, and at members of consumer groups that subscribe to different things. A fault
    does harm now, a warning will do harm later, a note may be intended. The exit code is 1 if there is a fault.

    Name servers forget a broker group of which all nodes are gone: name those that must be there with --expect.
    """
    from broker.operations.doctor import diagnose

    async with servers.admin() as admin:
        diagnosis = await diagnose(admin, expect or ())
    if json:
        findings = {
            "healthy": diagnosis.is_healthy,
            "checks": diagnosis.checks,
            "findings": diagnosis.findings,
        }
        print_json(findings)
        return 0 if diagnosis.is_healthy else 1
    screen = console()
    colours = {"fault": "bold red", "warning": "yellow", "note": "dim"}
    for finding in diagnosis.findings:
        screen.print(f"{finding.severity:>7}  ", style=colours[finding.severity], end="")
        screen.print(visible(f"{finding.about}: {finding.what}"), soft_wrap=True)
        screen.print(visible(f"         {finding.advice}"), soft_wrap=True)
    worse = {finding.check for finding in diagnosis.findings if finding.severity != "note"}
    fine = [check for check in diagnosis.checks if check not in worse]
    print(f"nothing wrong with: {', '.join(fine)}" if fine else "every check has found something")
    return 0 if diagnosis.is_healthy else 1
