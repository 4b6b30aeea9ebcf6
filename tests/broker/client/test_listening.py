"""Listening: how many messages are handled at once, what may be stored meanwhile, and what failures lead to."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker.client.consuming import listening
from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.listening import Handled, Handler, listen
from broker.client.errors import ClientClosed, UsageError
from broker.client.message import MessageQueue, MessageView
from broker.remoting.codes import RequestCode
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, World, code, second_damaged

RETRIES_MAX = 3
QUEUE = MessageQueue("t", "g", 0)
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@contextlib.asynccontextmanager
async def consuming(runtime: ClientRuntime, **options: Any) -> AsyncIterator[Consumer]:
    settings: dict[str, Any] = {"group": "c", "topics": {"t": "*"}, "start": "first", **options}
    async with Consumer(NAME_SERVER, runtime=runtime, **settings) as consumer:
        yield consumer


@contextlib.asynccontextmanager
async def listening_to(consumer: Consumer, handler: Handler, concurrency: int = 20) -> AsyncIterator[None]:
    """`listen` in the background, cancelled at the end of the block."""

    async def run() -> None:
        await listen(consumer, handler, concurrency=concurrency)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield
        nursery.cancel_scope.cancel()


def cluster(world: World, count: int) -> Broker:
    (broker,) = one_group(world)
    for number in range(count):
        broker.append("t", 0, b"%d" % number)
    return broker


class Gates:
    """A handler whose calls end when the test says so."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.finished: list[bytes] = []
        self._open: dict[bytes, trio.Event] = {}

    async def handle(self, message: MessageView) -> None:
        self.started.append(message.body)
        event = self._open[message.body] = trio.Event()
        await event.wait()
        self.finished.append(message.body)

    async def let(self, *bodies: bytes) -> None:
        for body in bodies:
            self._open[body].set()
        await wait_all_tasks_blocked()


async def test_as_many_as_wanted_at_once_and_the_position_waits_for_the_oldest(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 8)
    gates = Gates()
    async with consuming(runtime) as consumer, listening_to(consumer, gates.handle, concurrency=3):
        await trio.sleep(2)
        assert gates.started == [b"0", b"1", b"2"]
        await gates.let(b"1", b"2")
        assert gates.started == [b"0", b"1", b"2", b"3", b"4"]
        assert consumer.positions()[QUEUE] == 0
        await consumer.commit()
        assert not broker.offset("c", "t", 0)
        await gates.let(b"0")
        assert consumer.positions()[QUEUE] == 3
        await gates.let(b"3", b"4", b"5")
        await gates.let(b"6", b"7")
        assert consumer.positions()[QUEUE] == 8
    assert broker.offset("c", "t", 0) == 8


async def test_a_position_waits_when_nothing_more_of_the_queue_is_wanted(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.append("t", 0, b"0", b"TAGS\x01a\x02")
    gates = Gates()
    options: dict[str, Any] = {"topics": {"t": "a"}, "limits": FetchLimits(batch=2)}
    async with consuming(runtime, **options) as consumer, listening_to(consumer, gates.handle):
        await trio.sleep(2)
        for _ in range(5):
            broker.append("t", 0, b"other", b"TAGS\x01b\x02")
        await trio.sleep(40)
        assert consumer.positions()[QUEUE] == 0, "answers without messages must not pass the one in hand"
        await gates.let(b"0")
        assert consumer.positions()[QUEUE] == 6


async def test_what_fails_comes_again_later_each_time_and_ends_as_a_dead_letter(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 3)
    attempts: list[tuple[int, float]] = []
    good: list[bytes] = []

    async def handle(message: MessageView) -> Handled | None:
        if message.body != b"1":
            good.append(message.body)
            return Handled.DONE
        assert message.topic == "t"
        attempts.append((message.reconsume_times, trio.current_time()))
        if len(attempts) % 2:
            raise ValueError("not this one")
        return Handled.RETRY

    async with consuming(runtime, max_retries=RETRIES_MAX) as consumer:
        async with listening_to(consumer, handle):
            await trio.sleep(200)
        assert consumer.positions()[QUEUE] == 3
        assert consumer.positions()[MessageQueue("%RETRY%c", "g", 0)] == RETRIES_MAX
    assert good == [b"0", b"2"]
    assert [times for times, _ in attempts] == list(range(RETRIES_MAX + 1))
    gaps = [after - before for (_, before), (_, after) in itertools.pairwise(attempts)]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 10
    assert gaps[-1] >= 10 * RETRIES_MAX
    assert len(broker.records("%DLQ%c", 0)) == 1


async def test_what_cannot_be_sent_back_is_handled_again_and_holds_the_position(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 2)
    broker.script(SEND_BACK, code(26))
    calls: list[float] = []
    positions: list[int] = []

    async def handle(message: MessageView) -> None:
        if message.body == b"0":
            calls.append(trio.current_time())
            positions.append(consumer.positions()[QUEUE])
            if len(calls) == 1:
                raise ValueError("only once")

    async with consuming(runtime) as consumer, listening_to(consumer, handle):
        await trio.sleep(20)
        assert len(calls) == 2
        assert calls[1] - calls[0] >= listening.AGAIN_S
        assert positions == [0, 0]
        assert consumer.positions()[QUEUE] == 2
        assert len(broker.received(SEND_BACK)) == 1


async def test_what_cannot_be_read_is_passed_over(
    world: World, runtime: ClientRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler got the same bytes every 5 s, for ever, and they held the position."""
    broker = cluster(world, 3)
    broker.script(RequestCode.PULL_MESSAGE, *[broker.instead(second_damaged)] * 2)
    calls: list[MessageView] = []
    seen: list[bytes] = []

    async def handle(message: MessageView) -> None:
        calls.append(message)
        seen.append(message.body)

    async with consuming(runtime) as consumer, listening_to(consumer, handle):
        await trio.sleep(20)
        assert consumer.positions()[QUEUE] == 3
    assert len(calls) == 3
    assert seen == [b"0", b"2"]
    assert not broker.received(SEND_BACK)
    assert "<MessageView t/g/0, damaged> is passed over: " in caplog.text


async def test_cancelling_gives_back_what_was_not_handled_and_only_that(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 6)
    gates = Gates()
    async with consuming(runtime) as consumer:
        async with listening_to(consumer, gates.handle, concurrency=3):
            await trio.sleep(2)
            await gates.let(b"1")
        assert consumer.positions()[QUEUE] == 0
        await consumer.commit()
        assert not broker.offset("c", "t", 0)
        with trio.fail_after(10):
            rest = [(await anext(consumer)).body for _ in range(3)]
        assert rest == [b"0", b"2", b"3"], "in this consumer, what is done does not come again"
        seen: list[bytes] = []

        async def handle(message: MessageView) -> None:
            seen.append(message.body)

        async with listening_to(consumer, handle):
            await trio.sleep(1)
        assert seen == [b"4", b"5"], "the rest of a batch that the iteration began"
    assert broker.offset("c", "t", 0) == 6


async def test_the_end_of_the_consumer_leaves_what_was_in_hand_to_the_group(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 4)
    gates = Gates()
    async with consuming(runtime) as consumer, listening_to(consumer, gates.handle, concurrency=2):
        await trio.sleep(2)
        await gates.let(b"0")
    assert gates.finished == [b"0"]
    assert broker.offset("c", "t", 0) == 1
    async with consuming(runtime) as consumer:
        with trio.fail_after(10):
            assert (await anext(consumer)).body == b"1"


async def test_a_message_that_takes_long_stops_its_queue_at_the_span(
    world: World, runtime: ClientRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "SPAN_MAX", 64)
    cluster(world, 200)
    blocked = trio.Event()
    seen: list[bytes] = []

    async def handle(message: MessageView) -> None:
        seen.append(message.body)
        if message.body == b"0":
            await blocked.wait()

    limits = FetchLimits(batch=32)
    async with consuming(runtime, limits=limits) as consumer, listening_to(consumer, handle, concurrency=4):
        await trio.sleep(10)
        assert len(seen) == 64
        blocked.set()
        await trio.sleep(1)
        assert sorted(seen, key=int) == [b"%d" % number for number in range(200)]
        assert consumer.positions()[QUEUE] == 200


async def test_a_broadcast_consumer_logs_a_failure_and_goes_on(
    world: World, runtime: ClientRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    broker = cluster(world, 2)
    seen: list[bytes] = []

    async def handle(message: MessageView) -> None:
        seen.append(message.body)
        raise ValueError("always")

    async with consuming(runtime, broadcast=True) as consumer, listening_to(consumer, handle):
        await trio.sleep(2)
        assert consumer.positions()[QUEUE] == 2
    assert seen == [b"0", b"1"]
    assert not broker.received(SEND_BACK)
    assert "the handler failed" in caplog.text


async def test_misuse_is_refused(world: World, runtime: ClientRuntime) -> None:
    cluster(world, 0)
    gates = Gates()
    async with consuming(runtime) as consumer:
        with pytest.raises(UsageError):
            await listen(consumer, gates.handle, concurrency=0)
        with pytest.raises(UsageError, match="handler is of class NoneType"):
            await listen(consumer, None)  # type: ignore[arg-type]
        async with listening_to(consumer, gates.handle):
            await trio.sleep(1)
            with pytest.raises(UsageError):
                await listen(consumer, gates.handle)
            with pytest.raises(UsageError):
                await anext(consumer)
    with pytest.raises(ClientClosed):
        await listen(consumer, gates.handle)


@pytest.mark.parametrize("is_listening", [False, True], ids=["iterates", "listens"])
async def test_reading_ends_when_another_task_leaves_the_block(
    world: World, runtime: ClientRuntime, is_listening: bool
) -> None:
    cluster(world, 0)
    ended: list[type[Exception]] = []

    async def read(consumer: Consumer) -> None:
        try:
            await (listen(consumer, Gates().handle) if is_listening else anext(consumer))
        except ClientClosed as error:
            ended.append(type(error))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, consuming(runtime) as consumer:
            nursery.start_soon(read, consumer)
            await trio.sleep(1)
    assert ended == [ClientClosed]


async def test_a_handler_that_is_not_async_ends_the_listening_and_nothing_is_sent_back(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 3)
    handled: list[bytes] = []

    def handle(message: MessageView) -> None:
        handled.append(message.body)

    async with consuming(runtime) as consumer:
        with pytest.raises(UsageError, match="must be an async function"):
            await listen(consumer, handle)  # type: ignore[arg-type]
        assert handled == [b"0"]
        assert (await anext(consumer)).body == b"0"
    assert not broker.received(SEND_BACK)
