"""The console on real sockets: a browser that does not read holds nobody up."""

from __future__ import annotations

import socket

import pytest
import trio

pytest.importorskip("hypercorn", reason="the console's libraries are not installed")

from broker.console import server
from broker.console.live import Live
from broker.console.options import ConsoleOptions


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel closes no such connections here"
)
async def test_a_browser_that_does_not_read_is_let_go(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(server, "WRITE_S_MAX", 1)
    monkeypatch.setattr(Live, "history", lambda live: "x" * (64 << 20))  # more than all buffers take
    stop, ended = trio.Event(), trio.Event()

    async def serve(task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        # Nobody listens at that port: the page has nothing to show, and is served all the same.
        options = ConsoleOptions(name_servers=("127.0.0.1:1",), listen="127.0.0.1:0")
        await server.serve(options, stop.wait, task_status)
        ended.set()

    address = await nursery.start(serve)
    port = int(address.removeprefix("http://127.0.0.1:").rstrip("/"))

    async def ask(path: str, receive_bytes: int) -> trio.SocketStream:
        connection = trio.socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await connection.connect(("127.0.0.1", port))
        stream = trio.SocketStream(connection)
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: trivet-console-0=x\r\n\r\n"
        await stream.send_all(request.encode())
        return stream

    async with await ask("/api/live", 4096) as silent:
        with trio.fail_after(10):
            assert (await silent.receive_some(12)).startswith(b"HTTP/1.1 200")
            async with await ask("/api/session", 65536) as other:
                assert (await other.receive_some(12)).startswith(b"HTTP/1.1 200")
        stop.set()
        with trio.move_on_after(15) as waiting:
            await ended.wait()
    assert not waiting.cancelled_caught, "the server could not end before the browser did"
