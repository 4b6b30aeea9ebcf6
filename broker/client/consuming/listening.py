"""Listening: a handler is called with every message of a group consumer, several messages at a time.

    async def handle(message: MessageView) -> None:
        await store(message.body)

    async with Consumer("127.0.0.1:9876", group="g", topics="t") as consumer:
        await listen(consumer, handle, concurrency=32)

A fixed number of tasks take messages in the order in which they came and call the handler. So messages of one queue may
be handled at the same time, and out of order. The consumer offset of a queue never passes a message that is not done
with, whatever is done behind it. So a slow message holds the consumer offset, and, once `SPAN_MAX` messages behind it
were taken, the queue: only so many messages can come again after a crash.

A message whose handler raises is sent back to the broker that holds it. The broker stores it again for the consumer
group and delivers it later, each time after a longer delay; after the last time it goes into ``%DLQ%group``. The
message is done with when the broker has confirmed that. If none confirms, the handler gets it again after `AGAIN_S`.
One of which nothing can be read cannot be sent back, and is passed over.

Listening ends by being cancelled. Messages that were not handled to the end are put back then: the consumer's next
reader gets them, or after the end of the consumer another member of the consumer group.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from broker.client.checks import check_kind, check_whole
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import Batch, Intake, QueueReader
from broker.client.errors import ClientError, DamagedMessage, UsageError
from broker.client.message import MessageView

logger = logging.getLogger("trivet.client")

SPAN_MAX: Final = 2000
"""A queue with so many messages taken since the oldest unfinished one gives no more, as with RocketMQ's
`consumeConcurrentlyMaxSpan`."""
AGAIN_S: Final = 5.0
"""After so many seconds a message that could not be sent back is handled again."""


class Handled(enum.Enum):
    """The result of a handler; a handler that returns None means `DONE`."""

    DONE = "done"
    RETRY = "retry"
    """The message is sent back, as if the handler had raised, but without a line in the log."""


Handler = Callable[[MessageView], Awaitable[Handled | None]]
"""An async function that handles one message; it may run for several messages at the same time."""


class NotAsyncError(UsageError):
    """The handler is no async function: its result cannot be awaited. This ends the listening."""


async def called(handler: Handler, message: MessageView) -> Handled | None:
    """Call the handler and return its result. Raises what it raises, and NotAsyncError."""
    handling = handler(message)
    if not isinstance(handling, Awaitable):
        raise NotAsyncError(f"the handler must be an async function; {handler!r} returned {handling!r}")
    return await handling


async def listen(consumer: Consumer, handler: Handler, *, concurrency: int = 20) -> None:
    """Call the handler with every message of the consumer, up to ``concurrency`` at a time, until cancelled.

    The handler is an async function. A message is done with when it returns, and is sent back when it returns
    `Handled.RETRY` or raises an `Exception`, which is logged. A broadcast consumer sends nothing back: a message that
    fails is done with. So is one that cannot be sent back as it is damaged, which is logged, too. Raises UsageError for
    a concurrency below 1, an orderly consumer, a handler that is not async, and while another task reads from the
    consumer; ClientClosed outside the consumer's block.
    """
    check_whole(1, concurrency=concurrency)
    check_kind(Callable, handler=handler)
    if consumer.order_locks is not None:
        raise UsageError("an orderly consumer is listened to with listen_orderly")
    with consumer.reading_alone() as intake:
        listener = _Listener(consumer, intake, handler)
        try:
            async with consumer.core.runtime.task_group() as tasks:
                for _ in range(concurrency):
                    tasks.start_soon(listener.work)
        finally:
            listener.put_back()


@dataclass(slots=True, eq=False)
class _Open:
    """A batch that is not done with. ``done`` has 1 for each message that is, and all before ``first_open`` are."""

    batch: Batch
    done: bytearray
    first_open: int = 0


@dataclass(slots=True, eq=False)
class _Account:
    """The open batches of one queue, the oldest first. It moves the consumer offset.

    ``_span`` is the number of messages in the open batches.
    """

    _reader: QueueReader
    _open: deque[_Open] = field(default_factory=deque)
    _span: int = 0

    @property
    def is_full(self) -> bool:
        return self._span >= SPAN_MAX

    def take(self, batch: Batch) -> _Open:
        taken = _Open(batch, bytearray(len(batch.messages)))
        self._open.append(taken)
        self._span += len(batch.messages)
        self._settle()  # a batch without messages has nobody who would finish it
        return taken

    def finish(self, taken: _Open, index: int) -> None:
        taken.done[index] = 1
        # What is done behind an open message moves nothing until that one is done.
        if taken is self._open[0] and index == taken.first_open:
            self._settle()

    def _settle(self) -> None:
        """Move the consumer offset up to the oldest message that is not done with."""
        while self._open:
            oldest = self._open[0]
            first_open = oldest.done.find(0, oldest.first_open)
            if first_open >= 0:
                if first_open:
                    self._reader.finished(oldest.batch.messages[first_open - 1])
                oldest.first_open = first_open
                return
            self._open.popleft()
            self._span -= len(oldest.done)
            self._reader.finished_batch(oldest.batch)

    def put_back(self, intake: Intake) -> None:
        # The newest first, as each is put before all others of its queue.
        for taken in reversed(self._open):
            batch = taken.batch
            batch.messages = [
                message for message, done in zip(batch.messages, taken.done, strict=True) if not done
            ]
            intake.put_back(self._reader, batch)


@dataclass(eq=False)
class _Listener:
    """The common state of the tasks of one `listen`: the batch that they take from, and the accounts of all queues."""

    _consumer: Consumer
    _intake: Intake
    _handler: Handler
    _accounts: dict[QueueReader, _Account] = field(default_factory=dict)
    _current: tuple[QueueReader, _Account, _Open] | None = None
    _next_index: int = 0

    async def work(self) -> None:
        """Take messages one after the other, handle each and account for it, until cancelled. Each task runs this."""
        while True:
            # Before anything is taken; it also lets the other tasks have their turn where a handler never waits.
            await self._intake.runtime.sleep(0)
            if self._current is None and not self._take_batch():
                await self._intake.wait_arrival()
                continue
            assert self._current is not None
            reader, account, taken = self._current
            index = self._next_index
            self._next_index = index + 1
            if self._next_index == len(taken.done):
                self._current = None
            else:
                self._intake.wake()  # another task may handle the next message meanwhile
            await self._handle(reader, taken.batch.messages[index])
            was_full = account.is_full
            account.finish(taken, index)
            # The readers that `_may_take` passed over still have their batches, and nothing else will wake a task for
            # those.
            if was_full and not account.is_full:
                self._intake.wake()

    def _take_batch(self) -> bool:
        """Make the next batch with messages the current one; returns False if there is none."""
        while (found := self._intake.take_nowait(self._may_take)) is not None:
            reader, batch = found
            account = self._accounts.get(reader)
            if account is None:
                # The table grows here only, so it is enough to clear it up here.
                self._forget_dropped()
                account = self._accounts[reader] = _Account(reader)
            taken = account.take(batch)
            if batch.messages:
                self._current = (reader, account, taken)
                self._next_index = 0
                return True
        return False

    def _may_take(self, reader: QueueReader) -> bool:
        account = self._accounts.get(reader)
        return account is None or not account.is_full

    def _forget_dropped(self) -> None:
        self._accounts = {reader: account for reader, account in self._accounts.items() if not reader.dropped}

    async def _handle(self, reader: QueueReader, message: MessageView) -> None:
        """Return when the message is done with: handled, sent back, or its queue not this member's any more."""
        while not reader.dropped:
            try:
                if await called(self._handler, message) is not Handled.RETRY:
                    return
            except NotAsyncError:
                raise
            except Exception:
                logger.exception("consumer group %s: the handler failed at %r", self._consumer.group, message)
            if self._consumer.broadcast:
                return
            try:
                await self._consumer.send_back(message)
            except DamagedMessage as error:
                # The same bytes would come again and again.
                logger.warning(
                    "consumer group %s: %r is passed over: %s", self._consumer.group, message, error
                )
                return
            except ClientError as error:
                logger.warning(
                    "consumer group %s: %r was not sent back: %s", self._consumer.group, message, error
                )
                await self._intake.runtime.sleep(AGAIN_S)
            else:
                return

    def put_back(self) -> None:
        """Put back all messages that are not done with, for the next reader of the consumer."""
        for account in self._accounts.values():
            account.put_back(self._intake)
