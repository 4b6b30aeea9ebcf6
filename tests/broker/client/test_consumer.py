"""The group consumer: what is delivered, in which order, what is stored for the group, and who reads what."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.intake import FetchLimits
from broker.client.consuming.subscription import SqlFilter
from broker.client.errors import BrokerError, ClientClosed, ConnectionFailed, DamagedMessage, UsageError
from broker.client.message import MessageQueue, MessageView
from broker.remoting.bodies import HeartbeatData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, request, response
from broker.remoting.json_body import decode_body
from log.formats.record import decode_record
from tests.broker.client.cancellation import cancel_at_step
from tests.broker.client.cluster import NAME_SERVER, Broker, one_group
from tests.broker.client.links import (
    WALL_START_MS,
    ClientRuntime,
    Link,
    World,
    code,
    reset,
    second_damaged,
    silent,
)

PULL = RequestCode.PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


@contextlib.asynccontextmanager
async def consuming(runtime: ClientRuntime, **options: Any) -> AsyncIterator[Consumer]:
    settings: dict[str, Any] = {"group": "c", "topics": {"t": "*"}, "start": "first", **options}
    async with Consumer(NAME_SERVER, runtime=runtime, **settings) as consumer:
        yield consumer


def fill(broker: Broker, count: int, queue_id: int = 0, first: int = 0) -> None:
    for number in range(first, first + count):
        broker.append("t", queue_id, b"%d" % number)


async def take(consumer: Consumer, count: int) -> list[MessageView]:
    with trio.fail_after(120):
        return [await anext(consumer) for _ in range(count)]


def bodies(messages: list[MessageView]) -> list[bytes]:
    return [message.body for message in messages]


def queues_of(consumer: Consumer) -> list[MessageQueue]:
    """What it is assigned of the topic; it reads its group's retry topic, too."""
    return sorted(queue for queue in consumer.assignment() if queue.topic == "t")


def stored_offset(broker: Broker, queue_id: int = 0, group: str = "c") -> int | None:
    return broker.offset(group, "t", queue_id)


def data_pulls(broker: Broker) -> list[RemotingCommand]:
    return [command for command in broker.received(PULL) if command.fields["topic"] == "t"]


# Delivery and positions ------------------------------------------------------------------------------------------


async def test_messages_come_in_order_and_go_on_as_they_arrive(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 100)
    async with consuming(runtime) as consumer:
        messages = await take(consumer, 100)
        assert bodies(messages) == [b"%d" % number for number in range(100)]
        assert [message.queue_offset for message in messages] == list(range(100))
        started = trio.current_time()
        broker.append("t", 0, b"new")
        assert bodies(await take(consumer, 1)) == [b"new"]
        assert trio.current_time() == started, "a pull was waiting at the broker"


async def test_a_message_is_done_with_when_the_next_is_asked_for(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 10)
    async with consuming(runtime) as consumer:
        await take(consumer, 4)
        assert consumer.positions()[MessageQueue("t", "g", 0)] == 3
        await trio.sleep(6)
        assert stored_offset(broker) == 3
    assert stored_offset(broker) == 3
    async with consuming(runtime) as consumer:
        assert bodies(await take(consumer, 2)) == [b"3", b"4"], "the one in hand comes again"


async def test_commit_stores_what_was_handed_out(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 10)
    async with consuming(runtime) as consumer:
        await take(consumer, 4)
        await consumer.commit()
        assert stored_offset(broker) == 4
        assert bodies(await take(consumer, 2)) == [b"4", b"5"], "the iteration goes on where it was"
    assert stored_offset(broker) == 5


async def test_commit_says_when_it_failed(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 3)
    async with consuming(runtime) as consumer:
        await take(consumer, 2)
        broker.script(COMMIT, code(16), code(16))
        with pytest.raises(BrokerError):
            await consumer.commit()
        await consumer.commit()
        assert stored_offset(broker) == 2


async def test_a_commit_survives_a_lost_connection(world: World, runtime: ClientRuntime) -> None:
    leader, _ = one_group(world, members=2)
    fill(leader, 3)
    async with consuming(runtime) as consumer:
        await take(consumer, 2)
        leader.script(COMMIT, reset)
        await consumer.commit()
        assert stored_offset(leader) == 2


async def test_batches_and_single_messages_mix(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 70)
    async with consuming(runtime) as consumer:
        seen = bodies(await take(consumer, 5))
        async for batch in consumer.batches():
            seen += bodies(batch)
            if len(seen) == 70:
                break
        assert seen == [b"%d" % number for number in range(70)]
        await consumer.commit()
    assert stored_offset(broker) == 70


@pytest.mark.filterwarnings("error")
async def test_many_offsets_of_a_group_that_is_away_fail_together(
    world: World, runtime: ClientRuntime
) -> None:
    """Not one after the other, each when its time is over: meanwhile the consumer would store and take up nothing."""
    (broker,) = one_group(world, queues=8)
    for queue_id in range(8):
        fill(broker, 1, queue_id)
    async with consuming(runtime) as consumer:
        await take(consumer, 8)
        broker.kill()
        started = trio.current_time()
        with pytest.raises(ConnectionFailed):
            await consumer.commit()
        assert trio.current_time() - started < 2 * 3.0, "of each topic the first one goes alone"


async def test_a_batch_is_the_applications_own(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 3)
    async with consuming(runtime) as consumer:
        batch = await anext(consumer.batches())
        batch.clear()
        await consumer.commit()
        assert stored_offset(broker) == 3


async def test_batches_that_are_left_early_leave_nothing_to_be_closed(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 6)
    taken = []
    async with consuming(runtime) as consumer:
        async for batch in consumer.batches():
            taken.append(bodies(batch))
            break
        gc.collect()
        await trio.sleep(1)
    assert taken == [[b"%d" % number for number in range(6)]]


async def test_an_iteration_may_be_left_and_taken_up_again(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 6)
    seen = []
    async with consuming(runtime) as consumer:
        for _ in range(3):
            async for message in consumer:
                seen.append(message.body)
                if len(seen) % 2 == 0:
                    break
    assert seen == [b"%d" % number for number in range(6)]


async def test_two_readers_at_once_are_refused(world: World, runtime: ClientRuntime) -> None:
    one_group(world)
    async with consuming(runtime) as consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.__anext__)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(UsageError):
            await anext(consumer)
        nursery.cancel_scope.cancel()
    with pytest.raises(ClientClosed):
        await anext(consumer)


@pytest.mark.parametrize("what", ["next", "commit", "leave"])
async def test_cancelling_at_any_await_loses_and_repeats_nothing(
    broker: Broker, runtime: ClientRuntime, what: str
) -> None:
    fill(broker, 40)
    expected = [b"%d" % number for number in range(40)]
    step = 0
    cancelled = True
    while cancelled:
        step += 1
        group = f"c{step}"
        seen: list[bytes] = []

        async def read(consumer: Consumer, seen: list[bytes] = seen) -> None:
            while len(seen) < 36:  # more than one answer's messages
                seen.append((await anext(consumer)).body)

        async def whole(read: Any = read, group: str = group) -> None:
            async with consuming(runtime, group=group) as consumer:
                await read(consumer)

        if what == "leave":
            cancelled = await cancel_at_step(step, whole)
            done = stored_offset(broker, group=group) or 0
            assert len(seen) - 1 <= done <= len(seen) or not seen, (
                "the last is done with only if another was asked for"
            )
            continue
        async with consuming(runtime, group=group) as consumer:
            if what == "next":
                cancelled = await cancel_at_step(step, functools.partial(read, consumer))
            else:
                await read(consumer)
                cancelled = await cancel_at_step(step, consumer.commit)
            seen += bodies(await take(consumer, 40 - len(seen)))
            assert seen == expected
            await consumer.commit()
            assert stored_offset(broker, group=group) == 40
    assert step > 1


# Where to begin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "first"), [("first", b"3"), ("last", b"new"), (WALL_START_MS - 1, b"3")])
async def test_a_queue_without_stored_position_begins_where_asked(
    broker: Broker, runtime: ClientRuntime, start: Any, first: bytes
) -> None:
    fill(broker, 3)
    await broker.delete_stored()
    fill(broker, 7, first=3)
    async with consuming(runtime, start=start) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(1)
        broker.append("t", 0, b"new")
        assert (await take(consumer, 1))[0].body == first


@pytest.mark.parametrize(("by_time", "first"), [(True, b"new"), (False, b"0")])
async def test_a_queue_that_is_young_is_read_from_its_beginning_unless_a_time_is_given(
    broker: Broker, runtime: ClientRuntime, by_time: bool, first: bytes
) -> None:
    fill(broker, 3)
    newest_ms = decode_record(broker.records()[-1]).store_timestamp
    await trio.sleep(1)
    async with consuming(runtime, start=newest_ms + 1 if by_time else "last") as consumer:
        await consumer.wait_assigned()
        await trio.sleep(1)
        broker.append("t", 0, b"new")
        assert (await take(consumer, 1))[0].body == first


async def test_a_start_that_cannot_be_found_is_asked_for_again(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 10)
    broker.commit("c", "t", 0, 7)
    broker.script(RequestCode.QUERY_CONSUMER_OFFSET, *[code(14)] * 20, code(16), reset)
    async with consuming(runtime) as consumer:
        assert (await take(consumer, 1))[0].body == b"7", (
            "never the rule for unknown positions after a failure"
        )


# Pulling ---------------------------------------------------------------------------------------------------------


async def test_tags_are_checked_exactly(broker: Broker, runtime: ClientRuntime) -> None:
    # "Aa" and "BB" have the same Java hash: the broker lets both through.
    for number, tag in enumerate(["Aa", "BB", "c", "Aa", "BB"]):
        broker.append("t", 0, b"%d" % number, f"TAGS\x01{tag}\x02".encode())
    async with consuming(runtime, topics={"t": "Aa || x"}) as consumer:
        assert bodies(await take(consumer, 2)) == [b"0", b"3"]
        await consumer.commit()
        assert stored_offset(broker) == 5, "what was filtered out after the last message is done with too"
        broker.append("t", 0, b"5", b"TAGS\x01c\x02")
        await trio.sleep(1)
        broker.append("t", 0, b"6", b"TAGS\x01x\x02")
        assert bodies(await take(consumer, 1)) == [b"6"]
    heartbeat = decode_body(broker.received(RequestCode.HEART_BEAT)[0].body, HeartbeatData)
    subscription = heartbeat.consumer_data_set[0].subscription_data_set[0]
    assert (subscription.sub_string, subscription.tags_set, subscription.code_set) == (
        "Aa || x",
        ["Aa", "x"],
        [2112, 120],
    )


async def test_an_idle_queue_costs_one_pull_per_suspension(broker: Broker, runtime: ClientRuntime) -> None:
    async with consuming(runtime) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(62)
        assert len(data_pulls(broker)) == 5


async def test_a_broker_that_does_not_hold_pulls_is_not_asked_in_a_circle(
    broker: Broker, runtime: ClientRuntime
) -> None:
    def nothing(link: Link, command: RemotingCommand) -> RemotingCommand:
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
        return response(command, 19, fields=fields)

    broker.script(PULL, *[nothing] * 1000)
    async with consuming(runtime) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(20)
        assert len(data_pulls(broker)) < 40


async def test_a_message_that_cannot_be_read_ends_no_consumer(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 3)
    broker.script(PULL, *[broker.instead(second_damaged)] * 2)
    async with consuming(runtime) as consumer:
        whole, damaged, last = await take(consumer, 3)
        with pytest.raises(DamagedMessage):
            _ = damaged.body
        assert repr(damaged) == "<MessageView t/g/0, damaged>"
        assert bodies([whole, last]) == [b"0", b"2"]
        await trio.sleep(6)  # in which offsets are stored
        assert stored_offset(broker) in (None, 0), "what the damaged one does not tell is not known"
        await consumer.commit()
        assert stored_offset(broker) == 3


async def test_whether_one_that_cannot_be_read_is_wanted_nobody_knows(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """The queue was asked for it again and again."""
    for number in range(3):
        broker.append("t", 0, b"%d" % number, b"TAGS\x01a\x02")
    broker.script(PULL, *[broker.instead(second_damaged)] * 1000)
    async with consuming(runtime, topics={"t": "a"}) as consumer:
        whole, _, last = await take(consumer, 3)
        assert bodies([whole, last]) == [b"0", b"2"]


async def test_prefetch_is_bounded(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 1000)
    async with consuming(runtime, limits=FetchLimits(messages=100, batch=32)) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(30)
        pulled = int(data_pulls(broker)[-1].fields["queueOffset"]) + 32
        assert pulled == 128, "four answers of 32 pass the bound of 100"
        await take(consumer, 200)
        await trio.testing.wait_all_tasks_blocked()
        assert int(data_pulls(broker)[-1].fields["queueOffset"]) + 32 <= 200 + 128 + 32
        assert bodies(await take(consumer, 800)) == [b"%d" % number for number in range(200, 1000)]


async def test_prefetch_is_bounded_in_bytes(broker: Broker, runtime: ClientRuntime) -> None:
    for _ in range(100):
        broker.append("t", 0, bytes(10_000))
    limits = FetchLimits(size_bytes=500_000, batch=32, batch_bytes=256 * 1024)
    async with consuming(runtime, limits=limits) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(30)
        offsets = [int(pull.fields["queueOffset"]) for pull in data_pulls(broker)]
        assert offsets == [0, 25], "a response has 256 KiB, as asked, and two pass the bound"
        assert len(await take(consumer, 100)) == 100


async def test_deleted_messages_are_skipped(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 5)
    broker.commit("c", "t", 0, 2)
    await broker.delete_stored()
    fill(broker, 5, first=5)
    async with consuming(runtime) as consumer:
        assert bodies(await take(consumer, 5)) == [b"5", b"6", b"7", b"8", b"9"]


async def test_a_queue_that_lost_its_end_is_read_from_its_new_end(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 10)
    broker.commit("c", "t", 0, 50)
    async with consuming(runtime) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(1)
        broker.append("t", 0, b"new")
        assert bodies(await take(consumer, 1)) == [b"new"]
        await consumer.commit()
        assert stored_offset(broker) == 11


async def test_a_member_that_lags_behind_does_not_send_the_reader_back(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 40)

    def lagging(link: Link, command: RemotingCommand) -> RemotingCommand:
        fields = {"suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5"}
        return response(command, 21, fields=fields)

    async with consuming(runtime, limits=FetchLimits(messages=1)) as consumer:
        seen = bodies(await take(consumer, 32))
        broker.script(PULL, lagging)
        seen += bodies(await take(consumer, 8))
    assert seen == [b"%d" % number for number in range(40)]


@pytest.mark.parametrize(
    "trouble", [code(14), code(1), code(26), reset, silent], ids=["14", "1", "26", "reset", "silent"]
)
async def test_pulls_go_on_after_trouble(broker: Broker, runtime: ClientRuntime, trouble: Any) -> None:
    fill(broker, 5)
    broker.script(PULL, *[trouble] * 4)
    async with consuming(runtime) as consumer:
        assert len(await take(consumer, 5)) == 5


async def test_a_dead_leader_is_left_for_another_member(world: World, runtime: ClientRuntime) -> None:
    leader, *followers = one_group(world, members=3)
    fill(leader, 5)
    async with consuming(runtime) as consumer:
        await take(consumer, 5)
        leader.kill()
        await trio.sleep(0.05)  # the others elect one of them at once
        started = trio.current_time()
        followers[0].append("t", 0, b"new")
        assert bodies(await take(consumer, 1)) == [b"new"]
        assert trio.current_time() - started < 0.2
        await consumer.commit()
        await trio.sleep(1)
        assert [stored_offset(follower) for follower in followers] == [6, 6]


async def test_a_member_that_alone_can_be_reached_is_read_from(world: World, runtime: ClientRuntime) -> None:
    """Name servers do not know which members this client reaches."""
    leader, other, _ = one_group(world, members=3)
    fill(leader, 3)
    leader.up = other.up = False
    async with consuming(runtime) as consumer:
        assert bodies(await take(consumer, 3)) == [b"0", b"1", b"2"]


async def test_a_name_server_that_hangs_keeps_no_reader_from_another_member(
    world: World, runtime: ClientRuntime
) -> None:
    leader, _ = one_group(world, members=2)
    fill(leader, 3)
    async with consuming(runtime) as consumer:
        await take(consumer, 3)
        name_server = leader.cluster.name_servers[NAME_SERVER]
        name_server.script(RequestCode.GET_ROUTEINFO_BY_TOPIC, *[silent] * 100)
        leader.script(PULL, *[code(ResponseCode.SERVICE_NOT_AVAILABLE)] * 100)
        fill(leader, 1, first=3)
        started = trio.current_time()
        assert bodies(await take(consumer, 1)) == [b"3"]
        assert trio.current_time() - started < 1


async def test_whoever_waits_for_the_share_hears_that_the_block_is_left(
    world: World, runtime: ClientRuntime
) -> None:
    async def wait() -> None:
        with pytest.raises(ClientClosed):
            await consumer.wait_assigned()

    consumer = Consumer(NAME_SERVER, group="c", topics="t", runtime=runtime)
    await wait()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery, consumer:
            nursery.start_soon(wait)
            await trio.sleep(1)
    await wait()


async def test_the_broker_that_an_answer_suggests_is_asked_next(world: World, runtime: ClientRuntime) -> None:
    leader, follower = one_group(world, members=2)
    fill(leader, 64)

    def suggest_follower(link: Link, command: RemotingCommand) -> RemotingCommand:
        fields = {**command.fields, "suggestWhichBrokerId": str(follower.broker_id)}
        return response(command, command.code, fields=fields, body=bytes(command.body))

    leader.script(PULL, *[leader.instead(suggest_follower)] * 2)
    async with consuming(runtime, limits=FetchLimits(batch=32)) as consumer:
        await take(consumer, 64)
    assert data_pulls(follower)


# Groups ----------------------------------------------------------------------------------------------------------


async def test_two_members_share_the_queues_and_hand_over(world: World, runtime: ClientRuntime) -> None:
    (broker,) = one_group(world, queues=4)
    queues = [MessageQueue("t", "g", number) for number in range(4)]
    for queue_id in range(4):
        fill(broker, 10, queue_id)
    async with consuming(runtime) as first:
        await take(first, 40)
        await first.commit()
        assert queues_of(first) == queues
        async with consuming(ClientRuntime(world, seed=2)) as second:
            await second.wait_assigned()
            await trio.testing.wait_all_tasks_blocked()
            assert len(queues_of(first)) == len(queues_of(second)) == 2
            assert sorted(queues_of(first) + queues_of(second)) == queues
            taken_over = queues_of(second)[0]
            broker.append("t", taken_over.queue_id, b"for the second")
            assert bodies(await take(second, 1)) == [b"for the second"], "it begins at the stored position"
        await trio.testing.wait_all_tasks_blocked()
        assert queues_of(first) == queues, "told at once that the other has left"
        assert bodies(await take(first, 1)) == [b"for the second"], "which had not asked for another"


async def test_a_lost_queue_hands_out_nothing_more_and_its_position_is_stored(
    world: World, runtime: ClientRuntime
) -> None:
    (broker,) = one_group(world, queues=1)
    fill(broker, 100)
    async with consuming(runtime) as consumer:
        seen = bodies(await take(consumer, 10))
        # A member that sorts first takes the only queue.
        with broker.client("0") as other:
            other.heartbeat("c", ("t",))
            await trio.testing.wait_all_tasks_blocked()
            assert stored_offset(broker) == 9
            assert consumer.assignment() == []
            with trio.move_on_after(5):
                seen += bodies(await take(consumer, 1))
            assert len(seen) == 10
        assert bodies(await take(consumer, 2)) == [b"9", b"10"]
    assert stored_offset(broker) == 10, "positions of the time without the queue are not stored"


async def test_a_broker_that_does_not_know_the_member_is_told_again(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 5)
    async with consuming(runtime) as consumer:
        await take(consumer, 1)
        (link,) = broker.links
        fields = {"clientID": consumer.core.client_id, "consumerGroup": "c"}
        assert broker.ask(link, request(RequestCode.UNREGISTER_CLIENT, fields, opaque=1 << 30)).code == 0
        assert broker.members_of("c") == []
        await trio.sleep(25)
        assert broker.members_of("c") == [consumer.core.client_id]
        assert queues_of(consumer) == [MessageQueue("t", "g", 0)], "and nothing was given up meanwhile"
        assert len(await take(consumer, 4)) == 4


async def test_broadcast_members_read_everything_and_store_nothing(
    world: World, runtime: ClientRuntime
) -> None:
    (broker,) = one_group(world, queues=2)
    fill(broker, 3, 0)
    fill(broker, 3, 1)
    async with (
        consuming(runtime, broadcast=True) as first,
        consuming(ClientRuntime(world, seed=2), broadcast=True) as second,
    ):
        for consumer in (first, second):
            assert len(await take(consumer, 6)) == 6
            await consumer.commit()
    assert not broker.received(COMMIT)
    assert not broker.metadata.offsets


async def test_messages_sent_back_return_under_their_own_topic(
    broker: Broker, runtime: ClientRuntime
) -> None:
    fill(broker, 1)
    async with consuming(runtime, topics={"t": "a"}) as consumer:
        broker.append("t", 0, b"1", b"TAGS\x01a\x02")
        (message,) = await take(consumer, 1)
        await consumer.send_back(message)
        (again,) = await take(consumer, 1)
        assert (again.topic, again.queue.topic, again.body) == ("t", "%RETRY%c", b"1")
        broker.append("%RETRY%c", 0, b"2", b"RETRY_TOPIC\x01t\x02")
        (again,) = await take(consumer, 1)
        assert (again.topic, again.body) == ("t", b"2"), "whatever its tag, which was judged before"
    (sent_back,) = broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert sent_back.fields["group"] == "c"


async def test_offsets_are_reset_from_outside(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 50)
    async with consuming(runtime) as consumer:
        await take(consumer, 40)
        broker.reset_offset("c", "t", 0, 10)
        await trio.testing.wait_all_tasks_blocked()
        assert bodies(await take(consumer, 2)) == [b"10", b"11"]
        await consumer.commit()
        assert stored_offset(broker) == 12


async def test_a_report_that_failed_is_not_repeated_once_the_group_is_sent_elsewhere(
    broker: Broker, runtime: ClientRuntime
) -> None:
    """It would count, as soon as the group has followed, and take it back to where it was."""
    fill(broker, 50)
    async with consuming(runtime) as consumer:
        await take(consumer, 40)

        def refuses_and_resets(link: Link, command: RemotingCommand) -> RemotingCommand:
            broker.reset_offset("c", "t", 0, 10)
            return response(command, ResponseCode.SERVICE_NOT_AVAILABLE)

        broker.script(COMMIT, refuses_and_resets)
        await consumer.commit()
        (reported,) = broker.received(COMMIT)
        assert reported.fields["commitOffset"] == "40"
        assert bodies(await take(consumer, 2)) == [b"10", b"11"]
        await consumer.commit()
        assert stored_offset(broker) == 12


async def test_nor_is_the_report_of_a_queue_that_was_given_up(world: World, runtime: ClientRuntime) -> None:
    """Seed 90363: the member hears of the order when the queue is not its own any more, but its report still fails."""
    (broker,) = one_group(world)
    fill(broker, 50)
    owner: list[str] = []

    def all_to_the_owner(
        client_id: str, members: Sequence[str], queues: Sequence[MessageQueue]
    ) -> list[MessageQueue]:
        return list(queues) if client_id in owner else []

    async with consuming(runtime, strategy=all_to_the_owner) as consumer:
        owner.append(consumer.core.client_id)
        await take(consumer, 40)

        def refuses_and_resets(link: Link, command: RemotingCommand) -> RemotingCommand:
            assert queues_of(consumer) == []
            broker.reset_offset("c", "t", 0, 10)
            return response(command, ResponseCode.SERVICE_NOT_AVAILABLE)

        broker.script(COMMIT, refuses_and_resets)
        owner.clear()
        async with consuming(ClientRuntime(world, seed=2), strategy=all_to_the_owner):
            await trio.sleep(10)  # the newcomer had the owner look at its share
            assert queues_of(consumer) == []
        (reported,) = broker.received(COMMIT)
        assert int(reported.fields["commitOffset"]) > 10
        assert stored_offset(broker) == 10


@pytest.mark.parametrize("share", [None, [MessageQueue("z", "g", 0)], "t"])
async def test_a_strategy_that_gives_no_share_ends_the_consumer(
    broker: Broker, runtime: ClientRuntime, share: Any
) -> None:
    with pytest.raises(UsageError, match="the strategy returned"):
        async with consuming(runtime, strategy=lambda *_: share) as consumer:
            await anext(consumer)


@pytest.mark.parametrize("target", [10, 50])
async def test_offsets_are_reset_by_the_answer_to_a_pull(
    broker: Broker, runtime: ClientRuntime, target: int
) -> None:
    """What was fetched before is dropped; nothing of it is committed over the position that was set."""
    fill(broker, 50)

    broker.lost.add(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    async with consuming(runtime) as consumer:
        await take(consumer, 40)
        broker.reset_offset("c", "t", 0, target)
        broker.append("t", 0, b"50")
        broker.append("t", 0, b"51")
        await trio.testing.wait_all_tasks_blocked()
        assert bodies(await take(consumer, 2)) == [b"%d" % target, b"%d" % (target + 1)]
        await consumer.commit()
        assert stored_offset(broker) == target + 2


async def test_a_damaged_reset_changes_nothing(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 5)
    async with consuming(runtime) as consumer:
        await take(consumer, 1)
        fields = {"topic": "t", "group": "c", "timestamp": "0", "isForce": "true"}
        broker.links[0].send(request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, b"{{", one_way=True))
        assert len(await take(consumer, 4)) == 4


async def test_closing_does_not_hang_on_silent_brokers(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 5)
    async with consuming(runtime) as consumer:
        await take(consumer, 2)
        broker.script(COMMIT, *[silent] * 10)
        broker.script(RequestCode.UNREGISTER_CLIENT, *[silent] * 10)
        started = trio.current_time()
    assert trio.current_time() - started <= 3.01


async def test_slaves_get_heartbeats_of_consumers(world: World, runtime: ClientRuntime) -> None:
    leader, follower = one_group(world, members=2)
    async with consuming(runtime) as consumer:
        await consumer.wait_assigned()
        await trio.sleep(61)
        assert len(follower.received(RequestCode.HEART_BEAT)) >= 3
    assert follower.received(RequestCode.UNREGISTER_CLIENT)
    assert leader.received(RequestCode.UNREGISTER_CLIENT)


@pytest.mark.parametrize("topics", [{}, {"t": "* || a"}, {"t": "||"}, {"t": SqlFilter(" ")}])
async def test_impossible_subscriptions_are_refused(runtime: ClientRuntime, topics: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Consumer(NAME_SERVER, group="c", topics=topics, runtime=runtime)


async def test_unreachable_brokers_are_found_when_they_return(broker: Broker, runtime: ClientRuntime) -> None:
    fill(broker, 2)
    broker.up = False
    async with consuming(runtime) as consumer:
        await trio.sleep(60)
        assert consumer.assignment() == []
        broker.up = True
        assert len(await take(consumer, 2)) == 2
        broker.kill()
        with pytest.raises(ConnectionFailed):
            await consumer.commit()


async def test_why_a_topic_is_not_read_yet_is_told_once(
    broker: Broker, runtime: ClientRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    broker.script(RequestCode.GET_CONSUMER_LIST_BY_GROUP, *[code(16, "no such account")] * 20)
    async with consuming(runtime, topics=["t", "missing"]) as consumer:
        await trio.sleep(5)
        assert consumer.assignment() == []
        told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(told) == 3
        assert "topic t yet" in told[0]
        assert "no such account" in told[0]
        assert "topic missing yet" in told[1]
        assert "topic %RETRY%c yet" in told[2]
        broker.scripts.clear()
        await trio.sleep(10)
        assert queues_of(consumer) == [MessageQueue("t", "g", 0)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "latest"},
        {"start": 1.5},
        {"start": True},
        {"group": "a b"},
        {"group": ""},
        {"topics": "a b"},
    ],
)
def test_what_can_never_be_read_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Consumer(NAME_SERVER, **{"group": "c", "topics": "t", **wrong})
