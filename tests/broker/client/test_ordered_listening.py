"""Orderly listening: one handler a queue, in order, under a lock that nobody else can have meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.listening import Handled, Handler, listen
from broker.client.consuming.order_locks import LockTimes
from broker.client.consuming.ordered_listening import SUSPEND_S, listen_orderly
from broker.client.errors import UsageError
from broker.client.message import MessageQueue, MessageView
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, response
from broker.remoting.json_body import decode_body, encode_body
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, Link, World, code, now_ns, second_damaged, silent

LOCK_S = 60.0
"""So long a lock lasts at the broker."""
LOCK = RequestCode.LOCK_BATCH_MQ
UNLOCK = RequestCode.UNLOCK_BATCH_MQ
QUEUE = MessageQueue("t", "g", 0)


def cluster(world: World, count: int, queues: int = 1) -> Broker:
    (broker,) = one_group(world, queues=queues)
    for queue in range(queues):
        for number in range(count):
            broker.append("t", queue, b"%d" % number)
    return broker


def note_renewals(broker: Broker) -> list[float]:
    """The times at which the topic's lock is asked for; the broker gives it each time."""
    times: list[float] = []

    def step(link: Link, command: RemotingCommand) -> None:
        if any(queue.topic == "t" for queue in decode_body(command.body, LockBatchBody).queues):
            times.append(trio.current_time())
        broker.handle(link, command)

    broker.script(LOCK, *[step] * 100)
    return times


def refused(link: Link, command: RemotingCommand) -> RemotingCommand:
    return response(command, 0, body=encode_body(LockBatchResponseBody()))


@dataclass
class Work:
    """What handlers did: (member, queue id, body), and where two were at work on one queue at the same time."""

    started: list[tuple[str, int, bytes]] = field(default_factory=list)
    finished: list[tuple[str, int, bytes]] = field(default_factory=list)
    at_work: dict[int, str] = field(default_factory=dict)
    cancelled_at: list[float] = field(default_factory=list)
    most_at_once: int = 0

    def handler(self, member: str, seconds: float = 0.0) -> Handler:
        async def handle(message: MessageView) -> None:
            queue, body = message.queue.queue_id, message.body
            assert queue not in self.at_work, f"{member} and {self.at_work[queue]} both handle queue {queue}"
            self.at_work[queue] = member
            self.most_at_once = max(self.most_at_once, len(self.at_work))
            self.started.append((member, queue, body))
            try:
                await trio.sleep(seconds)
            except trio.Cancelled:
                self.cancelled_at.append(trio.current_time())
                raise
            finally:
                del self.at_work[queue]
            self.finished.append((member, queue, body))

        return handle

    def bodies(self, queue: int = 0) -> list[bytes]:
        return [body for _, number, body in self.finished if number == queue]


@contextlib.asynccontextmanager
async def member(runtime: ClientRuntime, handler: Handler, **options: Any) -> AsyncIterator[Consumer]:
    """An orderly consumer whose listener runs until the end of the block."""
    async with Consumer(
        NAME_SERVER, group="c", topics="t", start="first", orderly=True, runtime=runtime
    ) as consumer:

        async def run() -> None:
            await listen_orderly(consumer, handler, **options)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield consumer
            nursery.cancel_scope.cancel()


async def test_each_queue_in_order_and_several_at_the_same_time(world: World, runtime: ClientRuntime) -> None:
    broker = cluster(world, 50, queues=3)
    work = Work()
    async with member(runtime, work.handler("a", 0.1)):
        await trio.sleep(10)
    assert work.most_at_once == 3
    for queue in range(3):
        assert work.bodies(queue) == [b"%d" % number for number in range(50)]
        assert broker.offset("c", "t", queue) == 50
    assert not broker.metadata.locks, "unlocked at the end"


async def test_locks_of_a_broker_are_renewed_together(world: World, runtime: ClientRuntime) -> None:
    broker = cluster(world, 0, queues=4)
    async with member(runtime, Work().handler("a")):
        await trio.sleep(5)
        before = len(broker.received(LOCK))
        await trio.sleep(200)
        renewals = len(broker.received(LOCK)) - before
        assert 10 <= renewals <= 22, "the topic's and the retry topic's, every 20 s"


async def test_a_failure_halts_its_queue_until_the_message_is_handled(
    world: World, runtime: ClientRuntime
) -> None:
    cluster(world, 4, queues=2)
    times: list[float] = []
    seen: list[tuple[int, bytes]] = []

    async def handle(message: MessageView) -> Handled | None:
        if message.queue.queue_id == 0 and message.body == b"1" and len(times) < 3:
            times.append(trio.current_time())
            if len(times) == 1:
                raise ValueError("not yet")
            return Handled.RETRY
        seen.append((message.queue.queue_id, message.body))
        return None

    async with member(runtime, handle):
        await trio.sleep(10)
    assert [body for queue, body in seen if queue == 0] == [b"0", b"1", b"2", b"3"]
    assert [body for queue, body in seen if queue == 1] == [b"0", b"1", b"2", b"3"]
    assert seen.index((1, b"3")) < seen.index((0, b"1")), "the other queue goes on"
    assert times[1] - times[0] >= SUSPEND_S
    assert times[2] - times[1] >= SUSPEND_S


async def test_after_the_last_attempt_it_is_a_dead_letter(world: World, runtime: ClientRuntime) -> None:
    broker = cluster(world, 3)
    broker.script(RequestCode.CONSUMER_SEND_MSG_BACK, code(1))
    seen: list[bytes] = []

    async def handle(message: MessageView) -> None:
        seen.append(message.body)
        if message.body == b"1":
            raise ValueError("never")

    async with member(runtime, handle, attempts_max=3, suspend_s=2.0):
        await trio.sleep(20)
    assert seen == [b"0", b"1", b"1", b"1", b"2"], "sending it back is repeated by the client"
    assert len(broker.records("%DLQ%c", 0)) == 1
    assert broker.offset("c", "t", 0) == 3


@pytest.mark.parametrize("attempts_max", [None, 2])
async def test_what_cannot_be_read_halts_its_queue_and_no_other(
    world: World, runtime: ClientRuntime, attempts_max: int | None
) -> None:
    """It ended the listening; nothing says where it would be a dead letter of."""
    broker = cluster(world, 3)
    broker.create_topic("t", 2)
    broker.script(RequestCode.PULL_MESSAGE, *[broker.instead(second_damaged)] * 3)
    calls: list[MessageView] = []
    seen: list[tuple[int, bytes]] = []

    async def handle(message: MessageView) -> None:
        calls.append(message)
        seen.append((message.queue.queue_id, message.body))

    async with member(runtime, handle, attempts_max=attempts_max) as consumer:
        await trio.sleep(10)
        broker.append("t", 1, b"other")
        await trio.sleep(1)
        assert consumer.positions()[QUEUE] in (0, 1), "what a damaged one tells of itself is not believed"
    assert seen == [(0, b"0"), (1, b"other")]
    assert len(calls) > 5
    assert not broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)


async def test_a_queue_moves_after_the_message_in_hand(world: World, runtime: ClientRuntime) -> None:
    broker = cluster(world, 4, queues=2)
    work = Work()
    async with member(runtime, work.handler("a", 100)):
        await trio.sleep(5)
        other = ClientRuntime(world, seed=2)
        async with member(other, work.handler("b", 100)):
            await trio.sleep(900)
    for queue in range(2):
        assert work.bodies(queue) == [b"0", b"1", b"2", b"3"], "in order, and nothing twice"
        assert broker.offset("c", "t", queue) == 4
    assert len({who for who, _, _ in work.finished}) == 2
    assert not work.cancelled_at


async def test_a_lock_that_cannot_be_renewed_stops_the_handler_before_it_can_be_anybody_elses(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 3)
    renewals = note_renewals(broker)
    work = Work()
    async with member(runtime, work.handler("a", 1000)):
        await trio.sleep(5)
        broker.scripts.clear()
        renewed = renewals[-1]
        broker.script(LOCK, *[silent] * 1000)
        await trio.sleep(40)
        (cancelled,) = work.cancelled_at
        assert cancelled == pytest.approx(renewed + LockTimes().good_s, abs=0.01), "and LOCK_S is far away"
        assert not work.at_work
        broker.scripts.clear()
        await trio.sleep(15)
        assert work.started == [("a", 0, b"0"), ("a", 0, b"0")], "the same message again, under a new lock"


async def test_a_lock_that_the_broker_denies_stops_the_handler_at_once(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 3)
    renewals = note_renewals(broker)
    work = Work()
    async with member(runtime, work.handler("a", 1000)):
        await trio.sleep(5)
        broker.scripts.clear()
        renewed = renewals[-1]
        broker.script(LOCK, *[refused] * 4)
        await trio.sleep(20)
        assert work.cancelled_at
        assert abs(work.cancelled_at[0] - renewed - LockTimes().renew_s) < 0.5
        await trio.sleep(10)
        assert [start[2] for start in work.started] == [b"0", b"0"]


async def test_an_unlock_that_arrives_late_does_not_free_a_later_lock(
    world: World, runtime: ClientRuntime
) -> None:
    broker = cluster(world, 0, queues=2)
    work = Work()
    late: list[RemotingCommand] = []

    def delayed(link: Link, command: RemotingCommand) -> None:
        late.append(command)

    async with member(runtime, work.handler("a", 1000)) as consumer:
        await trio.sleep(5)
        broker.script(UNLOCK, delayed)
        async with member(ClientRuntime(world, seed=2), work.handler("b")):
            await trio.sleep(5)
            kept = consumer.assignment()
        (lost,) = [queue for queue in world_queues(2) if queue not in kept]
        broker.append("t", lost.queue_id, b"x")
        await trio.sleep(40)
        assert not work.started, "the lock of before is still there"
        await trio.sleep(30)
        assert work.started == [("a", lost.queue_id, b"x")], "it has run out"
        key = ("c", "t", lost.queue_id)
        holder = broker.metadata.locks[key].client
        assert holder != consumer.core.client_id
        with broker.client() as afterwards:
            for command in late:
                afterwards.ok(UNLOCK, None, bytes(command.body))
        assert broker.metadata.locks[key].client == holder
        await trio.sleep(60)
        assert not work.cancelled_at


def world_queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "g", number) for number in range(count)]


async def test_a_member_that_ends_leaves_everything_to_the_next(world: World, runtime: ClientRuntime) -> None:
    broker = cluster(world, 5)
    work = Work()
    async with member(runtime, work.handler("a", 1.0)):
        await trio.sleep(3.5)
    assert work.cancelled_at
    done = len(work.finished)
    assert broker.offset("c", "t", 0) == done
    ended = trio.current_time()
    async with member(ClientRuntime(world, seed=2), work.handler("b", 1.0)):
        await trio.sleep(6.7)
    assert work.bodies() == [b"%d" % number for number in range(5)]
    assert work.started[done + 1][0] == "b"
    assert trio.current_time() - ended < LOCK_S


async def test_misuse_is_refused(world: World, runtime: ClientRuntime) -> None:
    cluster(world, 1)
    handle = Work().handler("a")
    for renew_s, good_s in ((0, 30), (30, 30)):
        with pytest.raises(UsageError, match="good for longer"):
            LockTimes(renew_s, good_s)
    with pytest.raises(UsageError, match="nothing to lock"):
        Consumer(NAME_SERVER, group="c", topics="t", orderly=True, broadcast=True, runtime=runtime)
    async with Consumer(NAME_SERVER, group="c", topics="t", runtime=runtime) as consumer:
        with pytest.raises(UsageError, match="orderly=True"):
            await listen_orderly(consumer, handle)
    async with Consumer(
        NAME_SERVER, group="c", topics="t", orderly=True, start="first", runtime=ClientRuntime(world)
    ) as consumer:
        with pytest.raises(UsageError, match="listen_orderly"):
            await listen(consumer, handle)
        with pytest.raises(UsageError, match="listen_orderly"):
            await anext(consumer)
        with pytest.raises(UsageError, match="at least 1"):
            await listen_orderly(consumer, handle, attempts_max=0)
        with pytest.raises(UsageError, match="handler is of class NoneType"):
            await listen_orderly(consumer, None)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="async function"):
            await listen_orderly(consumer, lambda message: None)  # type: ignore[arg-type, return-value]


async def test_a_lock_whose_time_is_over_when_the_block_begins_holds_nothing(
    world: World, runtime: ClientRuntime
) -> None:
    """Between the look at the lock and the block of its handler a clock goes on."""
    cluster(world, 1)
    async with Consumer(NAME_SERVER, group="c", topics="t", orderly=True, runtime=runtime) as consumer:
        locks = consumer.order_locks
        assert locks is not None
        await trio.sleep(1)
        assert locks.is_free(QUEUE)
        runtime.now_ns = lambda: now_ns() + int(LOCK_S * 1e9)
        with locks.using(QUEUE):
            assert not locks.is_held(QUEUE)
        runtime.now_ns = now_ns
