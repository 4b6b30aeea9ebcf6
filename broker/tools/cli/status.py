"""``trivet status``: every replica that the name server knows, as it sees itself and as its leader sees it.

Brokers register once they have a leader. An operator whose group has none needs to see it most, and names its brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from broker.tools.cli.options import DEFAULT_SERVERS, AsJson, Servers, check_address
from broker.tools.cli.output import print_json, print_table, tell_missing, visible

if TYPE_CHECKING:
    from broker.operations.asking import Missing
    from broker.tools.cluster.asking import AskedBroker

_COLUMNS = (
    "cluster",
    "group",
    "node",
    "address",
    "broker_id",
    "role",
    "serving",
    "term",
    "leader",
    "commit",
    "applied",
    "first",
    "last",
    "last_position",
    "lag",
    "recovering",
    "disk_full",
    "damage_left",
    "scrubbed_ms",
    "release",
    "format",
    "peers",
    "error",
)
"""Fields of each node in the output of --json."""
_SHOWN = ("group", "node", "address", "role", "term", "leader", "commit", "applied", "last", "lag")
"""Columns of the table; "recovering" is added if a node is, `_VERSIONS` where they are not all the same."""
_VERSIONS = ("release", "format")


def status(
    *brokers: Annotated[
        str,
        Parameter(help="Brokers to ask, HOST:PORT, instead of those that the name server knows."),
    ],
    servers: Servers = DEFAULT_SERVERS,
    json: AsJson = False,
) -> int:
    """Show roles, terms, commit and applied indices, and the lag of each replica.

    Where nodes run different releases, or groups write different formats, those are shown, too (docs/upgrading.md). Lag
    is how many entries a replica has yet to apply of what its leader has committed. A replica that only its leader
    knows, because it is down, is listed too; its lag is then what the leader does not know it to hold. A group that has
    no leader may be registered nowhere: name its brokers then. The exit code is 1 if a group has no serving leader,
    which is named, or a broker does not answer.
    """
    if brokers:
        asked = _named(brokers, servers)
        rows = [_row(broker, asked) for broker in asked]
    else:
        asked = _registered(servers)
        rows = [_row(broker, asked) for broker in asked] + _unregistered(asked)
    missing = _missing(asked)
    healthy = bool(asked) and all(broker.error is None for broker in asked) and not missing
    if json:
        print_json({"healthy": healthy, "nodes": rows}, missing)
    elif not asked:
        print(
            "no broker is registered; for a group without a leader, name its brokers: trivet status HOST:PORT..."
        )
    else:
        shown: tuple[str, ...] = _SHOWN
        if any(row["recovering"] is not None for row in rows):
            shown += ("recovering",)
        if len({(row["release"], row["format"]) for row in rows if row["release"] is not None}) > 1:
            shown += _VERSIONS
        print_table(shown, [[row[column] for column in shown] for row in rows])
        for row in rows:
            if row["error"] is not None:
                # A client's error begins with the address that it is about.
                print(visible(f"{row['error']}" if row["node"] is None else f"{row['node']}: {row['error']}"))
    tell_missing(missing)
    return 0 if healthy else 1


def _named(addresses: tuple[str, ...], servers: Servers) -> list[AskedBroker]:
    """Ask the brokers at these addresses. Raises CommandError for text that is no address."""
    from broker.tools.cluster.asking import brokers_at

    for address in addresses:
        check_address(address, address)
    return brokers_at(addresses, **servers.identity())


def _registered(servers: Servers) -> list[AskedBroker]:
    """Ask the brokers that the first name server that answers knows. Raises the last name server's ClientError."""
    from broker.client.errors import ClientError
    from broker.tools.cluster.asking import registered_brokers

    options = servers.identity()
    failure: ClientError | None = None
    for address in servers.addresses():
        try:
            return registered_brokers(address, **options)
        except ClientError as error:
            failure = error
    assert failure is not None
    raise failure


def _missing(brokers: list[AskedBroker]) -> list[Missing]:
    """Return the groups of which no node that answers is a serving leader, as far as their names are known."""
    led = {broker.group for broker in brokers if broker.status is not None and broker.status.serving}
    unled = sorted({broker.group for broker in brokers} - led - {""})
    if not unled:
        return []
    from broker.operations.asking import Missing  # loads the client

    return [Missing(group=group, why="no node that answers is a serving leader") for group in unled]


def _unregistered(brokers: list[AskedBroker]) -> list[dict[str, object]]:
    """A row for each peer of a leader that no name server knows."""
    present = {(broker.group, broker.status.node) for broker in brokers if broker.status is not None}
    unanswered = {broker.group for broker in brokers if broker.status is None}
    rows: list[dict[str, object]] = []
    for broker in brokers:
        if broker.status is None or not broker.status.serving or broker.group in unanswered:
            continue
        for peer in broker.status.peers:
            if (broker.group, peer.id) not in present:
                row = {
                    "cluster": broker.cluster,
                    "group": broker.group,
                    "node": peer.id,
                    "serving": False,
                    "lag": max(0, broker.status.commit_index - peer.match_index),
                    "peers": [],
                    "error": "not registered with the name server",
                }
                rows.append(dict.fromkeys(_COLUMNS) | row)
    return rows


def _row(broker: AskedBroker, brokers: list[AskedBroker]) -> dict[str, object]:
    row = dict.fromkeys(_COLUMNS) | {
        "cluster": broker.cluster,
        "group": broker.group,
        "address": broker.address,
        "broker_id": broker.broker_id,
        "serving": False,
        "peers": [],
        "error": broker.error,
    }
    if (own := broker.status) is None:
        return row
    # A leader that was replaced and does not know it yet says that it leads, too: the highest index counts.
    committed = [
        other.status.commit_index
        for other in brokers
        if other.group == broker.group and other.status is not None and other.status.role == "leader"
    ]
    return row | {
        "node": own.node,
        "role": own.role,
        "serving": own.serving,
        "term": own.term,
        "leader": own.leader,
        "commit": own.commit_index,
        "applied": own.applied_index,
        "first": own.first_index,
        "last": own.last_index,
        "last_position": own.last_position,
        "lag": max(0, max(committed) - own.applied_index) if committed else None,
        "recovering": own.recovering,
        "disk_full": own.disk_full,
        "damage_left": own.damage_left,
        "scrubbed_ms": own.scrubbed_ms,
        "release": own.release,
        "format": own.format,
        "peers": list(own.peers),
    }
