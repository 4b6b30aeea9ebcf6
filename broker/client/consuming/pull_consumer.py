"""The plain consumer: the application says which queues it reads and from where; there is no group management.

For readers that keep positions themselves, replay a topic, or look at queues. Fetching ahead, bounds and order are
those of the group consumer (intake.py).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType

from broker.client.consuming.intake import Batch, FetchLimits, Intake, QueueReader
from broker.client.consuming.lookups import FOREVER_MS, FOUND_MAX, MessageLookups
from broker.client.consuming.queue_calls import QueueCalls, SearchBoundary
from broker.client.consuming.subscription import SqlFilter, Subscription
from broker.client.errors import UsageError
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.core import ClientCore
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Runtime
from broker.trace import TraceWriter


class PullConsumer:
    """Reads chosen queues.

    ``async with PullConsumer("127.0.0.1:9876", group="g") as consumer:``, then `assign`, `poll`, and what else is
    needed. ``group`` names the stored positions that `committed` and `commit` are about. ``topics`` gives the
    subscriptions of topics of which not every message is wanted.
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
        self.group = group
        self.core = ClientCore(ConnectionOptions(name_servers, runtime, tls, credentials, trace))
        self._runtime = self.core.runtime
        self._version = self._runtime.wall_ms()
        self._wanted = dict(topics or {})
        self._calls = QueueCalls(PatientCalls(self.core), group)
        self._lookups = MessageLookups(self._calls.patient)
        self._intake = Intake(self.core, self._calls, limits or FetchLimits(), self._begin_anew)
        self._rest: tuple[QueueReader, Batch] | None = None
        self._reading = False

    async def __aenter__(self) -> PullConsumer:
        await self.core.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self.core.__aexit__(kind, error, traceback)

    # Reading -------------------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted. Raises NoRoute, NameServerUnavailable."""
        self.core.check_open()
        return list((await self.core.routes.get(topic)).readable)

    def assign(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read exactly these queues, each from its offset; what was fetched of others is forgotten."""
        self.core.check_open()
        for reader in self._intake.readers.values():
            reader.drop()
        self._intake.readers.clear()
        for queue, offset in offsets.items():
            self.seek(queue, offset)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on reading this queue from that offset; assigns it if it was not."""
        self.core.check_open()
        if offset < 0:
            raise UsageError(f"offset {offset} of {queue}: offsets begin at 0")
        old = self._intake.readers.get(queue)
        if old is not None:
            old.drop()

        async def find_start() -> int:
            return offset

        wanted = self._wanted.get(queue.topic, "*")
        subscription = Subscription.parse(queue.topic, wanted, self._version)
        reader = QueueReader(self._intake, queue, subscription, find_start)
        self._intake.readers[queue] = reader
        self.core.tasks.start_soon(reader.run)

    def _begin_anew(self, queue: MessageQueue, offset: int) -> None:
        """An administrator has sent the group there: nothing of what was fetched before is handed out or stored."""
        reader = self._intake.readers.get(queue)
        if reader is not None:
            reader.abandon()
            self.seek(queue, offset)

    async def poll(self, max_messages: int = 256, timeout_s: float = 1.0) -> list[MessageView]:
        """Up to that many messages of one of the assigned queues; an empty list when none comes in time.

        What `poll` returned is passed by: `positions` are the offsets after it.
        """
        self.core.check_open()
        if max_messages < 1:
            raise UsageError(f"poll of {max_messages} messages: at least 1")
        if self._reading:
            raise UsageError("two tasks are polling one consumer")
        self._reading = True
        try:
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
        """For each assigned queue, where it goes on; queues that were not reached yet are left out."""
        readers = self._intake.readers
        return {queue: at for queue in sorted(readers) if (at := readers[queue].position) is not None}

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
        """One past the queue's last message.

        This and the other calls raise BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
        """
        self.core.check_open()
        return await self._calls.max_offset(queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The first message that the queue still has."""
        self.core.check_open()
        return await self._calls.min_offset(queue)

    async def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, boundary: SearchBoundary = "lower"
    ) -> int:
        """``lower``: the first message stored at or after that time, the queue's end without one; ``upper``: the last
        one stored at or before it, the queue's first without one."""
        self.core.check_open()
        return await self._calls.search_offset(queue, timestamp_ms, boundary)

    async def earliest_store_time(self, queue: MessageQueue) -> int | None:
        """When the first message that the queue still has was stored (ms since 1970); None when it has none."""
        self.core.check_open()
        return await self._calls.earliest_store_time(queue)

    # Single messages -----------------------------------------------------------------------------------------------

    async def view_message(self, topic: str, offset_message_id: str) -> MessageView | None:
        """The message with the id that its broker gave (`SendResult.offset_message_id`); None if there is none."""
        self.core.check_open()
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
        """The newest messages with one of their sender's keys, stored in that time (ms since 1970), newest first."""
        self.core.check_open()
        return await self._lookups.by_key(
            topic, key, begin_ms=begin_ms, end_ms=end_ms, max_messages=max_messages
        )

    async def messages_with_id(self, topic: str, message_id: str) -> list[MessageView]:
        """The message with the id that its sender gave (`SendResult.message_id`), and its copies in that topic."""
        self.core.check_open()
        return await self._lookups.by_unique_key(topic, message_id)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored position, None when it has none."""
        self.core.check_open()
        return await self._calls.committed_offset(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store positions for the group: those given, or `positions`."""
        self.core.check_open()
        chosen = self.positions() if offsets is None else offsets
        readers = {queue: self._intake.readers.get(queue) for queue in chosen}

        def is_outdated(queue: MessageQueue) -> bool:
            reader = readers[queue]
            return reader is not None and reader.outdated

        failures = await self._calls.commit_all(sorted(chosen.items()), is_outdated)
        if failures:
            raise failures[0][1]
