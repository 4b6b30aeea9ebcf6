"""Messages on their way into the application: one reader a queue that fetches ahead, and the order in which they are
handed out.

- A reader is one light task. It asks for the next messages while earlier ones wait to be handed out, up to a bound by
  count and bytes; then it stops asking, which is all the backpressure that is needed.
- A queue's messages are handed out in the order of their offsets; queues take turns, a fetched batch at a time.
- A queue's `position`, what would be committed, is the offset after the last message that the application is done
  with. Fetching ahead never moves it. It is worked out only when asked for.
- A dropped reader (its queue went to another member, or was moved to another offset) hands out nothing more, and what
  the application does with messages of it that it already has moves no position. A retired one hands out nothing more
  either, but what the application finishes of what it has in hand still counts.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker.client.consuming.queue_calls import PullResponse, QueueCalls
from broker.client.consuming.subscription import Subscription
from broker.client.errors import BrokerBusy, BrokerError, ConnectionFailed, NameServerUnavailable, NoRoute
from broker.client.message import MessageQueue, MessageView
from broker.client.transport.core import ClientCore
from broker.client.transport.runtime import CancelScope, Event
from broker.remoting.codes import ResponseCode
from broker.remoting.route import MASTER_ID

logger = logging.getLogger("trivet.client")

_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 1.0
_REFUSED_PAUSE_S = 3.0
"""After a response that a retry alone will not cure (no permission, no such group): the reference waits as long."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How far a queue is read ahead, and how it is asked.

    ``messages`` and ``size_bytes`` bound what waits to be handed out, for each queue; one more response may exceed
    them. ``batch`` is the most that is asked for at once (brokers may give less), ``suspend_s`` how long the broker may
    hold a pull that finds nothing.
    """

    messages: int = 1000
    size_bytes: int = 8 * 1024 * 1024
    batch: int = 256
    suspend_s: float = 15.0


class Batch:
    """Messages of one response, and where the queue goes on after them."""

    __slots__ = ("messages", "next_offset", "size")

    def __init__(self, messages: list[MessageView], next_offset: int, size: int) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.size = size


class QueueReader:
    """Fetches one queue. ``find_start`` tells where to begin; it is asked again until it answers."""

    def __init__(
        self,
        intake: Intake,
        queue: MessageQueue,
        subscription: Subscription,
        find_start: Callable[[], Awaitable[int]],
    ) -> None:
        self.queue = queue
        self.dropped = False
        self.retired = False
        self.outdated = False
        """Whether an administrator has sent the group elsewhere: this reader's position is not to be stored."""
        self.committed: int | None = None
        """What is known to be stored for the group."""
        self._intake = intake
        self._subscription = subscription
        self._find_start = find_start
        self._scope: CancelScope = intake.runtime.move_on_after(math.inf)
        self._batches: deque[Batch] = deque()
        self._waiting_messages = 0
        self._waiting_bytes = 0
        self._room: Event | None = None
        self._position: int | None = None
        self._done: MessageView | None = None
        self._next_offset = 0
        self._broker_id = MASTER_ID
        self._begins_after_s = 0.0
        self._avoid: list[str] = []
        self.max_offset: int | None = None
        """The queue's end as the last response gave it."""

    @property
    def position(self) -> int | None:
        """The offset after the last message that the application is done with; None before the start is known."""
        if self._done is not None:
            self._position = self._done.queue_offset + 1
            self._done = None
        return self._position

    def finished(self, message: MessageView) -> None:
        """The application is done with this message and all before it."""
        if not self.dropped:
            self._done = message

    def finished_batch(self, batch: Batch) -> None:
        """The application is done with the batch, and with what was filtered out after its last message."""
        if not self.dropped:
            self._done = None
            self._position = batch.next_offset

    def take(self) -> Batch:
        """The oldest waiting batch."""
        batch = self._batches.popleft()
        self._waiting_messages -= len(batch.messages)
        self._waiting_bytes -= batch.size
        if self._room is not None and not self._is_full():
            self._room.set()
            self._room = None
        return batch

    def put_back(self, batch: Batch) -> None:
        """Undo `take` of what was the oldest batch."""
        self._batches.appendleft(batch)
        self._waiting_messages += len(batch.messages)
        self._waiting_bytes += batch.size

    def has_batch(self) -> bool:
        """Whether `take` would give one."""
        return bool(self._batches)

    def drop(self) -> None:
        """Stop fetching, forget what waits, and leave the position where it is."""
        self.dropped = True
        self.retire()

    def abandon(self) -> None:
        """Drop it, as an administrator has sent the group elsewhere."""
        self.outdated = True
        self.drop()

    def retire(self) -> None:
        """Stop fetching and forget what waits."""
        self.retired = True
        self._batches.clear()
        self._scope.cancel()

    # The task ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until dropped."""
        with self._scope:
            await self._start()
            pause_s = _PAUSE_FIRST_S
            while True:
                while self._is_full():
                    self._room = self._intake.runtime.event()
                    await self._room.wait()
                asked_ns = self._intake.runtime.now_ns()
                try:
                    response = await self._pull()
                    moved = await self._accept(response)
                except (ConnectionFailed, BrokerError, NoRoute, NameServerUnavailable) as error:
                    pause_s = await self._recover(error, pause_s)
                    continue
                self.max_offset = response.max_offset
                if moved:
                    pause_s = _PAUSE_FIRST_S
                elif self._intake.runtime.now_ns() - asked_ns < 100_000_000:
                    # A broker that answers "nothing" at once does not hold pulls now; do not ask it in a circle.
                    await self._intake.runtime.sleep(pause_s)
                    pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    async def _start(self) -> None:
        pause_s = _PAUSE_FIRST_S
        if self._begins_after_s:
            await self._intake.runtime.sleep(self._begins_after_s)
        while True:
            try:
                self._position = self._next_offset = await self._find_start()
            except (ConnectionFailed, BrokerError, NoRoute, NameServerUnavailable) as error:
                pause_s = await self._recover(error, pause_s)
            else:
                return

    async def _pull(self) -> PullResponse:
        limits = self._intake.limits
        return await self._intake.calls.pull(
            self.queue,
            self._next_offset,
            self._subscription,
            max_messages=limits.batch,
            suspend_s=limits.suspend_s,
            broker_id=self._broker_id,
            avoid=self._avoid,
        )

    async def _accept(self, response: PullResponse) -> bool:
        """Take what came; returns whether the queue moved on. Raises as a query does."""
        self._avoid.clear()
        self._broker_id = response.suggested_broker_id
        if response.is_reset:
            self._intake.on_reset(self.queue, response.next_offset)
            anew = self._intake.readers.get(self.queue)
            if anew is not None and response.next_offset == self._next_offset:
                anew._begins_after_s = (
                    _PAUSE_FIRST_S  # a broker that tells it for ever is not asked in a circle
                )
            return False
        if response.next_offset == self._next_offset:
            return False
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            if response.next_offset < self._next_offset and not await self._ends_before(self._next_offset):
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
                self._waiting_messages = self._waiting_bytes = 0
        self._next_offset = response.next_offset
        if self._batches and not response.messages:
            self._batches[-1].next_offset = response.next_offset
            return True
        self._batches.append(Batch(response.messages, response.next_offset, response.size))
        self._waiting_messages += len(response.messages)
        self._waiting_bytes += response.size
        self._intake.arrived(self)
        return True

    async def _ends_before(self, offset: int) -> bool:
        """Whether the queue really ends before that offset: a member that lags behind must not send readers back."""
        return await self._intake.calls.max_offset(self.queue) < offset

    async def _recover(self, error: Exception, pause_s: float) -> float:
        """Wait, and ask for a new route; returns how long to wait next time."""
        runtime = self._intake.runtime
        self._broker_id = MASTER_ID
        if isinstance(error, ConnectionFailed | BrokerError):
            self._avoid = [error.address]
        if isinstance(error, BrokerError) and not isinstance(error, BrokerBusy):
            logger.warning("%s: %s", self.queue, error)
            await runtime.sleep(_REFUSED_PAUSE_S * (0.75 + runtime.random.random() / 2))
        else:
            await runtime.sleep(pause_s * (0.5 + runtime.random.random()))
        await self._intake.core.routes.refresh_quietly(self.queue.topic)
        return min(pause_s * 2, _PAUSE_MAX_S)

    def _is_full(self) -> bool:
        limits = self._intake.limits
        return self._waiting_messages >= limits.messages or self._waiting_bytes >= limits.size_bytes


class Intake:
    """The readers of one consumer, and whose turn it is."""

    def __init__(
        self,
        core: ClientCore,
        calls: QueueCalls,
        limits: FetchLimits,
        on_reset: Callable[[MessageQueue, int], None],
    ) -> None:
        """`on_reset` begins a queue anew where an administrator has sent the group."""
        self.core = core
        self.runtime = core.runtime
        self.calls = calls
        self.limits = limits
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.on_reset = on_reset
        self._ready: deque[QueueReader] = deque()
        self._waiting: deque[Event] = deque()

    def arrived(self, reader: QueueReader) -> None:
        """A reader got a batch."""
        if reader not in self._ready:
            self._ready.append(reader)
        self.wake()

    def wake(self) -> None:
        """Have one of those in `wait_arrival` look again, who wakes the next one if it leaves something."""
        if self._waiting:
            self._waiting.popleft().set()

    def next_nowait(self) -> tuple[QueueReader, Batch] | None:
        """The next batch with messages in it, None when nothing waits. Batches without messages are done at once."""
        while (taken := self.take_nowait()) is not None:
            reader, batch = taken
            if batch.messages:
                return taken
            reader.finished_batch(batch)
        return None

    def take_nowait(
        self, may_take: Callable[[QueueReader], bool] | None = None
    ) -> tuple[QueueReader, Batch] | None:
        """The next batch, also one without messages, None when nothing waits; of the allowed readers only."""
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

    def put_back(self, reader: QueueReader, batch: Batch) -> None:
        """Have a batch handed out again, with the messages that it still has, before all later ones of its queue."""
        if not reader.retired:
            reader.put_back(batch)
            self.arrived(reader)

    async def wait_arrival(self) -> None:
        """Wait until there may be something to take.

        Of many who wait, one is woken for each arrival: it takes what came, and the others would find nothing.
        """
        event = self.runtime.event()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self.wake()  # what it was woken for is the next one's to take
            else:
                self._waiting.remove(event)
            raise
