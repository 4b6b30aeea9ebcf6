"""The plain consumer and the administration client."""

from __future__ import annotations

import cbor2
import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import BrokerError, MessageRejected, UsageError
from broker.client.message import MessageQueue, MessageView
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import response
from broker.trace import Fail, Invoke, Ok, ReadResult, TraceHeader, TraceWriter, parse_event
from tests.broker.client.cancellation import cancel_at_step
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import ClientRuntime, World, code, reset, second_damaged, silent

PULL = RequestCode.PULL_MESSAGE
Q0, Q1 = MessageQueue("t", "g", 0), MessageQueue("t", "g", 1)


def bodies(messages: list[MessageView]) -> list[bytes]:
    return [message.body for message in messages]


async def test_poll_seek_and_positions(world: World, runtime: ClientRuntime) -> None:
    (broker,) = one_group(world, queues=2)
    for number in range(10):
        broker.append("t", 0, b"%d" % number)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        assert await consumer.queues("t") == [Q0, Q1]
        consumer.assign({Q0: 2, Q1: 0})
        assert bodies(await consumer.poll(3)) == [b"2", b"3", b"4"]
        assert consumer.positions()[Q0] == 5
        await consumer.commit()
        assert (await consumer.committed(Q0), await consumer.committed(Q1)) == (5, 0)
        consumer.seek(Q0, 8)
        for nothing in (0, -1):
            with pytest.raises(UsageError):
                await consumer.poll(nothing)
        assert bodies(await consumer.poll()) == [b"8", b"9"]
        started = trio.current_time()
        assert await consumer.poll(timeout_s=2) == []
        assert trio.current_time() - started == pytest.approx(2, abs=0.01)
        consumer.assign({Q1: 0})
        broker.append("t", 1, b"other")
        assert bodies(await consumer.poll()) == [b"other"]
        assert (await consumer.min_offset(Q0), await consumer.max_offset(Q0)) == (0, 10)
        assert await consumer.search_offset(Q0, 0) == 0
        await consumer.commit({Q0: 7})
        assert await consumer.committed(Q0) == 7
        with pytest.raises(UsageError):
            consumer.seek(Q0, -1)


async def test_who_is_sent_elsewhere_drops_what_was_fetched(broker: Broker, runtime: ClientRuntime) -> None:
    """Nor is the position of before stored, whether it is asked for then or was refused before."""
    for number in range(20):
        broker.append("t", 0, b"%d" % number)

    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        consumer.assign({Q0: 8})
        assert bodies(await consumer.poll(3)) == [b"8", b"9", b"10"]  # the others wait
        broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, silent)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.commit)
            await trio.testing.wait_all_tasks_blocked()
            broker.reset_offset("p", "t", 0, 4)
            await trio.testing.wait_all_tasks_blocked()
            (reported,) = broker.received(RequestCode.UPDATE_CONSUMER_OFFSET)
            broker.links[0].send(response(reported, ResponseCode.SERVICE_NOT_AVAILABLE))
        assert len(broker.received(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
        assert bodies(await consumer.poll(2)) == [b"4", b"5"]
        assert consumer.positions() == {Q0: 6}
        await consumer.commit()
        assert await consumer.committed(Q0) == 6


async def test_queries_go_on_at_another_member(world: World, runtime: ClientRuntime) -> None:
    leader, follower = one_group(world, members=2)
    leader.append("t", 0, b"x")
    leader.script(RequestCode.GET_MAX_OFFSET, reset, code(14), code(16))
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        assert await consumer.max_offset(Q0) == 1
        assert follower.received(RequestCode.GET_MAX_OFFSET)
        follower.script(RequestCode.GET_MAX_OFFSET, code(16))
        leader.scripts.clear()
        leader.script(RequestCode.GET_MAX_OFFSET, code(16))
        with pytest.raises(BrokerError) as caught:
            await consumer.max_offset(Q0)
        assert not caught.value.retry_may_help


async def test_a_poll_cancelled_at_any_await_loses_nothing(broker: Broker, runtime: ClientRuntime) -> None:
    for number in range(40):
        broker.append("t", 0, b"%d" % number)
    step = 0
    cancelled = True
    while cancelled:
        step += 1
        seen: list[bytes] = []
        async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:

            async def read(consumer: PullConsumer = consumer, seen: list[bytes] = seen) -> None:
                while len(seen) < 40:
                    seen += bodies(await consumer.poll(7))

            consumer.assign({Q0: 0})
            cancelled = await cancel_at_step(step, read)
            await read()
        assert seen == [b"%d" % number for number in range(40)]
    assert step > 1


async def test_reads_and_offsets_are_traced(broker: Broker, runtime: ClientRuntime) -> None:
    for number in range(3):
        broker.append("t", 0, b"x", b"UNIQ_KEY\x01K%d\x02" % number)
    records: list[list[object]] = []
    trace = TraceWriter(lambda data: None, TraceHeader("client", "test", "mock", 0), buffered_events=65_535)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime, trace=trace) as consumer:
        assert await consumer.committed(Q0) == 0, "of a group that is new"
        consumer.assign({Q0: 0})
        assert len(await consumer.poll()) == 3
        broker.script(RequestCode.UPDATE_CONSUMER_OFFSET, code(14))
        await consumer.commit()
        assert await consumer.max_offset(Q0) == 3
        assert await consumer.min_offset(Q0) == 0
        records = [list(record) for record in trace._buffer]
    events = [parse_event(cbor2.loads(cbor2.dumps(record))) for record in records]
    invocations = {event.operation: event for event in events if isinstance(event, Invoke)}
    results = [
        (invocations[event.operation].function, event.result) for event in events if isinstance(event, Ok)
    ]
    assert {event.key for event in invocations.values()} == {"t/g:0"}
    assert [function for function, _ in results] == ["fetch_offset", "read", "commit_offset", "tail", "head"]
    assert [result for _, result in results if not isinstance(result, ReadResult)] == [0, None, 3, 0]
    assert results[1][1] == ReadResult(3, (0, 1, 2), ("K0", "K1", "K2"), None)
    commits = [event for event in invocations.values() if event.function == "commit_offset"]
    assert [event.argument for event in commits] == [3, 3], "the refused attempt is an operation of its own"


async def test_a_read_of_what_cannot_be_read_tells_nothing_to_a_trace(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """It ended the consumer."""
    for number in range(3):
        broker.append("t", 0, b"%d" % number)
    broker.script(PULL, broker.instead(second_damaged))
    trace = TraceWriter(lambda data: None, TraceHeader("client", "test", "mock", 0), buffered_events=65_535)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime, trace=trace) as consumer:
        consumer.assign({Q0: 0})
        assert len(await consumer.poll()) == 3
        events = [parse_event(cbor2.loads(cbor2.dumps(list(record)))) for record in trace._buffer]
    (end,) = [event for event in events if isinstance(event, Fail)]
    assert "cannot be read" in (end.reason or "")


@pytest.mark.parametrize("topic", ["%RETRY%p", "%DLQ%p"])
async def test_what_brokers_move_is_not_traced(broker: Broker, runtime: ClientRuntime, topic: str) -> None:
    """No client records how it came there, so a judge would take it for phantoms. Positions are recorded."""
    with broker.client() as other:
        other.heartbeat("p")
        other.create_topic(topic)
    broker.append(topic, 0, b"x", b"UNIQ_KEY\x01K\x02")
    queue = MessageQueue(topic, "g", 0)
    trace = TraceWriter(lambda data: None, TraceHeader("client", "test", "mock", 0), buffered_events=65_535)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime, trace=trace) as consumer:
        consumer.assign({queue: 0})
        assert len(await consumer.poll()) == 1
        assert await consumer.max_offset(queue) == 1
        await consumer.commit()
        events = [parse_event(list(record)) for record in trace._buffer]
    assert [event.function for event in events if isinstance(event, Invoke)] == ["commit_offset"]


async def test_a_position_that_a_reset_overrules_is_no_commit_in_the_trace(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.append("t", 0, b"x")
    trace = TraceWriter(lambda data: None, TraceHeader("client", "test", "mock", 0), buffered_events=65_535)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime, trace=trace) as consumer:
        consumer.assign({Q0: 0})
        broker.script(PULL, broker.handle, broker.instead(silent))  # so it does not hear of the reset
        await consumer.poll()
        broker.reset_offset("p", "t", 0, 0)
        await consumer.commit()
        records = [list(record) for record in trace._buffer]
    events = [parse_event(cbor2.loads(cbor2.dumps(record))) for record in records]
    (commit,) = [e for e in events if isinstance(e, Invoke) and e.function == "commit_offset"]
    (end,) = [e for e in events if isinstance(e, Ok | Fail) and e.operation == commit.operation]
    assert isinstance(end, Fail)
    assert end.reason == "not stored: the consumer group was sent to 0 and has yet to follow"


async def test_administration(world: World, runtime: ClientRuntime) -> None:
    leader, *followers = one_group(world, members=3)
    leader.script(RequestCode.UPDATE_AND_CREATE_TOPIC, code(14))
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        await admin.create_topic("new", queues=3)
        assert len((await admin.route("new")).readable) == 3
        assert sum(len(one.received(RequestCode.UPDATE_AND_CREATE_TOPIC)) for one in followers) == 1
        followers[0].up = False
        followers[0].links[0].reset()
        found = await admin.status()
    assert [(member.role, member.address) for member in found] == [
        ("leader", leader.address),
        *(("follower", follower.address) for follower in followers),
    ]
    assert found[0].failure is found[2].failure is None
    assert found[0].table is not None
    assert found[0].table["brokerVersionDesc"] == "Trivet"
    assert found[1].table is None
    assert "refused" in (found[1].failure or "")


async def test_a_name_server_that_hangs_keeps_no_question_from_another_member(
    world: World, runtime: ClientRuntime
) -> None:
    leader, _ = one_group(world, members=2)
    async with PullConsumer(NAME_SERVER, group="p", runtime=runtime) as consumer:
        assert await consumer.queues("t") == [Q0]
        name_server = leader.cluster.name_servers[NAME_SERVER]
        name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[silent] * 100)
        leader.script(RequestCode.GET_MAX_OFFSET, code(14))
        assert await consumer.max_offset(Q0) == 0


@pytest.mark.parametrize("group", ["", "bad group!!", "g" * 128])
def test_the_name_of_a_group_that_no_broker_takes_is_refused_at_once(group: str) -> None:
    with pytest.raises(MessageRejected, match="1 to 127 characters"):
        PullConsumer(NAME_SERVER, group=group)


@pytest.mark.parametrize(
    "wrong", [{"messages": 0}, {"size_bytes": 0}, {"batch": 0}, {"batch_bytes": 0}, {"suspend_s": -1}]
)
def test_limits_by_which_nothing_is_read_are_refused(wrong: dict[str, int]) -> None:
    (name,) = wrong
    with pytest.raises(UsageError, match=f"{name} is .*, and must be at least"):
        FetchLimits(**wrong)
