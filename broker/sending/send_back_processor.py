"""Messages that a consumer sends back (`AbstractSendMessageProcessor.consumerSendMsgBack`).

The message is stored again for its consumer group alone, in the retry topic, and delivered after a delay that grows
with every retry. After the last retry it becomes a dead letter, which no consumer gets unasked.
"""

from collections.abc import Iterable
from typing import Final

from broker.delayed.delays import schedule
from broker.node.client_registry import ClientRegistry
from broker.node.ports import Appends, Requests
from broker.reading.queries_processor import committed_record, topics_of
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import ConsumerSendMessageBackHeader
from broker.remoting.property_room import fitted
from broker.replica.proposals import NewMessage, stored_again
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import RequestError, TooManyError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import ReplyWhenCommitted, reply
from broker.sending.dead_letters import becomes_dead_letter, dead_letter_properties
from broker.settings.live import LiveSettings
from broker.state.commands import PutTopic
from broker.state.topic_rules import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    UNIT_SUBSCRIPTION,
    WAITING_TOPICS,
    topic_config,
    unit_sys_flag,
)
from broker.statistics.stats import Stats
from broker.topics.creation import Creations
from log.errors import EntryTooLargeError, RecordError
from log.formats.message_id import offset_message_id
from log.formats.properties import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    get_property,
    with_property,
    without_properties,
)
from log.formats.record import MAX_PROPERTIES_BYTES, POSITIVE_INT, Record, decode_record
from raft.state import RandomSource

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry where the client names none: 10 s by default. Each further retry is a level higher."""


class SendBackProcessor:
    """CONSUMER_SEND_MSG_BACK 36."""

    def __init__(
        self,
        leadership: Appends,
        requests: Requests,
        registry: ClientRegistry[Connection],
        creations: Creations,
        stats: Stats,
        settings: LiveSettings,
        time: Time,
        random: RandomSource,
    ) -> None:
        self._leadership = leadership
        self._requests = requests
        self._registry = registry
        self._creations = creations
        self._stats = stats
        self._settings = settings
        self._time = time
        self._random = random
        self._delay_levels = len(settings.current.broker.delay_level_ms)

    def routes(self) -> Iterable[Route]:
        """The leader takes messages back, as it takes sends."""
        return (Route(RequestCode.CONSUMER_SEND_MSG_BACK, self.send_back, HandledOn.LEADER),)

    def send_back(self, connection: Connection, command: RemotingCommand) -> None:
        """Stores the message for a retry or as a dead letter; the response comes with its commit.

        Raises `RequestError` for what may not be sent back, and as `Leadership.check_may_append`.
        """
        # Decode, and check who sends back what.
        header = command.decode_fields(ConsumerSendMessageBackHeader)
        leadership, broker = self._leadership, self._settings.current.broker
        group = leadership.metadata.groups.get(header.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {header.group}"
            )
        if not broker.permission_bits & Permission.WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker's permission does not include writing")
        if group.retry_queue_nums <= 0:
            reply(connection, command, ResponseCode.SUCCESS)  # the consumer group wants no retries
            return
        view = committed_record(leadership, header.offset)
        if view is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        self._check_message(view, header)
        record = decode_record(view)

        # Decide: a retry, or a dead letter after the last one, or where the client wants no more (a negative level),
        # or where the properties leave no room for those of a retry.
        topic, queues = RETRY_PREFIX + group.group_name, group.retry_queue_nums
        # Level 0 leaves it to the broker (`AbstractSendMessageProcessor.consumerSendMsgBack`).
        # A producer may have sent it as retried any number of times, a negative one, too.
        level = header.delay_level or FIRST_RETRY_LEVEL + max(0, record.reconsume_times)
        level = min(level, self._delay_levels)
        if (
            becomes_dead_letter(record.reconsume_times, group, command.version, header.max_reconsume_times)
            or header.delay_level < 0
            or len(_retry(record, topic, queues, level).properties) > MAX_PROPERTIES_BYTES
        ):
            topic, queues, level = DEAD_LETTER_PREFIX + group.group_name, 1, 0
        config = leadership.metadata.topics.get(topic)
        if config is None:
            sys_flag = unit_sys_flag(topic, header.unit_mode) & UNIT_SUBSCRIPTION
            self._create(connection, command, topic_config(topic, queues, sys_flag=sys_flag))
            return
        if not config.perm & Permission.WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")

        # Write.
        leadership.check_may_append()
        # The topic may have fewer queues than the consumer group's settings ask for by now.
        queue_id = self._random.randrange(0, max(1, min(queues, config.write_queue_nums)))
        self._append(record, topic, queue_id, level, ReplyWhenCommitted(connection, command))
        origin = get_property(record.properties, RETRY_TOPIC)
        origin_topic = record.topic if origin is None else origin.decode("utf-8", "replace")
        self._stats.sent_back(origin_topic, group.group_name, self._time.now_ns)

    def _check_message(self, view: memoryview, header: ConsumerSendMessageBackHeader) -> None:
        """Raises `RequestError` for a message that no consumer could get, or that the consumer group may not read.

        The offset in the log is only the client's word, and the copy becomes readable for the consumer group.
        """
        topics = topics_of(view)
        if topics[0] in WAITING_TOPICS:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        # The topic that the request names is the one for which its account was judged.
        if self._requests.access is None or header.origin_topic in topics:
            return
        if not self._registry.may_read(header.group, topics):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the message at {header.offset} is of no topic that consumer group {header.group} consumes",
            )

    def _create(self, connection: Connection, command: RemotingCommand, config: TopicConfig) -> None:
        """Has the consumer group's topic created; the request is handled anew when the topic exists."""
        place = self._requests.place_of(command)
        try:
            self._creations.propose(
                [PutTopic(config, self._time.group_ms, if_absent=True)],
                lambda _: self._requests.handle_admitted(connection, command),
                # Nothing of the message is in the log: the next leader may have it.
                lambda: self._requests.forward_late(connection, command, place),
            )
        except TooManyError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the topic[{config.topic_name}] is not created: {error}"
            ) from error

    def _append(
        self, record: Record, topic: str, queue_id: int, level: int, waiter: ReplyWhenCommitted
    ) -> None:
        """Stores the message again, as a dead letter where `topic` is one of those; at once where `level` is 0."""
        if topic.startswith(DEAD_LETTER_PREFIX):
            message = stored_again(record, topic, queue_id, _dead_letter_properties(record))
        else:
            message = _retry(record, topic, queue_id, level)
        # Of a dead letter, too, as in RocketMQ. The count is an int of Java's in the record.
        message.reconsume_times = min(message.reconsume_times + 1, POSITIVE_INT)
        try:
            self._leadership.append_message(message, waiter)
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _retry(record: Record, topic: str, queue_id: int, level: int) -> NewMessage:
    """A retry of a message, which waits at a delay level unless that is 0.

    Its properties may be too long for a record, where a message left no room for them. None that was sent to this
    version does, and so an older one becomes a dead letter: its consumer would try for ever.
    """
    message = stored_again(record, topic, queue_id, _noted_properties(record))
    if level:
        schedule(message, level)
    message.properties = fitted(message.properties)
    return message


def _noted_properties(record: Record) -> bytes:
    """The message's own properties, and where it comes from if no earlier retry has noted it."""
    properties = without_properties(record.properties, DELAY)
    if get_property(properties, RETRY_TOPIC) is None:
        properties = with_property(properties, RETRY_TOPIC, record.topic.encode())
    if get_property(properties, ORIGIN_MESSAGE_ID) is None:
        message_id = offset_message_id(record.store_host, record.physical_offset)
        properties = with_property(properties, ORIGIN_MESSAGE_ID, message_id.encode())
    return properties


def _dead_letter_properties(record: Record) -> bytes:
    """The properties of a dead letter, which always fit: what a message came with matters more than what is told."""
    properties = fitted(dead_letter_properties(_noted_properties(record), MAX_PROPERTIES_BYTES))
    if len(properties) > MAX_PROPERTIES_BYTES:
        return without_properties(record.properties, DELAY)
    return properties
