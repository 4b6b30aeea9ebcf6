"""Reading ranges exactly: what brokers that fail, lag or have deleted something make of it."""

from __future__ import annotations

import pytest
import trio

from broker.client.message import MessageQueue
from broker.client.transport.tls_words import DistrustedError
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, response
from broker.spark_source.offsets import Loss, QueueRange
from broker.spark_source.options import parse_options
from broker.spark_source.topic_reader import ReadError, Slice, TopicReader
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import WALL_START_MS, ClientRuntime, Link, World, code, reset, silent

Q0 = MessageQueue("t", "g", 0)


def reader(world: World, **changes: str) -> TopicReader:
    given = {"nameServers": NAME_SERVER, "subscribe": "t", **changes}
    return TopicReader(parse_options(given, streaming=False), ClientRuntime(world))


def fill(broker: Broker, count: int) -> None:
    for number in range(count):
        broker.append("t", 0, b"%d" % number)


def bodies(found: Slice) -> list[bytes]:
    return [message.body for message in found.messages]


def numbers(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


async def test_a_range_is_read_from_its_start_to_its_stop(world: World, broker: Broker) -> None:
    fill(broker, 100)
    async with reader(world) as topics:
        assert await topics.queues() == [Q0]
        found = await topics.read_slice(QueueRange(Q0, 10, 90))
    assert bodies(found) == numbers(10, 90)
    assert (found.next_offset, found.losses) == (90, [])


async def test_a_slice_is_bounded(world: World, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker, 100)
    monkeypatch.setattr("broker.spark_source.topic_reader.PULL_MESSAGES", 32)
    monkeypatch.setattr("broker.spark_source.topic_reader.SLICE_MESSAGES", 40)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 0, 100))
        assert 40 <= found.next_offset < 100
        rest = await topics.read_slice(QueueRange(Q0, found.next_offset, 100))
    assert bodies(found) + bodies(rest) == numbers(0, found.next_offset + len(rest.messages))


async def test_a_leader_that_dies_in_the_middle_loses_and_doubles_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.spark_source.topic_reader.PULL_MESSAGES", 32)
    leader, *followers = one_group(world, members=3)
    fill(leader, 200)

    def die(link: Link, command: RemotingCommand) -> None:
        leader.kill()

    leader.script(RequestCode.PULL_MESSAGE, leader.handle, silent, reset, leader.handle, die)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 0, 200))
    assert bodies(found) == numbers(0, 200)
    assert found.losses == []
    assert any(follower.received(RequestCode.PULL_MESSAGE) for follower in followers)


async def test_the_third_member_is_asked_where_two_are_out_of_reach(world: World) -> None:
    leader, second, third = one_group(world, members=3)
    fill(leader, 20)
    for gone in (leader, second):
        gone.script(RequestCode.PULL_MESSAGE, *[reset] * 100)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 0, 20))
    assert (bodies(found), found.losses) == (numbers(0, 20), [])
    assert third.received(RequestCode.PULL_MESSAGE)


async def test_of_tags_only_those_are_read_and_the_others_are_no_loss(world: World, broker: Broker) -> None:
    for number in range(20):
        broker.append("t", 0, b"%d" % number, b"TAGS\x01%s\x02" % (b"even" if number % 2 == 0 else b"odd"))
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 3, 15), frozenset({"even"}))
        none = await topics.read_slice(QueueRange(Q0, 0, 20), frozenset({"other"}))
    assert bodies(found) == [b"%d" % number for number in range(4, 15, 2)]
    assert (found.next_offset, found.losses) == (15, [])
    assert (none.messages, none.next_offset, none.losses) == ([], 20, [])


async def test_the_bytes_of_an_offset_are_those_of_the_next_messages(world: World, broker: Broker) -> None:
    fill(broker, 5)
    broker.append("t", 0, bytes(10_000))
    async with reader(world) as topics:
        assert 10_000 < await topics.bytes_per_offset(Q0, 5) < 10_500
        assert 1_700 < await topics.bytes_per_offset(Q0, 0) < 2_100
        assert await topics.bytes_per_offset(Q0, 6) == 0


async def test_a_deleted_head_is_a_loss(world: World, broker: Broker) -> None:
    fill(broker, 7)
    await broker.delete_stored()
    fill(broker, 3)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 2, 10))
        gone = await topics.read_slice(QueueRange(Q0, 2, 5))
    assert bodies(found) == numbers(0, 3)
    assert found.losses == [Loss(Q0, 2, 7, "the queue begins at 7")]
    assert (gone.messages, gone.next_offset, gone.losses[0].stop) == ([], 5, 5)


async def test_a_hole_in_an_answer_is_a_loss(world: World, broker: Broker) -> None:
    """Retention took records of which the queue still knows: the broker leaves them out."""
    fill(broker, 10)
    records = broker.records()

    def with_a_hole(link: Link, command: RemotingCommand) -> RemotingCommand:
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "10", "minOffset": "0", "maxOffset": "10"}
        return response(command, 0, fields=fields, body=b"".join([*records[2:4], *records[6:9]]))

    broker.script(RequestCode.PULL_MESSAGE, with_a_hole)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 0, 10))
    assert bodies(found) == numbers(2, 4) + numbers(6, 9)
    assert [(loss.first, loss.stop) for loss in found.losses] == [(0, 2), (4, 6), (9, 10)]


async def test_a_queue_that_ends_before_the_range_is_a_loss(world: World, broker: Broker) -> None:
    fill(broker, 4)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 2, 9))
    assert bodies(found) == numbers(2, 4)
    assert found.losses == [Loss(Q0, 4, 9, "the queue ends at 4")]


async def test_a_member_that_lags_is_asked_again(world: World, broker: Broker) -> None:
    fill(broker, 4)

    def lags(link: Link, command: RemotingCommand) -> RemotingCommand:
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
        return response(command, 21, fields=fields)

    broker.script(RequestCode.PULL_MESSAGE, lags, lags)
    async with reader(world) as topics:
        found = await topics.read_slice(QueueRange(Q0, 2, 4))
    assert (bodies(found), found.losses) == (numbers(2, 4), [])


async def test_patience_ends(world: World, broker: Broker) -> None:
    fill(broker, 4)
    async with reader(world, timeoutMs="9000") as topics:
        await topics.queues()
        broker.kill()
        started = trio.current_time()
        with pytest.raises(ReadError, match="no response within 9 s"):
            await topics.read_slice(QueueRange(Q0, 0, 4))
        assert trio.current_time() - started < 10


async def test_a_refusal_is_final(world: World, broker: Broker) -> None:
    fill(broker, 4)
    broker.script(RequestCode.PULL_MESSAGE, code(16))
    async with reader(world) as topics:
        with pytest.raises(ReadError, match="code 16"):
            await topics.read_slice(QueueRange(Q0, 0, 4))


async def test_certificates_of_another_authority_are_final(
    world: World, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all name servers; while one of them may still answer, they are asked again."""

    async def connect(_world: World, address: str) -> None:
        await trio.lowlevel.checkpoint()
        if address == NAME_SERVER:
            raise DistrustedError(
                "the server's certificate is not good: unable to get local issuer certificate"
            )
        raise ConnectionRefusedError

    monkeypatch.setattr(World, "connect", connect)
    started = trio.current_time()
    async with reader(world) as topics:
        with pytest.raises(ReadError, match=f"{NAME_SERVER}: cannot connect: .*certificate is not good"):
            await topics.queues()
        assert trio.current_time() == started
    async with reader(world, nameServers=f"{NAME_SERVER},10.0.0.99:9876", timeoutMs="9000") as topics:
        with pytest.raises(ReadError, match="no response within 9 s"):
            await topics.queues()


async def test_a_topic_that_does_not_exist_is_named(world: World) -> None:
    one_group(world)
    async with reader(world, subscribe="t,nothing") as topics:
        with pytest.raises(ReadError, match="'nothing'"):
            await topics.queues()


async def test_offsets_by_time(world: World) -> None:
    (broker,) = one_group(world, queues=2)
    fill(broker, 4)
    options = parse_options(
        {"nameServers": NAME_SERVER, "subscribe": "t", "startingTimestamp": str(WALL_START_MS + 1)},
        streaming=False,
    )
    async with TopicReader(options, ClientRuntime(world)) as topics:
        queues = await topics.queues()
        ends = await topics.ends(queues)
        assert options.starting.everywhere is not None
        starts = await topics.resolve(dict.fromkeys(queues, options.starting.everywhere), ends)
    assert list(starts.values()) == [4, 0]
    assert ends.latest[Q0] == 4
