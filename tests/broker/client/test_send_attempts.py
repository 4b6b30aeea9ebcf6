"""What a producer tries again, and what is known when a send ends."""

from __future__ import annotations

import pytest
import trio

from broker.client.errors import (
    BrokerError,
    MessageRejected,
    NameServerUnavailable,
    NotDelivered,
    SendOutcomeUnknown,
    UsageError,
)
from broker.client.message import Message, SendStatus
from broker.client.producing.producer import Producer
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, response
from broker.remoting.route import MASTER_ID
from broker.trace import Info
from log.formats.record import decode_record
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster, one_group
from tests.broker.client.links import ClientRuntime, Link, Step, World, code, reset, silent
from tests.broker.client.producers import SEND, Recorded, producing, unique_keys

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


async def test_a_member_that_alone_can_be_reached_is_found(world: World, runtime: ClientRuntime) -> None:
    """Name servers do not know which members this client reaches."""
    leader, other, _ = one_group(world, members=3)
    leader.up = other.up = False
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"x"))
    assert leader.stored() == [b"x"], "the leader has it, from the last one"


async def test_a_name_server_that_hangs_keeps_no_send_from_another_member(
    world: World, runtime: ClientRuntime
) -> None:
    leader, _ = one_group(world, members=2)
    async with producing(runtime) as producer:
        await producer.send(Message("t", b"x"))
        name_server = leader.cluster.name_servers[NAME_SERVER]
        name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[silent] * 100)
        leader.script(SEND, code(14))
        await producer.send(Message("t", b"y"))
    assert leader.stored() == [b"x", b"y"]


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
    attempts = broker.received(SEND)
    assert len(attempts) == 2
    for command in attempts:
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


async def test_a_resumed_send_whose_route_is_refused_is_still_of_unknown_outcome(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """The route by which a new topic is sent to is not kept; a refusal would say that nothing is stored."""
    broker.script(SEND, *[silent] * 2)
    async with producing(runtime) as producer:
        with pytest.raises(SendOutcomeUnknown) as caught:
            await producer.send(Message("new", b"x"))
        name_server = broker.cluster.name_servers[NAME_SERVER]
        name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[code(16)] * 1000)
        with pytest.raises(SendOutcomeUnknown) as again:
            await producer.resume(caught.value)
        assert isinstance(again.value.last_error, BrokerError)


@pytest.mark.parametrize(
    ("step", "expected"), [(silent, SendOutcomeUnknown), (code(2), NotDelivered)], ids=["waits", "pauses"]
)
async def test_a_send_ends_when_another_task_leaves_the_block(
    broker: Broker, runtime: ClientRuntime, step: Step, expected: type[Exception]
) -> None:
    broker.script(SEND, *[step] * 1000)
    errors: list[Exception] = []

    async def send(producer: Producer) -> None:
        try:
            await producer.send(Message("t", b"x"))
        except Exception as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        async with producing(runtime) as producer:
            nursery.start_soon(send, producer)
            await trio.sleep(0.1)
        left = trio.current_time()
    assert trio.current_time() - left < 1
    assert [type(error) for error in errors] == [expected]
