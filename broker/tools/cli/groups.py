"""``trivet group``: the members of a Raft group and who leads it. docs/operations.md says what to do when."""

from typing import Annotated

from cyclopts import App, Parameter

from broker.tools.cli.errors import USAGE, CommandError
from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Group, Servers, check_address
from broker.tools.cli.orders import Yes, confirm
from broker.tools.cli.output import print_json, print_table

app = App(
    name="group",
    help="Show, add, promote and remove members of a group; move its leadership.",
    backend="trio",
)

Node = Annotated[str, Parameter(help='The node\'s id: "n" and a number, such as n3.')]


@app.command
async def status(
    *,
    group: Group = None,
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show the members as the leader sees them: votes, peer addresses, and how far each is.

    Lag is how many entries of the leader's log a member does not hold. The exit code is 1 if a voter is silent.
    """
    async with servers.admin() as admin:
        leader = await admin.members(group)
    peers = {peer.id: peer for peer in leader.peers}
    rows: list[dict[str, object]] = []
    for member in (*leader.voters, *leader.learners):
        peer = peers.get(member)
        rows.append(
            {
                "node": member,
                "vote": member in leader.voters,
                "leads": member == leader.node,
                "peer_address": leader.peer_addresses.get(member),
                "lag": 0 if peer is None else leader.last_index - peer.match_index,
                "state": "" if peer is None else peer.state,
                "silent_ms": None if peer is None else peer.last_contact_ms,
            }
        )
    if json:
        print_json(
            {
                "group": leader.group,
                "leader": leader.node,
                "term": leader.term,
                "configuration_index": leader.configuration_index,
                "members": rows,
            }
        )
    else:
        columns = ("node", "vote", "leads", "peer_address", "lag", "state", "silent_ms")
        title = f"{leader.group}: {leader.node} leads term {leader.term}"
        print_table(columns, [[row[column] for column in columns] for row in rows], title=title)
    # A learner has no vote: the group loses nothing by its silence.
    silent = [row for row in rows if row["vote"] and isinstance(ms := row["silent_ms"], int) and ms > 5000]
    return 1 if silent else 0


@app.command
async def add(
    node: Node,
    /,
    *,
    peer: Annotated[str, Parameter(help="Where it listens for its peers, HOST:PORT.")],
    group: Group = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
) -> int:
    """Add a node as a learner: it receives the log, and has no vote until it is promoted.

    Its own settings have raft.join = true, and raft.peers with the members and itself.
    """
    check_address(peer, f"--peer {peer}")
    confirm(f"Add {node} at {peer} to {_named(group)} as a learner?", yes=yes)
    async with servers.admin() as admin:
        await admin.add_member(node, peer, group)
    print(f"{node} is a learner; when it runs and has caught up: trivet group promote {node}")
    return 0


@app.command
async def promote(
    node: Node,
    /,
    *,
    timeout_s: Annotated[
        float, Parameter(name="--timeout", help="Seconds to wait until it has caught up.")
    ] = 60.0,
    group: Group = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
) -> int:
    """Give a learner its vote, once it has caught up with the log."""
    if not 0 <= timeout_s < 1e6:
        raise CommandError(f"--timeout {timeout_s:g}: seconds, 0 or more", USAGE)
    confirm(f"Give {node} of {_named(group)} a vote?", yes=yes)
    async with servers.admin() as admin:
        await admin.promote_member(node, group, timeout_s=timeout_s)
    print(f"{node} is a voter")
    return 0


@app.command
async def remove(
    node: Node,
    /,
    *,
    group: Group = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
) -> int:
    """Take a member out of the group. It stops serving and can be stopped; its store is left as it is."""
    confirm(f"Take {node} out of {_named(group)}?", yes=yes)
    async with servers.admin() as admin:
        await admin.remove_member(node, group)
    print(f"{node} is no member any more; stop it, and take it out of raft.peers in the others' settings")
    return 0


@app.command
async def transfer(
    node: Node,
    /,
    *,
    group: Group = None,
    yes: Yes = False,
    servers: Servers = DEFAULT_SERVERS,
) -> int:
    """Have this voter lead the group, before the present leader's machine is taken down for instance."""
    confirm(f"Have {node} lead {_named(group)}?", yes=yes)
    async with servers.admin() as admin:
        await admin.transfer_leadership(node, group)
    print(f"{node} leads")
    return 0


def _named(group: str | None) -> str:
    return "the group" if group is None else f"group {group}"
