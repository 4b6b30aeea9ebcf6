"""The client for programs without an event loop: the same calls, which wait (docs/client.md)."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import trio

from broker.client.checks import check_seconds
from broker.client.consuming.consumer import Consumer as TrioConsumer
from broker.client.message import Message, MessageView, SendResult
from broker.client.producing.producer import Producer as TrioProducer
from broker.client.producing.sender import QueueChoice
from broker.client.threaded.clients import ThreadedConsumer, ThreadedProducer
from broker.client.threaded.own_thread import OwnThread, waited

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Block:
    """A ``with`` block that holds the client's open."""

    _client: Any
    _thread: OwnThread[Any]

    def __enter__(self) -> Self:
        waited(self._thread.open())
        return self

    def __exit__(self, *_error: object) -> None:
        waited(self._thread.close())


def _waiting(
    call: Callable[Concatenate[Any, Arguments], Awaitable[Result]],
) -> Callable[Concatenate[_Block, Arguments], Result]:
    """Return a method like one of a client on Trio, in whose thread it is called."""

    def waiting(self: _Block, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return self._thread.call(call, self._client, *arguments, **named)

    return functools.update_wrapper(waiting, call)


class Producer(ThreadedProducer, _Block):
    """Sends messages, as `trivet.Producer` does, whose options it takes.

        with Producer("127.0.0.1:9876", group="orders") as producer:
            result = producer.send(Message("paid", b"order 17", keys=["17"]))

    Any number of threads may use it at the same time. It does not live through a fork: make one in each process.
    """

    send = _waiting(TrioProducer.send)
    send_batch = _waiting(TrioProducer.send_batch)
    send_one_way = _waiting(TrioProducer.send_one_way)
    request = _waiting(TrioProducer.request)
    resume = _waiting(TrioProducer.resume)
    queues = _waiting(TrioProducer.queues)

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueChoice = None,
        in_flight: int = 64,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Like `trivet.Producer.send_many`; ``messages`` are taken at once. By far the fastest way to send."""
        return self._thread.call(
            self._client.send_many, list(messages), queue=queue, in_flight=in_flight, timeout_s=timeout_s
        )


class Consumer(ThreadedConsumer, _Block):
    """A member of a consumer group, as `trivet.Consumer`, whose options it takes.

        with Consumer("127.0.0.1:9876", group="g", topics="paid") as consumer:
            for message in consumer:
                print(message.body)

    One thread reads; others may call `commit`. It does not live through a fork.
    """

    commit = _waiting(TrioConsumer.commit)
    send_back = _waiting(TrioConsumer.send_back)
    wait_assigned = _waiting(TrioConsumer.wait_assigned)
    reply = _waiting(TrioConsumer.reply)

    def __iter__(self) -> Iterator[MessageView]:
        """Iterate over the messages; each is done with when the next one is asked for. The iteration never stops."""
        while True:
            yield from self._handover.arrived(self._thread.call(self._handover.take))

    def batches(self) -> Iterator[list[MessageView]]:
        """Iterate over batches, as `trivet.Consumer.batches`: one change of threads for all messages of one."""
        while True:
            yield self._handover.arrived(self._thread.call(self._handover.take, batch=True))

    def poll(self, timeout_s: float) -> MessageView | None:
        """Return the next message, None if none came within so many seconds; the one before is done with.

        Raises UsageError for a negative time.
        """
        check_seconds(0, math.inf, timeout_s=timeout_s)

        async def take() -> list[MessageView]:
            with trio.move_on_after(timeout_s):
                return await self._handover.take()
            return []

        return next(iter(self._handover.arrived(self._thread.call(take))), None)
