"""Asks brokers for queues and offsets, and reads ranges of messages exactly.

A consumer goes on past messages that are gone. Here every offset of a range is either returned or reported as a `Loss`,
so that the caller decides. A pull is one attempt at one member of the group. When it fails, the same offset is asked
for again, at another member or a new leader: nothing is lost or read twice, whichever member dies meanwhile.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

from broker.client.admin import AdminClient
from broker.client.consuming.queue_calls import PullResponse, QueueCalls
from broker.client.consuming.subscription import Subscription
from broker.client.errors import (
    BrokerError,
    ClientError,
    ConnectionFailed,
    NameServerUnavailable,
    NoRoute,
)
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.core import ClientCore
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import failed_last
from broker.client.transport.runtime import Runtime
from broker.remoting.codes import ResponseCode
from broker.remoting.route import MASTER_ID
from broker.spark_source.offsets import Loss, Offsets, QueueRange, queue_name
from broker.spark_source.options import Point, SourceOptions
from broker.state.topic_rules import CONSUMER_GROUP_PREFIXES, is_system_topic

SLICE_BYTES: Final = 8 << 20
SLICE_MESSAGES: Final = 16_384
PULL_MESSAGES: Final = 1024
SAMPLE_MESSAGES: Final = 32
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.5

Result = TypeVar("Result")


class ReadError(RuntimeError):
    """The brokers refused what was asked for, or did not give it within the time limit."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of every queue: the offset of the first kept message, and the one after the last."""

    earliest: Offsets
    latest: Offsets


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a range, from its start up to ``next_offset``: its messages, and those that are gone as losses."""

    messages: list[MessageView]
    next_offset: int
    losses: list[Loss]


class TopicReader:
    """Reads the topics that the options name, inside ``async with TopicReader(options) as reader``.

    Every call is repeated for up to the options' time limit.
    """

    def __init__(self, options: SourceOptions, runtime: Runtime | None = None) -> None:
        self._options = options
        security = options.security
        self._connections = ConnectionOptions(
            options.name_servers, runtime, security.tls_context(), security.credentials()
        )
        self._core = ClientCore(self._connections)
        self._runtime = self._core.runtime
        self._calls = QueueCalls(PatientCalls(self._core, options.timeout_s), options.group)

    async def __aenter__(self) -> Self:
        await self._core.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._core.__aexit__(None, None, None)

    # Queues and offsets --------------------------------------------------------------------------------------------

    async def queues(self) -> list[MessageQueue]:
        """Return the readable queues of the topics that the options name, sorted. Raises ReadError."""
        topics: Iterable[str] = self._options.topics
        if self._options.pattern is not None:
            topics = await self._matching(self._options.pattern)
        found: list[MessageQueue] = []
        for topic in topics:
            found += (await self._patiently(partial(self._core.routes.refresh, topic))).readable
        return sorted(found)

    async def _matching(self, pattern: str) -> list[str]:
        credentials = self._connections.credentials
        async with AdminClient(
            self._options.name_servers, runtime=self._runtime, credentials=credentials
        ) as admin:
            names = await self._patiently(admin.topics)
            info = await self._patiently(admin.cluster_info)
        own = info.broker_table.keys() | info.cluster_table.keys()
        return [
            name
            for name in names
            if re.fullmatch(pattern, name)
            and not name.startswith(CONSUMER_GROUP_PREFIXES)
            and not is_system_topic(name, own)
        ]

    async def ends(self, queues: Sequence[MessageQueue]) -> Ends:
        """Ask for the ends of all queues at the same time, and return them. Raises ReadError."""
        earliest = await self._ask_all({queue: Point("earliest") for queue in queues})
        return Ends(earliest, await self._ask_all({queue: Point("latest") for queue in queues}))

    async def resolve(self, points: Mapping[MessageQueue, Point], ends: Ends) -> Offsets:
        """Return the offsets that the points stand for. Raises ReadError."""
        times = {queue: point for queue, point in points.items() if point.kind == "time"}
        known = {"earliest": ends.earliest, "latest": ends.latest, "time": await self._ask_all(times)}
        return {
            queue: known[point.kind][queue] if point.kind in known else point.value
            for queue, point in points.items()
        }

    async def commit(self, offsets: Offsets) -> list[str]:
        """Store the consumer group's offsets; returns why some are not stored, a line each."""
        failures = await self._calls.commit_all(list(offsets.items()))
        return [f"{queue.topic}/{queue_name(queue)}: {error}" for queue, error in failures]

    async def _ask_all(self, points: Mapping[MessageQueue, Point]) -> Offsets:
        found = dict.fromkeys(points, 0)  # in the order of the question, whichever response comes first

        async def ask(queue: MessageQueue, point: Point) -> None:
            match point.kind:
                case "earliest":
                    found[queue] = await self._patiently(lambda: self._calls.min_offset(queue))
                case "latest":
                    found[queue] = await self._patiently(lambda: self._calls.max_offset(queue))
                case _:
                    found[queue] = await self._patiently(
                        lambda: self._calls.search_offset(queue, point.value)
                    )

        async with self._runtime.task_group() as tasks:
            for queue, point in points.items():
                tasks.start_soon(ask, queue, point)
        return found

    async def _patiently(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Make a call, again while that may help and there is time, and return its result. Raises ReadError."""
        attempts = _Attempts(self._runtime, self._options.timeout_s)
        while True:
            try:
                return await call()
            except NoRoute as error:
                # Routes outlive leaders, so a topic without a route is a wrong name rather than a failover.
                raise ReadError(str(error)) from error
            except (ConnectionFailed, BrokerError, NameServerUnavailable) as error:
                await attempts.failed(error)

    # Messages ------------------------------------------------------------------------------------------------------

    async def bytes_per_offset(self, queue: MessageQueue, at: int) -> float:
        """Return how many bytes an offset takes on average, by the messages that come next from ``at`` on; 0 if none
        came. Raises ReadError."""
        everything = Subscription.parse(queue.topic, "*", self._runtime.wall_ms())
        response = await self._patiently(
            lambda: self._calls.pull(queue, at, everything, max_messages=SAMPLE_MESSAGES, suspend_s=0)
        )
        return response.size / len(response.messages) if response.messages else 0.0

    async def read_slice(self, wanted: QueueRange, tags: frozenset[str] = frozenset()) -> Slice:
        """Return the first messages of a range that is not empty, some MiB at most; with ``tags`` only those that have
        one of them. Raises ReadError."""
        queue, at = wanted.queue, wanted.start
        messages: list[MessageView] = []
        losses: list[Loss] = []
        size = 0
        attempts = _Attempts(self._runtime, self._options.timeout_s)
        subscription = Subscription.parse(queue.topic, " || ".join(sorted(tags)), self._runtime.wall_ms())
        broker_id = MASTER_ID
        avoid: list[str] = []
        while at < wanted.stop and size < SLICE_BYTES and len(messages) < SLICE_MESSAGES:
            try:
                response = await self._calls.pull(
                    queue,
                    at,
                    subscription,
                    max_messages=min(PULL_MESSAGES, wanted.stop - at),
                    suspend_s=0,
                    broker_id=broker_id,
                    avoid=avoid,
                )
                if response.next_offset <= at and (loss := await self._end_before(queue, at, wanted.stop)):
                    losses.append(loss)
                    at = wanted.stop
                    break
            except (ConnectionFailed, BrokerError, NameServerUnavailable, NoRoute) as error:
                if isinstance(error, ConnectionFailed | BrokerError):
                    avoid = failed_last(avoid, error.address)
                broker_id = MASTER_ID
                await attempts.failed(error)
                await self._core.routes.refresh_quietly(queue.topic)
                continue
            if response.next_offset <= at:  # a member that lags behind; its leader says that there is more
                broker_id = MASTER_ID
                await attempts.failed(ReadError(f"{queue}: nothing at offset {at}"))
                continue
            broker_id, avoid = response.suggested_broker_id, []
            attempts = _Attempts(self._runtime, self._options.timeout_s)
            size += response.size
            part = QueueRange(queue, at, wanted.stop)
            at = _take(response, part, messages, losses, is_filtered=bool(tags))
        return Slice(messages, at, losses)

    async def _end_before(self, queue: MessageQueue, at: int, stop: int) -> Loss | None:
        """Ask the leader for the queue's end; returns the loss of all messages from ``at`` on if it ends there or
        before."""
        end = await self._calls.max_offset(queue)
        return Loss(queue, at, stop, f"the queue ends at {end}") if end <= at else None


def _take(
    response: PullResponse,
    wanted: QueueRange,
    messages: list[MessageView],
    losses: list[Loss],
    *,
    is_filtered: bool,
) -> int:
    """Add a response's messages of the range, and those that it leaves out as losses; returns the next offset.

    ``is_filtered``: messages that are left out within the queue have another tag, and are not lost. Raises ReadError
    for messages that are not in the order of their offsets.
    """
    at = wanted.start
    is_gone = response.code == ResponseCode.PULL_OFFSET_MOVED
    head = "the queue begins at" if is_gone else "found next:"
    is_lost = is_gone or not is_filtered
    for message in response.messages:
        offset = message.queue_offset
        if offset >= wanted.stop:
            break
        if offset > at and is_lost:
            losses.append(Loss(wanted.queue, at, offset, f"{head} {offset}"))
        elif offset < at:
            raise ReadError(f"{wanted.queue}: message {offset} came where {at} was due")
        messages.append(message)
        at = offset + 1
    # The broker may have gone on over offsets behind the last message: filtered, or deleted since.
    following = min(max(response.next_offset, at), wanted.stop)
    if following > at and is_lost:
        losses.append(Loss(wanted.queue, at, following, f"{head} {response.next_offset}"))
    return following


class _Attempts:
    """Makes pauses between attempts, each longer than the one before, until ``timeout_s`` is over."""

    def __init__(self, runtime: Runtime, timeout_s: float) -> None:
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._deadline_ns = runtime.now_ns() + int(timeout_s * 1e9)
        self._pauses = Pauses(runtime.random, _PAUSE_FIRST_S, _PAUSE_MAX_S)

    async def failed(self, error: Exception) -> None:
        """Wait before the next attempt. Raises ReadError when a retry cannot help or comes too late."""
        if isinstance(error, ClientError) and not error.retry_may_help:
            raise ReadError(str(error)) from error
        pause_s = self._pauses.next_s()
        if self._runtime.now_ns() + int(pause_s * 1e9) >= self._deadline_ns:
            raise ReadError(f"no response within {self._timeout_s:g} s; last: {error}") from error
        await self._runtime.sleep(pause_s)
