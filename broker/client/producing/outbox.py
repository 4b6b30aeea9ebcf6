"""Outboxes, which send in the background while their block goes on.

    async with producer.outbox(in_flight=64) as outbox:
        for line in lines:
            await outbox.send(Message("topic", line))

`Outbox.send` waits while the outbox is full, and returns as soon as it has taken the message: that is back-pressure.
It returns a `Sending`, which any task may wait for, once or often; nobody has to. When the block ends, every message
was stored or has failed. A failure that nobody has waited for is raised there, so none gets lost.

A fixed number of tasks send, so a message costs no task of its own. Messages of one outbox may overtake each other,
also on their way to one queue. A program that needs an order waits for each message before it sends the next, or has an
outbox with ``in_flight=1`` for each order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.client.errors import (
    ClientClosed,
    ClientError,
    NotDelivered,
    OutboxFull,
    SendOutcomeUnknown,
    SendsFailed,
    UsageError,
)
from broker.client.message import Message, SendResult
from broker.client.producing.one_send import OneSend
from broker.client.producing.outgoing import Outgoing, Preparer
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.transport.runtime import Event, Runtime


class Sending:
    """A message that an outbox has taken. `wait` tells what became of it."""

    __slots__ = ("_asked", "_choice", "_done", "_error", "_outgoing", "_result", "_runtime", "message")

    def __init__(self, runtime: Runtime, message: Message, outgoing: Outgoing, choice: QueueChoice) -> None:
        self.message = message
        self._runtime = runtime
        self._outgoing = outgoing
        self._choice = choice
        self._result: SendResult | None = None
        self._error: ClientError | None = None
        self._done: Event | None = None
        self._asked = False

    @property
    def is_done(self) -> bool:
        """Tell whether the message was stored or has failed, so that `wait` would not wait."""
        return self._result is not None or self._error is not None

    async def wait(self) -> SendResult:
        """Wait until the message is stored, and return where.

        Raises what `Producer.send` raises. When the block ends early, a message that was not sent yet raises
        NotDelivered, and one under way SendOutcomeUnknown. Errors that were waited for are not raised by the block.
        """
        self._asked = True
        if not self.is_done:
            if self._done is None:
                self._done = self._runtime.event()
            await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def _finish(self, result: SendResult | None, error: ClientError | None) -> None:
        self._result, self._error = result, error
        if self._done is not None:
            self._done.set()


class Outbox:
    """Takes messages and sends them in the background. `Producer.outbox` makes it and says how it ends.

    It holds ``waiting_max`` messages at most that no task sends yet.
    """

    def __init__(self, sender: Sender, preparer: Preparer, waiting_max: int) -> None:
        self._sender = sender
        self._preparer = preparer
        self._runtime = sender.core.runtime
        self._waiting_max = waiting_max
        self._waiting: deque[Sending] = deque()
        self._in_flight: dict[Sending, None] = {}
        self._failed: list[Sending] = []
        self._arrival: Event | None = None
        self._room: Event | None = None
        self._idle: Event | None = None
        self._closed = False

    async def send(self, message: Message, *, queue: QueueChoice = None) -> Sending:
        """Wait for room and take a message; ``queue`` is that of `Producer.send`.

        Raises MessageRejected for an illegal message, and ClientClosed after the block.
        """
        while len(self._waiting) >= self._waiting_max and not self._closed:
            if self._room is None:
                self._room = self._runtime.event()
            await self._room.wait()
        return self.send_nowait(message, queue=queue)

    def send_nowait(self, message: Message, *, queue: QueueChoice = None) -> Sending:
        """Take a message without waiting; ``queue`` is that of `Producer.send`.

        Raises OutboxFull, MessageRejected for an illegal message, and ClientClosed after the block.
        """
        if self._closed:
            raise ClientClosed("the outbox's block has been left")
        if len(self._waiting) >= self._waiting_max:
            raise OutboxFull(len(self._waiting))
        sending = Sending(self._runtime, message, self._preparer.message(message), queue)
        self._waiting.append(sending)
        if self._arrival is not None:
            self._arrival.set()
            self._arrival = None
        return sending

    async def wait_sent(self) -> None:
        """Wait until every message that was taken is stored or has failed. Raises nothing."""
        while self._waiting or self._in_flight:
            if self._idle is None:
                self._idle = self._runtime.event()
            await self._idle.wait()

    async def work(self) -> None:
        """Send messages one after the other, until cancelled. Each task of the outbox runs this."""
        waiting = self._waiting
        while True:
            if not waiting:
                if self._idle is not None and not self._in_flight:
                    self._idle.set()
                    self._idle = None
                if self._arrival is None:
                    self._arrival = self._runtime.event()
                await self._arrival.wait()
                continue
            sending = waiting.popleft()
            if self._room is not None:
                self._room.set()
                self._room = None
            self._in_flight[sending] = None
            try:
                send = OneSend(self._sender, sending._outgoing, sending.message, sending._choice)
                (result,) = await send.run()
            except ClientError as error:
                self._failed.append(sending)
                sending._finish(None, error)
            else:
                sending._finish(result, None)
            del self._in_flight[sending]

    def close(self) -> None:
        """End the outbox: it takes and sends nothing more, and the messages that are left fail."""
        self._closed = True
        for sending in self._in_flight:
            outgoing = sending._outgoing
            sending._finish(None, SendOutcomeUnknown(outgoing.topic, outgoing.unique_keys, 1, None))
        for sending in self._waiting:
            sending._finish(None, NotDelivered(sending.message.topic, 0, None))
        self._waiting.clear()
        self._in_flight.clear()
        if self._room is not None:
            self._room.set()

    def failures(self) -> list[tuple[Message, ClientError]]:
        """Return the messages that have failed and were never waited for, each with its error."""
        return [
            (sending.message, sending._error)
            for sending in self._failed
            if not sending._asked and sending._error is not None
        ]


@asynccontextmanager
async def open_outbox(
    sender: Sender, preparer: Preparer, in_flight: int, waiting_max: int | None
) -> AsyncIterator[Outbox]:
    """Run an outbox with its tasks around a block. Raises as `Producer.outbox` says."""
    if in_flight < 1 or (waiting_max is not None and waiting_max < 1):
        raise UsageError(f"in_flight {in_flight} and waiting_max {waiting_max} must be at least 1")
    outbox = Outbox(sender, preparer, in_flight if waiting_max is None else waiting_max)
    try:
        async with sender.core.runtime.task_group() as tasks:
            for _ in range(in_flight):
                tasks.start_soon(outbox.work)
            yield outbox
            await outbox.wait_sent()
            tasks.cancel()
    finally:
        outbox.close()
    failures = outbox.failures()
    if failures:
        raise SendsFailed(failures) from failures[0][1]
