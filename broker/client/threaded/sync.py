"""The client for programs without an event loop: the same calls, which wait (docs/client.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import trio

from broker.client.consuming.consumer import Consumer as TrioConsumer
from broker.client.errors import SendOutcomeUnknown
from broker.client.message import Message, MessageQueue, MessageView, SendResult
from broker.client.producing.producer import Producer as TrioProducer
from broker.client.producing.requests import REPLY_TIMEOUT_S
from broker.client.producing.sender import QueueChoice
from broker.client.threaded.handover import Handover
from broker.client.threaded.own_thread import OwnThread, waited

Client = TypeVar("Client", bound=TrioProducer | TrioConsumer)


class _Threaded(Generic[Client]):
    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._thread: OwnThread[TrioProducer | TrioConsumer] = OwnThread(client, name)

    def __enter__(self) -> Self:
        waited(self._thread.open())
        return self

    def __exit__(self, *_error: object) -> None:
        waited(self._thread.close())


class Producer(_Threaded[TrioProducer]):
    """Sends messages, as `trivet.Producer` does, whose options it takes.

        with Producer("127.0.0.1:9876", group="orders") as producer:
            result = producer.send(Message("paid", b"order 17", keys=["17"]))

    Any number of threads may use it at the same time. It does not live through a fork: make one in each process.
    """

    def __init__(self, name_servers: str | Sequence[str], *, group: str, **options: Any) -> None:
        super().__init__(TrioProducer(name_servers, group=group, **options), f"trivet producer {group}")

    def send(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> SendResult:
        """Like `trivet.Producer.send`."""
        return self._thread.call(self._client.send, message, queue=queue, timeout_s=timeout_s)

    def send_batch(
        self, messages: Sequence[Message], *, queue: QueueChoice = None, timeout_s: float | None = None
    ) -> list[SendResult]:
        """Like `trivet.Producer.send_batch`."""
        return self._thread.call(self._client.send_batch, messages, queue=queue, timeout_s=timeout_s)

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

    def resume(self, error: SendOutcomeUnknown, *, timeout_s: float | None = None) -> list[SendResult]:
        """Like `trivet.Producer.resume`."""
        return self._thread.call(self._client.resume, error, timeout_s=timeout_s)

    def send_one_way(self, message: Message, *, queue: QueueChoice = None) -> None:
        """Like `trivet.Producer.send_one_way`."""
        self._thread.call(self._client.send_one_way, message, queue=queue)

    def request(
        self, message: Message, *, queue: QueueChoice = None, timeout_s: float = REPLY_TIMEOUT_S
    ) -> MessageView:
        """Like `trivet.Producer.request`."""
        return self._thread.call(self._client.request, message, queue=queue, timeout_s=timeout_s)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Like `trivet.Producer.queues`."""
        return self._thread.call(self._client.queues, topic)


class Consumer(_Threaded[TrioConsumer]):
    """A member of a consumer group, as `trivet.Consumer`, whose options it takes.

        with Consumer("127.0.0.1:9876", group="g", topics="paid") as consumer:
            for message in consumer:
                print(message.body)

    One thread reads; others may call `commit`. It does not live through a fork.
    """

    def __init__(self, name_servers: str | Sequence[str], *, group: str, topics: Any, **options: Any) -> None:
        client = TrioConsumer(name_servers, group=group, topics=topics, **options)
        super().__init__(client, f"trivet consumer {group}")
        self._handover = Handover(client)

    def __iter__(self) -> Iterator[MessageView]:
        """Iterate over the messages; each is done with when the next one is asked for. The iteration never stops."""
        while True:
            yield from self._handover.arrived(self._thread.call(self._handover.take))

    def batches(self) -> Iterator[list[MessageView]]:
        """Iterate over batches, as `trivet.Consumer.batches`: one change of threads for all messages of one."""
        while True:
            yield self._handover.arrived(self._thread.call(self._handover.take, batch=True))

    def poll(self, timeout_s: float) -> MessageView | None:
        """Return the next message, None if none came within so many seconds; the one before is done with."""

        async def take() -> list[MessageView]:
            with trio.move_on_after(timeout_s):
                return await self._handover.take()
            return []

        return next(iter(self._handover.arrived(self._thread.call(take))), None)

    def commit(self) -> None:
        """Like `trivet.Consumer.commit`."""
        self._thread.call(self._client.commit)

    def send_back(self, message: MessageView, delay_level: int = 0) -> None:
        """Like `trivet.Consumer.send_back`."""
        self._thread.call(self._client.send_back, message, delay_level)

    def reply(self, request: MessageView, body: bytes, *, timeout_s: float = REPLY_TIMEOUT_S) -> None:
        """Like `trivet.Consumer.reply`."""
        self._thread.call(self._client.reply, request, body, timeout_s=timeout_s)

    def wait_assigned(self) -> None:
        """Like `trivet.Consumer.wait_assigned`."""
        self._thread.call(self._client.wait_assigned)
