"""The consumer: members of a consumer group share a topic's queues, and each message goes to one of them.

The members share out the queues, not the brokers. Each member announces itself to every broker, asks one of them for
the list of members, and computes its share (rebalance.py, strategies.py).

Delivery is at least once. A message is done with when the application asks for the next one. The offsets after these
messages are stored at the brokers every 5 s, when a queue is lost, on `commit` and at the end. So after a crash or a
change of members the last messages may come again, and none is skipped. Messages of one queue come in order.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Literal

from broker.client.consuming.consumer_offsets import StoredOffsets
from broker.client.consuming.intake import Batch, FetchLimits, Intake, QueueReader
from broker.client.consuming.offset_file import LocalOffsets
from broker.client.consuming.order_locks import LockTimes, OrderLocks
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.consuming.rebalance import Assignment
from broker.client.consuming.send_back import send_back
from broker.client.consuming.strategies import Strategy, allocate_averagely
from broker.client.consuming.subscription import SqlFilter, Subscription
from broker.client.errors import UsageError
from broker.client.message import MessageQueue, MessageView
from broker.client.producing.outgoing import check_name
from broker.client.producing.requests import Replies
from broker.client.transport.connection import Connection
from broker.client.transport.core import CLOSE_TIMEOUT_S, ClientCore
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Runtime
from broker.remoting.admin_bodies import ConsumerRunningInfo, QueueInHand, QueueOffsets
from broker.remoting.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from broker.remoting.bodies import MessageQueue as RemotingQueue
from broker.remoting.codes import RequestCode, ResponseCode, Version
from broker.remoting.command import OWN_VERSION, RemotingCommand
from broker.remoting.errors import RemotingError
from broker.state.topic_rules import RETRY_PREFIX
from broker.trace import TraceWriter

logger = logging.getLogger("trivet.client")

COMMIT_INTERVAL_S = 5.0
"""Time between storings of the consumer offsets, in seconds."""

Start = Literal["first", "last"] | int | datetime.datetime
"""The place to begin at in a queue without a stored offset: its first kept message, its end, or a time (ms since
1970)."""

_CONSUME_FROM = {
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


def _wanted_by_topic(
    topics: Mapping[str, str | SqlFilter] | Sequence[str] | str,
) -> dict[str, str | SqlFilter]:
    """Return what is wanted of each topic. Raises UsageError, MessageRejected."""
    if isinstance(topics, str):
        topics = [topics]
    wanted: dict[str, str | SqlFilter] = {}
    wanted.update(topics if isinstance(topics, Mapping) else dict.fromkeys(topics, "*"))
    if not wanted:
        raise UsageError("a consumer needs at least one topic")
    for topic in wanted:
        check_name("topic", topic)
    return wanted


def _check_options(
    start: Start, *, broadcast: bool, orderly: bool, max_retries: int | None, offsets: LocalOffsets | None
) -> None:
    """Raise UsageError for options that do not fit together."""
    if not (start in _CONSUME_FROM or isinstance(start, datetime.datetime) or type(start) is int):
        raise UsageError(f'start={start!r}: "first", "last", a datetime, or milliseconds since 1970')
    if orderly and broadcast:
        raise UsageError("a broadcast consumer shares its queues with everybody: there is nothing to lock")
    if max_retries is not None and (broadcast or max_retries < 0):
        raise UsageError(
            f"max_retries={max_retries}: 0 or more, and none with broadcast, as nothing is sent back"
        )
    if offsets is not None and not broadcast:
        raise UsageError(
            "brokers keep the offsets of a consumer group; only a broadcast consumer has its own"
        )


class Consumer:
    """A member of a consumer group.

        async with Consumer("127.0.0.1:9876", group="g", topics={"topic": "a || b"}) as consumer:
            async for message in consumer:
                print(message.body)

    - ``name_servers``: addresses ``host:port``, a list or one text with ``;`` or ``,`` between them.
    - ``group``: the consumer group, whose members share the queues.
    - ``topics``: maps each topic to the tags wanted, ``a || b`` or ``*`` for all, or to an `SqlFilter`. A list, or one
      name, means all messages. All members of a consumer group must name the same.
    - ``start``: the place to begin at in queues of which the consumer group has no stored offset: ``"first"``,
      ``"last"``, a `datetime`, or milliseconds since 1970.
    - ``strategy``: computes this member's share of the queues (strategies.py); the same one for all members.
    - ``broadcast``: every member reads all queues and keeps its own offsets: in ``offsets`` (`OffsetFile`), or without
      it in memory only. Nothing is sent back then.
    - ``orderly``: the consumer handles a queue only while it holds the queue's lock, and is read by `listen_orderly`.
      ``lock_times`` is for brokers that keep locks for another time than usual.
    - ``max_retries``: a message that was sent back so often becomes a dead letter the next time. By default the
      settings of the consumer group at the broker hold (16).
    - ``limits``: bounds reading ahead. ``trace``: records pulls and consumer offsets (docs/trace-format.md).
    - ``runtime``, ``tls``, ``credentials``: as for `Producer`.

    One task reads; others may call `commit`. Leaving the block takes 3 s at most, also when brokers are silent. Reading
    raises nothing because of a broker or name server that is away: it waits, and the log says why. The constructor
    raises UsageError for options that do not fit together and MessageRejected for names that no broker takes.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        topics: Mapping[str, str | SqlFilter] | Sequence[str] | str,
        start: Start = "last",
        strategy: Strategy = allocate_averagely,
        broadcast: bool = False,
        offsets: LocalOffsets | None = None,
        orderly: bool = False,
        lock_times: LockTimes | None = None,
        max_retries: int | None = None,
        limits: FetchLimits | None = None,
        trace: TraceWriter | None = None,
        runtime: Runtime | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        check_name("group", group)
        wanted = _wanted_by_topic(topics)
        _check_options(start, broadcast=broadcast, orderly=orderly, max_retries=max_retries, offsets=offsets)
        handlers = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._on_members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._on_reset_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._on_running_info,
        }
        self.core = ClientCore(
            ConnectionOptions(name_servers, runtime, tls, credentials, trace),
            handlers={int(code): handler for code, handler in handlers.items()},
            heartbeat=self._heartbeat,
            include_slaves=True,
        )
        self._runtime = self.core.runtime
        version = self._started_ms = self._runtime.wall_ms()
        self.group = group
        self._start = start
        self._max_retries = max_retries
        self.broadcast = broadcast
        """True if every member reads all queues; nothing is sent back then."""
        if not broadcast:
            wanted[RETRY_PREFIX + group] = "*"
        self._subscriptions = {
            topic: Subscription.parse(topic, tags, version) for topic, tags in wanted.items()
        }
        self._calls = QueueCalls(PatientCalls(self.core), group)
        self._intake = Intake(
            self.core,
            self._calls,
            limits or FetchLimits(),
            lambda queue, offset: self._assignment.begin_anew(queue, offset),  # noqa: PLW0108 - it comes below
        )
        self.reply = Replies(self.core, group).reply
        self.order_locks = (
            OrderLocks(
                self._calls.patient,
                group,
                lock_times or LockTimes(),
                lambda queue: self._assignment.lost_lock(queue),  # noqa: PLW0108 - it comes below
            )
            if orderly
            else None
        )
        """The locks of an orderly consumer; None for any other."""
        self._stored = StoredOffsets(
            self._runtime, self._calls, broadcast=broadcast, local=offsets, locks=self.order_locks
        )
        self._assignment = Assignment(
            self.core,
            self._calls,
            group,
            self._subscriptions,
            self._intake,
            self._stored,
            self._first_offset,
            strategy=None if broadcast else strategy,
            locks=self.order_locks,
        )
        # The batch in hand and its reader, both or none. Its first ``_handed_out`` messages are handed out; all but the
        # last of these are done with.
        self._batch: Batch | None = None
        self._reader: QueueReader | None = None
        self._handed_out = 0
        self._reading = False

    async def __aenter__(self) -> Consumer:
        """Begin to read. Raises DamagedOffsets, OSError and UsageError if ``offsets`` cannot be read or are in use."""
        await self._stored.open()
        await self.core.__aenter__()
        self.core.tasks.start_soon(self._run)
        if self.order_locks is not None:
            self.core.tasks.start_soon(self.order_locks.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        readers = list(self._intake.readers.values())
        for reader in readers:
            reader.drop()

        async def store() -> None:
            for failure in await self._stored.store(readers):
                logger.warning(
                    "consumer group %s: an offset was not stored at the end: %s", self.group, failure
                )

        with self._runtime.move_on_after(CLOSE_TIMEOUT_S * 2 / 3, shield=True):
            await (store() if self.order_locks is None else self.order_locks.close(store))
        self._stored.close()
        with self._runtime.move_on_after(CLOSE_TIMEOUT_S / 3, shield=True):
            await self.core.unregister(consumer_group=self.group)
        return await self.core.__aexit__(kind, error, traceback)

    # Reading -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> MessageView:
        """Return the next message; the one before it is done with from now on. The iteration never stops.

        Raises ClientClosed outside the block; UsageError if another task reads, and for an orderly consumer.
        """
        batch, reader = self._batch, self._reader
        if batch is not None and reader is not None:
            at = self._handed_out
            if at:
                reader.finished(batch.messages[at - 1])
            if at < len(batch.messages) and not reader.dropped:
                self._handed_out = at + 1
                return batch.messages[at]
        await self._next_batch()
        assert self._batch is not None
        self._handed_out = 1
        return self._batch.messages[0]

    def batches(self) -> AsyncIterator[list[MessageView]]:
        """Return an iterator over batches: messages that were fetched together, all of one queue.

        A batch is done with when the next one is asked for. Raises what iterating over single messages raises.
        """
        return _Batches(self)

    async def _take_batch(self) -> list[MessageView]:
        await self._next_batch()
        assert self._batch is not None
        self._handed_out = len(self._batch.messages)
        return self._batch.messages

    async def _next_batch(self) -> None:
        """Finish with the batch in hand and take the next one. Raises ClientClosed, UsageError."""
        self.core.check_open()
        if self.order_locks is not None:
            raise UsageError(
                "an orderly consumer is read by listen_orderly, which can be stopped at any message"
            )
        if self._reading:
            raise UsageError("two tasks are reading from one consumer")
        self._reading = True
        try:
            # The one checkpoint of a batch comes before anything is taken, so that a cancellation loses nothing.
            await self._runtime.sleep(0)
            self._settle()
            if self._batch is not None:  # its first messages were handed out one by one
                self._batch.messages = self._batch.messages[self._handed_out :]
                return
            while True:
                taken = self._intake.next_nowait()
                if taken is not None:
                    self._reader, self._batch = taken
                    return
                await self._intake.wait_arrival()
        finally:
            self._reading = False

    @contextlib.contextmanager
    def reading_alone(self) -> Iterator[Intake]:
        """Give the intake to a listener, which itself accounts for what is done, while nobody else may read.

        Messages that were handed out before are done with; the rest of their batch comes first. Raises UsageError,
        ClientClosed.
        """
        self.core.check_open()
        if self._reading:
            raise UsageError("two tasks are reading from one consumer")
        self._settle()
        if self._batch is not None and self._reader is not None:
            self._batch.messages = self._batch.messages[self._handed_out :]
            self._intake.put_back(self._reader, self._batch)
            self._batch = self._reader = None
            self._handed_out = 0
        self._reading = True
        try:
            yield self._intake
        finally:
            self._reading = False

    def _settle(self) -> None:
        """Note that every message that was handed out is done with."""
        batch, reader = self._batch, self._reader
        if batch is None or reader is None or not self._handed_out:
            return
        if self._handed_out == len(batch.messages):
            reader.finished_batch(batch)
            self._batch = self._reader = None
            self._handed_out = 0
        else:
            reader.finished(batch.messages[self._handed_out - 1])
            if reader.dropped:
                self._batch = self._reader = None
                self._handed_out = 0

    # Consumer offsets ----------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Store the offsets after all messages that were handed out so far, and wait until they are stored.

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable, with ``offsets`` OffsetsNotStored, and
        ClientClosed outside the block. An offset that was not stored is tried again at the next storing.
        """
        self.core.check_open()
        self._settle()
        failures = await self._stored.store(list(self._intake.readers.values()))
        if failures:
            raise failures[0]

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member reads now, sorted; that of the retry topic is among them."""
        return sorted(self._intake.readers)

    async def wait_assigned(self) -> None:
        """Wait until this member has found its share of the queues for the first time."""
        await self._assignment.is_known.wait()

    def positions(self) -> dict[MessageQueue, int]:
        """Return each queue's offset after the last message that the application is done with: what a commit stores.

        A queue whose first offset is not known yet is left out.
        """
        return self._intake.positions()

    async def send_back(self, message: MessageView, delay_level: int = 0) -> None:
        """Send a message back, so that the consumer group gets it again later; returns when it is stored for that.

        After 16 times, or ``max_retries``, it becomes a dead letter in ``%DLQ%group``. With ``delay_level`` 0 the delay
        grows each time, 1 to 18 are RocketMQ's levels, and -1 makes it a dead letter at once. Raises BrokerError,
        ConnectionFailed, NoRoute, NameServerUnavailable, and UsageError for a broadcast consumer.
        """
        if self.broadcast:
            raise UsageError("a broadcast consumer has no retry topic")
        await send_back(self._calls, self.group, message, delay_level, self._max_retries)

    async def _keep_storing(self) -> None:
        while True:
            await self._runtime.sleep(COMMIT_INTERVAL_S)
            readers = [self._intake.readers[queue] for queue in sorted(self._intake.readers)]
            for error in await self._stored.store(readers):
                logger.warning("consumer group %s: an offset was not stored: %s", self.group, error)

    # Membership ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self.core.tasks.start_soon(self._keep_storing)
        await self._assignment.run()

    async def _first_offset(self, queue: MessageQueue) -> int:
        if queue.topic.startswith(RETRY_PREFIX):
            return 0  # the consumer group is to have all that it sent back, whenever that was
        if self._start == "first":
            return await self._calls.min_offset(queue)
        if self._start == "last":
            return await self._calls.max_offset(queue)
        return await self._calls.search_offset(queue, _timestamp_ms(self._start))

    def _heartbeat(self) -> HeartbeatData:
        start = self._start if isinstance(self._start, str) else None
        from_where = _CONSUME_FROM[start] if start is not None else ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
        data = ConsumerData(
            group_name=self.group,
            consume_from_where=from_where,
            message_model=MessageModel.BROADCASTING if self.broadcast else MessageModel.CLUSTERING,
            subscription_data_set=[subscription.data() for subscription in self._subscriptions.values()],
        )
        return HeartbeatData(client_id=self.core.client_id, consumer_data_set=[data])

    # Requests of brokers -------------------------------------------------------------------------------------------

    def _on_members_changed(self, connection: Connection, command: RemotingCommand) -> None:
        self._assignment.members_changed()

    def _on_reset_offsets(self, connection: Connection, command: RemotingCommand) -> None:
        try:
            if command.fields.get("group") != self.group:
                return
            offsets = QueueOffsets.decode(command.body).offsets
        except RemotingError as error:
            logger.warning(
                "group %s: unreadable offset reset from %s: %s", self.group, connection.address, error
            )
            return
        for queue, offset in offsets.items():
            self._assignment.begin_anew(MessageQueue(queue.topic, queue.broker_name, queue.queue_id), offset)

    def _on_running_info(self, connection: Connection, command: RemotingCommand) -> None:
        """Tell an administrator what this member subscribes to, and which queues it holds."""
        held = {
            RemotingQueue(queue.broker_name, queue.queue_id, queue.topic): QueueInHand(
                reader.waiting_messages, at if (at := reader.consumer_offset) is not None else -1
            )
            for queue, reader in sorted(self._intake.readers.items())
        }
        subscriptions = [subscription.data() for subscription in self._subscriptions.values()]
        # RocketMQ's tools read these, and fail without the type and the start.
        properties = {
            "PROP_CLIENT_VERSION": Version(OWN_VERSION).name,
            "PROP_CONSUMEORDERLY": str(self.order_locks is not None).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY,
            "PROP_NAMESERVER_ADDR": ";".join(self.core.name_servers.addresses),
            "PROP_THREADPOOL_CORE_SIZE": "1",
        }
        info = ConsumerRunningInfo(held, subscriptions, properties)
        connection.respond(command, ResponseCode.SUCCESS, body=info.encode())


class _Batches:
    """An iterator over batches. It is no generator: if it is left early, nothing has to be closed."""

    __slots__ = ("_consumer",)

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __aiter__(self) -> _Batches:
        return self

    async def __anext__(self) -> list[MessageView]:
        return await self._consumer._take_batch()


def _timestamp_ms(start: Start) -> int:
    if isinstance(start, datetime.datetime):
        return int(start.timestamp() * 1000)
    assert isinstance(start, int), "a start is a word, a time or milliseconds"
    return start
