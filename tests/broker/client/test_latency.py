"""Slow broker groups are left alone for a while: the reference's classes, and what a producer makes of them."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import trio

from broker.client.errors import SendOutcomeUnknown, UsageError
from broker.client.message import Message, MessageQueue
from broker.client.producing.latency import CLASSES_OF_4, LatencyClasses, SlowGroups
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster
from tests.broker.client.links import ClientRuntime, Link, Step, World, code, silent

SEND = RequestCode.SEND_MESSAGE_V2

# What MQFaultStrategy.computeNotAvailableDuration gives in the Java clients of 4.9.8 and 5.3.1, latency to time.
FACTS_4 = (
    "0:0 49:0 50:0 99:0 100:0 549:0 550:30000 551:30000 999:30000 1000:60000 1799:60000 1800:60000 2000:120000 "
    "3000:180000 5000:180000 10000:180000 14999:180000 15000:600000 30000:600000 60000:600000"
)
FACTS_5 = (
    "0:0 49:0 50:0 99:0 100:0 549:0 550:2000 551:2000 999:2000 1000:2000 1799:2000 1800:5000 2000:5000 3000:6000 "
    "5000:10000 10000:10000 14999:10000 15000:30000 30000:30000 60000:30000"
)


@pytest.mark.parametrize(("classes", "facts"), [(CLASSES_OF_4, FACTS_4), (LatencyClasses(), FACTS_5)])
def test_the_references_classes(classes: LatencyClasses, facts: str) -> None:
    for latency, avoided in (fact.split(":") for fact in facts.split()):
        assert classes.avoided_for_ms(int(latency)) == int(avoided), latency


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (((100, 1), (50, 2)), r"\[100, 50\] must grow"),
        (((50, 1), (50, 2)), r"\[50, 50\] must grow"),
        (((50, -1),), r"\(50, -1\) has a negative number"),
        (((-1, 50),), r"\(-1, 50\) has a negative number"),
    ],
)
def test_classes_must_make_sense(wrong: tuple[tuple[int, int], ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        LatencyClasses(wrong)


def test_a_class_may_begin_at_0_and_avoid_nobody() -> None:
    assert LatencyClasses(((0, 0), (1, 5))).avoided_for_ms(0) == 0


def test_a_failure_counts_as_a_latency_of_the_references() -> None:
    assert (CLASSES_OF_4.failure_ms, LatencyClasses().failure_ms) == (30_000, 10_000), "MQFaultStrategy"


def queues(*names: str) -> list[MessageQueue]:
    return [MessageQueue("t", name, number) for name in names for number in range(2)]


def test_when_all_are_slow_the_better_half_takes_turns() -> None:
    now = 0
    slow = SlowGroups(LatencyClasses(), lambda: now)
    wanted = queues("a", "b", "c", "d")
    now = 60_000_000_000
    for name, latency_s in (("a", 4), ("b", 1), ("c", 2), ("d", 20)):
        slow.answered(name, now - latency_s * 1_000_000_000)
    chosen = Counter(slow.choose(wanted, turn).broker_name for turn in range(100))
    assert chosen == {"b": 50, "c": 50}
    now += 2_000_000_000
    assert {slow.choose(wanted, turn).broker_name for turn in range(100)} == {"b"}, "its time is over"


def two_groups(world: World) -> dict[str, Broker]:
    cluster = Cluster(world)
    brokers = {name: cluster.add_group(name)[0] for name in ("g1", "g2")}
    for broker in brokers.values():
        broker.create_topic("t", queues=2)
    return brokers


def late(broker: Broker, seconds: float) -> Step:
    """Stores the message at once; the response takes that time."""

    def step(link: Link, stored: RemotingCommand) -> None:
        async def send_later() -> None:
            await trio.sleep(seconds)
            link.send(stored)

        broker.world.nursery.start_soon(send_later)

    return broker.instead(step)


async def send(producer: Producer, count: int) -> Counter[str]:
    return Counter([(await producer.send(Message("t", b"x"))).queue.broker_name for _ in range(count)])


async def test_a_slow_group_gets_nothing_until_its_time_is_over(world: World, runtime: ClientRuntime) -> None:
    brokers = two_groups(world)
    async with Producer(NAME_SERVER, group="p", avoid_slow=LatencyClasses(), runtime=runtime) as producer:
        assert await send(producer, 8) == {"g1": 4, "g2": 4}
        brokers["g1"].script(SEND, late(brokers["g1"], 0.6))
        await send(producer, 4)
        assert await send(producer, 20) == {"g2": 20}
        await trio.sleep(2)
        assert await send(producer, 8) == {"g1": 4, "g2": 4}
        chosen = MessageQueue("t", "g1", 1)
        brokers["g1"].script(SEND, late(brokers["g1"], 0.6))
        await producer.send(Message("t", b"x"), queue=chosen)
        assert (await producer.send(Message("t", b"x"), queue=chosen)).queue == chosen, (
            "whoever chooses gets it"
        )


@pytest.mark.parametrize("step", [silent, code(2), code(14)])
async def test_a_group_that_fails_is_avoided(world: World, runtime: ClientRuntime, step: Any) -> None:
    brokers = two_groups(world)
    async with Producer(
        NAME_SERVER,
        group="p",
        avoid_slow=LatencyClasses(failure_ms=5_000),
        retry_unknown=False,
        runtime=runtime,
    ) as producer:
        brokers["g1"].script(SEND, step)
        for _ in range(4):
            with contextlib.suppress(SendOutcomeUnknown):
                await send(producer, 1)
        before = len(brokers["g1"].received(SEND))
        assert await send(producer, 20) == {"g2": 20}
        assert len(brokers["g1"].received(SEND)) == before
        await trio.sleep(10)
        assert await send(producer, 8) == {"g1": 4, "g2": 4}


async def test_it_is_off_by_default(world: World, runtime: ClientRuntime) -> None:
    brokers = two_groups(world)
    async with Producer(NAME_SERVER, group="p", runtime=runtime) as producer:
        brokers["g1"].script(SEND, late(brokers["g1"], 0.6))
        await send(producer, 4)
        assert await send(producer, 20) == {"g1": 10, "g2": 10}
