"""Many sends at the same time: order of results, bounds, and that nothing is lost, whatever is cancelled or breaks."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from broker.client.errors import (
    ClientClosed,
    MessageRejected,
    SendOutcomeUnknown,
    SendsFailed,
    UsageError,
)
from broker.client.message import Message, MessageQueue, SendResult
from broker.client.producing.lane import Lane
from broker.client.producing.outgoing import SINGLE_CODE, Outgoing
from broker.client.producing.producer import Producer
from broker.client.transport.write_queue import BACKLOG_BYTES_MAX
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, encode_head, request
from tests.broker.client.cancellation import cancel_at_step
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, Link, Step, World, code, reset, silent

SEND = RequestCode.SEND_MESSAGE_V2
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


def producing(runtime: ClientRuntime, send_timeout_s: float = 3.0) -> Producer:
    return Producer(NAME_SERVER, group="p", runtime=runtime, send_timeout_s=send_timeout_s)


def numbered(count: int) -> list[Message]:
    return [Message("t", b"%d" % number) for number in range(count)]


def assert_true(results: list[SendResult], broker: Broker) -> None:
    """Each result tells where the message of its number is, and each message is there once."""
    stored = broker.stored()
    assert [stored[result.queue_offset] for result in results] == [b"%d" % n for n in range(len(results))]
    assert len(set(stored)) == len(stored)


class Counted:
    """Messages that count how many of them were taken."""

    def __init__(self, count: int, body: bytes = b"x") -> None:
        self.taken = 0
        self._count = count
        self._body = body

    def __iter__(self) -> Iterator[Message]:
        for _ in range(self._count):
            self.taken += 1
            yield Message("t", self._body)


# Results and bounds --------------------------------------------------------------------------------------------------


async def test_results_stand_in_the_order_of_the_messages(broker: Broker, runtime: ClientRuntime) -> None:
    """However the broker answers."""
    kept: list[tuple[Link, RemotingCommand]] = []

    def answer_backwards(link: Link, command: RemotingCommand) -> None:
        kept.append((link, command))
        if len(kept) == 10:
            answers = [(link, broker.ask(link, command)) for link, command in kept]
            for link, answer in reversed(answers):
                link.send(answer)
            kept.clear()

    broker.script(SEND, *[answer_backwards] * 200)
    async with producing(runtime) as producer:
        assert_true(await producer.send_many(numbered(200), in_flight=10), broker)
        assert await producer.send_many([]) == []


async def test_messages_may_come_one_by_one(broker: Broker, runtime: ClientRuntime) -> None:
    async def lines() -> AsyncIterator[Message]:
        for message in numbered(20):
            await trio.sleep(0.1)
            yield message

    async with producing(runtime) as producer:
        assert_true(await producer.send_many(lines(), in_flight=3), broker)


async def test_no_more_is_taken_than_there_is_room_for(
    world: World, broker: Broker, runtime: ClientRuntime, nursery: trio.Nursery
) -> None:
    """A broker that reads nothing, and one that answers nothing, cost the memory of what is in flight or next."""
    messages = Counted(1_000, bytes(10_000))
    async with producing(runtime, send_timeout_s=60) as producer:
        await producer.send(Message("t", b"first"))
        (link,) = broker.links
        link.from_client.stopped = True
        sending = trio.CancelScope()

        async def send() -> None:
            with sending:
                await producer.send_many(messages, in_flight=8, timeout_s=60)

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert messages.taken == 16
        sending.cancel()
        await wait_all_tasks_blocked()
        link.from_client.go_on()
        await producer.send(Message("t", b"last"))
    assert broker.stored()[-1] == b"last"


async def test_tasks_that_send_much_wait_for_a_peer_that_reads_nothing(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with producing(runtime, send_timeout_s=60) as producer:
        await producer.send(Message("t", b"first"))
        (link,) = broker.links
        link.from_client.stopped = True
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(producer.send, Message("t", bytes(200_000)))
            await wait_all_tasks_blocked()
            (connection,) = (found for found in producer.core.pool.open_connections() if found.calls)
            assert len(connection.calls) * 200_000 < 2 * BACKLOG_BYTES_MAX + 3 * 200_000
            link.from_client.go_on()
    assert len(broker.stored()) == 201


# Failures ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("come_later", [False, True], ids=["at once", "one by one"])
async def test_after_a_failure_no_more_are_taken_and_the_rest_is_told(
    broker: Broker, runtime: ClientRuntime, come_later: bool
) -> None:
    stored: Step = broker.instead(lambda link, answer: answer)
    broker.script(SEND, stored, stored, code(13), stored, stored)
    messages = Counted(100)

    async def one_by_one() -> AsyncIterator[Message]:
        for message in messages:
            await trio.lowlevel.checkpoint()
            yield message

    async with producing(runtime) as producer:
        await producer.queues("t")
        with pytest.raises(SendsFailed, match="1 messages failed") as caught:
            await producer.send_many(one_by_one() if come_later else messages, in_flight=2)
    results = caught.value.results
    assert len(results) == messages.taken < 10
    assert [place for place, result in enumerate(results) if result is None] == [2]
    assert len(broker.stored()) == messages.taken - 1
    assert isinstance(caught.value.failures[0][1], MessageRejected)


async def test_an_illegal_message_is_a_failure_as_well(broker: Broker, runtime: ClientRuntime) -> None:
    messages = [Message("t", b"0"), Message("no topic!", b"1"), Message("t", b"2")]
    async with producing(runtime) as producer:
        with pytest.raises(SendsFailed) as caught:
            await producer.send_many(messages)
        with pytest.raises(SendsFailed) as wrong_queue:
            await producer.send_many(numbered(1), queue=MessageQueue("u", "g", 0))
        with pytest.raises(UsageError):
            await producer.send_many(messages, in_flight=0)
    assert [result is None for result in caught.value.results] == [False, True]
    assert isinstance(wrong_queue.value.failures[0][1], UsageError)
    assert broker.stored() == [b"0"]
    with pytest.raises(ClientClosed):
        await producer.send_many(messages)


async def test_what_the_application_raises_comes_out_bare_and_hurts_nobody_else(
    broker: Broker, runtime: ClientRuntime
) -> None:
    def broken() -> Iterator[Message]:
        yield Message("t", b"0")
        raise ZeroDivisionError

    def selector(queues: object, message: Message) -> MessageQueue:
        raise ZeroDivisionError

    async def by_outbox() -> None:
        async with producer.outbox() as outbox:
            await outbox.send(Message("t", b"1"), queue=selector)
            await trio.sleep_forever()

    async with producing(runtime) as producer:
        await producer.queues("t")
        with pytest.raises(ZeroDivisionError):
            await producer.send_many(broken())
        with pytest.raises(ZeroDivisionError):
            await producer.send_many(numbered(1), queue=selector)
        with pytest.raises(ZeroDivisionError):
            await by_outbox()
        assert len(producer.core.pool.open_connections()) == 2
        await producer.send(Message("t", b"last"))


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", tags="\ud800"),
        Message("t", b"x", properties={"a": "\udfff"}),
        Message("t", b"x", flag="1"),  # type: ignore[arg-type]
    ],
)
async def test_what_cannot_be_encoded_is_refused_before_a_connection_has_it(
    broker: Broker, runtime: ClientRuntime, message: Message
) -> None:
    async with producing(runtime) as producer:
        with pytest.raises(MessageRejected):
            await producer.send(message)


async def test_bodies_in_pieces_and_bodies_that_change_are_sent_whole(
    broker: Broker, runtime: ClientRuntime
) -> None:
    growing = bytearray(b"before")
    async with producing(runtime) as producer:
        await producer.send(Message("t", memoryview(b"abcdef")[::2]))
        async with producer.outbox(in_flight=1) as outbox:
            await outbox.send(Message("t", b"other"))
            await outbox.send(Message("t", growing))
            growing += b" and after"
    assert broker.stored() == [b"ace", b"other", b"before"]


# What breaks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
async def test_connections_that_break_in_the_middle_lose_nothing_and_store_nothing_twice(
    world: World, runtime: ClientRuntime, seed: int
) -> None:
    leader, *_ = one_group(world, members=3)
    draw = random.Random(seed)
    broken = [leader.instead(reset), reset, silent, code(14), code(2), leader.instead(silent)]
    steps: list[Step] = [leader.instead(lambda link, answer: answer)] * 20 + broken
    leader.script(SEND, *draw.choices(steps, k=200))
    async with producing(runtime, send_timeout_s=600) as producer:
        results = await producer.send_many(numbered(300), in_flight=16)
        assert_true(results, leader)
        for connection in producer.core.pool.open_connections():
            assert not connection.calls
    assert len(leader.stored()) == 300


@pytest.mark.parametrize("seed", SEEDS)
async def test_frames_are_written_whole_however_little_fits(
    world: World, broker: Broker, runtime: ClientRuntime, seed: int
) -> None:
    """Also those of sends that were cancelled when half of their bytes had left."""
    draw = random.Random(seed)
    world.takes = lambda size: min(size, draw.choice((0, 1, 7, 100, 5_000)))
    async with producing(runtime, send_timeout_s=600) as producer:

        async def cancelled() -> None:
            for _ in range(10):
                with trio.move_on_after(draw.random() * 0.01):
                    await producer.send(Message("t", bytes(2_000)))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(cancelled)
            results = await producer.send_many(numbered(100), in_flight=20)
    stored = [body for body in broker.stored() if body != bytes(2_000)]
    assert sorted(stored, key=int) == [b"%d" % number for number in range(100)]
    assert [broker.stored()[result.queue_offset] for result in results] == [b"%d" % n for n in range(100)]
    assert len(broker.links) <= 1, "no connection was given up"


# Cancellation --------------------------------------------------------------------------------------------------------


async def by_send(producer: Producer, messages: list[Message]) -> None:
    for message in messages:
        await producer.send(message)


async def by_outbox(producer: Producer, messages: list[Message]) -> None:
    async with producer.outbox(in_flight=3) as outbox:
        for message in messages:
            await outbox.send(message)


async def by_send_many(producer: Producer, messages: list[Message]) -> None:
    await producer.send_many(messages, in_flight=3)


@pytest.mark.parametrize("trouble", ["none", "refused", "lost", "slow connect"])
@pytest.mark.parametrize("way", [by_send, by_outbox, by_send_many])
async def test_cancelled_at_any_await_nothing_is_left_behind(
    world: World,
    runtime: ClientRuntime,
    way: Callable[[Producer, list[Message]], Awaitable[None]],
    trouble: str,
) -> None:
    leader, _ = one_group(world, members=2)
    step, cancelled = 0, True
    while cancelled:
        step += 1
        leader.scripts.clear()
        world.connect_delay_s = 0.5 if trouble == "slow connect" else 0.0
        if trouble == "refused":
            leader.script(SEND, code(14), code(2), code(14))
        elif trouble == "lost":
            leader.script(SEND, reset, leader.instead(reset))
        messages = [Message("t", b"%d.%d" % (step, number)) for number in range(9)]
        async with producing(runtime) as producer:
            cancelled = await cancel_at_step(step, partial(way, producer, messages))
            leader.scripts.clear()
            after = await producer.send(Message("t", b"after %d" % step))
            stored = leader.stored()
            assert stored[after.queue_offset] == b"after %d" % step
            for connection in producer.core.pool.open_connections():
                assert not connection.calls, "who was cancelled wants no answer"
        own = [body for body in stored if body.startswith(b"%d." % step)]
        assert len(set(own)) == len(own), "stored once at most"
        assert cancelled or len(own) == 9
    assert step > 2, "nothing was cancelled: the test shows nothing"


async def test_a_cancelled_outbox_can_be_asked_what_it_knows_and_resumed(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"first"))
        broker.script(SEND, broker.instead(silent))
        with trio.move_on_after(0.1):
            async with producer.outbox(in_flight=1) as outbox:
                sending = await outbox.send(Message("t", b"second"))
                await trio.sleep_forever()
        with pytest.raises(SendOutcomeUnknown) as caught:
            await sending.wait()
        (result,) = await producer.resume(caught.value)
    assert (result.queue_offset, broker.stored()) == (1, [b"first", b"second"])


# The template --------------------------------------------------------------------------------------------------------

names = st.text("%|abcXYZ019_-", min_size=1, max_size=20)
texts = st.text(st.characters(codec="utf-8"), max_size=60)
numbers = st.integers(0, 2**31 - 1)


@given(
    group=names,
    topic=names,
    broker_name=texts,
    queue_id=numbers,
    properties=texts,
    sys_flag=numbers,
    flag=st.integers(-(2**31), 2**31 - 1),
    born_ms=st.integers(0, 2**60),
    floor=st.integers(0, 2**60),
    opaque=numbers,
    exactly_once=st.booleans(),
    body=st.binary(min_size=1, max_size=10),
)
def test_the_template_gives_the_bytes_of_the_general_encoder(
    group: str,
    topic: str,
    broker_name: str,
    queue_id: int,
    properties: str,
    sys_flag: int,
    flag: int,
    born_ms: int,
    floor: int,
    opaque: int,
    exactly_once: bool,
    body: bytes,
) -> None:
    lane = Lane(None, group, MessageQueue(topic, broker_name, queue_id), exactly_once=exactly_once)  # type: ignore[arg-type]
    outgoing = Outgoing(topic, SINGLE_CODE, body, properties, sys_flag, flag, ["k"], born_ms)
    fields = lane.fields(outgoing, floor)
    command = request(SINGLE_CODE, fields, body, opaque=opaque, language="PYTHON")
    assert lane.encode(outgoing, floor, opaque) == encode_head(command, len(body))
