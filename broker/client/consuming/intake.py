"""Messages on their way into the application: a reader for each queue, which fetches ahead, and the order of handing
out.

- A reader is a task. It asks for the next messages while earlier ones wait to be handed out. When so many messages or
  bytes wait that a bound is reached, it stops asking: that is back-pressure.
- A queue's messages are handed out in the order of their offsets; queues take turns, a fetched batch at a time.
- The `consumer_offset` of a queue, which a commit stores, is the offset after the last message that the application is
  done with. Fetching ahead never moves it.
- A reader is dropped when its queue goes to another member, or is to be read from another offset. It hands out nothing
  more, and messages of it that are finished from then on do not move its consumer offset. A retired reader hands out
  nothing more either, but messages that are in hand count when they are finished.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from broker.client.checks import LONG_MAX, check_seconds, check_whole
from broker.client.consuming.queue_calls import PullResponse, QueueCalls
from broker.client.consuming.subscription import Subscription
from broker.client.errors import (
    BrokerBusy,
    BrokerError,
    ConnectionFailed,
    DamagedMessage,
    NameServerUnavailable,
    NoRoute,
)
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.core import ClientCore
from broker.client.transport.pauses import Pauses
from broker.client.transport.routes import failed_last
from broker.client.transport.runtime import CancelScope, Event
from broker.remoting.codes import ResponseCode
from broker.remoting.route import MASTER_ID

logger = logging.getLogger("trivet.client")

_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 1.0
_REFUSED_PAUSE_S = 3.0
"""Pause in seconds after a response that a retry alone will not cure (no permission, no such consumer group).
RocketMQ's `DefaultMQPushConsumerImpl` waits as long."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of reading ahead, for each queue, and of each pull.

    - ``messages``, ``size_bytes``: with so many messages or bytes waiting to be handed out no more are asked for; the
      last response may exceed them.
    - ``batch``, ``batch_bytes``: the number of messages that a pull asks for, and of their bytes; brokers may give
      fewer, and those of RocketMQ 4.x have a limit of their own instead of the second.
    - ``suspend_s``: for so many seconds the broker may hold a pull that finds nothing.

    Raises UsageError for bounds by which nothing would ever be asked for.
    """

    messages: int = 2048
    size_bytes: int = 8 * 1024 * 1024
    batch: int = 512
    batch_bytes: int = 512 * 1024
    suspend_s: float = 15.0

    def __post_init__(self) -> None:
        check_whole(1, LONG_MAX, messages=self.messages, size_bytes=self.size_bytes)
        check_whole(1, batch=self.batch, batch_bytes=self.batch_bytes)
        check_seconds(suspend_s=self.suspend_s)


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one response, and the offset at which the queue goes on after them."""

    messages: list[MessageView]
    next_offset: int
    size: int


@dataclass(eq=False)
class QueueReader:
    """Fetches one queue from the offset that ``_find_start`` returns, which is called again while it raises."""

    _intake: Intake
    queue: MessageQueue
    _subscription: Subscription
    _find_start: Callable[[], Awaitable[int]]
    dropped: bool = False
    retired: bool = False
    outdated: bool = False
    """True once an administrator has sent the consumer group elsewhere: this consumer offset is not to be stored."""
    committed: int | None = None
    """The consumer offset that is known to be stored for the consumer group."""
    max_offset: int | None = None
    """The queue's end, as the last response gave it."""
    begins_after_s: float = 0.0
    """Seconds that it waits before its first request."""
    _scope: CancelScope = field(init=False)
    # Batches that wait to be handed out, with the messages and bytes in them.
    _batches: deque[Batch] = field(default_factory=deque)
    waiting_messages: int = 0
    _waiting_bytes: int = 0
    _room: Event | None = None
    _consumer_offset: int | None = None
    _done: MessageView | None = None
    """The last message that the application is done with, as long as the consumer offset behind it is not looked up."""
    _next_offset: int = 0
    _broker_id: int = MASTER_ID
    _avoid: list[str] = field(default_factory=list)
    """Addresses that failed since the last response, the last one at the end."""

    def __post_init__(self) -> None:
        self._scope = self._intake.runtime.move_on_after(math.inf)

    @property
    def consumer_offset(self) -> int | None:
        """The offset after the last message that the application is done with; None before the start is known."""
        # Looked up only when somebody asks: most messages are followed by the next one before that.
        if self._done is not None:
            # A damaged one does not tell its offset; the next one moves on.
            with contextlib.suppress(DamagedMessage):
                self._consumer_offset = self._done.queue_offset + 1
            self._done = None
        return self._consumer_offset

    def finished(self, message: MessageView) -> None:
        """The application is done with this message and all before it."""
        if not self.dropped:
            self._done = message

    def finished_batch(self, batch: Batch) -> None:
        """The application is done with the batch, and with what was filtered out after its last message."""
        if not self.dropped:
            self._done = None
            self._consumer_offset = batch.next_offset

    def take(self) -> Batch:
        """Take the oldest waiting batch out of the reader and return it."""
        batch = self._batches.popleft()
        self.waiting_messages -= len(batch.messages)
        self._waiting_bytes -= batch.size
        assert min(self.waiting_messages, self._waiting_bytes) >= 0, "more was taken than waited"
        if self._room is not None and not self._is_full():
            self._room.set()
            self._room = None
        return batch

    def put_back(self, batch: Batch) -> None:
        """Put the batch before all others, as the oldest one."""
        self._batches.appendleft(batch)
        self.waiting_messages += len(batch.messages)
        self._waiting_bytes += batch.size

    def has_batch(self) -> bool:
        """Tell whether a batch waits, for `take`."""
        return bool(self._batches)

    def drop(self) -> None:
        """Stop fetching, forget what waits, and leave the consumer offset where it is."""
        self.dropped = True
        self.retire()

    def abandon(self) -> None:
        """Drop it, as an administrator has sent the consumer group elsewhere."""
        self.outdated = True
        self.drop()

    def retire(self) -> None:
        """Stop fetching and forget what waits."""
        self.retired = True
        self._batches.clear()
        self._scope.cancel()

    # The task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until dropped or retired."""
        with self._scope:
            await self._start()
            pauses, limits = self._new_pauses(), self._intake.limits
            while True:
                while self._is_full():
                    self._room = self._intake.runtime.event()
                    await self._room.wait()
                asked_ns = self._intake.runtime.now_ns()
                try:
                    response = await self._intake.calls.pull(
                        self.queue,
                        self._next_offset,
                        self._subscription,
                        max_messages=limits.batch,
                        max_bytes=limits.batch_bytes,
                        suspend_s=limits.suspend_s,
                        broker_id=self._broker_id,
                        avoid=self._avoid,
                    )
                    moved = await self._accept(response)
                except (ConnectionFailed, BrokerError, NoRoute, NameServerUnavailable) as error:
                    await self._recover(error, pauses)
                    continue
                self.max_offset = response.max_offset
                if moved:
                    pauses.reset()
                elif self._intake.runtime.now_ns() - asked_ns < 100_000_000:
                    # A broker that answers "nothing" at once does not hold pulls now; do not ask it in a circle.
                    await self._intake.runtime.sleep(pauses.grow())

    async def _start(self) -> None:
        pauses = self._new_pauses()
        if self.begins_after_s:
            await self._intake.runtime.sleep(self.begins_after_s)
        while True:
            try:
                self._consumer_offset = self._next_offset = await self._find_start()
            except (ConnectionFailed, BrokerError, NoRoute, NameServerUnavailable) as error:
                await self._recover(error, pauses)
            else:
                return

    async def _accept(self, response: PullResponse) -> bool:
        """Take what came; returns True if the queue has moved on.

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
        """
        self._avoid.clear()
        self._broker_id = response.suggested_broker_id
        if response.is_reset:
            self._intake.on_reset(self.queue, response.next_offset)
            anew = self._intake.readers.get(self.queue)
            if anew is not None and response.next_offset == self._next_offset:
                # A broker that tells it for ever is not asked in a circle.
                anew.begins_after_s = _PAUSE_FIRST_S
            return False
        if response.next_offset == self._next_offset:
            return False
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            # Forward is always right: what lies before the queue's first message is gone. Backward is right only if the
            # leader confirms that the queue ends there: a member that lags behind must not send readers back. If it
            # does not, this response is dropped and the leader asked next.
            calls = self._intake.calls
            if response.next_offset < self._next_offset <= await calls.max_offset(self.queue):
                self._broker_id = MASTER_ID
                return False
            logger.warning(
                "%s: offset %d is outside the queue (%d to %d), going on at %d",
                self.queue,
                self._next_offset,
                response.min_offset,
                response.max_offset,
                response.next_offset,
            )
            if response.next_offset < self._next_offset:
                # What waits is not the queue's content any more.
                self._batches.clear()
                self.waiting_messages = self._waiting_bytes = 0
        self._next_offset = response.next_offset
        if self._batches and not response.messages:
            # Nothing of it matched; who finishes the batch before it has finished these offsets, too.
            self._batches[-1].next_offset = response.next_offset
            return True
        self._batches.append(Batch(response.messages, response.next_offset, response.size))
        self.waiting_messages += len(response.messages)
        self._waiting_bytes += response.size
        self._intake.arrived(self)
        return True

    def _new_pauses(self) -> Pauses:
        return Pauses(self._intake.runtime.random, _PAUSE_FIRST_S, _PAUSE_MAX_S)

    async def _recover(self, error: Exception, pauses: Pauses) -> None:
        """Wait, and ask for a new route."""
        runtime = self._intake.runtime
        self._broker_id = MASTER_ID
        if isinstance(error, ConnectionFailed | BrokerError):
            self._avoid = failed_last(self._avoid, error.address)
        if isinstance(error, BrokerError) and not isinstance(error, BrokerBusy):
            logger.warning("%s: %s", self.queue, error)
            pauses.grow()
            # By chance, so that members which were refused together do not come back together.
            await runtime.sleep(_REFUSED_PAUSE_S * (0.75 + runtime.random.random() / 2))
        else:
            await runtime.sleep(pauses.next_s())
        await self._intake.core.routes.refresh_quietly(self.queue.topic)

    def _is_full(self) -> bool:
        limits = self._intake.limits
        return self.waiting_messages >= limits.messages or self._waiting_bytes >= limits.size_bytes


class Intake:
    """The readers of one consumer, and the order in which they hand out."""

    def __init__(self, core: ClientCore, calls: QueueCalls, limits: FetchLimits) -> None:
        self.core = core
        self.runtime = core.runtime
        self.calls = calls
        self.limits = limits
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.on_reset: Callable[[MessageQueue, int], None]
        """Begins a queue anew at the offset to which an administrator has sent the consumer group; set by whoever makes
        the readers."""
        self._ready: deque[QueueReader] = deque()
        """Readers with a batch, the one whose turn it is first; it may contain some that were dropped since."""
        self._waiting: deque[Event] = deque()
        core.at_close.append(self.wake)

    def arrived(self, reader: QueueReader) -> None:
        """Note that a reader has a batch."""
        if reader not in self._ready:
            self._ready.append(reader)
        self.wake()

    def wake(self) -> None:
        """Wake one task in `wait_arrival`. It wakes the next one if it leaves something."""
        if self._waiting:
            self._waiting.popleft().set()

    def next_nowait(self) -> tuple[QueueReader, Batch] | None:
        """Return the next batch with messages in it, None when none waits.

        Batches without messages are done at once.
        """
        while (taken := self.take_nowait()) is not None:
            reader, batch = taken
            if batch.messages:
                return taken
            reader.finished_batch(batch)
        return None

    def take_nowait(
        self, may_take: Callable[[QueueReader], bool] | None = None
    ) -> tuple[QueueReader, Batch] | None:
        """Return the next batch, also one without messages, of a reader that ``may_take`` allows;

        None when none waits.
        """
        ready = self._ready
        for _ in range(len(ready)):
            reader = ready.popleft()
            if reader.dropped or not reader.has_batch():
                continue
            if may_take is not None and not may_take(reader):
                ready.append(reader)
                continue
            batch = reader.take()
            if reader.has_batch():
                ready.append(reader)
            if ready:
                self.wake()
            return reader, batch
        return None

    def positions(self) -> dict[MessageQueue, int]:
        """Return each queue's consumer offset, sorted by queue, without those whose first offset is not known yet."""
        readers = self.readers
        return {queue: at for queue in sorted(readers) if (at := readers[queue].consumer_offset) is not None}

    def put_back(self, reader: QueueReader, batch: Batch) -> None:
        """Hand the batch out again, with the messages that it still has, before all later ones of its queue."""
        if not reader.retired:
            reader.put_back(batch)
            self.arrived(reader)

    async def wait_arrival(self) -> None:
        """Wait until there may be something to take.

        Of many who wait, one is woken for each arrival: it takes what came, and the others would find nothing. Raises
        ClientClosed once the client is closed.
        """
        self.core.check_open()
        event = self.runtime.event()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self.wake()  # the next one takes what this one was woken for
            else:
                self._waiting.remove(event)
            raise
        self.core.check_open()
