"""Requests of administrators about topics and consumer groups: ranges, progress, who is connected.

All of it is read on the leader, after a barrier, as the offsets that clients are told. What an account may not see is
left out.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from broker.administration.queue_figures import QUEUES_AT_ONCE, QueueFigures, check_number_told, queue_ranges
from broker.node.client_registry import ClientRegistry
from broker.node.consumer_group import RegisteredClient
from broker.node.long_responses import LongResponses
from broker.node.ports import Requests, State
from broker.remoting.addresses import join_address
from broker.remoting.admin_bodies import Connection as ConnectionInfo
from broker.remoting.admin_bodies import (
    ConsumerConnection,
    GroupList,
    ProducerConnection,
    TopicOffset,
    consume_stats_body,
)
from broker.remoting.admin_headers import (
    ConsumerGroupHeader,
    GetConsumeStatsHeader,
    GroupHeader,
    ProducerGroupHeader,
    QuerySubscriptionHeader,
    TopicHeader,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import ObjectKeyed, encode_body, encode_object_keyed
from broker.remoting.pieces import Pieces
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import RequestError
from broker.requests.long_bodies import Body, listed
from broker.requests.processing import HandledOn, Pace, Route
from broker.requests.responses import reply_json
from broker.state.topic_rules import queues_of
from broker.statistics.stats import Stats
from log.formats.record import unpack_host


class ConnectionsProcessor:
    """Requests 202, 203, 204, 208, 300, 328, 343 and 345."""

    def __init__(
        self,
        state: State,
        requests: Requests,
        registry: ClientRegistry[Connection],
        stats: Stats,
        time: Time,
        broker_name: str,
        long_responses: LongResponses,
    ) -> None:
        self._state = state
        self._requests = requests
        self._registry = registry
        self._stats = stats
        self._time = time
        self._figures = QueueFigures(state, broker_name)
        self._long_responses = long_responses

    def routes(self) -> Iterable[Route]:
        """The leader's, whose registry of clients is complete."""
        handlers = {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }
        return [Route(code, handler, HandledOn.LEADER_READ) for code, handler in handlers.items()]

    # ------------------------------------------------------------------ queues

    def topic_stats(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the range of each queue of a topic, and when its last message was stored, in steps."""
        config = self._figures.topic(command.decode_fields(TopicHeader).topic)
        topic = config.topic_name

        def write(some: Sequence[int]) -> bytes:
            ranges = {
                self._figures.name(topic, queue_id): self._range_of(topic, queue_id) for queue_id in some
            }
            return bytes(encode_object_keyed(ranges))

        body = listed(b'{"offsetTable":{', range(queues_of(config)), write, b"}}")
        return self._long_responses.tell(connection, command, body)

    def _range_of(self, topic: str, queue_id: int) -> TopicOffset:
        queue = self._state.store.queues.get(topic, queue_id)
        if queue is None:
            return TopicOffset()
        return TopicOffset(
            last_update_timestamp=self._figures.store_time(queue, queue.max_offset - 1),
            max_offset=queue.max_offset,
            min_offset=queue.min_offset,
        )

    def consume_stats(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells a consumer group's progress in some topics, or in all that it consumes, in steps."""
        header = command.decode_fields(GetConsumeStatsHeader)
        group = header.consumer_group
        metadata = self._state.metadata
        named = header.topic_list or header.topic
        sight = self._requests.sight(connection, command)
        topics = (
            [name for name in named.split(";") if name]
            if named
            else list(metadata.offsets.by_group.get(group, ()))
        )

        def body() -> Body:
            offsets, pace, queues, rate = ObjectKeyed(), Pace(QUEUES_AT_ONCE), 0, 0.0
            for topic in dict.fromkeys(topics):
                if pace.spent(1):
                    yield
                # Deleted in an earlier step, perhaps. Topics that the request names were judged when it came (access/).
                config = metadata.topics.get(topic)
                if config is None or not (named or sight.topic(topic)):
                    continue
                rate += self._stats.got_per_second(topic, group, self._time.now_ns)
                queues += config.read_queue_nums
                check_number_told(queues, "name a topic")
                for queue_ids in queue_ranges(config.read_queue_nums):
                    offsets.add(self._figures.progress(group, topic, queue_ids))
                    if pace.spent(len(queue_ids)):
                        yield
            return consume_stats_body(offsets, rate)

        return self._long_responses.tell(connection, command, body())

    # ------------------------------------------------------------------ clients

    def consumer_connections(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the live consumers of a consumer group and what they subscribe to, in steps. Raises `RequestError` if
        there are none.
        """
        name = command.decode_fields(ConsumerGroupHeader).consumer_group
        group = self._registry.consumer_group(name)
        if group is None:
            raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        sight = self._requests.sight(connection, command)
        told = ConsumerConnection(
            connection_set=[],
            consume_from_where=group.consume_from_where,
            consume_type=group.consume_type,
            message_model=group.message_model,
            subscription_table={
                topic: subscription
                for topic, subscription in group.subscriptions.items()
                if sight.topic(topic)
            },
        )
        return self._tell_clients(connection, command, told, group.members())

    def producer_connections(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the live producers of a producer group, in steps. Raises `RequestError` if there are none."""
        name = command.decode_fields(ProducerGroupHeader).producer_group
        producers = self._registry.producer_members(name)
        if not producers:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        return self._tell_clients(connection, command, ProducerConnection([]), producers)

    def _tell_clients(
        self,
        connection: Connection,
        command: RemotingCommand,
        told: ConsumerConnection | ProducerConnection,
        clients: list[RegisteredClient[Connection]],
    ) -> Iterator[None]:
        """Answers with `told`, whose list of connections is empty, and these clients in it."""
        rest = encode_body(told).removeprefix(b'{"connectionSet":[')

        def write(some: Sequence[RegisteredClient[Connection]]) -> bytes:
            return encode_body([_connection_info(client) for client in some])

        return self._long_responses.tell(
            connection, command, listed(b'{"connectionSet":[', clients, write, rest)
        )

    def all_producers(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the live producers of every producer group, in steps."""

        def body() -> Body:
            told, separator = Pieces(b'{"data":{'), b""
            for group in self._registry.producer_groups():
                begin = b"%s%s:[" % (separator, encode_body(group))
                producers = self._registry.producer_members(group)
                told.take((yield from listed(begin, producers, write, b"]")))
                separator = b","
            told.write(b"}}")
            return told

        def write(some: Sequence[RegisteredClient[Connection]]) -> bytes:
            return encode_body([self._producer_info(client) for client in some])

        return self._long_responses.tell(connection, command, body())

    def _producer_info(self, client: RegisteredClient[Connection]) -> dict[str, object]:
        return {
            "clientId": client.client_id,
            "language": client.language.name,
            "lastUpdateTimestamp": self._time.group_ms,
            "remoteIP": join_address(*unpack_host(client.connection.host)),
            "version": client.version,
        }

    def groups_of_topic(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells the consumer groups that consume a topic: those that subscribe to it now or have an offset in it."""
        topic = command.decode_fields(TopicHeader).topic
        groups = dict.fromkeys(self._registry.consumer_groups_of(topic))
        groups |= dict.fromkeys(
            group for group, topics in self._state.metadata.offsets.by_group.items() if topic in topics
        )
        sight = self._requests.sight(connection, command)
        reply_json(connection, command, GroupList([*filter(sight.group, groups)]))

    def topics_of_group(self, connection: Connection, command: RemotingCommand) -> Iterator[None]:
        """Tells the topics in which a consumer group has offsets, in steps."""
        group = command.decode_fields(GroupHeader).group
        sight = self._requests.sight(connection, command)

        def write(some: Sequence[str]) -> bytes:
            return encode_body(list(filter(sight.topic, some)))

        topics = list(self._state.metadata.offsets.by_group.get(group, ()))
        return self._long_responses.tell(connection, command, listed(b'{"topicList":[', topics, write))

    def subscription(self, connection: Connection, command: RemotingCommand) -> None:
        """Tells what a consumer group's live consumers subscribe to in a topic; null without any."""
        header = command.decode_fields(QuerySubscriptionHeader)
        found = self._registry.subscription(header.group, header.topic or "")
        body: dict[str, object] = {
            "group": header.group,
            "subscriptionData": None if found is None else msgspec.to_builtins(found),
            "topic": header.topic,
        }
        reply_json(connection, command, body)


def _connection_info(client: RegisteredClient[Connection]) -> ConnectionInfo:
    return ConnectionInfo(
        client_address=join_address(*unpack_host(client.connection.host)),
        client_id=client.client_id,
        language=client.language.name,
        version=client.version,
    )
