"""Orderly listening: one member at a time handles the messages of a queue, one after the other, in their order.

    async with Consumer("127.0.0.1:9876", group="g", topics="t", orderly=True) as consumer:
        await listen_orderly(consumer, handle)

Several queues are handled at the same time, one message of each. The handler runs only while the queue's lock is held
(order_locks.py). It is cancelled when the lock is lost; then another member begins with the same message. A handler
that computes for a long time without an await keeps the client from renewing its locks, and nothing can stop it when
one is lost.

A message that fails is not passed: its queue rests, and then the handler gets the same message again. With
``attempts_max`` a message that has failed so often goes to ``%DLQ%group``, and the queue goes on behind it.

Consumer offsets are stored as for other consumers (consumer.py), and before a queue goes to another member. After a
crash, or a lost lock, the messages since the stored offset come again, in order and without a gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from broker.client.checks import check_kind, check_seconds, check_whole
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import Batch, Intake, QueueReader
from broker.client.consuming.listening import Handled, Handler, NotAsyncError, called
from broker.client.consuming.order_locks import OrderLocks
from broker.client.errors import ClientError, UsageError
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.runtime import TaskGroup

logger = logging.getLogger("trivet.client")

SUSPEND_S = 1.0
"""A queue rests for so many seconds after a failure, as in RocketMQ (`ConsumeMessageOrderlyService`)."""


async def listen_orderly(
    consumer: Consumer,
    handler: Handler,
    *,
    concurrency: int = 20,
    suspend_s: float = SUSPEND_S,
    attempts_max: int | None = None,
) -> None:
    """Call the handler with every message in the order of its queue, until cancelled.

    At most ``concurrency`` queues are handled at the same time, one message of each. When the handler, an async
    function, raises an `Exception` or returns `Handled.RETRY` it gets the message again after ``suspend_s`` seconds.
    With ``attempts_max`` the message becomes a dead letter when this listener's attempts and its `reconsume_times`
    together reach that number; by default it never does, as in RocketMQ, nor does one of which nothing can be read
    (`DamagedMessage`): its queue halts until the handler takes it. Raises UsageError for a consumer that is not
    ``orderly`` and for numbers that cannot be, else what `listen` raises.
    """
    locks = consumer.order_locks
    if locks is None:
        raise UsageError("listen_orderly needs a Consumer with orderly=True")
    check_whole(1, concurrency=concurrency)
    check_kind(Callable, handler=handler)
    if attempts_max is not None:
        check_whole(1, attempts_max=attempts_max)
    check_seconds(suspend_s=suspend_s)
    with consumer.reading_alone() as intake:
        async with consumer.core.runtime.task_group() as tasks:
            listener = _OrderlyListener(consumer, intake, locks, tasks, handler, suspend_s, attempts_max)
            for _ in range(concurrency):
                tasks.start_soon(listener.work)


@dataclass(eq=False)
class _OrderlyListener:
    """The common state of the tasks of one `listen_orderly`."""

    _consumer: Consumer
    _intake: Intake
    _locks: OrderLocks
    _tasks: TaskGroup
    _handler: Handler
    _suspend_s: float
    _attempts_max: int | None
    _resting: dict[MessageQueue, None] = field(default_factory=dict)
    _failed: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    """For each queue, the offset of the message that failed last, and the number of its failures."""

    async def work(self) -> None:
        """Take batches of queues that nobody handles, and handle each, until cancelled. Each task runs this."""
        while True:
            await self._intake.runtime.sleep(0)
            found = self._intake.take_nowait(self._may_take)
            if found is None:
                await self._intake.wait_arrival()
                continue
            await self._handle_batch(*found)

    def _may_take(self, reader: QueueReader) -> bool:
        return reader.queue not in self._resting and self._locks.is_free(reader.queue)

    async def _handle_batch(self, reader: QueueReader, batch: Batch) -> None:
        queue, messages = reader.queue, batch.messages
        done = 0
        try:
            with self._locks.using(queue):
                while done < len(messages):
                    await self._intake.runtime.sleep(0)
                    # A retired reader's queue is being handed over, and its next member waits for no more than the
                    # message in hand.
                    if reader.retired or not self._locks.is_held(queue):
                        break
                    if not await self._handle(messages[done]):
                        # Before the block ends and frees the queue: another task would have the message again at once.
                        self._rest(queue)
                        break
                    reader.finished(messages[done])
                    done += 1
        finally:
            if done == len(messages):
                reader.finished_batch(batch)
            else:
                batch.messages = messages[done:]
                self._intake.put_back(reader, batch)

    async def _handle(self, message: MessageView) -> bool:
        """Handle one message; returns True if it is done with."""
        group = self._consumer.group
        try:
            if await called(self._handler, message) is not Handled.RETRY:
                return True
        except NotAsyncError:
            raise
        except Exception:
            logger.exception("consumer group %s: the handler failed at %r", group, message)
        if self._attempts_max is None:
            return False
        try:
            offset, count = self._failed.get(message.queue, (-1, 0))
            count = count + 1 if offset == message.queue_offset else 1
            self._failed[message.queue] = (message.queue_offset, count)
            if message.reconsume_times + count < self._attempts_max:
                return False
            await self._consumer.send_back(message, delay_level=-1)
        except ClientError as error:
            logger.warning("consumer group %s: %r is not a dead letter yet: %s", group, message, error)
            return False
        return True

    def _rest(self, queue: MessageQueue) -> None:
        self._resting[queue] = None
        self._tasks.start_soon(self._end_rest, queue)

    async def _end_rest(self, queue: MessageQueue) -> None:
        await self._intake.runtime.sleep(self._suspend_s)
        del self._resting[queue]
        self._intake.wake()
