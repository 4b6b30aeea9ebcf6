"""Trio's runtime on real sockets: partial writes, closing under a waiter, groups and their cancellation."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from broker.client.transport.runtime import TaskGroup, drop_bytes
from broker.client.transport.trio_runtime import TrioRuntime


async def _connected(
    nursery: trio.Nursery,
) -> tuple[TrioRuntime, str, trio.MemoryReceiveChannel[trio.SocketStream]]:
    accepted_in, accepted_out = trio.open_memory_channel[trio.SocketStream](10)

    async def accept(stream: trio.SocketStream) -> None:
        await accepted_in.send(stream)
        await trio.sleep_forever()

    async def listen(task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
        await trio.serve_tcp(accept, 0, host="127.0.0.1", task_status=task_status)

    listeners = await nursery.start(listen)
    port = listeners[0].socket.getsockname()[1]
    return TrioRuntime(), f"127.0.0.1:{port}", accepted_out


async def test_a_large_write_arrives_whole(nursery: trio.Nursery) -> None:
    runtime, address, accepted = await _connected(nursery)
    stream = await runtime.connect(address)
    peer = await accepted.receive()
    pieces = [bytes([number % 256]) * (1000 + number * 7) for number in range(2000)]
    sent = stream.write_nowait(pieces)
    assert 0 < sent < sum(map(len, pieces))
    received = bytearray()

    async def read() -> None:
        while len(received) < sum(map(len, pieces)):
            received.extend(await peer.receive_some())

    async with trio.open_nursery() as reading:
        reading.start_soon(read)
        await stream.send_all(drop_bytes(list(pieces), sent))
    assert received == b"".join(pieces)
    await peer.send_all(b"answer")
    assert await stream.receive_some() == b"answer"
    await peer.aclose()
    assert await stream.receive_some() == b""
    stream.close()
    nursery.cancel_scope.cancel()


async def test_closing_wakes_the_reader(nursery: trio.Nursery) -> None:
    runtime, address, _ = await _connected(nursery)
    stream = await runtime.connect(address)
    nursery.start_soon(_close_soon, stream.close)
    with pytest.raises(OSError, match="closed on this side"):
        await stream.receive_some()
    with pytest.raises(OSError, match="closed on this side"):
        stream.write_nowait([b"x"])
    stream.close()
    nursery.cancel_scope.cancel()


async def _close_soon(close: object) -> None:
    await trio.testing.wait_all_tasks_blocked()
    close()  # type: ignore[operator]


async def test_addresses_that_do_not_work() -> None:
    for wrong in ("nothing", "host:port", ""):
        with pytest.raises(OSError, match="host:port"):
            await TrioRuntime().connect(wrong)
    with pytest.raises(OSError, match="no name of a host"):
        await TrioRuntime().connect("a..b:1")


def test_dropped_bytes() -> None:
    assert drop_bytes([b"abc", b"de"], 0) == [b"abc", b"de"]
    assert [bytes(part) for part in drop_bytes([b"abc", b"de"], 2)] == [b"c", b"de"]
    assert drop_bytes([b"abc", b"de"], 3) == [b"de"]
    assert drop_bytes([b"abc", b"de"], 5) == []


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_single_error_leaves_a_group_bare(shielded: bool) -> None:
    async def fail() -> None:
        raise KeyError("task")

    async def body() -> None:
        async with TrioRuntime().task_group(shielded=shielded) as group:
            group.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(KeyError):
        await body()


@pytest.mark.usefixtures("autojump_clock")
async def test_shielded_tasks_outlive_the_cancelled_body() -> None:
    finished: list[str] = []

    async def task() -> None:
        await trio.sleep(5)
        finished.append("task")

    async def body(group: TaskGroup) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
                finished.append("body")
            group.cancel()

    with trio.move_on_after(1) as scope:
        async with TrioRuntime().task_group(shielded=True) as group:
            group.start_soon(task)
            await body(group)
    assert scope.cancelled_caught
    assert finished == ["task", "body"]


async def test_tasks_of_the_client_are_not_interrupted_by_ctrl_c() -> None:
    """An interruption in the middle of a request's beginning ended a program with an AttributeError."""
    runtime = TrioRuntime()
    protected: dict[str, bool] = {}

    async def note(name: str) -> None:
        protected[name] = trio.lowlevel.currently_ki_protected()

    async def begin_another() -> None:
        async with runtime.task_group() as inner:
            inner.start_soon(note, "begun by a task of the client")

    async with runtime.task_group(shielded=True) as own, runtime.task_group() as group:
        own.start_soon(note, "of the client")
        own.start_soon(begin_another)
        group.start_soon(note, "of the program")
        await trio.testing.wait_all_tasks_blocked()
        own.cancel()
    assert protected == {
        "of the client": True,
        "begun by a task of the client": True,
        "of the program": False,
    }
