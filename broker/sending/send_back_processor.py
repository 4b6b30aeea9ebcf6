"""Messages that a consumer gives back (remoting.md 7.3, behaviour.md 8.4).

The message is stored again for its group alone, in %RETRY%<group>, to be delivered after a delay that grows with every
retry; after the last one it goes to %DLQ%<group>, which nobody consumes unasked.
"""

from collections.abc import Iterable
from typing import Final

from broker.delayed.delays import scheduled_properties
from broker.node.node import Node
from broker.reading.queries_processor import committed_record, topics_of
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import ConsumerSendMessageBackHeader
from broker.remoting.property_room import fitted
from broker.replica.proposals import stored_again
from broker.requests.connection import Connection
from broker.requests.errors import RequestError
from broker.requests.processing import OUTCOME_UNKNOWN, Place, Route
from broker.sending.dead_letters import ORIGIN_MESSAGE_ID, RETRY_TOPIC, dead_letter_properties
from broker.settings.tables import BrokerConfig, BrokerSettings
from broker.state.commands import PutTopic
from broker.state.topic_rules import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    UNIT_SUBSCRIPTION,
    WAITING_TOPICS,
    retries_max,
    topic_config,
    unit_sys_flag,
)
from broker.statistics.stats import Stats
from broker.topics.creation import Creations, TooManyError
from log.errors import EntryTooLargeError, RecordError
from log.message_id import offset_message_id
from log.properties import get_property, with_property, without_properties
from log.record import MAX_PROPERTIES_BYTES, Record, decode_record
from raft.state import RandomSource

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry, where the client names none: 10 s by default. Each further one is a level higher."""

_DELAY: Final = b"DELAY"


class _PendingAnswer:
    """Who waits for the message to be committed."""

    __slots__ = ("_command", "_connection", "_node")

    def __init__(self, node: Node, connection: Connection, command: RemotingCommand) -> None:
        self._node = node
        self._connection = connection
        self._command = command

    def committed(self) -> None:
        self._node.reply(self._connection, self._command, ResponseCode.SUCCESS)

    def lost(self) -> None:
        self._node.reply(self._connection, self._command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)


class SendBackProcessor:
    """CONSUMER_SEND_MSG_BACK 36."""

    def __init__(
        self, node: Node, creations: Creations, settings: BrokerSettings, stats: Stats, random: RandomSource
    ) -> None:
        self._node = node
        self._creations = creations
        self._permission = settings.permission_bits
        self._delay_levels = len(settings.delay_level_ms)
        self._stats = stats
        self._random = random

    def configure(self, config: BrokerConfig) -> None:
        """Takes over the settings that may change at run time."""
        self._permission = config.broker.permission_bits

    def routes(self) -> Iterable[Route]:
        """A send like others."""
        return (Route(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back, Place.LEADER),)

    def send_back(self, connection: Connection, command: RemotingCommand) -> None:
        """Stores the message for a retry or as a dead letter; the answer comes with its commit."""
        header = command.decode_fields(ConsumerSendMessageBackHeader)
        node = self._node
        replica = node.replica
        group = replica.metadata.groups.get(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not self._permission & Permission.WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker's permission does not include writing")
        if group.retry_queue_nums <= 0:
            node.reply(connection, command, ResponseCode.SUCCESS)  # the group wants no retries
            return
        view = committed_record(replica, header.offset)
        if view is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        self._check_message(view, header)
        record = decode_record(view)
        most = retries_max(group, command.version, header.max_reconsume_times)
        topic, queues = RETRY_PREFIX + group.group_name, group.retry_queue_nums
        level = header.delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        level = min(level, self._delay_levels)
        if (
            record.reconsume_times >= most
            or header.delay_level < 0
            or len(_retry_properties(record, topic, queues, level)) > MAX_PROPERTIES_BYTES
        ):
            topic, queues, level = DEAD_LETTER_PREFIX + group.group_name, 1, 0
        config = replica.metadata.topics.get(topic)
        if config is None:
            sys_flag = unit_sys_flag(topic, header.unit_mode) & UNIT_SUBSCRIPTION
            self._create(connection, command, topic_config(topic, queues, sys_flag=sys_flag))
            return
        if not config.perm & Permission.WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        replica.check_may_append()
        queue_id = self._random.randrange(0, max(1, min(queues, config.write_queue_nums)))
        self._append(record, topic, queue_id, level, _PendingAnswer(node, connection, command))
        origin = get_property(record.properties, RETRY_TOPIC)
        origin_topic = record.topic if origin is None else origin.decode("utf-8", "replace")
        self._stats.given_back(origin_topic, group.group_name, node.now_ns)

    def _check_message(self, view: memoryview, header: ConsumerSendMessageBackHeader) -> None:
        """Gives back only what a consumer could get; with access control only what this group's consumers may read.

        The position is the client's word, and the copy becomes readable for the group.
        """
        topics = topics_of(view)
        if topics[0] in WAITING_TOPICS:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        if self._node.access is None or header.origin_topic in topics:
            return
        if not self._node.registry.may_read(header.group, topics):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the message at {header.offset} is of no topic that group {header.group} consumes",
            )

    def _create(self, connection: Connection, command: RemotingCommand, config: TopicConfig) -> None:
        """Creates the group's topic; the request is handled anew when it exists."""
        node = self._node
        try:
            self._creations.propose(
                [PutTopic(config, node.wall_ms, if_absent=True)],
                lambda _: node.received(connection, command),
                lambda: node.reply(connection, command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN),
            )
        except TooManyError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the topic[{config.topic_name}] is not created: {error}"
            ) from error

    def _append(self, record: Record, topic: str, queue_id: int, level: int, waiter: _PendingAnswer) -> None:
        if topic.startswith(DEAD_LETTER_PREFIX):
            properties = _dead_letter_properties(record)
        else:
            properties = _retry_properties(record, topic, queue_id, level)
        if level:
            topic, queue_id = SCHEDULE_TOPIC, level - 1
        try:
            message = stored_again(record, topic, queue_id, properties)
            message.reconsume_times += 1
            self._node.replica.append_message(message, waiter)
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _noted_properties(record: Record) -> bytes:
    """The message's own properties, and where it comes from if no earlier retry has noted it."""
    properties = without_properties(record.properties, _DELAY)
    if get_property(properties, RETRY_TOPIC) is None:
        properties = with_property(properties, RETRY_TOPIC, record.topic.encode())
    if get_property(properties, ORIGIN_MESSAGE_ID) is None:
        message_id = offset_message_id(record.store_host, record.physical_offset)
        properties = with_property(properties, ORIGIN_MESSAGE_ID, message_id.encode())
    return properties


def _retry_properties(record: Record, topic: str, queue_id: int, level: int) -> bytes:
    """The properties of a retry; too long ones for a record where a message left no room for it.

    None that was sent to this version does, and so an older one becomes a dead letter: its consumer would try for ever.
    """
    properties = _noted_properties(record)
    if level:
        properties = scheduled_properties(properties, topic, queue_id, level)
    return fitted(properties)


def _dead_letter_properties(record: Record) -> bytes:
    """The properties of a dead letter, which always fit: what a message came with matters more than what is told."""
    properties = fitted(dead_letter_properties(_noted_properties(record), MAX_PROPERTIES_BYTES))
    return (
        properties
        if len(properties) <= MAX_PROPERTIES_BYTES
        else without_properties(record.properties, _DELAY)
    )
