"""The producer: where messages go, what is tried again, and what is known when a send ends."""

from __future__ import annotations

import array
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from broker.client.errors import (
    BrokerError,
    ClientClosed,
    MessageRejected,
    NameServerUnavailable,
    NoRoute,
    NotDelivered,
    SendOutcomeUnknown,
    UsageError,
)
from broker.client.message import Message, MessageQueue, SendStatus
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, response
from broker.remoting.route import MASTER_ID
from broker.trace import Fail, Info, Invoke, Ok, TraceHeader, TraceWriter, parse_event
from log.properties import get_property, parse_properties
from log.record import decode_record
from tests.broker.client.cancellation import cancel_at_step
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster, one_group
from tests.broker.client.links import ClientRuntime, Link, World, code, reset, silent

SEND = RequestCode.SEND_MESSAGE_V2


def unique_keys(broker: Broker) -> list[bytes | None]:
    return [get_property(decode_record(record).properties, b"UNIQ_KEY") for record in broker.records()]


@contextlib.asynccontextmanager
async def producing(runtime: ClientRuntime, **options: Any) -> AsyncIterator[Producer]:
    async with Producer(NAME_SERVER, group="p", runtime=runtime, **options) as producer:
        yield producer


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


# What is tried again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 14, 16, 17, 501, 1500])
async def test_a_passing_refusal_is_tried_again_elsewhere_at_once(
    world: World, runtime: ClientRuntime, number: int
) -> None:
    leader, follower = one_group(world, members=2)
    leader.script(SEND, code(number))
    async with producing(runtime) as producer:
        started = trio.current_time()
        await producer.send(Message("t", b"x"))
        assert trio.current_time() == started, "another member is asked without a pause"
    assert (len(leader.received(SEND)), len(follower.received(SEND))) == (1, 1)
    assert leader.stored() == [b"x"]


async def test_a_lost_connection_is_tried_again_with_the_same_key(
    world: World, runtime: ClientRuntime
) -> None:
    leader, follower = one_group(world, members=2)
    leader.script(SEND, leader.instead(reset))
    async with producing(runtime) as producer:
        result = await producer.send(Message("t", b"x"))
    first, second = leader.received(SEND) + follower.received(SEND)
    assert first.fields["i"] == second.fields["i"]
    assert unique_keys(leader) == [result.message_id.encode()], "which says that it is stored already"


async def test_attempts_say_whether_an_earlier_one_may_be_stored(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.script(SEND, code(14), broker.instead(reset), code(1))
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"x"))
        await producer.send(Message("t", b"y"))
    attempts = broker.received(SEND)
    assert [command.fields.get("again") for command in attempts] == [None, None, "true", "true", None]
    last_of_x = decode_record(broker.records()[0]).physical_offset
    assert [command.fields["once"] for command in attempts] == ["0"] * 4 + [str(last_of_x)]


async def test_without_exactly_once_nothing_is_said(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, silent)
    async with producing(runtime, exactly_once=False) as producer:
        await producer.send(Message("t", b"x"))
    for command in broker.received(SEND):
        assert "once" not in command.fields
        assert "again" not in command.fields


async def test_a_newer_floor_is_taken_up_at_once(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(
        SEND, lambda link, command: response(command, ResponseCode.ONCE_UNDECIDABLE, "old", {"once": "77"})
    )
    async with producing(runtime) as producer:
        started = trio.current_time()
        await producer.send(Message("t", b"x"))
        assert trio.current_time() == started
    first, second = broker.received(SEND)
    assert (first.fields["once"], second.fields["once"]) == ("0", "77")
    assert "again" not in second.fields


async def test_what_nobody_can_tell_is_of_unknown_outcome_and_not_asked_again(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.script(SEND, reset, code(ResponseCode.ONCE_UNDECIDABLE))
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"))
    assert len(broker.received(SEND)) == 2


async def test_of_a_batch_that_is_stored_in_part_the_error_tells_how_much(
    broker: Broker, runtime: ClientRuntime
) -> None:
    remark = "the batch is stored in part: 2 of 3 messages"
    broker.script(
        RequestCode.SEND_BATCH_MESSAGE,
        reset,
        lambda link, command: response(command, ResponseCode.ONCE_UNDECIDABLE, remark, {"once": "9"}),
    )
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown, match="all, some or none of 3 messages are stored") as caught:
            await producer.send_batch([Message("t", b"%d" % number) for number in range(3)])
    assert len(caught.value.unique_keys) == 3
    assert isinstance(caught.value.last_error, BrokerError)
    assert remark in str(caught.value.last_error)


async def test_a_send_of_unknown_outcome_can_be_resumed(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, *[silent] * 2)
    async with producing(runtime) as producer, producing(runtime) as other:
        with pytest.raises(SendOutcomeUnknown) as caught:
            await producer.send(Message("t", b"x"))
        with pytest.raises(UsageError):
            await other.resume(caught.value)
        (result,) = await producer.resume(caught.value)
    assert [result.message_id] == caught.value.unique_keys
    *_, last = broker.received(SEND)
    assert (last.fields["again"], last.fields["once"]) == ("true", "0")


async def test_a_resumed_send_that_found_no_route_can_be_resumed_again(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """The route by which a new topic is sent to is not kept."""
    name_server = broker.cluster.name_servers[NAME_SERVER]
    broker.script(SEND, *[silent] * 2)
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown) as caught:
            await producer.send(Message("new", b"x"))
        name_server.kill()
        with pytest.raises(SendOutcomeUnknown) as again:
            await producer.resume(caught.value)
        assert isinstance(again.value.last_error, NameServerUnavailable)
        assert len(broker.received(SEND)) == 2
        name_server.restart()
        (result,) = await producer.resume(again.value)
    assert [result.message_id] == caught.value.unique_keys == again.value.unique_keys
    assert broker.stored("new", result.queue.queue_id) == [b"x"]


async def test_a_dead_leader_costs_no_time_once_the_route_is_known(
    world: World, runtime: ClientRuntime
) -> None:
    leader, follower, _ = one_group(world, members=3)
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"1"))
        leader.kill()
        started = trio.current_time()
        await producer.send(Message("t", b"2"))
        assert trio.current_time() - started < 0.001
        assert follower.stored() == [b"1", b"2"]


async def test_a_new_route_is_asked_for_after_a_failure(world: World, runtime: ClientRuntime) -> None:
    leader, follower, _ = one_group(world, members=3)
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"1"))
        leader.kill()
        for _ in range(2):
            await producer.send(Message("t", b"2"))
    assert follower.stored() == [b"1", b"2", b"2"]
    assert len(world.servers[NAME_SERVER].received(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2


async def test_an_election_is_waited_out_within_the_time_limit(world: World, runtime: ClientRuntime) -> None:
    leader, *followers = one_group(world, members=3)
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"1"))
        leader.kill()
        for follower in followers:
            follower.script(SEND, *[code(14)] * 2)
        await producer.send(Message("t", b"2"))
        await trio.sleep(1)
    for follower in followers:
        assert follower.stored() == [b"1", b"2"]
    assert sum(len(follower.received(SEND)) for follower in followers) == 5


async def test_a_group_that_refuses_is_left_for_another(world: World, runtime: ClientRuntime) -> None:
    cluster = Cluster(world)
    (one,), (two,) = cluster.add_group("ga"), cluster.add_group("gb")
    for broker in (one, two):
        broker.create_topic("t")
    one.script(SEND, *[code(2)] * 100)
    async with producing(runtime) as producer:
        for _ in range(4):
            assert (await producer.send(Message("t", b"x"))).queue.broker_name == "gb"
    assert len(two.stored()) == 4


async def test_a_refusal_for_good_is_raised_at_once(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, code(13, "too large"), code(204 + 1000, "odd"))
    async with producing(runtime) as producer:
        with pytest.raises(MessageRejected, match="too large") as rejected:
            await producer.send(Message("t", b"x"))
        assert rejected.value.code == 13
        with pytest.raises(BrokerError, match="odd") as caught:
            await producer.send(Message("t", b"x"))
        assert not caught.value.retry_may_help
    assert len(broker.received(SEND)) == 2


@pytest.mark.parametrize("number", [10, 11, 12])
async def test_codes_of_lesser_safety_are_stored_too(
    broker: Broker, runtime: ClientRuntime, number: int
) -> None:
    def step(link: Link, command: RemotingCommand) -> RemotingCommand:
        stored = broker.ask(link, command)
        stored.code = number
        return stored

    broker.script(SEND, step)
    async with producing(runtime) as producer:
        assert (await producer.send(Message("t", b"x"))).status == SendStatus(number)


# What is known at the end ----------------------------------------------------------------------------


async def test_all_refused_is_not_delivered(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, *[code(14)] * 1000)
    async with producing(runtime) as producer:
        started = trio.current_time()
        with pytest.raises(NotDelivered) as caught:
            await producer.send(Message("t", b"x"))
        assert 2.5 < trio.current_time() - started <= 3
        assert caught.value.attempts == len(broker.received(SEND)) > 5


async def test_refusals_that_take_a_round_trip_are_not_made_unknown_by_a_last_attempt_without_time_for_one(
    world: World, broker: Broker, runtime: ClientRuntime
) -> None:
    async def refuse(link: Link, command: RemotingCommand) -> None:
        await trio.sleep(0.04)
        link.send(response(command, 14, "later"))

    broker.script(SEND, *[lambda link, command: world.nursery.start_soon(refuse, link, command)] * 1000)
    async with producing(runtime) as producer:
        for number in range(100):
            with pytest.raises(NotDelivered):
                await producer.send(Message("t", b"x"), timeout_s=0.5 + number / 1000)


async def test_nobody_there_is_not_delivered(broker: Broker, runtime: ClientRuntime) -> None:
    broker.up = False
    async with producing(runtime) as producer:
        with pytest.raises(NotDelivered):
            await producer.send(Message("t", b"x"))


async def test_one_lost_attempt_among_refusals_is_unknown(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, code(14), broker.instead(reset), *[code(14)] * 1000)
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown) as caught:
            await producer.send(Message("t", b"x"))
    assert [key.encode() for key in caught.value.unique_keys] == unique_keys(broker)


async def test_a_system_error_says_nothing_about_the_outcome(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, *[code(1)] * 1000)
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"))


async def test_silence_is_unknown_within_the_time_limit(broker: Broker, runtime: ClientRuntime) -> None:
    broker.script(SEND, *[silent] * 1000)
    async with producing(runtime) as producer:
        started = trio.current_time()
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"), timeout_s=2)
        assert trio.current_time() - started <= 2.01
    assert len(broker.received(SEND)) == 2, "one attempt must not use up the whole time"


async def test_without_repetition_the_first_unknown_outcome_ends_the_send(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.script(SEND, code(14), broker.instead(reset))
    async with producing(runtime, retry_unknown=False) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"))
    assert broker.stored() == [b"x"]


async def test_a_final_refusal_after_an_unknown_attempt_stays_unknown(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.script(SEND, broker.instead(reset), code(13))
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"))


async def test_after_an_unreadable_response_a_send_can_be_resumed(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """Its code says that the message is stored, and nothing says where."""

    def garbled(link: Link, command: RemotingCommand) -> RemotingCommand:
        command.header = {"msgId": "x", "queueId": "no number"}
        return command

    broker.script(SEND, broker.instead(garbled))
    recorded = Recorded()
    async with producing(runtime, trace=recorded.writer) as producer:
        with pytest.raises(SendOutcomeUnknown, match="unreadable response to a send") as caught:
            await producer.send(Message("t", b"x"))
        assert isinstance(recorded.events()[-1], Info)
        (result,) = await producer.resume(caught.value)
    assert ([result.message_id], result.queue_offset) == (caught.value.unique_keys, 0)
    assert broker.stored() == [b"x"]


async def test_an_unreadable_response_is_unknown_without_a_trace_too(
    broker: Broker, runtime: ClientRuntime
) -> None:
    broker.script(SEND, lambda link, command: response(command, 0, fields={"queueId": "no number"}))
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"x"))


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


async def test_a_send_is_resumed_in_its_own_group_or_not_at_all(world: World, runtime: ClientRuntime) -> None:
    """Another group does not know what its own group has stored."""
    (lost,) = one_group(world)
    lost.script(SEND, *[reset] * 100)
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown) as caught:
            await producer.send(Message("t", b"x"))
        (other,) = lost.cluster.add_group("other")
        other.create_topic("t")
        lost.kill()
        await producer.core.routes.refresh("t")
        with pytest.raises(SendOutcomeUnknown):
            await producer.resume(caught.value)
        assert not other.received(SEND)


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


async def test_a_group_without_leader_is_used_when_there_is_no_other(
    world: World, runtime: ClientRuntime
) -> None:
    leader, other, follower = one_group(world, members=3)
    leader.kill()
    other.kill()
    await trio.sleep(10)  # an heir that was elected in between steps down without its majority
    async with producing(runtime, send_timeout_s=30) as producer:
        route = await producer.core.routes.get("t")
        assert follower.address in route.brokers["g"].values()
        assert MASTER_ID not in route.brokers["g"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, Message("t", b"x"))
            await trio.sleep(0.5)
            other.restart()
        await trio.sleep(1)
    assert follower.stored() == other.stored() == [b"x"]


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


# Trace -----------------------------------------------------------------------------------------------


class Recorded:
    """A trace writer whose events are kept as they are."""

    def __init__(self) -> None:
        self.writer = TraceWriter(
            lambda data: None, TraceHeader("client", "test", "mock", 0), buffered_events=65_535
        )

    def events(self) -> list[Any]:
        return [parse_event(list(record)) for record in self.writer._buffer]


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
