"""Sending: from a producer's request to an entry of the log (RocketMQ's `SendMessageProcessor`).

The hot path of a broker; this file reads in the order in which a send goes through it:

    decode      the request's header, as a struct
    check       when, to which topic and queue, and whether this attempt may be appended (repeated_sends.py)
    decide      the kind of the message, which says where it is stored:
                    plain             in its topic
                    retry             in its consumer group's %RETRY% topic; after the last one in its %DLQ% topic
                    half              in the topic of half messages, until its producer has decided
                    delayed, timed    in the topic of delay levels or of timers, until its time has come
    write       a record into the log
    remember    what the response needs; it is encoded when a majority holds the entry (responses.py)

Nothing else is allocated per message. Batches are decided and written in batches.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from broker.delayed.delays import delay_level, schedule
from broker.delayed.timers import TIMERS, due_ms_of, set_timer
from broker.node.listeners import Listeners
from broker.node.ports import Appends, Requests
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import SendHeader, SendMessageHeader, SendMessageHeaderV2
from broker.remoting.property_room import fitted
from broker.replica.proposals import NewMessage
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import BatchUnderWayError, OverloadedError, RequestError
from broker.requests.processing import HandledOn, Route
from broker.sending.batches import Batches
from broker.sending.dead_letters import becomes_dead_letter, dead_letter_properties
from broker.sending.properties import (
    SHORT_CHARACTERS,
    AddedProperties,
    SentProperties,
    check_properties,
    read_properties,
)
from broker.sending.repeated_sends import RepeatedSends
from broker.sending.responses import PendingSend
from broker.sending.shared import choose_queue, forbidden_topic, sent_message, too_early, too_long
from broker.settings.live import LiveSettings
from broker.state.topic_rules import DEAD_LETTER_PREFIX, FORBIDDEN_TO_SEND, RETRY_PREFIX
from broker.statistics.stats import Stats
from broker.topics.creation import Creations
from broker.topics.first_messages import NewTopics
from broker.transactions.incoming_halves import check_room, check_sys_flag, hide_half, sent_as_half
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.formats.properties import DELAY, without_properties
from log.formats.record import (
    MAX_PROPERTIES_BYTES,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_TRANSACTION_MASK,
)
from raft.state import RandomSource

_HEADERS: Final[Mapping[int, type[SendHeader]]] = {
    RequestCode.SEND_MESSAGE: SendMessageHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageHeaderV2,
}

_FLAGS_TO_CHECK: Final = SYS_FLAG_PREPARED | SYS_FLAG_INNER_BATCH
"""Rolled back messages, 0xC, have the bit of prepared ones, too."""


class SendProcessor:
    """SEND_MESSAGE 10, SEND_MESSAGE_V2 310 and SEND_BATCH_MESSAGE 320.

    `store_host` is this node's address packed as in a record: it is in every message id that the node gives.
    """

    def __init__(
        self,
        leadership: Appends,
        requests: Requests,
        creations: Creations,
        stats: Stats,
        settings: LiveSettings,
        time: Time,
        listeners: Listeners,
        *,
        store_host: bytes,
        random: RandomSource,
    ) -> None:
        self._leadership = leadership
        self._settings = settings
        self._stats = stats
        self._time = time
        self._random = random
        self._delay_levels = len(settings.current.broker.delay_level_ms)
        self._host = store_host.hex().upper()
        self._added = AddedProperties(settings.current.node.cluster, store_host)
        self._new_topics = NewTopics(leadership, requests, creations, settings, time, listeners)
        self.once = RepeatedSends(leadership, requests, time, listeners)
        self.observer: Callable[[RemotingCommand, SendHeader], None] | None = None
        """Hears of each send that is stored now, of a batch once; only watches."""
        self._batches = Batches(leadership, settings, self._added, stats, time, self._host)

    def routes(self) -> Iterable[Route]:
        """Sends are for the leader."""
        return [Route(code, self.send, HandledOn.LEADER) for code in _HEADERS]

    def send(self, connection: Connection, command: RemotingCommand) -> Iterator[None] | None:
        """Appends what the request carries, a batch in steps; the response comes with its commit.

        Raises `RequestError` for what may not be stored, and as `Leadership.check_may_append`, with nothing appended.
        """
        # Decode.
        header = command.decode_fields(_HEADERS[command.code])
        is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE or header.batch
        settings = self._settings.current

        # Check. A send to a retry topic may turn into a dead letter, which changes the topic: so this comes before
        # every check of the topic.
        if self._time.group_ms < settings.broker.accept_sends_from_ms:
            raise too_early(settings.broker.accept_sends_from_ms, self._time.group_ms)
        if header.topic.startswith(RETRY_PREFIX):
            if is_batch:  # not as dead letters either
                raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic")
            self._decide_retry(command, header)
        if header.topic in FORBIDDEN_TO_SEND:
            raise forbidden_topic(header.topic)
        if (
            self._new_topics.leaving.by_share
            and not self.once.is_decided(command)  # it has been let in before
            and self._new_topics.goes_behind(connection, command)
        ):
            return None
        topic = self._leadership.metadata.topics.get(header.topic)
        if topic is None:
            self._new_topics.create(connection, command, header)
            return None
        if topic.order and not settings.broker.permission_bits & Permission.WRITE:
            # RocketMQ refuses only sends to ordered topics here: of others producers see in the route that nothing is
            # written on this broker.
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker's permission does not include writing")
        queue_id = header.queue_id
        if not 0 <= queue_id < topic.write_queue_nums:
            queue_id = choose_queue(header.topic, queue_id, topic, self._random)
        properties = read_properties(header.properties)
        if header.sys_flag & _FLAGS_TO_CHECK:
            check_sys_flag(header.sys_flag, properties.by_name())
        try:
            self._leadership.check_may_append()
            # Only a repetition, or a first attempt that is older than what this leader knows, may be stored already.
            if (
                header.once is not None
                and (header.again or header.once <= self.once.suspect)
                and not self.once.may_append(connection, command, header, properties)
            ):
                return None  # until it is known whether an earlier attempt has stored the message
            if self.observer is not None:
                self.observer(command, header)
            if is_batch:
                return self._batches.append(connection, command, header, properties, queue_id)
            self._append(connection, command, header, properties, queue_id)
        except BatchUnderWayError:
            raise  # an `OverloadedError` that is no failure: the node keeps the request until the batch is written
        except (RequestError, OverloadedError, DiskFullError):
            self._stats.puts_failed += 1
            raise
        return None

    # ------------------------------------------------------------------ decide

    def _decide_retry(self, command: RemotingCommand, header: SendHeader) -> None:
        """A consumer that could not send a message back sends it itself; after the last retry it is a dead letter.

        Raises `RequestError` where the consumer group of the retry topic does not exist.
        """
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._leadership.metadata.groups.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist"
            )
        retried = (header.reconsume_times or 0) - 1  # the client has counted the retry that it asks for here
        if becomes_dead_letter(retried, group, command.version, header.max_reconsume_times):
            header.topic = DEAD_LETTER_PREFIX + name
            header.queue_id = 0
            header.properties = dead_letter_properties(
                without_properties((header.properties or "").encode(), DELAY),
                MAX_PROPERTIES_BYTES - self._added.bytes,
            ).decode()

    def _decide_hidden(
        self, message: NewMessage, header: SendHeader, properties: SentProperties, unique_key: str
    ) -> None:
        """Half, delayed and timed messages are hidden in topics of the broker's until they may be seen.

        A half message cannot be delivered later, so its delay and time do not count. Of a delay level and a time the
        level wins. Raises `RequestError` for malformed values, and `OverloadedError` where too many
        transactions are open.
        """
        broker = self._settings.current.broker
        values = properties.by_name()
        if sent_as_half(header, values):
            hide_half(message, header, values, unique_key, rejected=broker.reject_transactions)
            check_room(self._leadership, self._settings.current)
        elif level := delay_level(values, self._delay_levels):
            if any(name in values for name in TIMERS):
                message.properties = without_properties(message.properties, *TIMERS)
            schedule(message, level)
        elif due_ms := due_ms_of(values, self._time.group_ms, broker.timer_max_delay_s * 1000):
            set_timer(message, due_ms)
        if message.sys_flag & SYS_FLAG_PREPARED:
            # A consumer sends back a message with the flags that it was first sent with. It is no half message any
            # more, and with this flag no consumer would ever get it.
            message.sys_flag &= ~SYS_FLAG_TRANSACTION_MASK

    # ------------------------------------------------------------------ write and remember

    def _append(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: SendHeader,
        properties: SentProperties,
        queue_id: int,
    ) -> None:
        body, body_bytes_max = command.body, self._settings.current.storage.max_message_bytes
        if len(body) > body_bytes_max:
            raise too_long(len(body), body_bytes_max)
        if header.properties and len(header.properties) > SHORT_CHARACTERS:  # shorter ones break no limit
            check_properties(header.properties, header.topic)
        # After the check: what the broker adds has room of its own (broker/remoting/property_room.py).
        stored, unique_key = self._added.add_to(properties.text, properties.unique_key, self._time.group_ms)
        message = sent_message(header, connection, queue_id, body, stored.encode())
        if not properties.is_plain:
            self._decide_hidden(message, header, properties, unique_key)
        if len(message.properties) > MAX_PROPERTIES_BYTES:
            message.properties = fitted(message.properties)
        pending = PendingSend(self._stats, connection, command, queue_id, unique_key, self._host)
        try:
            # The producer need not wait until the message is in its queue, where consumers find it.
            pending.physical_offset, pending.queue_offset = self._leadership.append_message(
                message, pending, told_at_commit=True
            )
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        self._stats.put += 1
