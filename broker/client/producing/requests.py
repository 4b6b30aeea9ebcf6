"""Request and reply over topics: a producer sends a request and waits for the reply of some consumer.

A request is an ordinary message that says whom the reply is for; it is delivered at least once, as all messages. The
reply does not pass through a queue: the broker pushes it over the connection that the requester keeps to it. So a
requester that is gone gets no reply, and a reply that comes too late is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from broker.client.checks import check_seconds
from broker.client.errors import MessageRejected, ReplyTimeout, UsageError
from broker.client.message import Message, MessageQueue, MessageView
from broker.client.producing.outgoing import BODY_BYTES_MAX, check_properties, checked_body
from broker.client.transport.connection import Connection
from broker.client.transport.core import ClientCore, CoreBlock
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Event
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.errors import RemotingError
from broker.remoting.headers import PushReplyMessageHeader, SendMessageHeaderV2
from broker.remoting.property_names import (
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    REPLY_TO_CLIENT,
    TIME_TO_LIVE,
    UNIQ_KEY,
)
from broker.state.topic_rules import DEFAULT_TOPIC, REPLY_SUFFIX
from log.errors import RecordError
from log.formats.properties import encode_properties
from log.formats.record import encode_record, pack_host

REPLY_TIMEOUT_S = 3.0
"""Time limit in seconds of a request with its reply, and of passing on a reply."""

_HOST = pack_host("0.0.0.0", 0)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request whose reply is waited for. ``arrived`` is set when ``reply`` is there."""

    arrived: Event
    reply: MessageView | None = None


class Requests:
    """The requests of one client that wait for a reply, by correlation id."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._waiting: dict[str, _Waiting] = {}
        core.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed)

    def addressed(self, message: Message, timeout_s: float) -> tuple[str, Message]:
        """Return a new correlation id, and the message with the properties that say where its reply goes.

        The reply is taken from now on, until `forget`. Raises UsageError for a message that has one of these properties
        already.
        """
        for name in (CORRELATION_ID, REPLY_TO_CLIENT, TIME_TO_LIVE):
            if name in message.properties:
                raise UsageError(f"property {name!r} of a request is the client's own")
        correlation_id = f"{self._core.runtime.random.getrandbits(128):032x}"
        properties = {
            **message.properties,
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._core.client_id,
            TIME_TO_LIVE: str(int(timeout_s * 1000)),
        }
        self._waiting[correlation_id] = _Waiting(self._core.runtime.event())
        return correlation_id, msgspec.structs.replace(message, properties=properties)

    async def wait(self, correlation_id: str, timeout_s: float) -> MessageView:
        """Wait up to ``timeout_s`` for the reply and return it. Raises ReplyTimeout."""
        waiting = self._waiting[correlation_id]
        with self._core.runtime.move_on_after(max(timeout_s, 0.0)):
            await waiting.arrived.wait()
        if waiting.reply is None:
            raise ReplyTimeout(correlation_id)
        return waiting.reply

    def forget(self, correlation_id: str) -> None:
        """Drop a reply to this request that comes from now on."""
        del self._waiting[correlation_id]

    def _pushed(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            reply = _reply_of(command)
        except (RemotingError, RecordError) as error:
            connection.respond(command, ResponseCode.SYSTEM_ERROR, f"unreadable reply: {error}")
            return
        waiting = self._waiting.get(reply.properties.get(CORRELATION_ID, ""))
        if waiting is not None and waiting.reply is None:
            waiting.reply = reply
            waiting.arrived.set()
        # A late one is answered with success, too, as RocketMQ's client does: its sender did all that it could.
        connection.respond(command, ResponseCode.SUCCESS)


def _reply_of(command: RemotingCommand) -> MessageView:
    """Return a pushed reply in the form of a message from a queue. Raises RemotingError, RecordError."""
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


class Replier(CoreBlock):
    """A client that replies to requests; its ``group`` is told with each reply."""

    group: str

    async def reply(
        self,
        request: MessageView,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Reply to a request that this client has received, and wait until the requester has the reply.

        The broker group that the request came from passes the reply on; this is repeated for up to ``timeout_s``
        seconds. The reply has ``body`` and ``properties``. Raises UsageError for a message that is no request,
        MessageRejected for a body or properties that no message can have, BrokerError (code 1 if the requester is
        gone), ConnectionFailed, NoRoute, NameServerUnavailable, ClientClosed.
        """
        self.core.check_open()
        check_seconds(timeout_s=timeout_s)
        asked = request.properties
        missing = [name for name in (CORRELATION_ID, REPLY_TO_CLIENT, CLUSTER) if name not in asked]
        if missing:
            raise UsageError(f"message {request.message_id} is no request: it has no {', '.join(missing)}")
        checked = checked_body(body)
        if len(checked) > BODY_BYTES_MAX:
            raise MessageRejected(f"a reply of {len(checked)} bytes, at most {BODY_BYTES_MAX} are passed on")
        properties = {} if properties is None else properties
        check_properties(properties)
        runtime = self.core.runtime
        # The broker reads from these whom the reply is for; the requester finds its request by the correlation id.
        own = {
            UNIQ_KEY: f"{runtime.random.getrandbits(128):032X}",
            MESSAGE_TYPE: "reply",
            CORRELATION_ID: asked[CORRELATION_ID],
            REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
            TIME_TO_LIVE: asked.get(TIME_TO_LIVE, ""),
        }
        try:
            # The client's own come last, so that the application's cannot send the reply to somebody else.
            encoded = encode_properties({**properties, **own}).decode()
        except RecordError as error:
            raise MessageRejected(str(error)) from error
        header = SendMessageHeaderV2(
            producer_group=self.group,
            topic=asked[CLUSTER] + REPLY_SUFFIX,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=runtime.wall_ms(),
            flag=0,
            properties=encoded,
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        calls = PatientCalls(self.core, timeout_s)
        await calls.ask(request.queue, RequestCode.SEND_REPLY_MESSAGE_V2, header, body=checked)
