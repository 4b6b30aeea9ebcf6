"""Dead letters: the messages that a consumer group has sent back too often, listed, sent again, deleted.

A dead letter that is sent again goes to the consumer group's retry topic, not to the topic that it came from: other
consumer groups have consumed it already. It begins with no retries behind it.

How far a queue of dead letters was sent again is kept at the brokers, as the consumer offset of a consumer group of its
own (`redriver_of`) in it. So who goes on after an interruption goes on behind the last message that is known to be
stored; only the one that was under way may come twice.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.client.admin import AdminClient
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.errors import ClientError, DamagedMessage, MessageRejected, NoRoute, UsageError
from broker.client.message import Message, MessageQueue, MessageView
from broker.client.producing.producer import Producer
from broker.client.transport.patient_calls import PatientCalls
from broker.operations.asking import Groups, each
from broker.operations.errors import NotThere
from broker.operations.own_groups import REDRIVER_PREFIX
from broker.operations.queue_browsing import is_unreadable, queue_calls, read_queue
from broker.operations.topics import delete_topic, topic_queues
from broker.remoting import property_names
from broker.state.topic_rules import DEAD_LETTER_PREFIX, GROUP_LENGTH_MAX, RETRY_PREFIX

RATE_PER_S = 100.0
"""Messages sent again in a second, unless the caller says otherwise: who has failed once is not flooded."""
MARK_EVERY_S = 1.0
"""Seconds between two times at which the progress is stored."""

_LEFT_OUT = frozenset(
    {
        *(property_names.TAGS, property_names.KEYS, property_names.UNIQ_KEY, property_names.WAIT),
        *(property_names.MESSAGE_REGION, property_names.TRACE_ON, property_names.CLUSTER, "INSTANCE_ID"),
        *(property_names.REAL_TOPIC, property_names.REAL_QUEUE_ID, "MIN_OFFSET", "MAX_OFFSET"),
        *("CONSUME_START_TIME", "RECONSUME_TIME", "MAX_RECONSUME_TIMES"),
        *(property_names.RETRY_TOPIC, property_names.ORIGIN_MESSAGE_ID),
        *(property_names.DLQ_ORIGIN_TOPIC, property_names.DLQ_ORIGIN_MESSAGE_ID),
        *(property_names.HALF_MESSAGE, property_names.PRODUCER_GROUP),
        *(property_names.DELAY, property_names.TIMER_DELAY_SEC, property_names.TIMER_DELAY_MS),
        *(property_names.TIMER_DELIVER_MS, property_names.TIMER_OUT_MS, "__STARTDELIVERTIME"),
    }
)
"""Properties that brokers and clients made on a dead letter's way; what the application wrote stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """The dead letters of one consumer group: ``kept`` are there, ``waiting`` of them were not sent again."""

    group: str
    kept: int
    waiting: int
    newest_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """The outcome of sending again: ``sent`` messages are stored in the retry topic, ``left`` still wait.

    ``passed_over`` could not be sent, as their bodies are damaged or empty; they are still kept.
    """

    sent: int
    left: int
    passed_over: int


def redriver_of(group: str) -> str:
    """Return the consumer group whose offset in the queues of dead letters tells what was sent again.

    Raises UsageError.
    """
    name = REDRIVER_PREFIX + group
    if len(name) > GROUP_LENGTH_MAX:
        raise UsageError(
            f"the consumer group's name is too long to send its dead letters again: {len(group)} characters"
        )
    return name


async def list_dead_letters(groups: Groups) -> list[DeadLetters]:
    """Return the consumer groups that have dead letters, sorted. Raises ClientError."""
    topics = [topic for topic in await groups.admin.topics() if topic.startswith(DEAD_LETTER_PREFIX)]

    async def count(topic: str) -> DeadLetters | None:
        try:
            return await count_dead_letters(groups, topic.removeprefix(DEAD_LETTER_PREFIX))
        except ClientError:
            if not groups.names or not groups.missing:
                raise
            return None  # only broker groups that are missing have it

    return [found for found in await each(groups.admin, topics, count) if found is not None and found.kept]


async def count_dead_letters(groups: Groups, group: str) -> DeadLetters:
    """Return how many dead letters a consumer group has; none if it never had one. Raises ClientError."""
    try:
        return await _dead_letters(groups, group)
    except NoRoute:
        if groups.missing:
            raise
        return DeadLetters(group=group, kept=0, waiting=0, newest_ms=None)


async def require_dead_letters(groups: Groups, group: str) -> DeadLetters:
    """Return how many dead letters a consumer group has. Raises NotThere for one without any, ClientError."""
    found = await count_dead_letters(groups, group)
    if not found.kept:
        raise NotThere(f"consumer group {group!r} has no dead letters{groups.in_doubt()}")
    return found


async def redrive(
    groups: Groups,
    group: str,
    *,
    rate_per_s: float = RATE_PER_S,
    limit: int | None = None,
    again: bool = False,
    done: Callable[[int], None] = lambda sent: None,
) -> Redriven:
    """Send a consumer group's dead letters to it again, those that were not yet; with ``again`` all that are kept.

    Those of broker groups that are missing stay where they are, and are not counted. At most ``limit`` are sent, and
    none that came after the call. ``done`` is called with their number now and then. When this raises, what was sent is
    stored, and the next call goes on behind it. Raises NotThere for a consumer group without dead letters, UsageError,
    ClientError.
    """
    if rate_per_s <= 0:
        raise UsageError(f"a rate of {rate_per_s:g} messages a second sends nothing")
    if limit is not None and limit < 1:
        raise UsageError(f"limit {limit}: at least 1")
    await require_dead_letters(groups, group)
    admin = groups.admin
    topic, runtime = DEAD_LETTER_PREFIX + group, admin.core.runtime
    reading = queue_calls(admin)
    marks = QueueCalls(PatientCalls(admin.core), redriver_of(group))
    queues = [queue for queue in (await admin.route(topic)).readable if queue.broker_name in groups.names]
    sent, left, passed_over = 0, 0, 0
    begun_ns = runtime.now_ns()
    async with producer_of(admin, redriver_of(group)) as producer:
        for queue in queues:
            first, end = await reading.min_offset(queue), await reading.max_offset(queue)
            mark = None if again else await marks.committed_offset(queue)
            begin = at = max(first, mark or 0)
            marked_ns = runtime.now_ns()
            try:
                if limit is None or sent < limit:
                    async for views in read_queue(admin, queue, begin, end):
                        for view in views:
                            if sent == limit:
                                break
                            # From the beginning on, so that what a slow send took is made up for.
                            due_ns = begun_ns + int(sent / rate_per_s * 1e9)
                            await runtime.sleep(max(0, due_ns - runtime.now_ns()) / 1e9)
                            try:
                                await producer.send(_again(view, group))
                                sent += 1
                            except (DamagedMessage, MessageRejected):
                                passed_over += 1
                            if not is_unreadable(view):
                                at = view.queue_offset + 1
                            if runtime.now_ns() - marked_ns >= MARK_EVERY_S * 1e9:
                                await marks.commit(queue, at)
                                marked_ns = runtime.now_ns()
                                done(sent)
                        if sent == limit:
                            break
                    # The last offsets may have no message to read: nothing is left then.
                    else:
                        at = max(at, end)
            finally:
                if at > begin:
                    # However this ends: what is stored and not marked the next call would send once more.
                    with runtime.move_on_after(MARK_EVERY_S, shield=True):
                        await marks.commit(queue, at)
            left += end - at
    done(sent)
    return Redriven(sent=sent, left=left, passed_over=passed_over)


async def purge(groups: Groups, group: str) -> int:
    """Delete all dead letters of a consumer group; returns how many there were. The next one makes the topic anew.

    Broker groups that are missing keep theirs. Raises NotThere for a consumer group without dead letters, ClientError.
    """
    found = await require_dead_letters(groups, group)
    await delete_topic(groups, DEAD_LETTER_PREFIX + group)
    return found.kept


def producer_of(admin: AdminClient, group: str) -> Producer:
    """Return a producer on the same way to the same cluster as the client, to be entered."""
    options = admin.options
    return Producer(
        options.name_servers,
        group=group,
        runtime=admin.core.runtime,
        tls=options.tls,
        credentials=options.credentials,
    )


async def _dead_letters(groups: Groups, group: str) -> DeadLetters:
    found = await topic_queues(groups, DEAD_LETTER_PREFIX + group)
    kept = [status for status in found.queues if status.max_offset > status.min_offset]
    redriver = REDRIVER_PREFIX + group
    marks = QueueCalls(PatientCalls(groups.admin.core), redriver)

    async def mark(queue: MessageQueue) -> int:
        # With a name that is too long for it a consumer group has never been sent any again (`redriver_of`).
        return 0 if len(redriver) > GROUP_LENGTH_MAX else await marks.committed_offset(queue) or 0

    sent = await each(groups.admin, [status.queue for status in kept], mark)
    return DeadLetters(
        group=group,
        kept=sum(status.max_offset - status.min_offset for status in kept),
        waiting=sum(
            max(0, status.max_offset - max(status.min_offset, at))
            for status, at in zip(kept, sent, strict=True)
        ),
        newest_ms=max((status.last_update_ms for status in kept), default=None),
    )


def _again(view: MessageView, group: str) -> Message:
    """Return the message that a dead letter is sent again as: to its consumer group alone, its first topic in a
    property."""
    properties = {name: value for name, value in view.properties.items() if name not in _LEFT_OUT}
    kept = view.properties
    origin = kept.get(property_names.DLQ_ORIGIN_TOPIC) or kept.get(property_names.RETRY_TOPIC)
    if origin:
        properties[property_names.RETRY_TOPIC] = origin
    properties[property_names.ORIGIN_MESSAGE_ID] = (
        kept.get(property_names.DLQ_ORIGIN_MESSAGE_ID)
        or kept.get(property_names.ORIGIN_MESSAGE_ID)
        or view.message_id
    )
    return Message(
        RETRY_PREFIX + group,
        view.body,
        tags=view.tags,
        keys=view.keys,
        properties=properties,
        flag=view.flag,
    )
