"""The clients that there are: producers and consumers by group and connection, as their heartbeats say (RocketMQ's
`ConsumerManager` and `ProducerManager`).

Nothing here is replicated: a node registers the clients that are connected to it and tells the leader, whose
table is the group's (broker/consumer_groups/heartbeats_processor.py). An entry ends with its connection, with an
unregistration, or when it has not been renewed for 120 s.

So a client may stand in the leader's table through several connections, its own and those that other nodes
relay. It is a member once, ceases to be one with the last of them, and is told of changes once.

Every change returns the consumer groups whose members or subscribed topics changed; the caller sends
NOTIFY_CONSUMER_IDS_CHANGED (40) to `connections_to_notify` of each, after the consumer group's own switch
has been asked.

What consumers want of a topic may change, too: their members stay who they are, but pulls that wait for the broker
were sent with the old subscription. Who holds such pulls hears of it by `on_filter_change`.

Connections are opaque and hashable, but that relayed ones are known as such. Iteration follows the order of
registration everywhere.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

from broker.node.consumer_group import (
    ConsumerGroup,
    FilterChange,
    RegisteredClient,
    each_once,
    filter_of,
)
from broker.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from broker.requests.connection import RelayedConnection
from broker.state.topic_rules import RETRY_PREFIX

EXPIRY_NS: Final = 120 * 1_000_000_000
"""An entry lives for so long without a heartbeat; clients send one every 30 s."""

EXPIRED_AT_ONCE: Final = 1_000
"""Entries that end in one turn: some 5 ms with what follows."""

ConnectionType = TypeVar("ConnectionType", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Expiry(Generic[ConnectionType]):
    """The result of `drop_silent`: the connections to close, and the consumer groups that changed."""

    connections: list[ConnectionType]
    changed_groups: list[str]


@dataclass(frozen=True, slots=True)
class _Entry(Generic[ConnectionType]):
    """A membership that must be renewed."""

    connection: ConnectionType
    group: str
    is_consumer: bool


class ClientRegistry(Generic[ConnectionType]):
    """The clients connected to one broker node, and on a leader those that other nodes relay."""

    def __init__(self, expiry_ns: int = EXPIRY_NS) -> None:
        self._expiry_ns = expiry_ns
        self._consumers: dict[str, ConsumerGroup[ConnectionType]] = {}
        self._producers: dict[str, dict[ConnectionType, RegisteredClient[ConnectionType]]] = {}
        self._producer_clients: dict[str, dict[ConnectionType, RegisteredClient[ConnectionType]]] = {}
        """Connections that announce a producer group, by client id."""
        # An entry is here and below its connection in `_entries`, and its client in its group, or nowhere; so without
        # entries all these tables are empty.
        # Renewed entries move to the end and all live equally long, so the first one is the next to expire.
        self._renewed_ns: OrderedDict[_Entry[ConnectionType], int] = OrderedDict()
        self._entries: dict[ConnectionType, dict[_Entry[ConnectionType], None]] = {}
        self._filter_listeners: list[Callable[[FilterChange[ConnectionType]], None]] = []

    def on_filter_change(self, listener: Callable[[FilterChange[ConnectionType]], None]) -> None:
        """Registers a part that must know at once when a heartbeat asks for other messages of a topic."""
        self._filter_listeners.append(listener)

    def heartbeat(
        self, client: RegisteredClient[ConnectionType], heartbeat: HeartbeatData, now_ns: int
    ) -> list[str]:
        """Registers or renews everything that a heartbeat names; returns the consumer groups that changed."""
        changed: list[str] = []
        filter_changes: list[FilterChange[ConnectionType]] = []
        for consumer in heartbeat.consumer_data_set:
            group_changed = self._register_consumer(client, consumer)
            # A change is found by comparison with the subscription that is here, before the new one takes its place.
            # Else they were left out as unchanged.
            if not heartbeat.without_sub:
                other = self._filter_change(client.connection, consumer)
                if other is not None:
                    filter_changes.append(other)
                group_changed |= self._update_subscriptions(consumer)
            if group_changed and consumer.group_name not in changed:
                changed.append(consumer.group_name)
            self._renew(_Entry(client.connection, consumer.group_name, True), now_ns)
        for producer in heartbeat.producer_data_set:
            members = self._producers.setdefault(producer.group_name, {})
            before = members.get(client.connection)
            members[client.connection] = client
            self._renew(_Entry(client.connection, producer.group_name, False), now_ns)
            if before is not None and before.client_id != client.client_id:
                self._left_producers(before)
            self._producer_clients.setdefault(client.client_id, {})[client.connection] = client
        # Last: who hears of a change asks this registry, and is to find all that the heartbeat says.
        for change in filter_changes:
            for listener in self._filter_listeners:
                listener(change)
        return changed

    def groups_with(self, connection: ConnectionType, heartbeat: HeartbeatData) -> int:
        """Counts the consumer and producer groups that the connection would be in after a heartbeat."""
        entries = dict.fromkeys(self._entries.get(connection, ()))
        for consumer in heartbeat.consumer_data_set:
            entries[_Entry(connection, consumer.group_name, True)] = None
        for producer in heartbeat.producer_data_set:
            entries[_Entry(connection, producer.group_name, False)] = None
        return len(entries)

    def new_groups_of(self, heartbeat: HeartbeatData) -> Iterator[tuple[str, int, int]]:
        """Yields, for both kinds of groups, the kind, how many have a client, and how many a heartbeat adds."""
        consumers = {consumer.group_name: None for consumer in heartbeat.consumer_data_set}
        producers = {producer.group_name: None for producer in heartbeat.producer_data_set}
        yield "consumer", len(self._consumers), sum(name not in self._consumers for name in consumers)
        yield "producer", len(self._producers), sum(name not in self._producers for name in producers)

    def unregister(
        self, connection: ConnectionType, producer_group: str | None, consumer_group: str | None
    ) -> list[str]:
        """UNREGISTER_CLIENT 35: whoever is registered on the connection leaves the named groups.

        By the connection alone, as RocketMQ does it: a client id is what a client says, and everyone may say another's.
        Returns the consumer groups that changed.
        """
        left: list[_Entry[ConnectionType]] = []
        if producer_group:
            left.append(_Entry(connection, producer_group, False))
        if consumer_group:
            left.append(_Entry(connection, consumer_group, True))
        return self._remove([entry for entry in left if entry in self._renewed_ns])

    def connection_closed(self, connection: ConnectionType) -> list[str]:
        """Ends everything that is registered on the connection; returns the consumer groups that changed."""
        return self._remove(list(self._entries.get(connection, ())))

    def drop_silent(self, now_ns: int) -> Expiry[ConnectionType]:
        """Ends what has not been renewed, `EXPIRED_AT_ONCE` at most; what is left is due at once (`deadline_ns`).

        The caller closes the connections, whose clients then come anew.
        """
        expired: list[_Entry[ConnectionType]] = []
        for entry, renewed_ns in islice(self._renewed_ns.items(), EXPIRED_AT_ONCE):
            # Renewed ones stand behind, so that all others are due later.
            if renewed_ns + self._expiry_ns > now_ns:
                break
            expired.append(entry)
        return Expiry(list(dict.fromkeys(entry.connection for entry in expired)), self._remove(expired))

    def deadline_ns(self) -> int | None:
        """Returns the time of the next `drop_silent`, None while there are no clients. Costs nothing to ask."""
        first = next(iter(self._renewed_ns.values()), None)
        return None if first is None else first + self._expiry_ns

    def connections_to_notify(self, group: str) -> list[ConnectionType]:
        """Returns the connections of clients that must rebalance when the consumer group changes: each client once,
        none of a consumer group that is broadcast to.
        """
        found = self._consumers.get(group)
        # Each member of a broadcasting group reads all queues, whoever comes or goes (`ConsumerManager`).
        if found is None or found.message_model is MessageModel.BROADCASTING:
            return []
        return [client.connection for client in found.members()]

    def members(self, group: str) -> list[str]:
        """Client ids of a consumer group (response to 38), each once, though a client may be connecting anew."""
        found = self._consumers.get(group)
        return [] if found is None else [client.client_id for client in found.members()]

    def consumer_groups(self) -> list[str]:
        """Consumer groups with at least one client."""
        return list(self._consumers)

    def consumer_group(self, group: str) -> ConsumerGroup[ConnectionType] | None:
        """Returns what is known of a consumer group, to be read only; None while it has no client."""
        return self._consumers.get(group)

    def consumer_groups_of(self, topic: str) -> list[str]:
        """Consumer groups with a subscription to the topic (response to 300)."""
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """A consumer group's subscription to a topic, as its newest heartbeat gave it."""
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def may_consume(self, group: str, topic: str) -> bool:
        """Tells whether a member of the consumer group subscribes to the topic; True if it has no members."""
        found = self._consumers.get(group)
        return found is None or topic in found.subscriptions

    def may_read(self, group: str, topics: Iterable[str]) -> bool:
        """Tells whether consumers of a consumer group subscribe to one of the topics, or one is the consumer group's
        own for retries.

        Subscriptions were checked when they came, where access is controlled.
        """
        found = self._consumers.get(group)
        subscribed = {} if found is None else found.subscriptions
        return any(topic in subscribed or topic == RETRY_PREFIX + group for topic in topics)

    def find_consumer(self, group: str, client_id: str) -> RegisteredClient[ConnectionType] | None:
        """The newest connection of one client of a consumer group."""
        found = self._consumers.get(group)
        clients = () if found is None else found.clients.values()
        # Connections stand in the order in which they came: from the end, the newest is first.
        return next((c for c in reversed(list(clients)) if c.client_id == client_id), None)

    def producers(self, group: str) -> list[RegisteredClient[ConnectionType]]:
        """Clients of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_members(self, group: str) -> list[RegisteredClient[ConnectionType]]:
        """Clients of a producer group, each once, by the connection that is best asked on."""
        return each_once(self._producers.get(group, {}).values())

    def find_producer(self, client_id: str) -> RegisteredClient[ConnectionType] | None:
        """A client that announces any producer group, by the connection that is best asked on."""
        return next(iter(each_once(self._producer_clients.get(client_id, {}).values())), None)

    def producer_groups(self) -> list[str]:
        """Producer groups with at least one client (response to 328)."""
        return list(self._producers)

    def local_heartbeats(self) -> Iterator[tuple[RegisteredClient[ConnectionType], HeartbeatData]]:
        """Yields a heartbeat for each client connected to this very node, for a leader that has yet to hear of them.

        Who goes between two of them is left out.
        """
        # Connections of other nodes' clients are left out: their own node tells of them.
        for connection in list(self._entries):
            entries = self._entries.get(connection)
            if entries is None or isinstance(connection, RelayedConnection):
                continue
            client: RegisteredClient[ConnectionType] | None = None
            consumers: list[ConsumerData] = []
            producers: list[ProducerData] = []
            for entry in entries:
                if entry.is_consumer:
                    group = self._consumers[entry.group]
                    client = group.clients[connection]
                    consumers.append(
                        # The subscriptions of the consumer group, as those of a single connection are not kept
                        # (`ConsumerGroup._wanted`).
                        ConsumerData(
                            consume_from_where=group.consume_from_where,
                            consume_type=group.consume_type,
                            group_name=group.name,
                            message_model=group.message_model,
                            subscription_data_set=list(group.subscriptions.values()),
                            unit_mode=group.unit_mode,
                        )
                    )
                else:
                    client = self._producers[entry.group][connection]
                    producers.append(ProducerData(entry.group))
            assert client is not None, "a connection without entries is not in the table"
            yield (
                client,
                HeartbeatData(
                    client_id=client.client_id, consumer_data_set=consumers, producer_data_set=producers
                ),
            )

    def _register_consumer(self, client: RegisteredClient[ConnectionType], consumer: ConsumerData) -> bool:
        """Enters a client into its consumer group; returns whether the members changed."""
        group = self._consumers.get(consumer.group_name)
        if group is None:
            group = self._consumers[consumer.group_name] = ConsumerGroup(
                consumer.group_name,
                consumer.consume_type,
                consumer.message_model,
                consumer.consume_from_where,
            )
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        group.unit_mode = consumer.unit_mode
        # A client that connects anew, or by another node, is a member already: nobody is told of it.
        joined = not group.has_member(client.client_id)
        before = group.add(client)
        left = before is not None and not group.has_member(before.client_id)
        return joined or left

    def _filter_change(
        self, connection: ConnectionType, consumer: ConsumerData
    ) -> FilterChange[ConnectionType] | None:
        """Returns the change that a heartbeat will make to what consumers are given."""
        group = self._consumers[consumer.group_name]
        topics = frozenset(
            new.topic
            for new in consumer.subscription_data_set
            if (before := group.subscriptions.get(new.topic)) is not None
            and new.sub_version > before.sub_version
            and filter_of(new) != filter_of(before)
        )
        # Noted in any case, for the comparison with its next heartbeat.
        own = group.wants(connection, consumer.subscription_data_set)
        if not topics and not own:
            return None
        return FilterChange(group.name, topics, connection if own else None)

    def _update_subscriptions(self, consumer: ConsumerData) -> bool:
        """Takes over newer subscriptions and drops absent topics; returns whether the set of topics changed."""
        subscriptions = self._consumers[consumer.group_name].subscriptions
        changed = False
        wanted = {subscription.topic for subscription in consumer.subscription_data_set}
        for subscription in consumer.subscription_data_set:
            before = subscriptions.get(subscription.topic)
            if before is None:
                changed = True
            # Members' heartbeats may come in any order: the newest version counts, whoever says it (RocketMQ's
            # ConsumerGroupInfo.updateSubscription).
            if before is None or subscription.sub_version > before.sub_version:
                subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in subscriptions if topic not in wanted]:
            del subscriptions[topic]
            changed = True
        return changed

    def _renew(self, entry: _Entry[ConnectionType], now_ns: int) -> None:
        self._renewed_ns[entry] = now_ns
        self._renewed_ns.move_to_end(entry)
        self._entries.setdefault(entry.connection, {})[entry] = None

    def _remove(self, entries: Iterable[_Entry[ConnectionType]]) -> list[str]:
        """Takes known entries out of every table; returns the consumer groups that lost a member."""
        changed: dict[str, None] = {}
        for entry in entries:
            del self._renewed_ns[entry]
            of_connection = self._entries[entry.connection]
            del of_connection[entry]
            if not of_connection:
                del self._entries[entry.connection]
            if entry.is_consumer:
                group = self._consumers[entry.group]
                client = group.left(entry.connection)
                # A client may have several connections, to this node and by others: only with the last is it gone.
                if not group.has_member(client.client_id):
                    changed[entry.group] = None
                if not group.clients:
                    del self._consumers[entry.group]
            else:
                producers = self._producers[entry.group]
                client = producers.pop(entry.connection)
                if not producers:
                    del self._producers[entry.group]
                self._left_producers(client)
        tables = (self._entries, self._consumers, self._producers, self._producer_clients)
        assert self._renewed_ns or not any(tables), (
            f"left without an entry: {[len(table) for table in tables]}"
        )
        return list(changed)

    def _left_producers(self, client: RegisteredClient[ConnectionType]) -> None:
        """Forgets the connection of a client that has left the last producer group that it announced on it."""
        connection = client.connection
        for entry in self._entries.get(connection, ()):
            if (
                not entry.is_consumer
                and self._producers[entry.group][connection].client_id == client.client_id
            ):
                # It announces another producer group on this connection still.
                return
        of_client = self._producer_clients[client.client_id]
        del of_client[connection]
        if not of_client:
            del self._producer_clients[client.client_id]
