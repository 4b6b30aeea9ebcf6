"""The consumer: members of a consumer group share a topic's queues, and each message goes to one of them.

The members share out the queues, not the brokers. Each member announces itself to every broker, asks one of them for
the list of members, and computes its share (rebalance.py, strategies.py).

Delivery is at least once. A message is done with when the application asks for the next one. The offsets after these
messages are stored at the brokers every 5 s, when a queue is lost, on `commit` and at the end. So after a crash or a
change of members the last messages may come again, and none is skipped. Messages of one queue come in order.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Self

from broker.client.checks import check_kind, check_whole
from broker.client.consuming.consumer_offsets import StoredOffsets
from broker.client.consuming.first_offsets import FirstOffsets, Start
from broker.client.consuming.hand_out import HandOut
from broker.client.consuming.intake import FetchLimits, Intake
from broker.client.consuming.offset_file import LocalOffsets
from broker.client.consuming.order_locks import LockTimes, OrderLocks
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.consuming.rebalance import Assignment
from broker.client.consuming.send_back import send_back
from broker.client.consuming.strategies import Strategy, allocate_averagely
from broker.client.consuming.subscription import SqlFilter, Subscription, subscriptions
from broker.client.errors import UsageError
from broker.client.message import MessageQueue, MessageView
from broker.client.producing.outgoing import check_name
from broker.client.producing.requests import Replier
from broker.client.transport.connection import Connection
from broker.client.transport.core import CLOSE_TIMEOUT_S, ClientCore
from broker.client.transport.credentials import Credentials
from broker.client.transport.options import ConnectionOptions
from broker.client.transport.patient_calls import PatientCalls
from broker.client.transport.runtime import Runtime
from broker.remoting.admin_bodies import ConsumerRunningInfo, QueueInHand
from broker.remoting.bodies import ConsumerData, ConsumeType, HeartbeatData, MessageModel
from broker.remoting.bodies import MessageQueue as RemotingQueue
from broker.remoting.codes import RequestCode, ResponseCode, Version
from broker.remoting.command import OWN_VERSION, RemotingCommand
from broker.state.topic_rules import RETRY_PREFIX
from broker.trace import TraceWriter

logger = logging.getLogger("trivet.client")

COMMIT_INTERVAL_S = 5.0
"""Time between storings of the consumer offsets, in seconds."""


def _check_options(
    *, broadcast: bool, orderly: bool, max_retries: int | None, offsets: LocalOffsets | None
) -> None:
    """Raise UsageError for options that are of another class, or do not fit together."""
    check_kind(bool, broadcast=broadcast, orderly=orderly)
    check_kind(LocalOffsets | None, offsets=offsets)
    if orderly and broadcast:
        raise UsageError("a broadcast consumer shares its queues with everybody: there is nothing to lock")
    if max_retries is not None:
        check_whole(max_retries=max_retries)
        if broadcast:
            raise UsageError("max_retries is for what is sent back, and with broadcast nothing is")
    if offsets is not None and not broadcast:
        raise UsageError(
            "brokers keep the offsets of a consumer group; only a broadcast consumer has its own"
        )


class Consumer(Replier):
    """A member of a consumer group.

        async with Consumer("127.0.0.1:9876", group="g", topics={"topic": "a || b"}) as consumer:
            async for message in consumer:
                print(message.body)

    - ``name_servers``: addresses ``host:port``, a list or one text with ``;`` or ``,`` between them.
    - ``group``: the consumer group, whose members share the queues.
    - ``topics``: maps each topic to the tags wanted, ``a || b`` or ``*`` for all, or to an `SqlFilter`. A list, or one
      name, means all messages. All members of a consumer group must name the same.
    - ``start``: the place to begin at in queues of which the consumer group has no stored offset: ``"first"``,
      ``"last"``, a `datetime`, or milliseconds since 1970. With ``"last"``, as in RocketMQ, a queue that is young is
      read from its beginning: all of it is kept, and its first message is near the end of the broker's log.
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
    raises UsageError for options that cannot be or do not fit together, and MessageRejected for names that no broker
    takes.
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
        _check_options(broadcast=broadcast, orderly=orderly, max_retries=max_retries, offsets=offsets)
        check_kind(Callable, strategy=strategy)
        check_kind(LockTimes | None, lock_times=lock_times)
        check_kind(FetchLimits | None, limits=limits)
        self.group = group
        self.broadcast = broadcast
        """True if every member reads all queues; nothing is sent back then."""
        self._max_retries = max_retries
        self.core = ClientCore(
            ConnectionOptions(name_servers, runtime, tls, credentials, trace),
            heartbeat=self._heartbeat,
            take_leave=self._take_leave,
            include_slaves=True,
        )
        self.core.on_request(RequestCode.GET_CONSUMER_RUNNING_INFO, self._on_running_info)
        self._runtime = self.core.runtime
        version = self._started_ms = self._runtime.wall_ms()
        self._subscriptions = subscriptions(topics, version)
        if not self._subscriptions:
            raise UsageError("a consumer needs at least one topic")
        # What is sent back comes again in the retry topic, which RocketMQ's members subscribe to as well.
        if not broadcast:
            retries = RETRY_PREFIX + group
            self._subscriptions[retries] = Subscription.parse(retries, "*", version)
        self._calls = QueueCalls(PatientCalls(self.core), group)
        self._first_offsets = FirstOffsets(self._calls, start)
        self._intake = Intake(self.core, self._calls, limits or FetchLimits())
        self.hand_out = HandOut(self._intake, orderly=orderly)
        """Gives messages to whoever reads; a reader in another thread has it from here."""
        self.order_locks = (
            OrderLocks(self._calls.patient, group, lock_times or LockTimes()) if orderly else None
        )
        """The locks of an orderly consumer; None for any other."""
        self._stored = StoredOffsets(self._runtime, self._calls, broadcast, offsets, self.order_locks)
        self._assignment = Assignment(
            self.core,
            self._calls,
            group,
            self._subscriptions,
            self._intake,
            self._stored,
            self._first_offsets,
            None if broadcast else strategy,
            self.order_locks,
        )

    async def __aenter__(self) -> Self:
        """Begin to read. Raises DamagedOffsets, OSError and UsageError if ``offsets`` cannot be read or are in use."""
        await self._stored.open()
        try:
            await self.core.__aenter__()
        except BaseException:
            self._stored.close()
            raise
        self.core.tasks.start_soon(self._run)
        if self.order_locks is not None:
            self.core.tasks.start_soon(self.order_locks.run)
        return self

    async def _take_leave(self) -> None:
        # From here on nothing counts as finished: what is stored is what the application was done with when it left.
        readers = list(self._intake.readers.values())
        for reader in readers:
            reader.drop()

        async def store() -> None:
            for failure in await self._stored.store(readers):
                logger.warning(
                    "consumer group %s: an offset was not stored at the end: %s", self.group, failure
                )

        # Offsets come first, and have most of the time: a broker that is not told of the end notices later.
        try:
            with self._runtime.move_on_after(CLOSE_TIMEOUT_S * 2 / 3, shield=True):
                await (store() if self.order_locks is None else self.order_locks.close(store))
        finally:
            self._stored.close()
        with self._runtime.move_on_after(CLOSE_TIMEOUT_S / 3, shield=True):
            await self.core.unregister("consumerGroup", self.group)

    # Reading -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Consumer:
        return self

    def __anext__(self) -> Awaitable[MessageView]:
        """Return the next message; the one before it is done with from now on. The iteration never stops.

        Raises ClientClosed outside the block; UsageError if another task reads, and for an orderly consumer.
        """
        return self.hand_out.message()

    def batches(self) -> AsyncIterator[list[MessageView]]:
        """Return an iterator over batches: messages that were fetched together, all of one queue.

        A batch is done with when the next one is asked for. Raises what iterating over single messages raises.
        """
        return self.hand_out

    def reading_alone(self) -> AbstractContextManager[Intake]:
        """Return a block that gives the intake to a listener, which itself accounts for what is done (`HandOut.alone`).

        Raises UsageError, ClientClosed.
        """
        return self.hand_out.alone()

    # Consumer offsets ----------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Store the offsets after all messages that were handed out so far, and wait until they are stored.

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable, with ``offsets`` OffsetsNotStored, and
        ClientClosed outside the block. An offset that was not stored is tried again at the next storing.
        """
        self.core.check_open()
        self.hand_out.settle()
        failures = await self._stored.store(list(self._intake.readers.values()))
        if failures:
            raise failures[0]

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this member reads now, sorted; that of the retry topic is among them."""
        return sorted(self._intake.readers)

    async def wait_assigned(self) -> None:
        """Wait until this member has found its share of the queues for the first time.

        Raises ClientClosed outside the block, and when another task leaves it meanwhile.
        """
        self.core.check_open()
        await self._assignment.is_known.wait()
        self.core.check_open()

    def positions(self) -> dict[MessageQueue, int]:
        """Return each queue's offset after the last message that the application is done with: what a commit stores.

        A queue whose first offset is not known yet is left out.
        """
        return self._intake.positions()

    async def send_back(self, message: MessageView, delay_level: int = 0) -> None:
        """Send a message back, so that the consumer group gets it again later; returns when it is stored for that.

        After 16 times, or ``max_retries``, it becomes a dead letter in ``%DLQ%group``. With ``delay_level`` 0 the delay
        grows each time, 1 to 18 are RocketMQ's levels, and -1 makes it a dead letter at once. Raises BrokerError,
        ConnectionFailed, NoRoute, NameServerUnavailable, DamagedMessage for one whose head cannot be read, or that
        nobody else has any more and that is damaged here, and UsageError for a broadcast consumer.
        """
        if self.broadcast:
            raise UsageError("a broadcast consumer has no retry topic")
        check_whole(-1, delay_level=delay_level)
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

    def _heartbeat(self) -> HeartbeatData:
        data = ConsumerData(
            group_name=self.group,
            consume_from_where=self._first_offsets.consume_from_where,
            message_model=MessageModel.BROADCASTING if self.broadcast else MessageModel.CLUSTERING,
            subscription_data_set=[subscription.data() for subscription in self._subscriptions.values()],
        )
        return HeartbeatData(client_id=self.core.client_id, consumer_data_set=[data])

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
