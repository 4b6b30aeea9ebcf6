"""Request-reply: the reply of a consumer goes to the client that waits for it (`ReplyMessageProcessor`).

A request is a message like others, with REPLY_TO_CLIENT and CORRELATION_ID among its properties. The consumer sends its
reply here, and the broker pushes it to the requester, which must be known as a producer, through the node of the group
that the requester is connected to. The response tells the replier whether that went well. The reply is stored, too,
unless the settings say otherwise; nobody needs it, but it can be looked up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.node.client_calls import ClientCalls
from broker.node.client_registry import ClientRegistry
from broker.node.ports import Appends
from broker.remoting.addresses import join_address
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.headers import (
    PushReplyMessageHeader,
    SendHeader,
    SendMessageHeader,
    SendMessageHeaderV2,
)
from broker.remoting.property_room import SENT_BYTES_MAX
from broker.requests.connection import Connection
from broker.requests.deadline import Time
from broker.requests.errors import ReplicaError, RequestError
from broker.requests.processing import HandledOn, Route
from broker.requests.responses import reply, reply_unknown
from broker.sending.properties import check_properties
from broker.sending.responses import send_fields
from broker.sending.shared import choose_queue, forbidden_topic, sent_message, too_early
from broker.settings.live import LiveSettings
from broker.state.topic_rules import FORBIDDEN_TO_SEND, REPLY_SUFFIX
from broker.statistics.events import EventKind, Events
from log.errors import DiskFullError, EntryTooLargeError, RecordError
from log.formats.properties import REPLY_TO_CLIENT, get_property, terminated, with_property
from log.formats.record import SYS_FLAG_TRANSACTION_MASK, unpack_host
from raft.state import RandomSource

PUSH_TIME: Final = b"PUSH_REPLY_TIME"


@dataclass(slots=True, eq=False)
class _Reply:
    """A reply on its way: pushed first, then stored, then answered."""

    connection: Connection
    command: RemotingCommand
    queue_id: int
    message_id: str = "0"
    queue_offset: int = 0
    refusal: str | None = None
    """The reason for which the requester did not get it; None if it did."""

    def committed(self) -> None:
        self.answer()

    def lost(self) -> None:
        """Answers a replier whose requester has the reply as if nothing was lost: to it the copy does not matter."""
        if self.refusal is None:
            self.answer()
        else:
            reply_unknown(self.connection, self.command)

    def answer(self) -> None:
        """Tells the replier whether its reply was pushed, and where the copy is."""
        fields = send_fields(self.message_id, self.queue_id, self.queue_offset, None)
        code = ResponseCode.SUCCESS if self.refusal is None else ResponseCode.SYSTEM_ERROR
        reply(self.connection, self.command, code, self.refusal, fields)


class RepliesProcessor:
    """SEND_REPLY_MESSAGE 324 and SEND_REPLY_MESSAGE_V2 325. `address` is this node's, as clients know it."""

    def __init__(
        self,
        leadership: Appends,
        registry: ClientRegistry[Connection],
        calls: ClientCalls,
        settings: LiveSettings,
        time: Time,
        events: Events,
        *,
        address: str,
        store_host: bytes,
        random: RandomSource,
    ) -> None:
        self._leadership = leadership
        self._registry = registry
        self._calls = calls
        self._settings = settings
        self._time = time
        self._events = events
        self._address = address
        self._host = store_host.hex().upper()
        self._random = random

    def routes(self) -> Iterable[Route]:
        """Replies are for the leader, which knows the clients of all nodes."""
        return (
            Route(RequestCode.SEND_REPLY_MESSAGE, self.send_reply, HandledOn.LEADER),
            Route(RequestCode.SEND_REPLY_MESSAGE_V2, self.send_reply, HandledOn.LEADER),
        )

    def send_reply(self, connection: Connection, command: RemotingCommand) -> None:
        """Pushes a reply to its requester; the response comes when that is done, and the copy is committed.

        Raises `RequestError` for what is no reply.
        """
        header: SendHeader
        if command.code == RequestCode.SEND_REPLY_MESSAGE:
            header = command.decode_fields(SendMessageHeader)
        else:
            header = command.decode_fields(SendMessageHeaderV2)
        properties = terminated((header.properties or "").encode())
        # What could be refused is checked before the push, which cannot be taken back.
        answering = _Reply(connection, command, self._check(header, properties, len(command.body)))

        def pushed(answer: RemotingCommand | None) -> None:
            if answer is None:
                answering.refusal = f"push reply message to {requester} fail: no answer"
            elif answer.code != ResponseCode.SUCCESS:
                answering.refusal = (
                    f"push reply message to {requester} fail: code {answer.code}, {answer.remark}"
                )
            self._finish(answering, header, properties)

        # Pushed first, and stored then: the copy is kept even if the requester cannot be reached.
        requester = (get_property(properties, REPLY_TO_CLIENT) or b"").decode("utf-8", "replace")
        client = self._registry.find_producer(requester)
        if not requester:
            answering.refusal = "reply message properties[REPLY_TO_CLIENT] is null"
        elif client is None:
            answering.refusal = f"push reply message fail, channel of <{requester}> not found."
        # That link carries the responses to all clients of the requester's node.
        elif client.connection.is_link_full():
            answering.refusal = (
                f"push reply message to {requester} fail: too much waits for the link to its node"
            )
        else:
            self._calls.call(
                client.connection,
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                self._pushed_header(connection, header, properties),
                bytes(command.body),
                command,
                pushed,
            )
            return
        self._finish(answering, header, properties)

    def _check(self, header: SendHeader, properties: bytes, body_bytes: int) -> int:
        """The queue for the copy. Raises `RequestError` for what is no reply."""
        settings = self._settings.current
        if self._time.group_ms < settings.broker.accept_sends_from_ms:
            raise too_early(settings.broker.accept_sends_from_ms, self._time.group_ms)
        topic = self._leadership.metadata.topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist, apply first please!"
            )
        if header.topic in FORBIDDEN_TO_SEND:
            raise forbidden_topic(header.topic)
        # Clients reply to this topic alone (`MessageUtil.createReplyMessage`). So who may publish to it may reply, and
        # who may publish elsewhere cannot push to others' producers what they take for a reply.
        if header.topic != settings.node.cluster + REPLY_SUFFIX:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"a reply goes to {settings.node.cluster}{REPLY_SUFFIX}, not {header.topic}",
            )
        body_bytes_max = settings.storage.max_message_bytes
        if body_bytes > body_bytes_max or len(properties) > SENT_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the reply has {body_bytes} bytes of body and {len(properties)} of properties, at most "
                f"{body_bytes_max} and {SENT_BYTES_MAX} are allowed",
            )
        check_properties(header.properties or "", header.topic)
        if header.sys_flag & SYS_FLAG_TRANSACTION_MASK:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a reply cannot be part of a transaction")
        return choose_queue(header.topic, header.queue_id, topic, self._random)

    def _pushed_header(
        self, connection: Connection, header: SendHeader, properties: bytes
    ) -> PushReplyMessageHeader:
        pushed = with_property(properties, PUSH_TIME, b"%d" % self._time.group_ms)
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
            store_timestamp=self._time.group_ms,
            properties=pushed.decode("utf-8", "replace"),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )

    def _finish(self, answering: _Reply, header: SendHeader, properties: bytes) -> None:
        """The reply has been pushed, or has not: it is stored, if the settings say so, and answered."""
        if not self._settings.current.broker.store_replies:
            answering.answer()
            return
        message = sent_message(
            header, answering.connection, answering.queue_id, answering.command.body, properties
        )
        try:
            # Leadership or room may have been lost while the requester was asked.
            self._leadership.check_may_append()
            offset, answering.queue_offset = self._leadership.append_message(message, answering)
        except (ReplicaError, DiskFullError, RecordError, EntryTooLargeError) as error:
            self._events.warn(
                EventKind.REPLY_NOT_STORED,
                type(error).__name__,
                self._time.now_ns,
                source=answering.connection.address,
                topic=header.topic,
                detail=str(error),
            )
            answering.answer()
            return
        answering.message_id = f"{self._host}{offset:016X}"
