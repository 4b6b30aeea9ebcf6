"""Request-reply: the reply of a consumer goes to the client that waits for it (behaviour.md 9).

A request is a message like others, with REPLY_TO_CLIENT and CORRELATION_ID among its properties. Whoever consumes it
sends the reply here, and the broker pushes it to the requester, which must be known as a producer, through whatever
node of the group it is connected to. The replier hears whether that went well. The reply is stored, too, unless the
settings say otherwise; nobody needs it, but it can be looked up.
"""

from collections.abc import Iterable
from typing import Final

import structlog

from broker.node.node import Node
from broker.remoting.addresses import join_address
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import PushReplyMessageHeader, SendMessageHeader, SendMessageHeaderV2
from broker.remoting.property_room import SENT_BYTES_MAX
from broker.replica.proposals import NewMessage
from broker.requests.connection import Connection
from broker.requests.errors import ReplicaError, RequestError
from broker.requests.processing import OUTCOME_UNKNOWN, Place, Route
from broker.sending.send_processor import check_number_of_keys, too_early
from broker.settings.tables import BrokerConfig
from broker.state.topic_rules import FORBIDDEN_TO_SEND
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.properties import get_property, terminated, with_property
from log.record import SYS_FLAG_TRANSACTION_MASK, unpack_host
from raft.state import RandomSource

log = structlog.get_logger("trivet.replies")

REPLY_TO_CLIENT: Final = b"REPLY_TO_CLIENT"
PUSH_TIME: Final = b"PUSH_REPLY_TIME"

Header = SendMessageHeader | SendMessageHeaderV2


class _Reply:
    """A reply on its way: pushed first, then stored, then answered."""

    __slots__ = ("command", "connection", "message_id", "node", "queue_id", "queue_offset", "refusal")

    def __init__(self, node: Node, connection: Connection, command: RemotingCommand, queue_id: int) -> None:
        self.node = node
        self.connection = connection
        self.command = command
        self.queue_id = queue_id
        self.message_id = "0"
        self.queue_offset = 0
        self.refusal: str | None = None
        """Why the requester did not get it; None if it did."""

    def committed(self) -> None:
        self.answer()

    def lost(self) -> None:
        """That the copy may be lost does not matter to a replier whose requester has the reply."""
        if self.refusal is None:
            self.answer()
        else:
            self.node.reply(self.connection, self.command, ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)

    def answer(self) -> None:
        fields = {
            "msgId": self.message_id,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        code = ResponseCode.SUCCESS if self.refusal is None else ResponseCode.SYSTEM_ERROR
        self.node.reply(self.connection, self.command, code, self.refusal, fields)


class RepliesProcessor:
    """SEND_REPLY_MESSAGE 324 and SEND_REPLY_MESSAGE_V2 325. `address` is this node's, as clients know it."""

    def __init__(
        self,
        node: Node,
        *,
        address: str,
        store_host: bytes,
        max_message_bytes: int,
        store: bool,
        random: RandomSource,
    ) -> None:
        self._node = node
        self._address = address
        self._store_host_hex = store_host.hex().upper()
        self._max_message_bytes = max_message_bytes
        self._store = store
        self._random = random

    def configure(self, config: BrokerConfig) -> None:
        """Takes over the settings that may change at run time."""
        self._max_message_bytes = config.storage.max_message_bytes

    def routes(self) -> Iterable[Route]:
        """The leader's, which knows the clients of all nodes."""
        return (
            Route(RequestCode.SEND_REPLY_MESSAGE, self.send_reply, Place.LEADER),
            Route(RequestCode.SEND_REPLY_MESSAGE_V2, self.send_reply, Place.LEADER),
        )

    def send_reply(self, connection: Connection, command: RemotingCommand) -> None:
        """Pushes a reply to its requester; the answer comes when that is done."""
        header: Header
        if command.code == RequestCode.SEND_REPLY_MESSAGE:
            header = command.decode_fields(SendMessageHeader)
        else:
            header = command.decode_fields(SendMessageHeaderV2)
        properties = terminated((header.properties or "").encode())
        reply = _Reply(self._node, connection, command, self._check(header, properties, len(command.body)))

        def pushed(answer: RemotingCommand | None) -> None:
            if answer is None:
                reply.refusal = f"push reply message to {requester} fail: no answer"
            elif answer.code != ResponseCode.SUCCESS:
                reply.refusal = f"push reply message to {requester} fail: code {answer.code}, {answer.remark}"
            self._finish(reply, header, properties)

        requester = (get_property(properties, REPLY_TO_CLIENT) or b"").decode("utf-8", "replace")
        client = self._node.registry.find_producer(requester)
        if not requester:
            reply.refusal = "reply message properties[REPLY_TO_CLIENT] is null"
        elif client is None:
            reply.refusal = f"push reply message fail, channel of <{requester}> not found."
        elif client.connection.is_link_full():
            reply.refusal = f"push reply message to {requester} fail: too much waits for the link to its node"
        else:
            self._node.calls.call(
                client.connection,
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                self._pushed_header(connection, header, properties),
                bytes(command.body),
                command,
                pushed,
            )
            return
        self._finish(reply, header, properties)

    def _check(self, header: Header, properties: bytes, body_bytes: int) -> int:
        """The queue that the copy goes to; raises `RequestError` for what is no reply."""
        accept_from_ms = self._node.config.broker.accept_sends_from_ms
        if self._node.wall_ms < accept_from_ms:
            raise too_early(accept_from_ms, self._node.wall_ms)
        config = self._node.replica.metadata.topics.get(header.topic)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if header.topic in FORBIDDEN_TO_SEND:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the topic [{header.topic}] is the broker's own: producers may not send to it",
            )
        if header.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"request queueId[{header.queue_id}] is illegal, topic {header.topic} has "
                f"{config.write_queue_nums} write queues and {config.read_queue_nums} read queues",
            )
        if body_bytes > self._max_message_bytes or len(properties) > SENT_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the reply has {body_bytes} bytes of body and {len(properties)} of properties, at most "
                f"{self._max_message_bytes} and {SENT_BYTES_MAX} are allowed",
            )
        check_number_of_keys(properties)
        if header.sys_flag & SYS_FLAG_TRANSACTION_MASK:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be part of a transaction")
        if header.queue_id < 0:
            if config.write_queue_nums <= 0:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"topic {header.topic} has no queue to write to"
                )
            return self._random.randrange(0, config.write_queue_nums)
        return header.queue_id

    def _pushed_header(
        self, connection: Connection, header: Header, properties: bytes
    ) -> PushReplyMessageHeader:
        pushed = with_property(properties, PUSH_TIME, b"%d" % self._node.wall_ms)
        return PushReplyMessageHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=join_address(*unpack_host(connection.host)),
            store_host=self._address,
            store_timestamp=self._node.wall_ms,
            properties=pushed.decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )

    def _finish(self, reply: _Reply, header: Header, properties: bytes) -> None:
        if not self._store:
            reply.answer()
            return
        replica = self._node.replica
        try:
            replica.check_may_append()
            message = NewMessage(
                header.topic,
                reply.queue_id,
                header.flag,
                header.sys_flag,
                header.born_timestamp,
                reply.connection.host,
                header.reconsume_times or 0,
                reply.command.body,
                properties,
            )
            position, reply.queue_offset = replica.append_message(message, reply)
        except (ReplicaError, DiskFullError, RecordError, EntryTooLargeError) as error:
            log.warning("reply not stored", topic=header.topic, reason=str(error))
            reply.answer()
            return
        reply.message_id = f"{self._store_host_hex}{position:016X}"
