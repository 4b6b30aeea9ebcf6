"""The examination by the doctor: every name server, every registered node and every group with several members, asked
once.

Whoever does not answer is a finding itself, so nothing here raises for that.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError, ClientError, ConnectionFailed
from broker.name_server.key_values import ORDER_TOPIC_NAMESPACE
from broker.operations.asking import Groups, as_json, body_at, each, read_body
from broker.operations.clients import ConnectedClient, connected_clients
from broker.operations.consumer_groups import GroupDetail, describe_group
from broker.operations.errors import NotThere
from broker.remoting.bodies import KeyValueTable
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.remoting.route import ClusterInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedNameServer:
    """A name server and the addresses of the brokers that it knows by broker group; None if it did not answer.

    ``ordered`` has its configuration of ordered topics by topic, as it is kept there: ``broker:count;broker:count``. It
    is empty where the account may not ask for it.
    """

    address: str
    brokers: dict[str, tuple[str, ...]] | None
    ordered: dict[str, str] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedNode:
    """A registered node and what it says of itself, None with a ``failure``.

    ``ahead_ms`` is how far its clock is ahead of this machine's; it is known to half of ``round_trip_ms``.
    """

    broker: str
    address: str
    status: NodeStatus | None
    ahead_ms: float | None = None
    round_trip_ms: float = 0.0
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All that was found. ``clients`` is None where they could not be asked for, and ``failure`` says why.

    ``expected`` has the broker groups of which whoever asks says that they must be there.
    """

    now_ms: int
    name_servers: tuple[ExaminedNameServer, ...]
    nodes: tuple[ExaminedNode, ...]
    clients: tuple[ConnectedClient, ...] | None
    groups: tuple[GroupDetail, ...]
    failure: str | None
    expected: tuple[str, ...] = ()


async def examine(admin: AdminClient, expected: Iterable[str] = ()) -> Examination:
    """Ask the whole cluster, in which some broker groups are ``expected``.

    Raises nothing but for a client that is not open.
    """
    addresses = admin.core.name_servers.addresses
    name_servers = await each(admin, addresses, lambda address: _name_server(admin, address))
    places = sorted(
        {
            (broker, address)
            for server in name_servers
            for broker, members in (server.brokers or {}).items()
            for address in members
        }
    )
    nodes = await each(admin, places, lambda place: _node(admin, *place))
    clients: tuple[ConnectedClient, ...] | None = None
    groups: list[GroupDetail] = []
    failure = None
    try:
        asked = await Groups.registered(admin)  # a group without a leader is a finding of its own
        clients = tuple(await connected_clients(asked))
        members: dict[str, set[str]] = {}
        for client in clients:
            if client.role == "consumer":
                members.setdefault(client.group, set()).add(client.client_id)
        for group in sorted(group for group, ids in members.items() if len(ids) > 1):
            try:
                groups.append(await describe_group(asked, group))
            except NotThere:
                pass  # it has gone meanwhile
        failure = "; ".join(f"{one.group}: {one.why}" for one in asked.missing) or None
    except ClientError as error:
        failure = str(error)
    return Examination(
        now_ms=admin.core.runtime.wall_ms(),
        name_servers=tuple(name_servers),
        nodes=tuple(nodes),
        clients=clients,
        groups=tuple(groups),
        failure=failure,
        expected=tuple(dict.fromkeys(expected)),
    )


async def _name_server(admin: AdminClient, address: str) -> ExaminedNameServer:
    try:
        info = await body_at(admin, address, RequestCode.GET_BROKER_CLUSTER_INFO, ClusterInfo.decode)
    except (ConnectionFailed, BrokerError) as error:
        return ExaminedNameServer(address=address, brokers=None, failure=_reason(error, address))
    return ExaminedNameServer(
        address=address,
        brokers={
            name: tuple(at for _, at in sorted(data.broker_addresses.items()))
            for name, data in sorted(info.broker_table.items())
        },
        ordered=await _ordered(admin, address),
    )


async def _ordered(admin: AdminClient, address: str) -> dict[str, str]:
    try:
        response = await admin.call(
            address, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER_TOPIC_NAMESPACE}
        )
        # Where no topic is ordered there is no such namespace, which is an answer of another code.
        if response.code != ResponseCode.SUCCESS:
            return {}
        return read_body(response, address, as_json(KeyValueTable)).table
    except (ConnectionFailed, BrokerError):
        return {}


async def _node(admin: AdminClient, broker: str, address: str) -> ExaminedNode:
    runtime = admin.core.runtime
    try:
        # Opens the connection, which takes its time.
        await admin.call(address, RequestCode.TRIVET_NODE_STATUS)
        begun_ns, begun_ms = runtime.now_ns(), runtime.wall_ms()
        status = await body_at(admin, address, RequestCode.TRIVET_NODE_STATUS, decode_node_status)
        round_trip_ms = (runtime.now_ns() - begun_ns) / 1e6
    except (ConnectionFailed, BrokerError) as error:
        return ExaminedNode(broker=broker, address=address, status=None, failure=_reason(error, address))
    ahead_ms = None if status.wall_ms is None else status.wall_ms - (begun_ms + round_trip_ms / 2)
    return ExaminedNode(
        broker=broker, address=address, status=status, ahead_ms=ahead_ms, round_trip_ms=round_trip_ms
    )


def _reason(error: ClientError, address: str) -> str:
    """Return what an error says but for the address, which whoever tells of it has named."""
    return str(error).removeprefix(f"{address}: ")
