"""The client for programs on asyncio: the same calls, awaited there (docs/client.md).

An await that is cancelled cancels the call in the client's thread.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from broker.client.consuming.consumer import Consumer as TrioConsumer
from broker.client.message import Message, MessageView, SendResult
from broker.client.producing.producer import Producer as TrioProducer
from broker.client.producing.sender import QueueChoice
from broker.client.threaded.clients import ThreadedConsumer, ThreadedProducer
from broker.client.threaded.own_thread import OwnThread

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class _Block:
    """An ``async with`` block on asyncio that holds the client's open."""

    _client: Any
    _thread: OwnThread[Any]

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


def _awaited(
    call: Callable[Concatenate[Any, Arguments], Awaitable[Result]],
) -> Callable[Concatenate[_Block, Arguments], Coroutine[Any, Any, Result]]:
    """Return a method like one of a client on Trio, in whose thread it is called."""

    async def awaited(self: _Block, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return await self._call(call, self._client, *arguments, **named)

    return functools.update_wrapper(awaited, call)


class Producer(ThreadedProducer, _Block):
    """Sends messages, as `trivet.Producer` does, whose options it takes.

        async with Producer("127.0.0.1:9876", group="orders") as producer:
            result = await producer.send(Message("paid", b"order 17", keys=["17"]))

    Any number of tasks may send at the same time, and should: one alone waits for two changes of threads a message.
    """

    send = _awaited(TrioProducer.send)
    send_batch = _awaited(TrioProducer.send_batch)
    send_one_way = _awaited(TrioProducer.send_one_way)
    request = _awaited(TrioProducer.request)
    resume = _awaited(TrioProducer.resume)
    queues = _awaited(TrioProducer.queues)

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


class Consumer(ThreadedConsumer, _Block):
    """A member of a consumer group, as `trivet.Consumer`, whose options it takes.

        async with Consumer("127.0.0.1:9876", group="g", topics="paid") as consumer:
            async for message in consumer:
                print(message.body)

    One task reads; others may call `commit`. ``asyncio.wait_for(anext(consumer), 1.0)`` gives up after a second, and
    skips nothing.
    """

    commit = _awaited(TrioConsumer.commit)
    send_back = _awaited(TrioConsumer.send_back)
    wait_assigned = _awaited(TrioConsumer.wait_assigned)
    reply = _awaited(TrioConsumer.reply)

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
