"""Messages that wait at the brokers: for a delay level, for a time of their own, for their producer's decision.

They lie in topics of the brokers' own, which are read like any other. Each says in its properties where it belongs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from broker.client.admin import AdminClient
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.errors import NoRoute
from broker.client.message import MessageQueue
from broker.client.transport.patient_calls import PatientCalls
from broker.operations.asking import Groups, as_json
from broker.operations.messages import due_ms_of
from broker.operations.queue_browsing import StoredMessage, read_queue, stored_message
from broker.remoting import property_names
from broker.remoting.bodies import KeyValueTable
from broker.remoting.codes import RequestCode
from broker.settings.properties_file import parse
from broker.settings.tables import parse_delay_levels
from broker.state.topic_rules import HALF_OPERATIONS_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

LIMIT = 100
"""Messages of each kind that are told, unless the caller says otherwise."""
OPERATIONS_READ_MAX = 10_000
"""At most this many operation messages are read to find out which half messages are decided."""
PROGRESS_GROUP = "CID_RMQ_SYS_TRANS"
"""Its consumer offsets in both topics of transactions tell what is over (broker/transactions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A message that waits, and the topic that it will be delivered to.

    ``due_ms`` is when, by the broker's clock; None for a half message. Of one whose head is damaged (`StoredMessage`)
    neither topic nor time is known. ``level`` is its delay level, if it has one.
    """

    kind: Literal["level", "time", "half"]
    home: str
    due_ms: int | None
    level: int | None = None
    producer_group: str | None = None
    message: StoredMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The number of those that wait, and the first of them: by when they are due, half messages by when they were
    stored.

    ``half`` may contain transactions that were decided in the last moments.
    """

    by_level: dict[int, int]
    timed: int
    half: int
    delayed_messages: tuple[WaitingMessage, ...]
    half_messages: tuple[WaitingMessage, ...]


async def waiting_messages(groups: Groups, *, limit: int = LIMIT) -> Waiting:
    """Return what waits in the broker groups that answer, at most ``limit`` messages of each kind. Raises
    ClientError."""
    found = await groups.ask(lambda name: _at_group(groups, name, limit))
    levels = sorted({level for one in found.values() for level in one.by_level})
    delayed = [message for one in found.values() for message in one.delayed_messages]
    half = [message for one in found.values() for message in one.half_messages]
    delayed.sort(key=lambda waiting: (waiting.due_ms or waiting.message.stored_ms, waiting.message.offset))
    half.sort(key=lambda waiting: waiting.message.stored_ms)
    return Waiting(
        by_level={level: sum(one.by_level.get(level, 0) for one in found.values()) for level in levels},
        timed=sum(one.timed for one in found.values()),
        half=sum(one.half for one in found.values()),
        delayed_messages=tuple(delayed[:limit]),
        half_messages=tuple(half[:limit]),
    )


async def _at_group(groups: Groups, name: str, limit: int) -> Waiting:
    """Return what waits in one broker group, its messages in no order."""
    table, delays_ms = await runtime_table(groups, name), await _delay_levels(groups, name)
    by_level: dict[int, int] = {}
    delayed: list[WaitingMessage] = []
    for level, (begin, end) in delay_queues(table).items():
        if end > begin:
            by_level[level] = end - begin
            # All messages of a level wait equally long, so its queue is in order of their times: the first `limit` of
            # each level are enough for the first `limit` of all, whichever the caller takes.
            queue = MessageQueue(SCHEDULE_TOPIC, name, level - 1)
            delay_ms = delays_ms[level - 1] if level <= len(delays_ms) else None
            async for views in read_queue(groups.admin, queue, begin, min(end, begin + limit)):
                for message in map(stored_message, views):
                    due_ms = None
                    if delay_ms is not None and not message.is_unreadable:
                        due_ms = message.stored_ms + delay_ms
                    delayed.append(
                        WaitingMessage(
                            kind="level", home=_home(message), due_ms=due_ms, level=level, message=message
                        )
                    )
    delayed += await _timed(groups.admin, name, limit)
    half_count, half = await _half(groups.admin, name, limit)
    return Waiting(
        by_level=by_level,
        timed=int(table.get("timerCongestNum", "0")),
        half=half_count,
        delayed_messages=tuple(delayed),
        half_messages=tuple(half),
    )


async def runtime_table(groups: Groups, name: str) -> dict[str, str]:
    """Return what the leader of a broker group tells of itself, by RocketMQ's names. Raises ClientError."""
    return (await groups.body(name, RequestCode.GET_BROKER_RUNTIME_INFO, {}, as_json(KeyValueTable))).table


def delay_queues(table: Mapping[str, str]) -> dict[int, tuple[int, int]]:
    """Return for each delay level the first message that is not delivered, and the end of its queue."""
    found = {}
    for key, text in table.items():
        level = key.removeprefix("scheduleMessageOffset_")
        if level != key and level.isdigit():
            begin, _, end = text.partition(",")
            found[int(level)] = int(begin), int(end)
    return found


async def _delay_levels(groups: Groups, name: str) -> tuple[int, ...]:
    """Return the delay of each level at a broker group, in milliseconds; none where it does not tell."""
    response = await groups.read(name, RequestCode.GET_BROKER_CONFIG, {})
    try:
        entries = parse(bytes(response.body).decode("utf-8", "replace"))
        return next(
            (parse_delay_levels(entry.value) for entry in entries if entry.key == "messageDelayLevel"), ()
        )
    except ValueError:  # of properties, too
        return ()


def _home(message: StoredMessage) -> str:
    """Return the topic that a message will be delivered to."""
    return message.properties.get(property_names.REAL_TOPIC, "")


async def _timed(admin: AdminClient, name: str, limit: int) -> list[WaitingMessage]:
    """Return messages for times of their own that are to come, the newest ones of the queue, which is not in order."""
    queue = MessageQueue(TIMER_TOPIC, name, 0)
    calls = QueueCalls(PatientCalls(admin.core), PROGRESS_GROUP)
    try:
        first, end = await calls.min_offset(queue), await calls.max_offset(queue)
    except NoRoute:
        return []
    # The queue is in the order of sending: more than are wanted are read, as some of them are delivered already.
    now_ms, found = admin.core.runtime.wall_ms(), []
    async for views in read_queue(admin, queue, max(first, end - 4 * limit), end):
        for message in map(stored_message, views):
            due_ms = due_ms_of(message)
            if due_ms is not None and due_ms > now_ms:
                found.append(WaitingMessage(kind="time", home=_home(message), due_ms=due_ms, message=message))
    return found


async def _half(admin: AdminClient, name: str, limit: int) -> tuple[int, list[WaitingMessage]]:
    """Return how many half messages are undecided, and the first of them."""
    calls = QueueCalls(PatientCalls(admin.core), PROGRESS_GROUP)
    halves, operations = MessageQueue(HALF_TOPIC, name, 0), MessageQueue(HALF_OPERATIONS_TOPIC, name, 0)
    begin = max(await calls.min_offset(halves), await calls.committed_offset(halves) or 0)
    end = await calls.max_offset(halves)
    if end <= begin:
        return 0, []
    # A decision is a message in the second topic, whose body lists the offsets of decided halves
    # (`TransactionalMessageBridge.putOpMessage`). The broker's own offset there is behind those that need no look.
    done_begin = max(await calls.min_offset(operations), await calls.committed_offset(operations) or 0)
    done_end = await calls.max_offset(operations)
    decided: set[int] = set()
    async for views in read_queue(
        admin, operations, max(done_begin, done_end - OPERATIONS_READ_MAX), done_end
    ):
        for message in map(stored_message, views):
            body = (message.body or b"").decode("ascii", "replace")
            decided |= {int(text) for text in body.split(",") if text.isdigit()}
    open_offsets = [offset for offset in range(begin, end) if offset not in decided]
    found: list[WaitingMessage] = []
    wanted = set(open_offsets[:limit])
    if wanted:
        async for views in read_queue(admin, halves, min(wanted), max(wanted) + 1):
            found += [
                WaitingMessage(
                    kind="half",
                    home=_home(message),
                    due_ms=None,
                    producer_group=message.properties.get(property_names.PRODUCER_GROUP),
                    message=message,
                )
                for message in map(stored_message, views)
                if message.offset in wanted or message.is_unreadable
            ]
    return len(open_offsets), found
