"""The clients that are connected: by consumer group and by producer group, with address, language and version."""

from dataclasses import dataclass, replace
from typing import Literal

from broker.operations.asking import Groups, as_json, each
from broker.operations.members import connection_of
from broker.remoting.admin_bodies import AllProducers
from broker.remoting.bodies import SubscriptionGroupTable
from broker.remoting.codes import RequestCode


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
    found: dict[tuple[str, str, str], ConnectedClient] = {}
    consumers = await groups.ask(lambda name: _consumers(groups, name))
    producers = await groups.ask(lambda name: _producers(groups, name))
    for clients in (*consumers.values(), *producers.values()):
        for client in clients:
            key = client.role, client.group, client.client_id
            first = found.setdefault(key, client)
            brokers = tuple(sorted({*first.brokers, *client.brokers}))
            found[key] = replace(first, brokers=brokers)
    return [client for _, client in sorted(found.items())]


async def _consumers(groups: Groups, name: str) -> list[ConnectedClient]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    table = await groups.body(name, code, {}, as_json(SubscriptionGroupTable))

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
    found = await groups.body(name, RequestCode.GET_ALL_PRODUCER_INFO, {}, as_json(AllProducers))
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
