"""The pull consumer: the application says which queues it reads and from which offsets.

It is for readers that keep offsets themselves, replay a topic, or look at queues. Fetching ahead, bounds and order are
those of `Consumer` (intake.py).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Mapping, Sequence
from typing import get_args

from broker.client.checks import LONG_MAX, check_kind, check_seconds, check_whole
from broker.client.consuming.intake import Batch, FetchLimits, Intake, QueueReader
from broker.client.consuming.lookups import FOREVER_MS, FOUND_MAX, UNIQUE_KEY_COUNT, MessageLookups
from broker.client.consuming.queue_calls import QueueCalls, SearchBoundary
from broker.client.consuming.subscription import SqlFilter, Subscription, subscriptions
from broker.client.errors import UsageError
from broker.client.message import MessageQueue, MessageView
from broker.client.producing.outgoing import check_name
from broker.client.transport.core import ClientCore, CoreBlock
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter


class PullConsumer(CoreBlock):
    """Reads chosen queues, without members that share them.

        async with PullConsumer("127.0.0.1:9876", group="g") as consumer:
            consumer.assign(dict.fromkeys(await consumer.queues("topic"), 0))
            messages = await consumer.poll()

    - ``group``: the consumer group whose stored offsets `committed` and `commit` are about.
    - ``topics``: tags (``a || b``) or an `SqlFilter` for topics of which not every message is wanted.
    - ``limits``: bounds reading ahead. ``trace``: records pulls, questions and commits (docs/trace-format.md).
    - ``name_servers``, ``runtime``, ``tls``, ``credentials``: as for `Producer`.

    Raises MessageRejected for names that no broker takes, and UsageError for options that cannot be.

    Questions and commits raise BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable. Every method but
    `positions` raises ClientClosed outside the block.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        topics: Mapping[str, str | SqlFilter] | None = None,
        limits: FetchLimits | None = None,
        trace: TraceWriter | None = None,
        runtime: Runtime | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        check_name("group", group)
        check_kind(Mapping | None, topics=topics)
        check_kind(FetchLimits | None, limits=limits)
        self.group = group
        self.core = ClientCore(ConnectionOptions(name_servers, runtime, tls, credentials, trace))
        self._runtime = self.core.runtime
        self._version = self._runtime.wall_ms()
        self._wanted = subscriptions(topics or {}, self._version)
        self._calls = QueueCalls(PatientCalls(self.core), group)
        self._lookups = MessageLookups(self._calls.patient)
        self._intake = Intake(self.core, self._calls, limits or FetchLimits())
        self._intake.on_reset = self._begin_anew
        self._rest: tuple[QueueReader, Batch] | None = None
        self._reading = False

    # Reading -------------------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted. Raises NoRoute, NameServerUnavailable, BrokerError."""
        self.core.check_open()
        return list((await self.core.routes.get(topic)).readable)

    def assign(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read exactly these queues, each from its offset; messages of others are forgotten.

        Raises UsageError as `seek`.
        """
        self.core.check_open()
        for queue, offset in offsets.items():
            _check_place(queue, offset)
        for reader in self._intake.readers.values():
            reader.drop()
        self._intake.readers.clear()
        for queue, offset in offsets.items():
            self.seek(queue, offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading this queue from that offset; it is assigned if it was not.

        Raises UsageError for a negative offset.
        """
        self.core.check_open()
        _check_place(queue, offset)
        old = self._intake.readers.get(queue)
        if old is not None:
            old.drop()

        async def find_start() -> int:
            return offset

        subscription = self._wanted.get(queue.topic) or Subscription.parse(queue.topic, "*", self._version)
        reader = QueueReader(self._intake, queue, subscription, find_start)
        self._intake.readers[queue] = reader
        self.core.tasks.start_soon(reader.run)

    def _begin_anew(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue from the offset to which an administrator has sent the consumer group.

        Nothing that was fetched before is handed out or stored.
        """
        reader = self._intake.readers.get(queue)
        if reader is not None:
            reader.abandon()
            self.seek(queue, offset)

    async def poll(self, max_messages: int = 256, timeout_s: float = 1.0) -> list[MessageView]:
        """Return up to so many messages of one of the assigned queues; none if none comes within ``timeout_s``.

        The messages count as done with: `positions` has the offset after them. Raises UsageError for less than one
        message, a negative time, and while another task polls. It raises nothing because of brokers that are away.
        """
        self.core.check_open()
        check_whole(1, max_messages=max_messages)
        check_seconds(0, math.inf, timeout_s=timeout_s)
        if self._reading:
            raise UsageError("two tasks are polling one consumer")
        self._reading = True
        try:
            # The checkpoint comes before anything is taken, so that a cancellation loses nothing.
            await self._runtime.sleep(0)
            with self._runtime.move_on_after(timeout_s):
                while True:
                    taken = self._take()
                    if taken is not None:
                        return self._hand_out(*taken, max_messages)
                    await self._intake.wait_arrival()
            return []
        finally:
            self._reading = False

    def positions(self) -> dict[MessageQueue, int]:
        """Return the offset at which each assigned queue goes on; queues that were not reached yet are left out."""
        return self._intake.positions()

    def _take(self) -> tuple[QueueReader, Batch] | None:
        rest, self._rest = self._rest, None
        if rest is not None and not rest[0].dropped:
            return rest
        return self._intake.next_nowait()

    def _hand_out(self, reader: QueueReader, batch: Batch, max_messages: int) -> list[MessageView]:
        messages = batch.messages
        if len(messages) <= max_messages:
            reader.finished_batch(batch)
            return messages
        batch.messages = messages[max_messages:]
        self._rest = (reader, batch)
        reader.finished(messages[max_messages - 1])
        return messages[:max_messages]

    # Offsets -------------------------------------------------------------------------------------------------------

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the queue's last message."""
        self.core.check_open()
        return await self._calls.max_offset(queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that the queue still has."""
        self.core.check_open()
        return await self._calls.min_offset(queue)

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, boundary: SearchBoundary = "lower"
    ) -> int:
        """Return the offset of the first message stored at or after a time, the queue's end if there is none.

        With ``boundary="upper"`` it is the last message stored at or before that time, or else the queue's first one.
        The time is in milliseconds since 1970. Raises UsageError for a time, or a ``boundary``, that cannot be.
        """
        self.core.check_open()
        check_whole(0, LONG_MAX, timestamp_ms=timestamp_ms)
        if boundary not in get_args(SearchBoundary):
            raise UsageError(f'boundary is {boundary!r}, and must be "lower" or "upper"')
        return await self._calls.search_offset(queue, timestamp_ms, boundary)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """Return the time at which the queue's first message was stored, in ms since 1970; None if it has none."""
        self.core.check_open()
        return await self._calls.earliest_store_time(queue)

    # Single messages -----------------------------------------------------------------------------------------------

    async def view_message(self, topic: str, offset_message_id: str) -> MessageView | None:
        """Return the message with the id that its broker gave (`SendResult.offset_message_id`), None if there is none.

        Raises UsageError for a text that is no such id.
        """
        self.core.check_open()
        check_kind(str, offset_message_id=offset_message_id)
        return await self._lookups.view(topic, offset_message_id)

    async def messages_with_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        max_messages: int = FOUND_MAX,
    ) -> list[MessageView]:
        """Return the messages with this key that were stored in that time, of each broker the newest first.

        Times are in milliseconds since 1970 and compared to the second. ``max_messages`` is for each broker, which
        gives 64 at most.
        """
        self.core.check_open()
        check_whole(0, LONG_MAX, begin_ms=begin_ms, end_ms=end_ms)
        check_whole(1, max_messages=max_messages)
        return await self._lookups.query(topic, key, begin_ms, end_ms, max_messages)

    async def messages_with_id(self, topic: str, message_id: str) -> list[MessageView]:
        """Return the message with the id that its sender gave (`SendResult.message_id`), and its copies in that
        topic."""
        self.core.check_open()
        return await self._lookups.query(topic, message_id, 0, FOREVER_MS, UNIQUE_KEY_COUNT, unique=True)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the consumer group's stored offset; if it has none None, or 0 of a queue that is young, as `Consumer`
        says."""
        self.core.check_open()
        return await self._calls.committed_offset(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store offsets for the consumer group: those given, or else `positions`.

        Raises the first error, when all have been tried. Nothing is stored of queues that an administrator has reset
        since they were read.
        """
        self.core.check_open()
        chosen = self.positions() if offsets is None else offsets
        for queue, offset in chosen.items():
            _check_place(queue, offset)
        readers = {queue: self._intake.readers.get(queue) for queue in chosen}

        def is_outdated(queue: MessageQueue) -> bool:
            reader = readers[queue]
            return reader is not None and reader.outdated

        failures = await self._calls.commit_all(sorted(chosen.items()), is_outdated)
        if failures:
            raise failures[0][1]


def _check_place(queue: MessageQueue, offset: int) -> None:
    check_kind(MessageQueue, queue=queue)
    check_whole(0, LONG_MAX, offset=offset)
