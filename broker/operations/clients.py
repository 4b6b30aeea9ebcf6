"""The clients that are connected: by consumer group and by producer group, with address, language and version."""

from dataclasses import dataclass
from typing import Literal

from broker.operations.asking import Groups, each, read_body
from broker.operations.members import connection_of
from broker.remoting.admin_bodies import AllProducers
from broker.remoting.bodies import SubscriptionGroupTable
from broker.remoting.codes import RequestCode
from broker.remoting.json_body import decode_body


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedClient:
    """A client in one group of one kind; one that is in several stands there several times.

    ``brokers`` are the broker groups that know it.
    """

    client_id: str
    role: Literal["consumer", "producer"]
    group: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


async def connected_clients(groups: Groups) -> list[ConnectedClient]:
    """Return all clients that announce a consumer or producer group, sorted by role, group and id.

    Raises ClientError.
    """
    found: dict[tuple[str, str, str], list[ConnectedClient]] = {}
    consumers = await groups.ask(lambda name: _consumers(groups, name))
    producers = await groups.ask(lambda name: _producers(groups, name))
    for clients in (*consumers.values(), *producers.values()):
        for client in clients:
            found.setdefault((client.role, client.group, client.client_id), []).append(client)
    merged = []
    for _, same in sorted(found.items()):
        first = same[0]
        merged.append(
            ConnectedClient(
                client_id=first.client_id,
                role=first.role,
                group=first.group,
                address=first.address,
                language=first.language,
                version=first.version,
                brokers=tuple(sorted({name for client in same for name in client.brokers})),
            )
        )
    return merged


async def _consumers(groups: Groups, name: str) -> list[ConnectedClient]:
    response = await groups.read(name, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
    table = read_body(response, name, lambda body: decode_body(body, SubscriptionGroupTable))

    async def members(group: str) -> list[ConnectedClient]:
        found = await connection_of(groups, group, name)
        if found is None:
            return []
        return [
            ConnectedClient(
                client_id=client.client_id,
                role="consumer",
                group=group,
                address=client.client_address,
                language=client.language,
                version=client.version,
                brokers=(name,),
            )
            for client in found.connection_set
        ]

    by_group = await each(groups.admin, sorted(table.subscription_group_table), members)
    return [client for clients in by_group for client in clients]


async def _producers(groups: Groups, name: str) -> list[ConnectedClient]:
    response = await groups.read(name, RequestCode.GET_ALL_PRODUCER_INFO, {})
    found = read_body(response, name, lambda body: decode_body(body, AllProducers))
    return [
        ConnectedClient(
            client_id=client.client_id,
            role="producer",
            group=group,
            address=client.remote_address,
            language=client.language,
            version=client.version,
            brokers=(name,),
        )
        for group, clients in found.data.items()
        for client in clients
    ]
