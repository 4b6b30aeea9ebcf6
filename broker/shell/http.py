"""A small HTTP server for operators' tools: a few pages that are read, under Trio, in the loop of the node itself.

h11 knows the protocol; here are the sockets and the limits. Nobody who connects can make the node keep much or do much:

- a connection is for one request, whose head has `HEAD_BYTES_MAX` bytes at most; what follows is not read;
- there are `CONNECTIONS_MAX` connections at a time. The next one gets a place in any case: of the address that has most
  of them the oldest is closed, whether it is silent, sends a byte a second or leaves its answer unread. So nobody keeps
  a probe out: only a crowd of newer connections of its own address could close it before it has asked;
- an answer that is not taken within `ANSWER_S` is given up.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

import h11
import trio

from broker.remoting.addresses import share_of
from broker.requests.crowd import Crowd

HEAD_BYTES_MAX: Final = 8 * 1024
CONNECTIONS_MAX: Final = 32
REQUEST_S: Final = 10.0
"""A connection waits so long for a whole request."""
ANSWER_S: Final = 10.0
_RECEIVE_BYTES: Final = 4096

Query = Mapping[str, list[str]]
"""The values of each parameter behind the question mark."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


PageMaker = Callable[[Query], Awaitable[Page]]

_NOT_FOUND: Final = Page(404, b"not found\n")
_NOT_ALLOWED: Final = Page(405, b"method not allowed\n")


@dataclass(frozen=True, slots=True, eq=False)
class _Guest:
    """An open connection: the scope whose cancellation ends it, and the address that it comes from."""

    scope: trio.CancelScope
    address: str


class HttpServer:
    """Serves `pages`, by path, at a listening socket.

    `closed` is told the limit for which a connection is closed, and the address that it comes from.
    """

    def __init__(
        self,
        listener: trio.SocketListener,
        pages: Mapping[str, PageMaker],
        closed: Callable[[str, str], None],
    ) -> None:
        self._listener = listener
        self._pages = pages
        self._closed = closed
        self._open: Crowd[_Guest] = Crowd()

    @property
    def port(self) -> int:
        """The port in use."""
        port: int = self._listener.socket.getsockname()[1]
        return port

    async def run(self) -> None:
        """Serves until cancelled, and closes the socket then."""
        await trio.serve_listeners(self._accepted, [self._listener])

    async def _accepted(self, stream: trio.SocketStream) -> None:
        # Whoever goes has no place any more, although its task has yet to hear of it.
        if (oldest := self._open.make_room(CONNECTIONS_MAX)) is not None:
            self._closed("operators' port: too many connections", oldest.address)
            oldest.scope.cancel()
        address = _address(stream)
        with trio.CancelScope() as scope:
            guest = _Guest(scope, address)
            self._open.add(guest, share_of(address))
            try:
                await self._serve(stream)
            except _LimitError as limit:
                self._closed(limit.reason, address)
            except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
                pass  # the other end is gone, in the midst of what it asked for or was told
            finally:
                self._open.discard(guest)
                await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        try:
            request = await _request(stream, connection)
        except h11.RemoteProtocolError as error:
            refusal = Page(error.error_status_hint, f"{error}\n".encode())
            await _answer(stream, connection, refusal, without_body=False)
            raise _LimitError("operators' port: no request") from error
        if request is not None:
            page = await self._page(request)
            # Whatever the status, an answer to HEAD has no body (RFC 9110, 9.3.2).
            await _answer(stream, connection, page, without_body=request.method == b"HEAD")

    async def _page(self, request: h11.Request) -> Page:
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        maker = self._pages.get(path)
        if maker is None:
            return _NOT_FOUND
        if request.method != b"GET":
            return _NOT_ALLOWED
        # As many as there are: the head that they stand in is bounded (`HEAD_BYTES_MAX`).
        return await maker(parse_qs(query, keep_blank_values=True, max_num_fields=None))


class _LimitError(Exception):
    """A connection is closed for one of this module's limits."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _address(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""  # it is gone again


async def _request(stream: trio.SocketStream, connection: h11.Connection) -> h11.Request | None:
    """Returns None when the other end is gone. Raises `h11.RemoteProtocolError`; `_LimitError` if it takes too long."""
    with trio.move_on_after(REQUEST_S):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                return event
            # The other end has closed, and asked for nothing.
            if event is not h11.NEED_DATA:
                return None
            # No bytes tell h11 that the other end has closed.
            connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
    raise _LimitError("operators' port: no request in time")


async def _answer(
    stream: trio.SocketStream, connection: h11.Connection, page: Page, *, without_body: bool
) -> None:
    """Sends a page, or for HEAD only its head. Raises `_LimitError` if it is not taken in time."""
    headers = [
        ("Content-Type", page.content_type),
        ("Content-Length", str(len(page.body))),
        ("Connection", "close"),
    ]
    if page.status == _NOT_ALLOWED.status:
        headers.append(("Allow", "GET"))
    data = connection.send(h11.Response(status_code=page.status, headers=headers)) or b""
    if not without_body:
        data += connection.send(h11.Data(data=page.body)) or b""
    data += connection.send(h11.EndOfMessage()) or b""
    with trio.move_on_after(ANSWER_S) as scope:
        await stream.send_all(data)
    if scope.cancelled_caught:
        raise _LimitError("operators' port: answer not taken")
