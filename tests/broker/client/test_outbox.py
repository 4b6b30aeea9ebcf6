"""Outboxes: how much is under way, what becomes of failures, and what leaving the block means."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.client.errors import (
    ClientClosed,
    MessageRejected,
    NotDelivered,
    OutboxFull,
    SendOutcomeUnknown,
    SendsFailed,
    UsageError,
)
from broker.client.message import Message
from broker.client.producing.outbox import Sending
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime, Link, code

SEND = RequestCode.SEND_MESSAGE_V2


class Held:
    """Sends that the broker keeps until it is told to answer."""

    def __init__(self, broker: Broker, count: int) -> None:
        self.kept: list[tuple[Link, RemotingCommand]] = []
        self._broker = broker
        broker.script(SEND, *[self._keep] * count)

    def _keep(self, link: Link, command: RemotingCommand) -> None:
        self.kept.append((link, command))

    def answer(self, count: int) -> None:
        for link, command in self.kept[:count]:
            link.send(self._broker.ask(link, command))
        del self.kept[:count]


async def test_a_failure_whose_wait_was_given_up_is_raised_by_the_block(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.script(SEND, *[code(2)] * 1000)
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:

        async def give_up() -> None:
            async with producer.outbox() as outbox:
                sending = await outbox.send(Message("t", b"x"))
                with trio.move_on_after(0.1):
                    await sending.wait()

        with pytest.raises(SendsFailed) as caught:
            await give_up()
    assert [message.body for message, _ in caught.value.failures] == [b"x"]


async def test_so_many_at_the_same_time_and_then_back_pressure(
    broker: Broker, runtime: ClientRuntime
) -> None:
    held = Held(broker, 100)
    taken = 0
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        await producer.queues("t")

        async def fill() -> None:
            nonlocal taken
            async with producer.outbox(in_flight=3, waiting_max=2) as outbox:
                for number in range(9):
                    await outbox.send(Message("t", b"%d" % number))
                    taken += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill)
            await trio.sleep(0.1)
            assert (len(held.kept), taken) == (3, 5)
            held.answer(1)
            await trio.sleep(0.1)
            assert (len(held.kept), taken) == (3, 6)
            for _ in range(9):
                held.answer(3)
                await trio.sleep(0.1)
    assert len(broker.records()) == taken == 9


async def test_results_can_be_waited_for(broker: Broker, runtime: ClientRuntime) -> None:
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer, producer.outbox() as outbox:
        sendings = [await outbox.send(Message("t", b"%d" % number)) for number in range(200)]
        results = [await sending.wait() for sending in sendings]
        assert sorted(result.queue_offset for result in results) == list(range(200))
        assert all(sending.is_done for sending in sendings)
        assert (await sendings[0].wait()) is results[0]
        await outbox.wait_sent()
    assert len(broker.records()) == 200


async def test_a_failure_is_raised_by_who_asks_or_at_the_end(broker: Broker, runtime: ClientRuntime) -> None:
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        broker.script(SEND, code(13))
        async with producer.outbox() as outbox:
            refused = await outbox.send(Message("t", b"refused"))
            with pytest.raises(MessageRejected):
                await refused.wait()
            await outbox.send(Message("t", b"good"))
        broker.script(SEND, code(13), code(13))

        async def send_three() -> None:
            async with producer.outbox(in_flight=1) as outbox:
                for body in (b"a", b"b", b"c"):
                    await outbox.send(Message("t", body))

        with pytest.raises(SendsFailed, match="2 messages") as caught:
            await send_three()
        assert [message.body for message, _ in caught.value.failures] == [b"a", b"b"]
        assert not caught.value.retry_may_help
    assert len(broker.records()) == 2


async def test_nowait_says_when_it_is_full(broker: Broker, runtime: ClientRuntime) -> None:
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        async with producer.outbox(in_flight=1, waiting_max=2) as outbox:
            outbox.send_nowait(Message("t", b"1"))
            outbox.send_nowait(Message("t", b"2"))
            outbox.send_nowait(Message("t", b"3"))
            with pytest.raises(OutboxFull):
                outbox.send_nowait(Message("t", b"4"))
            with pytest.raises(MessageRejected):
                await outbox.send(Message("not a topic", b"4"))
        with pytest.raises(ClientClosed):
            outbox.send_nowait(Message("t", b"5"))
        with pytest.raises(UsageError):
            async with producer.outbox(in_flight=0):
                pass
    assert len(broker.records()) == 3


async def test_leaving_by_an_exception_gives_up_and_says_so(broker: Broker, runtime: ClientRuntime) -> None:
    held = Held(broker, 10)
    sendings: list[Sending] = []

    async def leave() -> None:
        async with producer.outbox(in_flight=1) as outbox:
            sendings.extend([await outbox.send(Message("t", b"x")) for _ in range(2)])
            await wait_all_tasks_blocked()
            raise ZeroDivisionError

    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        await producer.queues("t")
        with pytest.raises(ZeroDivisionError):
            await leave()
        assert len(held.kept) == 1
        with pytest.raises(SendOutcomeUnknown):
            await sendings[0].wait()
        with pytest.raises(NotDelivered):
            await sendings[1].wait()
        broker.scripts.clear()
        await producer.send(Message("t", b"after"))
