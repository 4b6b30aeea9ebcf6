"""Request-reply over topics: a producer sends a request and waits for what some consumer replies.

A request is an ordinary message that says whom the reply is for; it is delivered at least once, as all messages. The
reply does not pass through a queue: the broker pushes it to the requester over the connection that the requester keeps
to the group. So a requester that is gone gets no reply, and a reply that nobody waits for any more is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker.client.errors import ReplyTimeout, UsageError
from broker.client.message import Message, MessageQueue, MessageView
from broker.client.transport.connection import Connection
from broker.client.transport.core import ClientCore
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.routes import DEFAULT_TOPIC
from broker.client.transport.runtime import Event
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import PushReplyMessageHeader, SendMessageHeaderV2
from log.errors import RecordError
from log.properties import encode_properties
from log.record import encode_record, pack_host

REPLY_TIMEOUT_S = 3.0

_CORRELATION_ID = "CORRELATION_ID"
_REPLY_TO = "REPLY_TO_CLIENT"
_TTL = "TTL"
_CLUSTER = "CLUSTER"
_HOST = pack_host("0.0.0.0", 0)


class _Waiting:
    """A request without a reply so far."""

    __slots__ = ("arrived", "reply")

    def __init__(self, arrived: Event) -> None:
        self.arrived = arrived
        self.reply: MessageView | None = None


class Requests:
    """The requests of one client, by correlation id."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._waiting: dict[str, _Waiting] = {}
        core.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed)

    def addressed(self, message: Message, timeout_s: float) -> tuple[str, Message]:
        """(correlation id, message that says whom its reply is for). Raises UsageError."""
        for name in (_CORRELATION_ID, _REPLY_TO, _TTL):
            if name in message.properties:
                raise UsageError(f"property {name!r} of a request is the client's own")
        correlation_id = f"{self._core.runtime.random.getrandbits(128):032x}"
        properties = {
            **message.properties,
            _CORRELATION_ID: correlation_id,
            _REPLY_TO: self._core.client_id,
            _TTL: str(int(timeout_s * 1000)),
        }
        return correlation_id, msgspec.structs.replace(message, properties=properties)

    def expect(self, correlation_id: str) -> None:
        """A reply may come from now on; to be followed by `wait` or `forget`."""
        self._waiting[correlation_id] = _Waiting(self._core.runtime.event())

    async def wait(self, correlation_id: str, timeout_s: float) -> MessageView:
        """The reply. Raises ReplyTimeout."""
        waiting = self._waiting[correlation_id]
        with self._core.runtime.move_on_after(max(timeout_s, 0.0)):
            await waiting.arrived.wait()
        if waiting.reply is None:
            raise ReplyTimeout(correlation_id)
        return waiting.reply

    def forget(self, correlation_id: str) -> None:
        """Nobody waits for the reply any more."""
        del self._waiting[correlation_id]

    def _pushed(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            reply = _reply_of(command)
        except (RemotingError, RecordError) as error:
            connection.reply(command, ResponseCode.SYSTEM_ERROR, f"unreadable reply: {error}")
            return
        waiting = self._waiting.get(reply.properties.get(_CORRELATION_ID, ""))
        if waiting is not None and waiting.reply is None:
            waiting.reply = reply
            waiting.arrived.set()
        # One that comes late is taken all the same, as by the reference's client: its sender did all that it could.
        connection.reply(command, ResponseCode.SUCCESS)


def _reply_of(command: RemotingCommand) -> MessageView:
    """A pushed reply as the message that it would be in a queue."""
    header = command.decode_fields(PushReplyMessageHeader)
    record = encode_record(
        header.topic.encode(),
        header.queue_id,
        header.flag,
        0,
        0,
        header.sys_flag,
        header.born_timestamp,
        _HOST,
        header.store_timestamp,
        _HOST,
        header.reconsume_times or 0,
        0,
        command.body,
        (header.properties or "").encode(),
    )
    return MessageView(MessageQueue(header.topic, "", header.queue_id), record)


class Replies:
    """Replies of one client to requests that it has received; ``group`` is the client's own."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core
        self._group = group

    async def reply(
        self,
        request: MessageView,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Reply to a request that this client has received, and wait until the requester has the reply.

        The broker group that the request came from passes the reply on; that is repeated for up to ``timeout_s``
        seconds. ``properties`` go with it. Raises UsageError for a message that is no request, BrokerError (code 1: the
        requester is gone), ConnectionFailed, NoRoute, NameServerUnavailable.
        """
        self._core.check_open()
        asked = request.properties
        missing = [name for name in (_CORRELATION_ID, _REPLY_TO, _CLUSTER) if name not in asked]
        if missing:
            raise UsageError(f"message {request.message_id} is no request: it has no {', '.join(missing)}")
        runtime = self._core.runtime
        own = {
            "UNIQ_KEY": f"{runtime.random.getrandbits(128):032X}",
            "MSG_TYPE": "reply",
            _CORRELATION_ID: asked[_CORRELATION_ID],
            _REPLY_TO: asked[_REPLY_TO],
            _TTL: asked.get(_TTL, ""),
        }
        header = SendMessageHeaderV2(
            producer_group=self._group,
            topic=f"{asked[_CLUSTER]}_REPLY_TOPIC",
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=runtime.wall_ms(),
            flag=0,
            properties=encode_properties({**(properties or {}), **own}).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        calls = PatientCalls(self._core, timeout_s)
        await calls.ask(request.queue, RequestCode.SEND_REPLY_MESSAGE_V2, header, body=body)
