"""Messages: found, looked at, followed on their way; a test message is sent."""

import dataclasses
from typing import Annotated, Final

import msgspec

from broker.client.message import Message
from broker.console.asking import InPart, Order, Question, in_part
from broker.console.parameters import BrokerName, Limit, Offset, Parameters, QueueId, Text, TimeMs, TopicName
from broker.console.seats import Seat
from broker.operations.asking import Groups
from broker.operations.dead_letters import producer_of
from broker.operations.errors import NotThere
from broker.operations.messages import MessageWay, find_messages, way_of
from broker.operations.queue_browsing import StoredMessage

PREVIEW_BYTES: Final = 160
BODY_BYTES_MAX: Final = 256 * 1024
"""More of a body is not shown: a browser would stand still over it."""
PRODUCER_GROUP: Final = "TRIVET_CONSOLE"


class MessageShown(msgspec.Struct, frozen=True, kw_only=True):
    """A message with as much of its body as is wanted, and the size of all of it; what is cut is longer than `body`."""

    message: StoredMessage
    body_bytes: int | None


class Wanted(Parameters, frozen=True):
    """A choice of messages of a topic, as `find_messages` takes it."""

    topic: TopicName
    key: Text | None = None
    message_id: Text | None = None
    since_ms: TimeMs | None = None
    until_ms: TimeMs | None = None
    broker: BrokerName | None = None
    queue: QueueId | None = None
    offset: Offset | None = None
    limit: Limit = 32


class Located(Parameters, frozen=True):
    """A message by where it lies."""

    topic: TopicName
    broker: BrokerName
    queue: QueueId
    offset: Offset


class Traced(Parameters, frozen=True):
    """A message by its id, the sender's or the broker's."""

    topic: TopicName
    message_id: Text


class TestMessage(Parameters, frozen=True):
    """A message to be sent. At most one of the delays is given."""

    topic: TopicName
    body: str
    tags: Text | None = None
    keys: tuple[Text, ...] = ()
    properties: dict[Text, Text] = {}
    delay_level: Annotated[int, msgspec.Meta(ge=0, le=18)] = 0
    deliver_at_ms: TimeMs | None = None
    order_by: Text | None = None
    """Messages with the same text here go to the same queue."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a message was stored."""

    topic: str
    broker: str
    queue: int
    offset: int
    message_id: str


async def find(seat: Seat, wanted: Wanted) -> InPart[list[MessageShown]]:
    """Messages with the beginning of their bodies."""
    found = await in_part(seat, lambda groups: find_messages(groups, **msgspec.structs.asdict(wanted)))
    return InPart([shown(message, PREVIEW_BYTES) for message in found.content], found.missing)


async def look(seat: Seat, place: Located) -> MessageShown:
    """Return one message. Raises NotThere, ClientError."""
    groups = await Groups.registered(seat.admin)
    found = await find_messages(
        groups, place.topic, broker=place.broker, queue=place.queue, offset=place.offset, limit=1
    )
    if not found or found[0].offset != place.offset:
        raise NotThere(
            f"{place.broker} keeps no message {place.offset} in queue {place.queue} of {place.topic!r}"
        )
    return shown(found[0], BODY_BYTES_MAX)


async def way(seat: Seat, traced: Traced) -> InPart[MessageWay]:
    """The way of one message; of its body nothing."""
    part = await in_part(seat, lambda groups: way_of(groups, traced.topic, traced.message_id))
    found = part.content
    if found.message is None:
        return part
    without_body = dataclasses.replace(found.message, body=None)
    return InPart(dataclasses.replace(found, message=without_body), part.missing)


async def send(seat: Seat, wanted: TestMessage) -> Sent:
    """Send a test message."""
    message = Message(
        wanted.topic,
        wanted.body.encode(),
        tags=wanted.tags or None,
        keys=wanted.keys,
        properties=wanted.properties,
        delay_level=wanted.delay_level,
        deliver_at_ms=wanted.deliver_at_ms,
    )
    async with producer_of(seat.admin, PRODUCER_GROUP) as producer:
        result = await producer.send(message, queue=wanted.order_by or None)
    return Sent(
        topic=wanted.topic,
        broker=result.queue.broker_name,
        queue=result.queue.queue_id,
        offset=result.queue_offset,
        message_id=result.message_id,
    )


def shown(message: StoredMessage, bytes_max: int) -> MessageShown:
    """Return a message with the beginning of its body."""
    body = message.body
    cut = message if body is None else dataclasses.replace(message, body=body[:bytes_max])
    return MessageShown(message=cut, body_bytes=None if body is None else len(body))


ROUTES = (
    Question("/api/messages", Wanted, find),
    Question("/api/message", Located, look),
    Question("/api/way", Traced, way),
    Order("/api/messages/send", TestMessage, send, "send a test message", unsaid=frozenset({"body"})),
)
