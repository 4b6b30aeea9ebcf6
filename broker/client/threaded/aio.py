"""The client for programs on asyncio: the same calls, awaited there (docs/client.md).

An await that is cancelled cancels the call in the client's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, Self, TypeVar

from broker.client.consuming.consumer import Consumer as TrioConsumer
from broker.client.errors import SendOutcomeUnknown
from broker.client.message import Message, MessageQueue, MessageView, SendResult
from broker.client.producing.producer import Producer as TrioProducer
from broker.client.producing.requests import REPLY_TIMEOUT_S
from broker.client.producing.sender import QueueChoice
from broker.client.threaded.handover import Handover
from broker.client.threaded.own_thread import OwnThread

Client = TypeVar("Client", bound=TrioProducer | TrioConsumer)
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class _Threaded(Generic[Client]):
    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._thread: OwnThread[TrioProducer | TrioConsumer] = OwnThread(client, name)

    async def __aenter__(self) -> Self:
        try:
            await asyncio.shield(asyncio.wrap_future(self._thread.open()))
        except asyncio.CancelledError:
            self._thread.close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await asyncio.shield(asyncio.wrap_future(self._thread.close()))

    async def _call(
        self,
        call: Callable[Arguments, Awaitable[Result]],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        return await asyncio.wrap_future(self._thread.begin(call, *arguments, **named))


class Producer(_Threaded[TrioProducer]):
    """Sends messages, as `trivet.Producer` does, whose options it takes.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send(Message("paid", b"order 17", keys=["17"]))

    Any number of tasks may send at the same time, and should: one alone waits for two changes of threads a message.
    """

    def __init__(self, name_servers: str | Sequence[str], *, group: str, **options: Any) -> None:
        super().__init__(TrioProducer(name_servers, group=group, **options), f"trivet producer {group}")

    async def send(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> SendResult:
        """Like `trivet.Producer.send`."""
        return await self._call(self._client.send, message, queue=queue, timeout_s=timeout_s)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Like `trivet.Producer.send_batch`."""
        return await self._call(self._client.send_batch, messages, queue=queue, timeout_s=timeout_s)

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueChoice = None,
        in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Like `trivet.Producer.send_many`; ``messages`` are taken at once. By far the fastest way to send."""
        return await self._call(
            self._client.send_many, list(messages), queue=queue, in_flight=in_flight, timeout_s=timeout_s
        )

    async def resume(self, error: SendOutcomeUnknown, *, timeout_s: float | None = None) -> list[SendResult]:
        """Like `trivet.Producer.resume`."""
        return await self._call(self._client.resume, error, timeout_s=timeout_s)

    async def send_one_way(self, message: Message, *, queue: QueueChoice = None) -> None:
        """Like `trivet.Producer.send_one_way`."""
        await self._call(self._client.send_one_way, message, queue=queue)

    async def request(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float = REPLY_TIMEOUT_S
    ) -> MessageView:
        """Like `trivet.Producer.request`."""
        return await self._call(self._client.request, message, queue=queue, timeout_s=timeout_s)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Like `trivet.Producer.queues`."""
        return await self._call(self._client.queues, topic)


class Consumer(_Threaded[TrioConsumer]):
    """A member of a consumer group, as `trivet.Consumer`, whose options it takes.

        async with Consumer("127.0.0.1:9876", group="g", topics="paid") as consumer:
            async for message in consumer:
                print(message.body)

    One task reads; others may call `commit`. ``asyncio.wait_for(anext(consumer), 1.0)`` gives up after a second, and
    skips nothing.
    """

    def __init__(self, name_servers: str | Sequence[str], *, group: str, topics: Any, **options: Any) -> None:
        client = TrioConsumer(name_servers, group=group, topics=topics, **options)
        super().__init__(client, f"trivet consumer {group}")
        self._handover = Handover(client)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageView:
        """Return the next message; the one before it is done with from now on. The iteration never stops."""
        (message,) = self._handover.arrived(await self._call(self._handover.take))
        return message

    async def batches(self) -> AsyncIterator[list[MessageView]]:
        """Iterate over batches, as `trivet.Consumer.batches`: one change of threads for all messages of one."""
        while True:
            yield self._handover.arrived(await self._call(self._handover.take, batch=True))

    async def commit(self) -> None:
        """Like `trivet.Consumer.commit`."""
        await self._call(self._client.commit)

    async def send_back(self, message: MessageView, delay_level: int = 0) -> None:
        """Like `trivet.Consumer.send_back`."""
        await self._call(self._client.send_back, message, delay_level)

    async def reply(self, request: MessageView, body: bytes, *, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Like `trivet.Consumer.reply`."""
        await self._call(self._client.reply, request, body, timeout_s=timeout_s)

    async def wait_assigned(self) -> None:
        """Like `trivet.Consumer.wait_assigned`."""
        await self._call(self._client.wait_assigned)
