"""Messages: found by time, offset, key and id, and the way that one of them has taken.

The way is read from what the brokers keep: the copies of a message in the topics where messages wait, are retried and
end as dead letters all bear the id that its sender gave, and the index knows them by it. Who has consumed it follows
from the consumer offsets, as with mqadmin's queryMsgTrackById.
"""

from dataclasses import dataclass
from typing import Literal

from broker.client.consuming.lookups import FOREVER_MS, FOUND_MAX, UNIQUE_KEY_COUNT
from broker.client.errors import UsageError
from broker.client.message import MessageQueue, MessageView
from broker.operations.asking import Groups, each
from broker.operations.client_traces import Traced, client_traces
from broker.operations.errors import NotThere
from broker.operations.members import connection_of
from broker.operations.progress import consume_stats
from broker.operations.queue_browsing import (
    StoredMessage,
    copies_of,
    lookups,
    number_in,
    queue_calls,
    read_queue,
    stored_message,
    with_key,
)
from broker.operations.topics import consumers_of
from broker.remoting import property_names
from broker.remoting.bodies import MessageModel, SubscriptionData
from broker.remoting.bodies import MessageQueue as RemotingQueue
from broker.state.topic_rules import (
    CHECK_EXHAUSTED_TOPIC,
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from log.errors import RecordError
from log.formats.message_id import parse_offset_message_id

LIMIT = 32
"""Messages that are found unless the caller says otherwise."""
LIMIT_MAX = 10_000
"""More messages at once would fill this process's memory."""

What = Literal["waits", "delivered", "half", "given up", "stored", "retried", "dead letter"]
State = Literal["consumed", "not consumed", "not subscribed", "filtered", "broadcast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One copy of a message on its way, by the time at which it was stored.

    ``until_ms`` is when a message that waits is delivered; ``group`` the consumer group of a retry or a dead letter.
    """

    what: What
    at_ms: int
    topic: str
    broker: str
    queue: int
    offset: int
    until_ms: int | None = None
    group: str | None = None
    times: int = 0
    """For a retry, the number of times that the message had been sent back before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """Whether one consumer group has consumed a message, as far as its offset and its members' subscriptions tell."""

    group: str
    state: State
    position: int
    members: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWay:
    """The way of one message. ``message`` is where it lies in its own topic; None while it waits, or if it is gone."""

    topic: str
    message_id: str
    message: StoredMessage | None
    steps: tuple[Step, ...]
    groups: tuple[Consumption, ...]
    traces: tuple[Traced, ...]
    """The traces that clients have made themselves, where they do."""


async def find_messages(
    groups: Groups,
    topic: str,
    *,
    key: str | None = None,
    message_id: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    broker: str | None = None,
    queue: int | None = None,
    offset: int | None = None,
    limit: int = LIMIT,
) -> list[StoredMessage]:
    """Return messages of a topic, the oldest first, at most ``limit``.

    - With ``key``: those with it that were stored in the time; each broker group gives its 64 newest.
    - With ``message_id``: the one with this id, the sender's or the broker's, and its copies.
    - With ``since_ms`` or ``offset``: from there on, of all queues, or of the one named by ``queue`` (and ``broker``).
    - Else the newest, those before ``until_ms`` if that is given.

    Times are in ms since 1970, and compared by when a message was stored; ``until_ms`` is not contained. Messages of
    broker groups that are missing afterwards are not found. Raises UsageError for choices that do not fit together,
    NoRoute for an unknown topic, ClientError.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise UsageError(f"limit {limit}: from 1 to {LIMIT_MAX}")
    if min(queue or 0, offset or 0) < 0:
        raise UsageError("a queue and an offset are 0 or more")
    if sum(choice is not None for choice in (key, message_id, offset)) > 1:
        raise UsageError("a key, an id and an offset each find messages: give one of them")
    if offset is not None and since_ms is not None:
        raise UsageError("an offset and a time each say where to begin: give one of them")
    if message_id is not None:
        return (await _with_id(groups, topic, message_id))[:limit]
    if key is not None:
        begin, end = since_ms or 0, FOREVER_MS if until_ms is None else until_ms
        views = await with_key(groups, topic, key, begin, end, min(limit, FOUND_MAX))
        found = sorted((stored_message(view) for view in views), key=_by_time)
        # The index knows whole seconds (`IndexFile.query`), so that messages just outside of the time are found, too;
        # of queues it knows nothing.
        chosen = [message for message in found if begin <= message.stored_ms < end]
        return [message for message in chosen if queue in (None, message.queue)][-limit:]
    return await _in_queues(groups, topic, broker, queue, offset, since_ms, until_ms, limit)


async def way_of(groups: Groups, topic: str, message_id: str) -> MessageWay:
    """Return the way of the message with this id, the sender's or the broker's, that was sent to ``topic``.

    An account that may not read where messages wait is not told of that. Raises NotThere if neither the message nor a
    copy of it is kept, NoRoute for an unknown topic, ClientError.
    """
    own = await _with_id(groups, topic, message_id)
    unique = own[0].message_id if own else message_id
    consumers = await consumers_of(groups, topic)
    there = set(await groups.admin.topics())
    # Where a message waits, comes back or is given up it is stored anew, in another topic, with the unique key it had.
    places = [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, CHECK_EXHAUSTED_TOPIC]
    places += [prefix + group for group in consumers for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX)]

    async def copies(place: str) -> list[MessageView]:
        return await copies_of(groups, place, unique) if place in there else []

    found = await each(groups.admin, places, copies)
    elsewhere = [view for views in found for view in views if _belongs_to(view, topic)]
    steps = [_step_elsewhere(stored_message(view)) for view in elsewhere]
    if not own and not steps:
        raise NotThere(f"topic {topic!r}: no message with the id {message_id!r} is kept, nor a copy of it")
    # Of a delayed message the record in its own topic is the last step, not the first: there it was delivered.
    was_delayed = any(step.what == "waits" for step in steps)
    steps = [_step(message, "delivered" if was_delayed else "stored") for message in own] + steps
    message = own[-1] if own else None
    consumed = [] if message is None else await _consumptions(groups, consumers, message)
    return MessageWay(
        topic=topic,
        message_id=unique,
        message=message,
        steps=tuple(sorted(steps, key=lambda step: (step.at_ms, step.offset))),
        groups=tuple(consumed),
        traces=tuple(await client_traces(groups, unique)),
    )


# Finding -----------------------------------------------------------------------------------------------------------


async def _with_id(groups: Groups, topic: str, message_id: str) -> list[StoredMessage]:
    """Return the message with an id of either kind; both may look alike."""
    found = await with_key(groups, topic, message_id, 0, FOREVER_MS, UNIQUE_KEY_COUNT, unique=True)
    if not found:
        try:
            parse_offset_message_id(message_id)
        except RecordError:
            return []
        view = await lookups(groups.admin).view(topic, message_id)
        if view is not None:
            view.queue = view.queue._replace(queue_id=view.head.queue_id)
            found = [view]
    return sorted((stored_message(view) for view in found), key=_by_time)


async def _in_queues(
    groups: Groups,
    topic: str,
    broker: str | None,
    queue_id: int | None,
    offset: int | None,
    since_ms: int | None,
    until_ms: int | None,
    limit: int,
) -> list[StoredMessage]:
    admin = groups.admin
    route = await admin.route(topic)
    queues = [
        queue
        for queue in route.readable
        if queue_id in (None, queue.queue_id) and broker in (None, queue.broker_name)
    ]
    if not queues:
        raise NotThere(f"topic {topic!r} has no such queue")
    calls = queue_calls(admin)
    from_the_end = offset is None and since_ms is None

    # All that are wanted may lie in one queue: so each gives as many as are wanted of all.
    async def read(queue: MessageQueue) -> list[StoredMessage]:
        first, end = await calls.min_offset(queue), await calls.max_offset(queue)
        if until_ms is not None:
            end = min(end, await calls.search_offset(queue, until_ms))
        if offset is not None:
            begin = offset
        elif since_ms is not None:
            begin = await calls.search_offset(queue, since_ms)
        else:
            begin = end - limit
        begin = max(begin, first)
        end = min(end, begin + limit)
        found = []
        async for views in read_queue(admin, queue, begin, end):
            found += [stored_message(view) for view in views]
        return found

    by_group = await groups.ask(
        lambda name: each(admin, [queue for queue in queues if queue.broker_name == name], read),
        sorted({queue.broker_name for queue in queues}),
    )
    messages = (message for queues in by_group.values() for messages in queues for message in messages)
    found = sorted(messages, key=_by_time)
    return found[-limit:] if from_the_end else found[:limit]


def _by_time(message: StoredMessage) -> tuple[int, str, int, int]:
    return message.stored_ms, message.broker, message.queue, message.offset


# Ways --------------------------------------------------------------------------------------------------------------


def _belongs_to(view: MessageView, topic: str) -> bool:
    """Tell whether a copy that waits, or is retried, is of a message to this topic."""
    homes = (property_names.REAL_TOPIC, property_names.RETRY_TOPIC, property_names.DLQ_ORIGIN_TOPIC)
    return topic in map(view.properties.get, homes)


def _step(
    message: StoredMessage,
    what: What,
    *,
    until_ms: int | None = None,
    group: str | None = None,
    times: int = 0,
) -> Step:
    return Step(
        what=what,
        at_ms=message.stored_ms,
        topic=message.topic,
        broker=message.broker,
        queue=message.queue,
        offset=message.offset,
        until_ms=until_ms,
        group=group,
        times=times,
    )


def _step_elsewhere(message: StoredMessage) -> Step:
    """Return what a copy in a topic of the brokers' own, or of a consumer group's, tells."""
    topic, times = message.topic, message.reconsume_times
    if topic.startswith(RETRY_PREFIX):
        return _step(message, "retried", group=topic.removeprefix(RETRY_PREFIX), times=times)
    if topic.startswith(DEAD_LETTER_PREFIX):
        return _step(message, "dead letter", group=topic.removeprefix(DEAD_LETTER_PREFIX), times=times)
    if topic == HALF_TOPIC:
        return _step(message, "half", times=times)
    if topic == CHECK_EXHAUSTED_TOPIC:
        return _step(message, "given up", times=times)
    home = message.properties.get(property_names.REAL_TOPIC, "")
    group = home.removeprefix(RETRY_PREFIX) if home.startswith(RETRY_PREFIX) else None
    return _step(message, "waits", until_ms=due_ms_of(message), group=group, times=times)


def due_ms_of(message: StoredMessage) -> int | None:
    """Return when a message for a time of its own is due, in ms since 1970; None where its level says it."""
    return number_in(message.properties.get(property_names.TIMER_OUT_MS, ""))


async def _consumptions(groups: Groups, consumers: list[str], message: StoredMessage) -> list[Consumption]:
    """Return what each consumer group has made of a message, by its offset and what its brokers know of it."""
    queue = RemotingQueue(message.broker, message.queue, message.topic)

    async def ask(group: str) -> Consumption:
        at = (await consume_stats(groups, message.broker, group, message.topic)).offsets.get(queue)
        consumer_offset = 0 if at is None else at.consumer_offset
        connection = await connection_of(groups, group, message.broker)
        members = 0 if connection is None else len(connection.connection_set)
        wanted = {} if connection is None else connection.subscription_table
        # From what brokers know for certain to what only follows from the offset: that of a broadcasting consumer group
        # says nothing, and a group without members may have subscribed to anything.
        state: State
        if connection is not None and connection.message_model is MessageModel.BROADCASTING:
            state = "broadcast"
        elif connection is not None and message.topic not in wanted:
            state = "not subscribed"
        elif consumer_offset <= message.offset:
            state = "not consumed"
        elif message.topic in wanted and _leaves_out(wanted[message.topic], message):
            state = "filtered"
        else:
            state = "consumed"
        return Consumption(group=group, state=state, position=consumer_offset, members=members)

    return await each(groups.admin, consumers, ask)


def _leaves_out(subscription: SubscriptionData, message: StoredMessage) -> bool:
    """Tell whether a subscription is for other tags only. False for an SQL condition, which only brokers evaluate."""
    if (subscription.expression_type or "TAG") != "TAG":
        return False
    tags = {tag.strip() for tag in (subscription.sub_string or "*").split("||")}
    return "*" not in tags and message.tags not in tags
