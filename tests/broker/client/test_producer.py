"""The producer: where messages go, what is refused at once, and how a producer begins and ends."""

from __future__ import annotations

import array
from typing import Any

import pytest
import trio

from broker.client.errors import (
    ClientClosed,
    MessageRejected,
    NameServerUnavailable,
    NoRoute,
    UsageError,
)
from broker.client.message import Message, MessageQueue, SendStatus
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode
from broker.trace import Fail, Info, Invoke, Ok
from log.formats.properties import parse_properties
from log.formats.record import decode_record
from tests.broker.client.cancellation import cancel_at_step
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster, one_group
from tests.broker.client.links import ClientRuntime, World, code, reset, silent
from tests.broker.client.producers import SEND, Recorded, producing, unique_keys

NO_TEXT: list[Any] = [5, b"a", ["a"]]
NO_WHOLE: list[Any] = [True, 1.5, float("nan"), "5"]

# What is sent ----------------------------------------------------------------------------------------


async def test_a_send_says_where_the_message_is(world: World, runtime: ClientRuntime) -> None:
    (broker,) = one_group(world, queues=2)
    async with producing(runtime) as producer:
        queue = MessageQueue("t", "g", 1)
        message = Message("t", b"body", tags="a", keys=["k1", "k2"], properties={"x": "y"}, flag=9)
        first = await producer.send(message, queue=queue)
        second = await producer.send(message, queue=queue)
        await producer.send(Message("t", b"later", delay_level=3), queue=queue)
        assert broker.stored("t", 1) == [b"body", b"body"]
        await trio.sleep(11)
        assert broker.stored("t", 1) == [b"body", b"body", b"later"]
    assert (first.queue, first.queue_offset, second.queue_offset, first.status) == (
        queue,
        0,
        1,
        SendStatus.OK,
    )
    record = decode_record(broker.records("t", 1)[0])
    assert (record.body, record.flag) == (b"body", 9)
    assert parse_properties(record.properties) == {
        "UNIQ_KEY": first.message_id,
        "TAGS": "a",
        "KEYS": "k1 k2",
        "x": "y",
        "CLUSTER": "c",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert len(first.message_id) == 32
    assert first.message_id != second.message_id


async def test_sends_take_the_queues_in_turn(world: World, runtime: ClientRuntime) -> None:
    one_group(world, queues=4)
    async with producing(runtime) as producer:
        used = [(await producer.send(Message("t", b"x"))).queue.queue_id for _ in range(8)]
    assert sorted(used[:4]) == [0, 1, 2, 3]
    assert used[4:] == used[:4]


@pytest.mark.parametrize("choice", [True, 1.5, ("t", "g", 0), [], b"key"])
async def test_a_choice_that_is_none_fails_alone(broker: Broker, runtime: ClientRuntime, choice: Any) -> None:
    async with producing(runtime) as producer:
        with pytest.raises(UsageError, match="is no MessageQueue"):
            await producer.send(Message("t", b"x"), queue=choice)
        async with producer.outbox() as outbox:
            wrong = await outbox.send(Message("t", b"y"), queue=choice)
            await outbox.send(Message("t", b"z"))
            with pytest.raises(UsageError, match="is no MessageQueue"):
                await wrong.wait()
    assert broker.stored() == [b"z"]


async def test_a_client_that_was_never_entered_cannot_be_left(runtime: ClientRuntime) -> None:
    with pytest.raises(ClientClosed):
        await Producer(NAME_SERVER, group="p", runtime=runtime).__aexit__(None, None, None)


async def test_a_hash_key_and_a_selector_choose_the_queue(world: World, runtime: ClientRuntime) -> None:
    one_group(world, queues=4)
    async with producing(runtime) as producer:
        same = {(await producer.send(Message("t", b"x"), queue="order-17")).queue for _ in range(3)}
        assert len(same) == 1
        chosen = await producer.send(Message("t", b"x"), queue=lambda queues, message: queues[2])
        assert chosen.queue.queue_id == 2
        with pytest.raises(UsageError):
            await producer.send(Message("t", b"x"), queue=lambda queues, message: MessageQueue("t", "g", 99))
        with pytest.raises(UsageError):
            await producer.send(Message("t", b"x"), queue=MessageQueue("other", "g", 0))


async def test_a_batch_is_one_append(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"before"))
        results = await producer.send_batch([Message("t", b"%d" % n, tags="a") for n in range(3)])
    assert [result.queue_offset for result in results] == [1, 2, 3]
    assert broker.stored() == [b"before", b"0", b"1", b"2"]
    assert [result.message_id.encode() for result in results] == unique_keys(broker)[1:]
    assert len({result.offset_message_id for result in results}) == 3
    assert len(broker.received(RequestCode.SEND_BATCH_MESSAGE)) == 1


async def test_each_message_of_a_batch_has_what_is_its_own(broker: Broker, runtime: ClientRuntime) -> None:
    shared = {"k": "v"}
    messages = [
        Message("t", b"0", tags="a", properties=shared),
        Message("t", b"longer", tags="a", properties=shared, flag=-7),
        Message("t", b"2", tags="b", properties=shared),
        Message("t", b"3", tags="b", properties={"k": "ü"}, keys=["x", "y"]),
        Message("t", b"4", tags="b", properties={"k": "ü"}, keys="x"),
        Message("t", b"5"),
    ]
    async with producing(runtime) as producer:
        await producer.send_batch(messages)
    stored = [decode_record(record) for record in broker.records()]
    assert [record.body for record in stored] == [message.body for message in messages]
    assert [record.flag for record in stored] == [0, -7, 0, 0, 0, 0]
    described = []
    for record, key in zip(stored, unique_keys(broker), strict=True):
        properties = parse_properties(record.properties)
        assert properties.pop("UNIQ_KEY").encode() == key
        described.append({name: properties.get(name) for name in ("TAGS", "KEYS", "k")})
    assert described == [
        {"TAGS": "a", "KEYS": None, "k": "v"},
        {"TAGS": "a", "KEYS": None, "k": "v"},
        {"TAGS": "b", "KEYS": None, "k": "v"},
        {"TAGS": "b", "KEYS": "x y", "k": "ü"},
        {"TAGS": "b", "KEYS": "x", "k": "ü"},
        {"TAGS": None, "KEYS": None, "k": None},
    ]


async def test_one_way_arrives_and_waits_for_nothing(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        await producer.send_one_way(Message("t", b"x"))
        await trio.testing.wait_all_tasks_blocked()
        assert broker.stored() == [b"x"]
        assert broker.received(SEND)[0].is_one_way


async def test_large_bodies_are_compressed_if_wanted(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime, compress_above=100) as producer:
        await producer.send(Message("t", b"a" * 5000))
        await producer.send(Message("t", b"a" * 100))
    compressed, plain = (decode_record(record) for record in broker.records())
    assert (compressed.sys_flag, plain.sys_flag) == (1, 0)
    assert len(compressed.body) < 100


@pytest.mark.parametrize(
    "message",
    [
        Message("", b"x"),
        Message("a b", b"x"),
        Message("t" * 128, b"x"),
        Message("t", b""),
        Message("t", "text"),  # type: ignore[arg-type]
        Message("t", None),  # type: ignore[arg-type]
        Message("t", bytes(4 * 1024 * 1024 + 1)),
        Message("t", b"x", tags="a\x01b"),
        Message("t", b"x", keys=["a\x02"]),
        Message("t", b"x", keys=["two words"]),
        Message("t", b"x", keys=[17]),  # type: ignore[list-item]
        Message("t", b"x", delay_level=-1),
        Message("t", b"x", delay_ms=-1),
        Message("t", b"x", properties={"n\x01": "v"}),
        Message("t", b"x", properties={"": "v"}),
        Message("t", b"x", properties={"TAGS": "v"}),
        Message("t", b"x", properties={"n": "v" * 32768}),
        Message("t", b"x", properties={"n": "v" * 31 * 1024}),
        Message("t", b"x", flag=1 << 31),
        Message("t", b"x", flag=-(1 << 31) - 1),
        *(Message("t", b"x", tags=tag) for tag in NO_TEXT),
        *(Message("t", b"x", properties={"n": value}) for value in (*NO_TEXT, 0, None)),
        *(Message("t", b"x", properties={name: "v"}) for name in NO_TEXT[:2]),
        *(Message("t", b"x", properties=wrong) for wrong in NO_TEXT),
        *(Message("t", b"x", keys=wrong) for wrong in (*NO_TEXT[:2], [5])),
        *(Message("t", b"x", delay_level=wrong) for wrong in NO_WHOLE),
        *(Message("t", b"x", delay_ms=wrong) for wrong in NO_WHOLE),
        *(Message("t", b"x", deliver_at_ms=wrong) for wrong in NO_WHOLE),
    ],
    ids=lambda message: repr(message)[:40],
)
async def test_illegal_messages_are_refused_here(
    broker: Broker, runtime: ClientRuntime, message: Message
) -> None:
    async with producing(runtime) as producer:
        with pytest.raises(MessageRejected):
            await producer.send(message)
    assert not broker.received(SEND)


async def test_bytes_of_any_kind_are_bodies(broker: Broker, runtime: ClientRuntime) -> None:
    numbers = array.array("i", [1, 2])
    async with producing(runtime) as producer:
        await producer.send(Message("t", memoryview(numbers)), queue=0)
        await producer.send_batch([Message("t", memoryview(numbers)), Message("t", bytearray(b"b"))], queue=0)
    stored = [decode_record(record).body for record in broker.records()]
    assert stored == [numbers.tobytes(), numbers.tobytes(), b"b"]


async def test_illegal_batches_are_refused_here(world: World, runtime: ClientRuntime) -> None:
    one_group(world)
    async with producing(runtime) as producer:
        for messages in (
            [Message("t", b"x"), Message("u", b"x")],
            [Message("t", b"x", delay_level=1)],
            [Message("%RETRY%g", b"x")],
            [Message("t", bytes(3_000_000)), Message("t", bytes(3_000_000))],
            [Message("t", b"")],
            [Message("t", "text")],  # type: ignore[arg-type]
            [Message("t", b"x"), Message("t", b"x", tags="a\x02b")],
            [Message("t", b"x"), Message("t", b"x", properties={"k": "v" * 31 * 1024})],
            [Message("t", b"x", flag=1 << 31)],
            [Message("t", b"x", flag="1")],  # type: ignore[arg-type]
        ):
            with pytest.raises(MessageRejected):
                await producer.send_batch(messages)
        with pytest.raises(UsageError):
            await producer.send_batch([])


# Routes ----------------------------------------------------------------------------------------------


async def test_a_topic_that_does_not_exist_is_sent_on_the_default_route(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with producing(runtime) as producer:
        used = {(await producer.send(Message("new", b"x"))).queue for _ in range(8)}
    assert used == {MessageQueue("new", "g", number) for number in range(4)}
    fields = broker.received(SEND)[0].fields
    assert (fields["b"], fields["c"], fields["d"]) == ("new", "TBW102", "4")


async def test_a_queue_that_is_not_there_is_not_exchanged_for_another(
    broker: Broker, runtime: ClientRuntime
) -> None:
    async with producing(runtime) as producer:
        (first, *_), message = await producer.queues("t"), Message("t", b"x")
        for queue, why in (
            (first._replace(broker_name="gone"), "'gone' is not registered"),
            (first._replace(queue_id=99), "no 99"),
        ):
            with pytest.raises(NoRoute, match=why):
                await producer.send(message, queue=queue)
            with pytest.raises(NoRoute, match=why):
                await producer.send_one_way(message, queue=queue)
        assert not broker.received(SEND)


async def test_no_route_at_all(world: World, runtime: ClientRuntime) -> None:
    Cluster(world)
    async with producing(runtime) as producer:
        with pytest.raises(NoRoute, match="does not exist"):
            await producer.send(Message("unknown", b"x"))


async def test_a_topic_that_brokers_do_not_create_is_not_there(world: World, runtime: ClientRuntime) -> None:
    one_group(world, auto_create_topics=False)
    async with producing(runtime) as producer:
        with pytest.raises(NoRoute, match="no broker creates topics by itself"):
            await producer.send(Message("unknown", b"x"))


async def test_who_knows_no_queue_to_write_to_asks_again(broker: Broker, runtime: ClientRuntime) -> None:
    """Write permission that was taken and given back counts for the next call, not with the next renewal.

    A send asks again within its limit anyhow; one-way sends and questions for queues found by the simulator.
    """
    async with producing(runtime) as producer:
        broker.create_topic("t", perm=4)
        with pytest.raises(NoRoute, match="can be written"):
            await producer.queues("t")
        broker.create_topic("t")
        assert await producer.queues("t") == [MessageQueue("t", "g", 0)]
        broker.create_topic("t", perm=4)
        await producer.core.routes.refresh("t")
        broker.create_topic("t")
        await producer.send_one_way(Message("t", b"x"))
        await trio.sleep(0.1)
    assert broker.stored() == [b"x"]


async def test_no_name_server(runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        with pytest.raises(NameServerUnavailable):
            await producer.send(Message("t", b"x"))


# Life ------------------------------------------------------------------------------------------------


async def test_brokers_hear_of_the_group_first_and_last(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"x"))
        await trio.sleep(65)
    codes = [command.code for command in broker.requests]
    assert codes == [
        RequestCode.HEART_BEAT,
        SEND,
        *[RequestCode.HEART_BEAT] * 2,
        RequestCode.UNREGISTER_CLIENT,
    ]
    assert broker.requests[-1].fields["producerGroup"] == "p"


async def test_closing_does_not_hang_on_a_silent_broker(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(RequestCode.UNREGISTER_CLIENT, silent)
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"x"))
        started = trio.current_time()
    assert trio.current_time() - started <= 3.01


async def test_a_leave_that_is_interrupted_ends_the_block(
    broker: Broker, runtime: ClientRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second Ctrl-C while brokers are told: no task is left, and the program gets its interrupt."""

    async def interrupted(*_: str) -> None:
        raise KeyboardInterrupt

    producer = Producer(NAME_SERVER, group="p", runtime=runtime)
    monkeypatch.setattr(producer.core, "unregister", interrupted)

    async def use() -> None:
        async with producer:
            await producer.send(Message("t", b"x"))

    tasks = trio.lowlevel.current_statistics().tasks_living
    with pytest.raises(KeyboardInterrupt):
        await use()
    assert producer.core.pool.open_connections() == []
    await trio.testing.wait_all_tasks_blocked()
    assert trio.lowlevel.current_statistics().tasks_living == tasks


async def test_errors_of_the_body_come_out_bare(world: World, runtime: ClientRuntime) -> None:
    one_group(world)

    async def body() -> None:
        async with producing(runtime) as producer:
            await producer.send(Message("t", b"x"))
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await body()


async def test_use_outside_the_block_is_refused(world: World, runtime: ClientRuntime) -> None:
    one_group(world)
    producer = Producer(NAME_SERVER, group="p", runtime=runtime)
    with pytest.raises(ClientClosed):
        await producer.send(Message("t", b"x"))
    async with producer:
        pass
    with pytest.raises(ClientClosed):
        await producer.send(Message("t", b"x"))
    with pytest.raises(UsageError):
        await producer.__aenter__()


@pytest.mark.parametrize("trouble", ["none", "refused", "lost", "slow connect"])
async def test_a_send_cancelled_at_any_await_leaves_the_producer_usable(
    world: World, runtime: ClientRuntime, trouble: str
) -> None:
    leader, _ = one_group(world, members=2)
    step = 0
    cancelled = True
    while cancelled:
        step += 1
        leader.scripts.clear()
        if trouble == "refused":
            leader.script(SEND, code(14), code(2))
        elif trouble == "lost":
            leader.script(SEND, reset)
        elif trouble == "slow connect":
            world.connect_delay_s = 0.5
        before = len(leader.stored())
        async with producing(runtime) as producer:

            async def send(producer: Producer = producer) -> None:
                await producer.send(Message("t", b"cancelled"))

            cancelled = await cancel_at_step(step, send)
            leader.scripts.clear()
            result = await producer.send(Message("t", b"after"))
            assert result.queue_offset == len(leader.stored()) - 1
            for connection in producer.core.pool.open_connections():
                assert not connection.calls
        assert leader.stored()[-1] == b"after"
        assert len(leader.stored()) - before in (1, 2)
    assert step > 1, "nothing was cancelled: the test shows nothing"


async def test_many_senders_share_one_connection(broker: Broker, runtime: ClientRuntime) -> None:
    async with producing(runtime) as producer:
        async with trio.open_nursery() as nursery:

            async def send(number: int) -> None:
                for turn in range(10):
                    await producer.send(Message("t", b"%d-%d" % (number, turn)))

            for number in range(50):
                nursery.start_soon(send, number)
        assert len(broker.links) == 1
    bodies = broker.stored()
    assert len(set(bodies)) == 500
    for number in range(50):
        own = [body for body in bodies if body.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, turn) for turn in range(10)], (
            "one sender's messages keep their order"
        )


async def test_every_attempt_is_traced_with_what_is_known_of_it(
    broker: Broker, runtime: ClientRuntime
) -> None:
    recorded = Recorded()
    broker.script(SEND, code(14), silent, broker.instead(reset), code(1))
    async with producing(runtime, trace=recorded.writer, send_timeout_s=10, attempt_timeout_s=1) as producer:
        result = await producer.send(Message("t", b"x"))
        batch = await producer.send_batch([Message("t", b"y"), Message("t", b"z")])
    events = recorded.events()
    invocations = [event for event in events if isinstance(event, Invoke)]
    completions = {event.operation: event for event in events if not isinstance(event, Invoke)}
    assert [event.key for event in invocations] == ["t/g:0"] * 6
    assert {event.argument for event in invocations[:5]} == {(result.message_id,)}
    assert invocations[5].argument == tuple(item.message_id for item in batch)
    kinds = [type(completions[event.operation]) for event in invocations]
    assert kinds == [Fail, Info, Info, Info, Fail, Ok]
    assert completions[invocations[4].operation].reason == "stored by an earlier attempt"
    assert (result.queue_offset, completions[invocations[5].operation].result) == (0, 1)


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", delay_level=3),
        Message("t", b"x", delay_ms=500),
        Message("t", b"x", deliver_at_ms=1),
        Message("t", b"x", properties={"TIMER_DELAY_SEC": "3"}),
    ],
)
async def test_what_waits_at_the_broker_is_traced_as_of_unknown_effect(
    world: World, runtime: ClientRuntime, message: Message
) -> None:
    """The offset in the answer is that of the topic in which it waits."""
    one_group(world)
    recorded = Recorded()
    async with producing(runtime, trace=recorded.writer) as producer:
        await producer.send(message)
    assert [type(event) for event in recorded.events()] == [Invoke, Info]
