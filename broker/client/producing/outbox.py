"""Outboxes, which send in the background while their block goes on.

    async with producer.outbox(in_flight=64) as outbox:
        for line in lines:
            await outbox.send(Message("topic", line))

`Outbox.send` waits while the outbox is full, and returns as soon as it has taken the message: that is back-pressure.
It returns a `Sending`, which any task may wait for, once or often; nobody has to. When the block ends, every message
was stored or has failed. A failure that nobody has waited for is raised there, so none gets lost.

A message costs no task, and nothing is woken for it unless somebody waits for its `Sending` (window.py). Messages
leave in their order; one that must be sent again is overtaken by others, also on its way to one queue. A program that
needs an order waits for each message before it sends the next, or has an outbox with ``in_flight=1`` for each order.

`send_many` is the same for messages that are all at hand, and returns their results.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from broker.client.errors import ClientClosed, ClientError, OutboxFull, SendsFailed
from broker.client.message import Message, SendResult
from broker.client.producing.one_send import OneSend
from broker.client.producing.outgoing import Preparer
from broker.client.producing.sender import QueueChoice, Sender
from broker.client.producing.window import Window
from broker.client.transport.runtime import Event, Runtime, TaskGroup


@dataclass(slots=True, eq=False, repr=False)
class Sending:
    """A message that an outbox has taken. `wait` tells what became of it."""

    _runtime: Runtime
    message: Message
    _result: SendResult | None = None
    _error: ClientError | None = None
    _done: Event | None = None
    _hearers: int = 0
    """Those who wait for it or have waited to the end: the block need not tell of its failure."""

    @property
    def is_done(self) -> bool:
        """Tell whether the message was stored or has failed, so that `wait` would not wait."""
        return self._result is not None or self._error is not None

    async def wait(self) -> SendResult:
        """Wait until the message is stored, and return where.

        Raises what `Producer.send` raises. When the block ends early, a message that was not sent yet raises
        NotDelivered, and one under way SendOutcomeUnknown. Errors that were waited for are not raised by the block.
        """
        self._hearers += 1
        if not self.is_done:
            if self._done is None:
                self._done = self._runtime.event()
            try:
                await self._done.wait()
            except BaseException:
                self._hearers -= 1
                raise
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    @property
    def unheard_error(self) -> ClientError | None:
        """The error of a message that has failed while nobody waits, or has waited to the end; None otherwise."""
        return None if self._hearers else self._error

    def finish(self, result: SendResult | None, error: ClientError | None) -> None:
        """Tell those who wait what became of the message: where it is stored, or why that is not known.

        Only its outbox does this, and once.
        """
        self._result, self._error = result, error
        if self._done is not None:
            self._done.set()


class Outbox:
    """Takes messages and sends them in the background. `Producer.outbox` makes it and says how it ends.

    It holds ``waiting_max`` messages at most that are not sent yet.
    """

    def __init__(
        self, sender: Sender, preparer: Preparer, tasks: TaskGroup, in_flight: int, waiting_max: int
    ) -> None:
        self._sender = sender
        self._preparer = preparer
        self._runtime = sender.core.runtime
        self._failed: list[Sending] = []
        self._window = Window(self._runtime, tasks, in_flight, waiting_max, self._over)
        self._ended = self._window.ended

    async def send(self, message: Message, *, queue: QueueChoice = None) -> Sending:
        """Wait for room and take a message; ``queue`` is that of `Producer.send`.

        Raises MessageRejected for an illegal message, and ClientClosed after the block.
        """
        while self._window.is_full and not self._window.is_closed:
            await self._window.wait_room()
        return self.send_nowait(message, queue=queue)

    def send_nowait(self, message: Message, *, queue: QueueChoice = None) -> Sending:
        """Take a message without waiting; ``queue`` is that of `Producer.send`.

        Raises OutboxFull, MessageRejected for an illegal message, and ClientClosed after the block.
        """
        window = self._window
        if window.is_closed:
            raise ClientClosed("the outbox's block has been left")
        if window.is_full:
            raise OutboxFull(window.waiting)
        sending = Sending(self._runtime, message)
        outgoing = self._preparer.message(message)
        window.put(OneSend(self._sender, outgoing, message, queue, None, self._ended, sending))
        return sending

    async def wait_sent(self) -> None:
        """Wait until every message that was taken is stored or has failed. Raises nothing."""
        await self._window.wait_idle()

    def close(self) -> None:
        """End the outbox: it takes and sends nothing more, and the messages that are left fail."""
        self._window.close()

    def failures(self) -> list[tuple[Message, ClientError]]:
        """Return the messages that have failed and that nobody has waited for to the end, each with its error."""
        return [
            (sending.message, error)
            for sending in self._failed
            if (error := sending.unheard_error) is not None
        ]

    def _over(self, send: OneSend, result: SendResult | None, error: ClientError | None) -> None:
        sending = send.ticket
        assert isinstance(sending, Sending), "the outbox has put it"
        if error is not None:
            self._failed.append(sending)
        sending.finish(result, error)


@asynccontextmanager
async def open_outbox(
    sender: Sender, preparer: Preparer, in_flight: int, waiting_max: int | None
) -> AsyncIterator[Outbox]:
    """Run an outbox around a block. Raises as `Producer.outbox` says."""
    async with sender.core.runtime.task_group() as tasks:
        outbox = Outbox(sender, preparer, tasks, in_flight, in_flight if waiting_max is None else waiting_max)
        try:
            yield outbox
            await outbox.wait_sent()
        finally:
            outbox.close()
    failures = outbox.failures()
    if failures:
        raise SendsFailed(failures) from failures[0][1]


async def send_many(
    sender: Sender,
    preparer: Preparer,
    messages: Iterable[Message] | AsyncIterable[Message],
    choice: QueueChoice,
    in_flight: int,
    timeout_s: float | None,
) -> list[SendResult]:
    """Do what `Producer.send_many` says, and raise what it says."""
    results: list[SendResult | None] = []
    failures: list[tuple[Message, ClientError]] = []

    def over(send: OneSend, result: SendResult | None, error: ClientError | None) -> None:
        if error is not None:
            failures.append((send.message, error))
        else:
            results[send.ticket] = result  # type: ignore[call-overload]

    async with sender.core.runtime.task_group() as tasks:
        window = Window(sender.core.runtime, tasks, in_flight, in_flight, over)
        ended = window.ended

        async def put(message: Message) -> bool:
            """Returns, when there is room for another message, whether one is wanted: none has failed."""
            results.append(None)  # its place in the list; sends end in any order
            try:
                outgoing = preparer.message(message)
            except ClientError as error:
                failures.append((message, error))
            else:
                place = len(results) - 1
                window.put(OneSend(sender, outgoing, message, choice, timeout_s, ended, place))
            # While this waits a send may fail: so that is looked at behind it.
            if window.is_full:
                await window.wait_room()
            return not failures

        try:
            if isinstance(messages, AsyncIterable):
                async for message in messages:
                    if not await put(message):
                        break
            else:
                for message in messages:
                    if not await put(message):
                        break
            # After a failure, too: what is under way may be stored, and its sender is told which messages are.
            await window.wait_idle()
        finally:
            window.close()
    if failures:
        raise SendsFailed(failures, results) from failures[0][1]
    return results  # type: ignore[return-value]
