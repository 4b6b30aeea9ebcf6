"""A small HTTP server for operators' tools: a few pages that are read, under Trio, in the loop of the node itself.

h11 knows the protocol; here are the sockets and the limits. Nobody who connects can make the node keep much or do much:

- a request's head has `HEAD_BYTES_MAX` bytes at most; a body is not read, and ends the connection;
- there are `CONNECTIONS_MAX` connections at a time. For the next one that is closed which has waited longest for a
  request, so that whoever sits there silently, or sends a byte a second, does not keep a probe out;
- an answer that is not taken within `ANSWER_S` is given up.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

import h11
import trio

HEAD_BYTES_MAX: Final = 8 * 1024
CONNECTIONS_MAX: Final = 32
REQUEST_S: Final = 120.0
"""A connection waits so long for a whole request: as long as Prometheus' longest usual interval."""
ANSWER_S: Final = 10.0
_RECEIVE_BYTES: Final = 4096

Query = Mapping[str, list[str]]
"""The values of each parameter behind the question mark."""


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


PageMaker = Callable[[Query], Awaitable[Page]]

_NOT_FOUND: Final = Page(404, b"not found\n")
_NOT_ALLOWED: Final = Page(405, b"method not allowed\n")


class HttpServer:
    """Serves `pages`, by path, at a listening socket."""

    def __init__(self, listener: trio.SocketListener, pages: Mapping[str, PageMaker]) -> None:
        self._listener = listener
        self._pages = pages
        self._waiting: dict[trio.CancelScope, None] = {}
        """The connections that wait for a request; the one that has waited longest is the first."""
        self._open = 0

    @property
    def port(self) -> int:
        """The port in use."""
        port: int = self._listener.socket.getsockname()[1]
        return port

    async def run(self) -> None:
        """Serves until cancelled, and closes the socket then."""
        await trio.serve_listeners(self._accepted, [self._listener])

    async def _accepted(self, stream: trio.SocketStream) -> None:
        if self._open >= CONNECTIONS_MAX:
            if not self._waiting:
                await trio.aclose_forcefully(stream)
                return
            next(iter(self._waiting)).cancel()
        self._open += 1
        try:
            await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            pass  # the other end is gone, in the midst of what it asked for or was told
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        while True:
            try:
                request = await self._next_request(stream, connection)
            except h11.RemoteProtocolError as error:
                with suppress(
                    h11.LocalProtocolError
                ):  # it has been answered, and goes on with what is no HTTP
                    refusal = Page(error.error_status_hint, f"{error}\n".encode())
                    await _answer(stream, connection, refusal, without_body=False, close=True)
                return
            if request is None:
                return
            page = await self._page(request)
            # A body, if one is announced, is not read: nobody who asks for these pages has one.
            close = any(
                name in (b"content-length", b"transfer-encoding") and value != b"0"
                for name, value in request.headers
            )
            await _answer(stream, connection, page, without_body=request.method == b"HEAD", close=close)
            if close or connection.our_state is h11.MUST_CLOSE:
                return
            if isinstance(connection.next_event(), h11.EndOfMessage):
                connection.start_next_cycle()
            else:
                return

    async def _next_request(
        self, stream: trio.SocketStream, connection: h11.Connection
    ) -> h11.Request | None:
        """Returns None when the other end is gone, or was waited for too long. Raises `h11.RemoteProtocolError`."""
        with trio.CancelScope(deadline=trio.current_time() + REQUEST_S) as scope:
            self._waiting[scope] = None
            try:
                while True:
                    event = connection.next_event()
                    if isinstance(event, h11.Request):
                        return event
                    if event is not h11.NEED_DATA:
                        return None
                    connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
            finally:
                del self._waiting[scope]
        return None

    async def _page(self, request: h11.Request) -> Page:
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        maker = self._pages.get(path)
        if maker is None:
            return _NOT_FOUND
        if request.method != b"GET":
            return _NOT_ALLOWED
        return await maker(parse_qs(query, keep_blank_values=True, max_num_fields=None))


async def _answer(
    stream: trio.SocketStream, connection: h11.Connection, page: Page, *, without_body: bool, close: bool
) -> None:
    headers = [("Content-Type", page.content_type), ("Content-Length", str(len(page.body)))]
    if page.status == _NOT_ALLOWED.status:
        headers.append(("Allow", "GET"))
    if close:
        headers.append(("Connection", "close"))
    data = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
    if not without_body:
        data += connection.send(h11.Data(data=page.body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    with trio.move_on_after(ANSWER_S) as scope:
        await stream.send_all(data)
    if scope.cancelled_caught:
        raise trio.BrokenResourceError("the answer was not taken")
