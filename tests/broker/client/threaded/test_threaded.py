"""Clients in threads of their own, for programs without an event loop and for those on asyncio."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from itertools import islice
from types import ModuleType
from typing import Any

import pytest

from broker.client.consuming.consumer import Consumer
from broker.client.errors import ClientClosed, MessageRejected, ReplyTimeout
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.client.threaded import aio, sync
from broker.testing.broker import RunningBroker, broker

LIMIT_S = 60.0
"""Ends a test that hangs."""


@pytest.mark.parametrize("module", [sync, aio])
def test_the_options_are_those_of_the_clients_on_trio(module: ModuleType) -> None:
    for own, on_trio in ((module.Producer, Producer), (module.Consumer, Consumer)):
        assert inspect.signature(own) == inspect.signature(on_trio)


@pytest.fixture(scope="module")
def name_server() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running


def test_a_program_without_a_loop(name_server: RunningBroker) -> None:
    with sync.Producer(name_server, group="p") as producer:
        first = producer.send(Message("Sync", b"0"), queue="one key")
        batch = producer.send_batch([Message("Sync", b"1"), Message("Sync", b"2")], queue="one key")
        producer.send_one_way(Message("Sync", b"3"), queue="one key")
        assert [result.queue_offset for result in (first, *batch)] == [0, 1, 2]
        assert first.queue in producer.queues("Sync")
        with pytest.raises(MessageRejected):
            producer.send(Message("no topic", b""))
        with pytest.raises(ReplyTimeout):
            producer.request(Message("Sync", b"4"), queue="one key", timeout_s=0.1)
    with sync.Consumer(name_server, group="g", topics="Sync", start="first") as consumer:
        assert [message.body for message in islice(consumer, 5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert consumer.poll(0.01) is None
        consumer.commit()
    with sync.Consumer(name_server, group="g", topics="Sync", start="first") as consumer:
        consumer.wait_assigned()
        assert consumer.poll(0.2) is None


def test_much_at_once(name_server: RunningBroker) -> None:
    wanted = [b"%d" % number for number in range(500)]
    with sync.Producer(name_server, group="p") as producer:
        results = producer.send_many((Message("Much", body) for body in wanted), queue=0)
        assert len({result.queue_offset for result in results}) == 500
    with sync.Consumer(name_server, group="g", topics="Much", start="first") as consumer:
        found = [next(iter(consumer)).body]
        for batch in consumer.batches():
            found += [message.body for message in batch]
            if len(found) == 500:
                break
    assert sorted(found) == sorted(wanted)


def test_threads_share_a_producer(name_server: RunningBroker) -> None:
    found: list[int] = []

    def send() -> None:
        for _ in range(20):
            found.append(producer.send(Message("Shared", b"x"), queue=0).queue_offset)

    with sync.Producer(name_server, group="p") as producer:
        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == list(range(80))


def test_requests_are_replied_to(name_server: RunningBroker) -> None:
    def reply() -> None:
        for request in consumer:
            consumer.reply(request, request.body.upper())
            return

    name_server.create_topic("Asked")
    with (
        sync.Producer(name_server, group="p") as producer,
        sync.Consumer(name_server, group="replies", topics="Asked", start="first") as consumer,
    ):
        thread = threading.Thread(target=reply)
        thread.start()
        assert producer.request(Message("Asked", b"hello"), timeout_s=LIMIT_S).body == b"HELLO"
        thread.join()


def test_a_block_that_is_left_gives_up_what_is_under_way(name_server: RunningBroker) -> None:
    errors: list[BaseException] = []
    reading = threading.Event()

    def read() -> None:
        reading.set()
        try:
            consumer.poll(LIMIT_S)
        except ClientClosed as error:
            errors.append(error)

    name_server.create_topic("Nothing")
    with sync.Consumer(name_server, group="left", topics="Nothing") as consumer:
        thread = threading.Thread(target=read)
        thread.start()
        reading.wait()
        consumer.wait_assigned()
    thread.join()
    assert len(errors) == 1


def test_clients_work_inside_one_block_only(name_server: RunningBroker) -> None:
    producer = sync.Producer(name_server, group="p")
    with pytest.raises(ClientClosed):
        producer.send(Message("Sync", b""))
    with producer:
        pass
    with pytest.raises(ClientClosed):
        producer.send(Message("Sync", b""))
    with pytest.raises(ClientClosed, match="entered once"), producer:
        pass
    with pytest.raises(MessageRejected):
        sync.Producer(name_server, group="no group")


def test_an_entry_that_is_given_up_at_once_leaves_the_block() -> None:
    """Its thread may not have begun: it must not hold the block for as long as the program runs."""

    async def main() -> None:
        producer = aio.Producer("127.0.0.1:1", group="given_up")
        entering = asyncio.ensure_future(producer.__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering

    for _ in range(10):
        asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name == "trivet producer given_up":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_a_program_on_asyncio(name_server: RunningBroker) -> None:
    async def main() -> None:
        async with aio.Producer(name_server, group="p") as producer:
            sent = await asyncio.gather(
                *(producer.send(Message("Aio", b"%d" % number), queue=0) for number in range(20))
            )
            assert sorted(result.queue_offset for result in sent) == list(range(20))
            await producer.send_many([Message("Aio", b"20"), Message("Aio", b"21")], queue=0)
        async with aio.Consumer(name_server, group="a", topics="Aio", start="first") as consumer:
            bodies = [(await anext(consumer)).body for _ in range(20)]
            async for batch in consumer.batches():
                bodies += [message.body for message in batch]
                if len(bodies) == 22:
                    break
            await consumer.commit()
        assert sorted(bodies) == sorted(b"%d" % number for number in range(22))
        with pytest.raises(ClientClosed):
            await consumer.commit()

    asyncio.run(main())


def test_an_await_that_is_given_up_skips_no_message(name_server: RunningBroker) -> None:
    """Whether it is given up before a message is there, on its way between the threads, or just as it arrives."""

    name_server.create_topic("Patience")

    async def main() -> None:
        async with (
            aio.Producer(name_server, group="p") as producer,
            aio.Consumer(name_server, group="given_up", topics="Patience", start="first") as consumer,
        ):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.01)
            for number in range(100):
                await producer.send(Message("Patience", b"%d" % number), queue=0)
            bodies: list[bytes] = []
            given_up = 0
            while len(bodies) < 100:
                reading: asyncio.Future[Any] = asyncio.ensure_future(
                    anext(consumer) if len(bodies) % 2 else anext(consumer.batches())
                )
                for _ in range(given_up % 50):  # the way of a message takes some ten rounds of the loop
                    await asyncio.sleep(0)
                reading.cancel()
                try:
                    got = await reading
                    bodies += [message.body for message in (got if isinstance(got, list) else [got])]
                except asyncio.CancelledError:
                    given_up += 1
            assert bodies == [b"%d" % number for number in range(100)]
            assert given_up

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
