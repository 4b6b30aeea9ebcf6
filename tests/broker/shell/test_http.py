"""The HTTP server for operators' tools: its pages, and what it bears."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from broker.shell import http
from broker.shell.http import HttpServer, Page, PageMaker, Query
from broker.shell.sockets import listen

LIMIT_S = 600.0
sent_away: list[tuple[str, str]] = []
"""What the server that runs has told of those that it closed."""

NO_REQUEST = [("operators' port: no request", "127.0.0.1")]
LONG_PUT = b"PUT /page HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"


async def page(query: Query) -> Page:
    return Page(200, b"verbose" if "verbose" in query else b"short")


@contextlib.asynccontextmanager
async def serving(**more: PageMaker) -> AsyncIterator[HttpServer]:
    pages = {"/page": page, **{f"/{name}": maker for name, maker in more.items()}}
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listen("127.0.0.1:0")))
    server = HttpServer(listener, pages, lambda reason, address: sent_away.append((reason, address)))
    sent_away.clear()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            yield server
            nursery.cancel_scope.cancel()


async def connected(server: HttpServer) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", server.port)


async def until_closed(stream: trio.SocketStream) -> bytes:
    answer = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            answer += data
    return answer


async def asked(server: HttpServer, request: bytes) -> tuple[int, str]:
    """Sends a request, or what it takes for one, and returns status and body of the answer to a connection's end."""
    async with await connected(server) as stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(request)
        head, _, body = (await until_closed(stream)).partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body.decode()


def request(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("line", "status", "body"),
    [
        ("GET /page", 200, "short"),
        ("GET /page?verbose", 200, "verbose"),
        ("GET /page?verbose=1&x=%00", 200, "verbose"),
        ("GET /", 404, "not found\n"),
        ("GET /page/", 404, "not found\n"),
        ("GET /metrics/../page", 404, "not found\n"),
        ("POST /nothing", 404, "not found\n"),
        ("POST /page", 405, "method not allowed\n"),
        ("DELETE /page", 405, "method not allowed\n"),
        ("OPTIONS /page", 405, "method not allowed\n"),
        ("HEAD /page", 405, ""),
    ],
)
async def test_a_page_is_read_and_nothing_else(line: str, status: int, body: str) -> None:
    async with serving() as server:
        assert await asked(server, request(line)) == (status, body)


async def test_a_connection_is_for_one_request() -> None:
    """Whoever asks for much must connect for each answer, and so stands behind all others each time."""
    async with serving() as server, await connected(server) as stream:
        await stream.send_all(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        answer = await until_closed(stream)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        (b"\x00\x01\x02\x03 garbage\r\n\r\n", 400, "illegal request line"),
        (b"\r\n" * 100, 400, "no request line"),
        (b"GET /page HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET /page HTTP/1.1\r\nHost: x\r\nX: ".ljust(http.HEAD_BYTES_MAX + 1, b"y"), 431, "too long"),
        (b"GET /".ljust(http.HEAD_BYTES_MAX + 1, b"y"), 431, "too long"),
        (LONG_PUT + b"z" * 100, 405, "method not allowed"),
        (b"GET /page HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 200, "short"),
        (b"GET /page HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "Content-Length"),
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_ends(
    sent: bytes, status: int, words: str
) -> None:
    """All that is sent is read: one read takes it, or its last byte is the one that is too many."""
    async with serving() as server:
        found, body = await asked(server, sent)
        assert found == status
        assert words in body
        assert await asked(server, request("GET /page")) == (200, "short")
        assert sent_away == (NO_REQUEST if status in (400, 431) else [])


@pytest.mark.parametrize(
    ("sent", "status", "told"),
    [(b"\r\n" * http.HEAD_BYTES_MAX, 400, NO_REQUEST), (LONG_PUT + b"z" * 100_000, 405, [])],
)
async def test_a_connection_ends_though_not_all_that_was_sent_is_read(
    sent: bytes, status: int, told: list[tuple[str, str]]
) -> None:
    async with serving() as server:
        found, _ = await asked(server, sent)
        assert found in {status, 0}  # 0: the close overtook the answer
        assert await asked(server, request("GET /page")) == (200, "short")
        assert sent_away == told


async def test_silent_connections_keep_nobody_out() -> None:
    """For a new one that is closed which has waited longest; a byte now and then does not count."""
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        silent = [
            await stack.enter_async_context(await connected(server)) for _ in range(http.CONNECTIONS_MAX)
        ]
        for stream in silent:
            await stream.send_all(b"GET /page HTT")
        for _ in range(3):
            assert await asked(server, request("GET /page")) == (200, "short")
        assert await until_closed(silent[0]) == b""
        assert sent_away[0] == ("operators' port: too many connections", "127.0.0.1")
        await silent[-1].send_all(b"P/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await until_closed(silent[-1])).endswith(b"short")


async def test_answers_that_are_not_read_keep_nobody_out() -> None:
    """More of them than there are places, each with more requests behind it."""
    begun = 0

    async def large(query: Query) -> Page:
        nonlocal begun
        begun += 1
        return Page(200, bytes(16 << 20))  # more than the buffers of both ends hold

    async with serving(large=large) as server, contextlib.AsyncExitStack() as stack:
        for number in range(http.CONNECTIONS_MAX + 8):
            sock = trio.socket.socket()
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 1024)
            await sock.connect(("127.0.0.1", server.port))
            stream = await stack.enter_async_context(trio.SocketStream(sock))
            await stream.send_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
            while begun <= min(number, http.CONNECTIONS_MAX - 1):
                await trio.lowlevel.checkpoint()
        for _ in range(8):
            assert await asked(server, request("GET /page")) == (200, "short")


async def test_a_crowd_from_one_address_closes_none_from_another() -> None:
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        slow = await trio.open_tcp_stream("127.0.0.1", server.port, local_address="127.0.0.2")
        await stack.enter_async_context(slow)
        for _ in range(3 * http.CONNECTIONS_MAX):
            await stack.enter_async_context(await connected(server))
        # accepted in this order: all before it have a place or had one
        assert await asked(server, request("GET /page")) == (200, "short")
        await slow.send_all(request("GET /page"))
        assert (await until_closed(slow)).endswith(b"short")


async def test_a_request_that_does_not_end_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with serving() as server:
        began = trio.current_time()
        with trio.move_on_after(2 * http.REQUEST_S):
            async with await connected(server) as stream:
                await stream.send_all(b"GET /page HTTP/1.1\r\nHost")
                assert await until_closed(stream) == b""
        assert trio.current_time() - began == pytest.approx(http.REQUEST_S, abs=1)
        assert sent_away == [("operators' port: no request in time", "127.0.0.1")]
