"""Reading queues as an operator does: without being a member of a consumer group, from an offset or a time on."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from broker.client.admin import AdminClient
from broker.client.consuming.lookups import FOREVER_MS, FOUND_MAX, MessageLookups
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.consuming.subscription import Subscription
from broker.client.errors import BrokerError, ConnectionFailed, DamagedMessage, NoRoute
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import failed_last
from broker.operations.asking import Groups
from broker.operations.own_groups import READER_GROUP
from broker.remoting.codes import ResponseCode
from log.formats.record import Host

MESSAGES_AT_ONCE = 32
"""Messages of one pull, RocketMQ's own limit of what it reads from the page cache."""
ATTEMPTS = 8
"""A pull that fails is repeated at another member, at most this often in a row: an election takes a second or two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as it lies in a queue.

    ``topic``, ``broker``, ``queue`` and ``offset`` are its place; a message that waits or is retried lies in another
    topic than the one it was sent to. ``body`` is None if it is damaged, and ``damage`` says how. Of one whose head is
    damaged only the queue is known: ``offset`` is -1. Times are in milliseconds since 1970.
    """

    topic: str
    broker: str
    queue: int
    offset: int = -1
    message_id: str = ""
    offset_message_id: str = ""
    tags: str | None = None
    keys: tuple[str, ...] = ()
    born_ms: int = 0
    born_host: str = ""
    stored_ms: int = 0
    store_host: str = ""
    reconsume_times: int = 0
    flag: int = 0
    size: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    damage: str | None = None

    @property
    def is_unreadable(self) -> bool:
        """Tell whether its head is damaged."""
        return self.offset < 0


def stored_message(view: MessageView) -> StoredMessage:
    """Return all of a message that was read, its body unpacked."""
    body, damage = None, None
    try:
        body = view.body
    except DamagedMessage as error:
        damage = str(error)
    topic, broker, queue = view.queue
    if is_unreadable(view):
        return StoredMessage(topic=topic, broker=broker, queue=queue, damage=damage)
    return StoredMessage(
        topic=topic,
        broker=broker,
        queue=queue,
        offset=view.queue_offset,
        message_id=view.message_id,
        offset_message_id=view.offset_message_id,
        tags=view.tags,
        keys=tuple(view.keys),
        born_ms=view.born_timestamp_ms,
        born_host=_text(view.born_host),
        stored_ms=view.store_timestamp_ms,
        store_host=_text(view.store_host),
        reconsume_times=view.reconsume_times,
        flag=view.flag,
        size=view.head.total_size,
        properties=dict(view.properties),
        body=body,
        damage=damage,
    )


def is_unreadable(view: MessageView) -> bool:
    """Tell whether a message's head is damaged, so that nothing of it is known."""
    try:
        _ = view.head
    except DamagedMessage:
        return True
    return False


def queue_calls(admin: AdminClient) -> QueueCalls:
    """Return the calls with which queues are read."""
    return QueueCalls(PatientCalls(admin.core), READER_GROUP)


def lookups(admin: AdminClient) -> MessageLookups:
    """Return the calls with which single messages are found."""
    return MessageLookups(PatientCalls(admin.core))


async def with_key(
    groups: Groups, topic: str, key: str, begin_ms: int, end_ms: int, limit: int, *, unique: bool = False
) -> list[MessageView]:
    """Return the messages of a topic with a key, or with ``unique`` with an id, that their sender gave.

    Each broker group gives its newest ones, at most ``limit``. Raises ClientError.
    """
    route = await groups.admin.route(topic)
    find = lookups(groups.admin).query_group
    found = await groups.ask(
        lambda name: find(topic, name, key, begin_ms, end_ms, limit, unique=unique), sorted(route.brokers)
    )
    return [view for views in found.values() for view in views]


async def copies_of(groups: Groups, topic: str, key: str, *, unique: bool = True) -> list[MessageView]:
    """Return the messages of a topic with an id that their sender gave, or without ``unique`` with a key.

    There are none in a topic that does not exist, nor in one that the account may not read. Raises ClientError.
    """
    try:
        return await with_key(groups, topic, key, 0, FOREVER_MS, FOUND_MAX, unique=unique)
    except NoRoute:
        return []
    except BrokerError as error:
        if error.code != ResponseCode.NO_PERMISSION:
            raise
        return []


async def read_queue(
    admin: AdminClient, queue: MessageQueue, begin: int, end: int
) -> AsyncIterator[list[MessageView]]:
    """Yield the messages from ``begin`` up to but not including ``end``, some at a time.

    Offsets that the queue does not keep are passed over, and a leader that is lost meanwhile is waited for. Raises
    BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
    """
    calls, everything = queue_calls(admin), Subscription.parse(queue.topic, "*", 0)
    runtime = admin.core.runtime
    at, failures, avoid = begin, 0, list[str]()
    pauses = Pauses(runtime.random, 0.05, 1.0)
    while at < end:
        try:
            pulled = await calls.pull(
                queue, at, everything, max_messages=min(MESSAGES_AT_ONCE, end - at), suspend_s=0, avoid=avoid
            )
        except (BrokerError, ConnectionFailed, NoRoute) as error:
            failures += 1
            if not error.retry_may_help or failures >= ATTEMPTS:
                raise
            if isinstance(error, BrokerError | ConnectionFailed):
                avoid = failed_last(avoid, error.address)
            await runtime.sleep(pauses.next_s())
            await admin.core.routes.refresh_quietly(queue.topic)
            continue
        failures, avoid = 0, []
        pauses.reset()
        messages = [view for view in pulled.messages if is_unreadable(view) or view.queue_offset < end]
        if messages:
            yield messages
        if pulled.next_offset <= at:
            return  # the queue ends here, whatever was known of it before
        at = pulled.next_offset


def number_in(text: str) -> int | None:
    """Return the number in a property that clients write, with at most as many digits as a time in milliseconds; None
    for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _text(host: Host) -> str:
    address, port = host
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
