"""A consumer group as its clients' heartbeats make it known: members by connection, and what they subscribe to."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from broker.remoting.bodies import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from broker.remoting.codes import LanguageCode
from broker.requests.connection import RelayedConnection

ConnectionType = TypeVar("ConnectionType", bound=Hashable)


@dataclass(frozen=True, slots=True)
class RegisteredClient(Generic[ConnectionType]):
    """One client of a consumer group, by the connection that it sends heartbeats on; ``version`` is its MQVersion
    ordinal. ``access_key`` names the account that it has shown, where accounts are asked for.
    """

    connection: ConnectionType
    client_id: str
    language: LanguageCode
    version: int
    access_key: str = ""


@dataclass(slots=True)
class ConsumerGroup(Generic[ConnectionType]):
    """A consumer group with at least one client. Where clients disagree on its kind, the last heartbeat wins."""

    name: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    unit_mode: bool = False
    clients: dict[ConnectionType, RegisteredClient[ConnectionType]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    """by topic"""
    _connections: dict[str, int] = field(default_factory=dict)
    """The number of connections through which a client is here, by its id."""
    _wanted: dict[ConnectionType, int] = field(default_factory=dict)
    """A hash of the subscriptions in the last heartbeat, by connection: the texts of thousands would be too much."""

    def has_member(self, client_id: str) -> bool:
        """Tells whether the client is here through any connection."""
        return client_id in self._connections

    def add(self, client: RegisteredClient[ConnectionType]) -> RegisteredClient[ConnectionType] | None:
        """Takes the client in as the newest one; returns the client that its connection stood for before, if any."""
        before = self.remove(client.connection) if client.connection in self.clients else None
        # At the end, as the newest one (`members`).
        self.clients[client.connection] = client
        self._connections[client.client_id] = self._connections.get(client.client_id, 0) + 1
        return before

    def remove(self, connection: ConnectionType) -> RegisteredClient[ConnectionType]:
        """Takes out the client of a connection, and returns it. The connection's subscriptions stay noted."""
        client = self.clients.pop(connection)
        assert self._connections[client.client_id] > 0, "a client here has a connection"
        self._connections[client.client_id] -= 1
        if not self._connections[client.client_id]:
            del self._connections[client.client_id]
        return client

    def left(self, connection: ConnectionType) -> RegisteredClient[ConnectionType]:
        """Takes out the client of a connection, and forgets which subscriptions that connection told."""
        self._wanted.pop(connection, None)
        return self.remove(connection)

    def wants(self, connection: ConnectionType, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Notes the subscriptions of a connection's heartbeat; tells whether its last heartbeat had others."""
        wanted = hash(frozenset((each.topic, *filter_of(each)) for each in subscriptions))
        before = self._wanted.get(connection)
        self._wanted[connection] = wanted
        return before is not None and before != wanted

    def members(self) -> list[RegisteredClient[ConnectionType]]:
        """Each client once: by its newest connection to this node, or else by its newest relayed one."""
        return each_once(self.clients.values())


def each_once(
    clients: Iterable[RegisteredClient[ConnectionType]],
) -> list[RegisteredClient[ConnectionType]]:
    """Returns each client once, by its newest connection to this node, or else by its newest relayed one.

    A client id is what a client says. Where accounts say the same one, it is that of the account that came first.
    """
    chosen: dict[str, RegisteredClient[ConnectionType]] = {}
    # Few are there twice: the others of a hundred thousand cost one look each.
    again = [client for client in clients if chosen.setdefault(client.client_id, client) is not client]
    for client in again:
        known = chosen[client.client_id]
        if client.access_key == known.access_key and (
            isinstance(known.connection, RelayedConnection)
            or not isinstance(client.connection, RelayedConnection)
        ):
            chosen[client.client_id] = client
    return list(chosen.values())


def filter_of(subscription: SubscriptionData) -> tuple[str, str]:
    """Returns type and expression of a subscription: newer versions of it may say the same."""
    return subscription.expression_type or "TAG", subscription.sub_string


@dataclass(frozen=True, slots=True)
class FilterChange(Generic[ConnectionType]):
    """A heartbeat that subscribes a consumer group, or its sender alone, to something else than before."""

    group: str
    topics: frozenset[str]
    """Topics whose messages are filtered otherwise for the whole consumer group now."""
    connection: ConnectionType | None
    """The sender's connection if its own heartbeat before this one had another subscription; else None."""
