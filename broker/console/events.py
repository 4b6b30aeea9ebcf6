"""The stream of an open page: server-sent events (the HTML standard, 9.2), the history first, then each moment."""

from collections.abc import Callable
from typing import Final

import msgspec
import trio
from starlette.types import Receive, Scope, Send

from broker.console.live import History
from broker.console.seats import Seat

BEAT_S: Final = 15.0
"""Seconds without a moment after which a comment is sent, so that each end notices when the other is gone."""


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """The first event for a page: the account that it is signed in with, and the history. A page that expected another
    account loads anew."""

    account: str | None
    history: History


class LiveStream:
    """The stream that tells an open page of the cluster: the history, then a moment each second, until the page is
    closed or its seat ends. `alive` is called with each moment.

    Nothing is buffered here: the next moment is taken when the one before has been handed to the connection; a
    connection that takes nothing is closed in the end (`WRITE_S_MAX`, server.py).
    """

    def __init__(self, seat: Seat, alive: Callable[[], object]) -> None:
        self._seat = seat
        self._alive = alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_left, receive, nursery.cancel_scope)
            nursery.start_soon(_cancel_when_over, self._seat.over, nursery.cancel_scope)
            await self._tell(send)
        await send({"type": "http.response.body", "body": b""})

    async def _tell(self, send: Send) -> None:
        account = self._seat.account or None
        await _send(send, _event("history", Beginning(account=account, history=self._seat.live.history())))
        with self._seat.live.watch() as watch:
            while True:
                self._alive()
                event = b":\n\n"
                with trio.move_on_after(BEAT_S):
                    event = _event("moment", await watch.next())
                await _send(send, event)


def _event(name: str, content: object) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"


async def _send(send: Send, event: bytes) -> None:
    await send({"type": "http.response.body", "body": event, "more_body": True})


async def _cancel_when_left(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _cancel_when_over(over: trio.Event, scope: trio.CancelScope) -> None:
    await over.wait()
    scope.cancel()
