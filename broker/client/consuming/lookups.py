"""Single messages by their ids and by keys.

The id that a broker gives names the node that stored the message and the position in its group's log. That node is
asked first, as RocketMQ's clients do. When it does not answer, or is no member any more, another member of its group
has the same log. The message that comes is checked: at the same position another group's log holds another message.
"""

from __future__ import annotations

from broker.client.errors import BrokerError, ConnectionFailed, UsageError
from broker.client.message import MessageQueue, MessageView, views
from broker.client.transport.patient_calls import PatientCalls
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from log.errors import RecordError
from log.formats.message_id import parse_offset_message_id
from log.formats.record import unpack_host

FOUND_MAX = 64
"""The most messages that a broker gives for one key."""
FOREVER_MS = (1 << 62) - 1
"""A time later than all, in milliseconds."""
UNIQUE_KEY_COUNT = 32
"""The copies of a message that are asked for at most."""


class MessageLookups:
    """Finds single messages. All lookups raise BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable."""

    def __init__(self, calls: PatientCalls) -> None:
        self._core = calls.core
        self._calls = calls

    async def view(self, topic: str, offset_message_id: str) -> MessageView | None:
        """Return the message with the id that its broker gave, None if there is none or it was deleted.

        Raises UsageError for a text that is no such id.
        """
        try:
            host, offset = parse_offset_message_id(offset_message_id)
            store_host = unpack_host(host)
            address = f"{store_host.address}:{store_host.port}"
        except (RecordError, ValueError) as error:
            raise UsageError(f"{offset_message_id!r} is not an id that a broker gives: {error}") from error
        route = await self._core.routes.get(topic)
        fields = {"offset": str(offset), "topic": topic}
        names = [name for name, _, member in route.addresses() if member == address]
        if names:
            try:
                response = await self._core.pool.call(address, RequestCode.VIEW_MESSAGE_BY_ID, fields)
                if (found := _the_one(response, topic, names[0], host, offset)) is not None:
                    return found
            except (BrokerError, ConnectionFailed):
                pass  # another member has the same log
        for name in names[:1] or sorted(route.brokers):
            # With a system error the leader says that there is no such message.
            accepted = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
            queue = MessageQueue(topic, name, 0)
            response = await self._calls.ask(queue, RequestCode.VIEW_MESSAGE_BY_ID, fields, accepted)
            if (found := _the_one(response, topic, name, host, offset)) is not None:
                return found
        return None

    async def query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_messages: int, *, unique: bool = False
    ) -> list[MessageView]:
        """Return the messages with this key that were stored in that time, of each broker the newest first.

        Times are in milliseconds since 1970 and compared to the second. ``max_messages`` is for each broker, which
        gives 64 at most. With ``unique`` the key is the id that the sender gave.
        """
        route = await self._core.routes.get(topic)
        found: list[MessageView] = []
        for name in sorted(route.brokers):
            found += await self.query_group(topic, name, key, begin_ms, end_ms, max_messages, unique=unique)
        return found

    async def query_group(
        self,
        topic: str,
        name: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_messages: int,
        *,
        unique: bool,
    ) -> list[MessageView]:
        """Return what `query` does, of one broker group."""
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_messages),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        }
        if unique:
            fields["_UNIQUE_KEY_QUERY"] = "true"
        accepted = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        response = await self._calls.ask(
            MessageQueue(topic, name, 0), RequestCode.QUERY_MESSAGE, fields, accepted
        )
        return _messages(response, topic, name) if response.code == ResponseCode.SUCCESS else []


def _the_one(
    response: RemotingCommand, topic: str, broker_name: str, host: bytes, offset: int
) -> MessageView | None:
    if response.code != ResponseCode.SUCCESS:
        return None
    for message in _messages(response, topic, broker_name):
        if message.head.store_host == host and message.head.physical_offset == offset:
            return message
    return None


def _messages(response: RemotingCommand, topic: str, broker_name: str) -> list[MessageView]:
    body = response.body
    try:
        found = views(MessageQueue(topic, broker_name, 0), body)
        for view in found:
            view.queue = MessageQueue(topic, broker_name, view.head.queue_id)
    except RecordError as error:
        raise BrokerError(response.code, f"unreadable response: {error}", broker_name) from error
    return found
