"""Calls on one connection: order, time limits, cancellation, loss, what left and what did not."""

from __future__ import annotations

import pytest
import trio

from broker.client.errors import CallTimeout, ConnectionLost
from broker.client.transport.connection import Connection
from broker.client.transport.write_queue import BACKLOG_BYTES_MAX, WriteQueue
from broker.remoting.codes import FLAG_RESPONSE
from broker.remoting.command import RemotingCommand, encode, request, response
from tests.broker.client.links import ClientRuntime, Link, MemoryStream, Pipe, Server, World


class Recorder(Server):
    """Keeps requests, answers when told to."""

    def handle(self, link: Link, command: RemotingCommand) -> RemotingCommand | None:
        return None


class Setup:
    def __init__(self, world: World, runtime: ClientRuntime) -> None:
        self.handled: list[RemotingCommand] = []
        self.server = Recorder(world, "s:1")
        self.link = Link("s:1", Pipe(), Pipe())
        world.nursery.start_soon(self.server.serve, self.link)
        stream = MemoryStream(self.link.from_client, self.link.to_client)
        handlers = {40: lambda connection, command: self.handled.append(command)}
        self.connection = Connection(runtime, "s:1", stream, handlers)
        world.nursery.start_soon(self.connection.run)

    async def requests(self, count: int) -> list[RemotingCommand]:
        await trio.testing.wait_all_tasks_blocked()
        assert len(self.server.requests) == count
        return self.server.requests


@pytest.fixture
def setup(world: World, runtime: ClientRuntime) -> Setup:
    return Setup(world, runtime)


async def test_answers_find_their_calls_in_any_order(setup: Setup, nursery: trio.Nursery) -> None:
    answers: dict[int, int] = {}

    async def call(number: int) -> None:
        answers[number] = (await setup.connection.call(100 + number)).code

    for number in range(5):
        nursery.start_soon(call, number)
    for command in reversed(await setup.requests(5)):
        setup.link.send(response(command, command.code * 2))
    await trio.testing.wait_all_tasks_blocked()
    assert answers == {number: 2 * (100 + number) for number in range(5)}


async def test_calls_of_one_turn_are_written_together(setup: Setup, nursery: trio.Nursery) -> None:
    for number in range(20):
        nursery.start_soon(setup.connection.call, 100 + number)
    await setup.requests(20)
    # The first finds the connection idle and goes alone, the others go as one.
    assert len(setup.link.from_client.writes) == 2


async def test_a_cancelled_call_leaves_the_connection_usable(setup: Setup) -> None:
    with trio.move_on_after(0.5):
        await setup.connection.call(100)
    late = (await setup.requests(1))[0]
    assert not setup.connection.calls
    setup.link.send(response(late, 7))
    with trio.fail_after(1):
        pending = setup.connection.start_call(101)
        setup.link.send(response((await setup.requests(2))[1], 8))
        assert (await pending.wait()).code == 8


async def test_a_time_limit_while_the_peer_speaks_costs_only_that_call(setup: Setup) -> None:
    slow = setup.connection.start_call(100, timeout_s=1)
    quick = setup.connection.start_call(101, timeout_s=5)
    await trio.sleep(0.5)
    setup.link.send(request(40, one_way=True))
    started = trio.current_time()
    with pytest.raises(CallTimeout) as caught:
        await slow.wait()
    assert caught.value.request_left
    assert trio.current_time() - started == pytest.approx(0.5)
    setup.link.send(response(setup.server.requests[1], 0))
    assert (await quick.wait()).code == 0


async def test_a_silent_peer_loses_the_connection_with_the_first_time_limit(setup: Setup) -> None:
    slow = setup.connection.start_call(100, timeout_s=30)
    started = trio.current_time()
    with pytest.raises(CallTimeout):
        await setup.connection.call(101, timeout_s=1)
    with pytest.raises(ConnectionLost):
        await slow.wait()
    assert trio.current_time() - started == pytest.approx(1)
    assert setup.connection.closed


async def test_a_shorter_time_limit_started_later_is_kept(setup: Setup) -> None:
    setup.connection.start_call(100, timeout_s=30)
    await trio.sleep(1)
    started = trio.current_time()
    with pytest.raises(CallTimeout):
        await setup.connection.call(101, timeout_s=0.25)
    assert trio.current_time() - started == pytest.approx(0.25)


async def test_loss_ends_every_call_and_later_ones(setup: Setup) -> None:
    first, second = setup.connection.start_call(100), setup.connection.start_call(101)
    await setup.requests(2)
    setup.link.reset()
    for pending in (first, second):
        with pytest.raises(ConnectionLost) as caught:
            await pending.wait()
        assert caught.value.request_left
    with pytest.raises(ConnectionLost) as caught:
        await setup.connection.call(102)
    assert not caught.value.request_left


async def test_a_request_still_in_the_backlog_has_not_left(setup: Setup) -> None:
    setup.link.from_client.stopped = True
    first = setup.connection.start_call(100)  # with the writer, which waits for room: may have left
    await trio.testing.wait_all_tasks_blocked()
    second = setup.connection.start_call(101)
    await trio.testing.wait_all_tasks_blocked()
    setup.connection.close("test")
    with pytest.raises(ConnectionLost) as caught:
        await first.wait()
    assert caught.value.request_left
    with pytest.raises(ConnectionLost) as caught:
        await second.wait()
    assert not caught.value.request_left


async def test_a_peer_that_does_not_read_stops_new_calls(setup: Setup, nursery: trio.Nursery) -> None:
    setup.link.from_client.stopped = True
    setup.connection.start_call(100, timeout_s=60)
    await trio.testing.wait_all_tasks_blocked()
    setup.connection.start_call(101, body=bytes(BACKLOG_BYTES_MAX + 1), timeout_s=60)
    with pytest.raises(CallTimeout) as caught:
        await setup.connection.call(102, timeout_s=1)
    assert not caught.value.request_left
    done = trio.Event()

    async def call() -> None:
        await setup.connection.call(103, timeout_s=50)
        done.set()

    nursery.start_soon(call)
    await trio.testing.wait_all_tasks_blocked()
    setup.link.from_client.go_on()
    for command in await setup.requests(3):
        setup.link.send(response(command, 0))
    await done.wait()


async def test_requests_of_the_peer_are_handled_or_refused(setup: Setup) -> None:
    setup.link.send(request(40, {"consumerGroup": "g"}, opaque=1, one_way=True))
    setup.link.send(request(999, opaque=2))
    (refusal,) = await setup.requests(1)
    assert [command.fields for command in setup.handled] == [{"consumerGroup": "g"}]
    assert (refusal.flag & FLAG_RESPONSE, refusal.opaque, refusal.code) == (1, 2, 3)


async def test_bytes_that_are_no_frame_end_the_connection_after_the_good_ones(setup: Setup) -> None:
    pending = setup.connection.start_call(100)
    second = setup.connection.start_call(101)
    commands = await setup.requests(2)
    setup.link.to_client.put(encode(response(commands[0], 5)) + b"HTTP/1.1 400 Bad Request")
    assert (await pending.wait()).code == 5
    with pytest.raises(ConnectionLost, match="no frame"):
        await second.wait()


async def test_the_end_of_the_stream_is_a_loss(setup: Setup) -> None:
    pending = setup.connection.start_call(100)
    setup.link.to_client.end()
    with pytest.raises(ConnectionLost, match="peer closed"):
        await pending.wait()


async def test_room_that_a_write_without_waiting_makes_is_told_of(
    runtime: ClientRuntime, nursery: trio.Nursery
) -> None:
    pipe = Pipe()
    queue = WriteQueue(runtime, MemoryStream(pipe, Pipe()))
    queue.hold()
    queue.put(bytes(BACKLOG_BYTES_MAX + 1), b"")
    nursery.start_soon(queue.wait_room, "s:1", 3.0)
    await trio.testing.wait_all_tasks_blocked()
    queue.write_now()
    started = trio.current_time()
    await trio.testing.wait_all_tasks_blocked()
    assert not nursery.child_tasks
    assert trio.current_time() == started
