"""Sending: single messages and batches (remoting.md 7.1, behaviour.md 4).

The hot path of a broker. A send is checked, written into the log and remembered with what its answer needs; the
answer is encoded when a majority holds the entry. Nothing else is allocated per message.

A batch may have tens of thousands of messages, and everybody else waits meanwhile. So what can be told of all of them
at once is not asked of each: a word that is nowhere in the request is in none of them.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from broker.delayed.delays import DELAY, delay_level, scheduled_properties
from broker.delayed.timers import due_ms_of, timed_properties, without_timer
from broker.node.node import Node
from broker.remoting.bodies import TopicConfig
from broker.remoting.codes import Permission, RequestCode, ResponseCode
from broker.remoting.command import JSON, OWN_LANGUAGE, OWN_VERSION, RemotingCommand
from broker.remoting.headers import SendMessageHeader, SendMessageHeaderV2
from broker.remoting.property_room import SENT_BYTES_MAX, fitted
from broker.replica.proposals import NewMessage
from broker.requests.budget import Budget
from broker.requests.connection import Connection
from broker.requests.errors import OverloadedError, RequestError
from broker.requests.processing import OUTCOME_UNKNOWN, Place, Route
from broker.sending.dead_letters import dead_letter_properties
from broker.sending.once import Header, OnceSends
from broker.settings.tables import BrokerConfig
from broker.state.commands import PutTopic
from broker.state.topic_rules import (
    DEAD_LETTER_PREFIX,
    DEFAULT_TOPIC,
    FORBIDDEN_TO_SEND,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    InvalidNameError,
    check_topic_name,
    default_template,
    retries_max,
    topic_config,
    unit_sys_flag,
)
from broker.statistics.stats import Stats
from broker.topics.creation import Creations, TooManyError
from broker.transactions.sending import check_no_half, check_room, check_sys_flag, sent_as_half, stored_half
from log.batch import ITEM_OVERHEAD, BatchItem, parse_batch
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.properties import KEYS, UNIQ_KEY, get_property, terminated, without_properties
from log.record import (
    MAX_PROPERTIES_BYTES,
    SYS_FLAG_INNER_BATCH,
    SYS_FLAG_PREPARED,
    SYS_FLAG_TRANSACTION_MASK,
)
from raft.state import RandomSource

_REPLY_JSON: Final = (
    '{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%s",'
    '"transactionId":%s,"queueOffset":"%d"},"flag":1,"language":"'
    + OWN_LANGUAGE
    + '","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
    + str(OWN_VERSION)
    + "}"
)
_NEEDS_JSON_ESCAPE: Final = re.compile(r"[^ !#-\[\]-~]")

_TREATED_APART: Final = (b"DELAY", b"TRAN_MSG", b"TIMER_D")
"""A message is delayed, timed or half by a property with one of these words in its name."""

_FLAGS_TO_CHECK: Final = SYS_FLAG_PREPARED | SYS_FLAG_INNER_BATCH
"""Rolled back messages, 0xC, have the bit of prepared ones, too."""

KEYS_MAX: Final = 1_000
"""Keys of one message. Each is an entry of every node's index: a message of nothing else took them 50 ms."""
BATCH_GROWTH_MAX: Final = 4
"""What the records of a batch may have together, in times of the longest message: tiny messages of RocketMQ's clients
grow threefold.
"""
BATCH_KEYS_MAX: Final = 50_000
"""Keys of all messages of a batch."""

_RECORD_BYTES: Final = 91
"""What a record has beside body, topic and properties."""

_SENT_ON: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)
"""Where consumers send messages that they could not give back, with what brokers and they have added."""


class _PendingSend:
    """A send whose entry is in the log, waiting for its commit; `message_ids` joins a batch's by commas."""

    __slots__ = ("command", "connection", "message_ids", "node", "queue_id", "queue_offset", "unique_key")

    def __init__(
        self,
        node: Node,
        connection: Connection,
        command: RemotingCommand,
        queue_id: int,
        unique_key: str,
    ) -> None:
        self.node = node
        self.connection = connection
        self.command = command
        self.queue_id = queue_id
        self.queue_offset = 0
        self.message_ids = ""
        self.unique_key = unique_key

    def committed(self) -> None:
        command = self.command
        if command.flag & 2:
            return
        if command.serialization == JSON and not _NEEDS_JSON_ESCAPE.search(self.unique_key):
            header = (
                _REPLY_JSON
                % (self.queue_id, self.message_ids, f'"{self.unique_key}"', self.queue_offset, command.opaque)
            ).encode()
            size = len(header)
            self.connection.send((size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header)
            return
        self.node.reply(
            self.connection,
            command,
            ResponseCode.SUCCESS,
            None,
            {
                "msgId": self.message_ids,
                "queueId": str(self.queue_id),
                "queueOffset": str(self.queue_offset),
                "transactionId": self.unique_key,
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            },
        )

    def lost(self) -> None:
        self.node.stats.puts_failed += 1
        self.node.reply(self.connection, self.command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)


def too_early(accept_from_ms: int, wall_ms: int) -> RequestError:
    """The refusal of a send that the settings do not let in yet."""
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"the broker takes no sends until {accept_from_ms} (startAcceptSendRequestTimeStamp), it is {wall_ms}",
    )


class SendProcessor:
    """SEND_MESSAGE 10, SEND_MESSAGE_V2 310 and SEND_BATCH_MESSAGE 320.

    `store_host` is this node's address packed as in a record: it is in every message id that the node gives.
    `template` is TBW102, which topics are created like by their first message.
    """

    def __init__(
        self,
        node: Node,
        creations: Creations,
        *,
        cluster: str,
        store_host: bytes,
        max_message_bytes: int,
        template: TopicConfig,
        delay_levels: int,
        timer_delay_ms_max: int,
        reject_transactions: bool,
        accept_from_ms: int,
        permission: int,
        stats: Stats,
        random: RandomSource,
    ) -> None:
        self._node = node
        self._creations = creations
        self._once = OnceSends(node)
        self._default_template = template
        self._delay_levels = delay_levels
        self._timer_delay_ms_max = timer_delay_ms_max
        self._reject_transactions = reject_transactions
        self._accept_from_ms = accept_from_ms
        self._permission = permission
        self._stats = stats
        self._max_message_bytes = max_message_bytes
        self._random = random
        self._store_host_hex = store_host.hex().upper()
        self._own_properties = (
            f"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01{cluster}\x02".encode()
        )
        self._unique_key_prefix = store_host[:-4].hex().upper() + store_host[-2:].hex().upper()
        self._unique_keys_made = 0
        self._creating: dict[str, list[tuple[Connection, RemotingCommand]]] = {}
        """By topic that is being created, who waits for it."""
        self._waiting = Budget("topics that are being created")

    def configure(self, config: BrokerConfig) -> None:
        """Takes over the settings that may change at run time."""
        broker = config.broker
        self._default_template = default_template(broker.default_queue_count, broker.auto_create_topics)
        self._reject_transactions = broker.reject_transactions
        self._accept_from_ms = broker.accept_sends_from_ms
        self._permission = broker.permission_bits
        self._max_message_bytes = config.storage.max_message_bytes

    def routes(self) -> Iterable[Route]:
        """All sends are the leader's."""
        return (
            Route(RequestCode.SEND_MESSAGE, self.send, Place.LEADER),
            Route(RequestCode.SEND_MESSAGE_V2, self.send, Place.LEADER),
            Route(RequestCode.SEND_BATCH_MESSAGE, self.send, Place.LEADER),
        )

    def send(self, connection: Connection, command: RemotingCommand) -> None:
        """Appends what the request carries; the answer comes with its commit."""
        code = command.code
        header: Header
        if code == RequestCode.SEND_MESSAGE:
            header = command.decode_fields(SendMessageHeader)
        else:
            header = command.decode_fields(SendMessageHeaderV2)
        node = self._node
        replica = node.replica
        if node.wall_ms < self._accept_from_ms:
            raise too_early(self._accept_from_ms, node.wall_ms)
        is_batch = code == RequestCode.SEND_BATCH_MESSAGE or header.batch
        if header.topic.startswith(RETRY_PREFIX):
            if is_batch:  # not as dead letters either
                raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic")
            self._check_retry(command, header)
        topic = header.topic
        config = replica.metadata.topics.get(topic)
        if topic in FORBIDDEN_TO_SEND:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the topic [{topic}] is the broker's own: producers may not send to it",
            )
        if config is None:
            self._create_topic(connection, command, header)
            return
        if config.order and not self._permission & Permission.WRITE:
            # Of other topics producers learn from the route that nothing is written here.
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker's permission does not include writing")
        queue_id = header.queue_id
        if queue_id < 0:
            if config.write_queue_nums <= 0:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no queue to write to")
            queue_id = self._random.randrange(0, config.write_queue_nums)
        elif queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, topic {topic} has {config.write_queue_nums} write queues "
                f"and {config.read_queue_nums} read queues",
            )
        if header.sys_flag & _FLAGS_TO_CHECK:
            check_sys_flag(header)
        try:
            replica.check_may_append()
            if (
                header.once is not None
                and (header.once <= self._once.suspect or header.again)
                and not self._once.may_append(connection, command, header)
            ):
                return  # answered when it is known whether an earlier attempt has stored the message
            if is_batch:
                self._append_batch(connection, command, header, queue_id)
            else:
                self._append(connection, command, header, queue_id)
        except (RequestError, OverloadedError, DiskFullError):
            self._stats.puts_failed += 1
            raise

    def _append(
        self, connection: Connection, command: RemotingCommand, header: Header, queue_id: int
    ) -> None:
        body = command.body
        if len(body) > self._max_message_bytes:
            raise self._too_long(len(body))
        topic = header.topic
        properties, unique_key = self._stored_properties((header.properties or "").encode(), topic)
        pending = _PendingSend(self._node, connection, command, queue_id, unique_key)
        sys_flag = header.sys_flag
        if b"DELAY" in properties or b"TRAN_MSG" in properties or b"TIMER_D" in properties:
            if b"TRAN_MSG" in properties and sent_as_half(header, properties):
                properties, sys_flag = stored_half(
                    header, properties, queue_id, unique_key, rejected=self._reject_transactions
                )
                check_room(self._node)
                topic, queue_id = HALF_TOPIC, 0
            elif level := delay_level(properties, self._delay_levels):
                properties = scheduled_properties(without_timer(properties), topic, queue_id, level)
                topic, queue_id = SCHEDULE_TOPIC, level - 1
            elif due_ms := due_ms_of(properties, self._node.wall_ms, self._timer_delay_ms_max):
                properties = timed_properties(properties, topic, queue_id, due_ms)
                topic, queue_id = TIMER_TOPIC, 0
            if sys_flag & SYS_FLAG_PREPARED:  # given back as it was once sent, and no half message any more
                sys_flag &= ~SYS_FLAG_TRANSACTION_MASK
        if len(properties) > MAX_PROPERTIES_BYTES:
            properties = fitted(properties)
        try:
            message = NewMessage(
                topic,
                queue_id,
                header.flag,
                sys_flag,
                header.born_timestamp,
                connection.host,
                header.reconsume_times or 0,
                body,
                properties,
            )
            position, pending.queue_offset = self._node.replica.append_message(
                message, pending, told_at_commit=True
            )
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        pending.message_ids = "%s%016X" % (self._store_host_hex, position)  # noqa: UP031 - the fastest way
        self._stats.put += 1

    def _append_batch(
        self, connection: Connection, command: RemotingCommand, header: Header, queue_id: int
    ) -> None:
        """Every item becomes a record of its own, with consecutive queue offsets (storage.md 1.1); all or none."""
        topic = header.topic
        if len(command.body) > self._max_message_bytes:
            raise self._too_long(len(command.body))
        sent = bytes(command.body)
        try:
            items = parse_batch(sent)
        except RecordError as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        shared = terminated((header.properties or "").encode())
        self._check_size_of_batch(sent, items, shared, topic)
        self._node.replica.check_may_append(len(items))
        # The envelope's key belongs to the batch as a whole: on the items it would outdo their own.
        keyless = b"".join(
            item + b"\x02" for item in shared.split(b"\x02") if item and not item.startswith(b"UNIQ_KEY\x01")
        )
        if keyless == shared:
            stored = [self._stored_properties(terminated(item.properties) + shared, topic) for item in items]
        else:
            stored = [
                self._stored_properties(
                    terminated(item.properties)
                    + (shared if get_property(item.properties, UNIQ_KEY) is None else keyless),
                    topic,
                )
                for item in items
            ]
        if any(word in sent or word in shared for word in _TREATED_APART):
            for properties, _ in stored:
                check_no_half(properties)
            if any(self._waits(properties) for properties, _ in stored):
                raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the messages of a batch cannot be delayed")
        pending = _PendingSend(
            self._node, connection, command, queue_id, ",".join([key for _, key in stored])
        )
        try:
            common = NewMessage(
                topic,
                queue_id,
                0,
                header.sys_flag,
                header.born_timestamp,
                connection.host,
                header.reconsume_times or 0,
                b"",
                b"",
            )
            messages = [
                (flag, body, properties)
                for (flag, body, _), (properties, _) in zip(items, stored, strict=True)
            ]
            positions, pending.queue_offset = self._node.replica.append_batch(common, messages, pending)
        except (RecordError, EntryTooLargeError) as error:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        host_hex = self._store_host_hex
        pending.message_ids = ",".join(["%s%016X" % (host_hex, position) for position in positions])  # noqa: UP031
        self._stats.put += len(items)

    def _check_size_of_batch(
        self, sent: bytes, items: Sequence[BatchItem], common: bytes, topic: str
    ) -> None:
        """Raises `RequestError` for a batch whose records together would be too long, or have too many keys.

        Every message is stored with the common properties, so that a short request could ask for gigabytes.
        """
        beside = _RECORD_BYTES + len(topic) + len(common) + len(self._own_properties)
        size = len(sent) + len(items) * (beside - ITEM_OVERHEAD)
        size_max = BATCH_GROWTH_MAX * self._max_message_bytes
        if size > size_max:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the {len(items)} messages of the batch have {size} bytes as they are stored, each with the "
                f"properties that all share, at most {size_max} are allowed",
            )
        spaces = len(items) * common.count(b" ")
        if spaces + sent.count(b" ") <= BATCH_KEYS_MAX:
            return  # those of the messages' bodies counted, too, which needs no look at each
        spaces += sum(item.properties.count(b" ") for item in items)
        if spaces <= BATCH_KEYS_MAX:
            return
        keys = sum(_count_keys(terminated(item.properties) + common) for item in items)
        if keys > BATCH_KEYS_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the messages of the batch have {keys} keys together, at most {BATCH_KEYS_MAX} are allowed",
            )

    def _waits(self, properties: bytes) -> bool:
        """Whether a message is to be delivered later."""
        return bool(
            delay_level(properties, self._delay_levels)
            or due_ms_of(properties, self._node.wall_ms, self._timer_delay_ms_max)
        )

    def _check_retry(self, command: RemotingCommand, header: Header) -> None:
        """A consumer that could not give a message back sends it itself; after the last retry it is a dead letter."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._node.replica.metadata.groups.get(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist"
            )
        most = retries_max(group, command.version, header.max_reconsume_times)
        if (header.reconsume_times or 0) > most:
            header.topic = DEAD_LETTER_PREFIX + name
            header.queue_id = 0
            properties = dead_letter_properties(
                without_properties((header.properties or "").encode(), DELAY),
                MAX_PROPERTIES_BYTES - len(self._own_properties),
            )
            header.properties = properties.decode()

    def _too_long(self, size: int) -> RequestError:
        return RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message body has {size} bytes, at most {self._max_message_bytes} are allowed",
        )

    def _stored_properties(self, properties: bytes, topic: str) -> tuple[bytes, str]:
        """The property string as stored, and the message's UNIQ_KEY (behaviour.md 4, "Broker adds").

        Of several keys the last counts, and an empty one is none, as for whoever reads the record. Raises
        `RequestError` for more bytes than may be sent, and for more keys.
        """
        if len(properties) > SENT_BYTES_MAX:
            bytes_max = MAX_PROPERTIES_BYTES if topic.startswith(_SENT_ON) else SENT_BYTES_MAX
            if len(properties) > bytes_max:
                raise RequestError(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message properties have {len(properties)} bytes, at most {bytes_max} are allowed",
                )
        if len(properties) > 2 * KEYS_MAX:
            check_number_of_keys(properties)
        if properties and properties[-1] != 2:
            properties += b"\x02"
        if b"WAIT\x01true\x02" in properties or b"POP_CK\x01" in properties:
            properties = _without_broker_only(properties)
        sent_key = get_property(properties, UNIQ_KEY)
        if sent_key is not None:
            unique_key = sent_key.decode("utf-8", "replace")
            properties += self._own_properties
        else:
            unique_key = self._next_unique_key()
            properties = b"%sUNIQ_KEY\x01%s\x02%s" % (properties, unique_key.encode(), self._own_properties)
        return properties, unique_key

    def _next_unique_key(self) -> str:
        """A key for a message whose client made none: unique by this node's address, its clock and a counter."""
        self._unique_keys_made = (self._unique_keys_made + 1) & 0xFFFF_FFFF
        millis = self._node.wall_ms & 0xFFFF_FFFF_FFFF
        return f"{self._unique_key_prefix}{millis:012X}{self._unique_keys_made:08X}"

    def _create_topic(self, connection: Connection, command: RemotingCommand, header: Header) -> None:
        """Automatic creation by the first send (behaviour.md 3), which is handled anew once the topic exists."""
        topic = header.topic
        node = self._node
        if topic in self._creating:
            self._waiting.take(command)
            self._creating[topic].append((connection, command))
            return
        try:
            check_topic_name(topic)
        except InvalidNameError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        sys_flag = unit_sys_flag(topic, header.unit_mode)
        if topic.startswith(RETRY_PREFIX) or self._is_dead_letter_topic(topic):
            config = topic_config(topic, 1, sys_flag=sys_flag)
        else:
            template: TopicConfig | None
            if header.default_topic == DEFAULT_TOPIC:
                template = (
                    self._default_template
                )  # which may have changed since the group's first leader made it
            else:
                template = node.replica.metadata.topics.get(header.default_topic)
            if template is None or not template.perm & Permission.INHERIT:
                raise RequestError(
                    ResponseCode.TOPIC_NOT_EXIST,
                    f"topic[{topic}] not exist, apply first please! (No automatic creation from "
                    f"{header.default_topic!r}.)",
                )
            queues = max(1, min(header.default_topic_queue_nums, template.write_queue_nums))
            config = topic_config(topic, queues, template.perm & ~Permission.INHERIT, sys_flag=sys_flag)
            config.topic_filter_type = template.topic_filter_type

        def end(go_on: Callable[[Connection, RemotingCommand], None]) -> None:
            for waiting_connection, waiting_command in self._creating.pop(topic):
                self._waiting.give_back(waiting_command)
                go_on(waiting_connection, waiting_command)

        self._waiting.take(command)
        try:
            self._creations.propose(
                [PutTopic(config, node.wall_ms, if_absent=True)],
                lambda _: end(node.received),
                lambda: end(
                    node.forward
                ),  # nothing of these sends is in the log: the next leader may have them
            )
        except TooManyError as error:
            self._waiting.give_back(command)
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, and is not created: {error}"
            ) from error
        except BaseException:
            self._waiting.give_back(command)
            raise
        self._creating[topic] = [(connection, command)]

    def _is_dead_letter_topic(self, topic: str) -> bool:
        """Whether it is one of a group that exists; what is only called so is created like other topics, or not."""
        return (
            topic.startswith(DEAD_LETTER_PREFIX)
            and topic.removeprefix(DEAD_LETTER_PREFIX) in self._node.replica.metadata.groups
        )


def check_number_of_keys(properties: bytes) -> None:
    """Raises `RequestError` for a message with more keys than one may have."""
    keys = _count_keys(properties)
    if keys > KEYS_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL, f"the message has {keys} keys, at most {KEYS_MAX} are allowed"
        )


def _count_keys(properties: bytes) -> int:
    """How many keys the index would get of a message."""
    return sum(map(bool, (get_property(properties, KEYS) or b"").split(b" ")))


def _without_broker_only(properties: bytes) -> bytes:
    """Without what is for the broker alone: WAIT=true says how to answer, POP_CK is never a producer's."""
    if b"POP_CK\x01" in properties:
        entries = properties.split(b"\x02")
        properties = b"".join(entry + b"\x02" for entry in entries if entry and entry[:7] != b"POP_CK\x01")
    if properties.startswith(b"WAIT\x01true\x02"):
        return properties[10:]
    return properties.replace(b"\x02WAIT\x01true\x02", b"\x02")
