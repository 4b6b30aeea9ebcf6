"""The stream of an open page: server-sent events (the HTML standard, 9.2), the history first, then each moment."""

from __future__ import annotations

from typing import Final

import msgspec
import trio
from starlette.types import Receive, Scope, Send

from broker.console.live import Live

BEAT_S: Final = 15.0
"""A comment is sent after so long without a moment, by which either end notices that the other is gone."""


class LiveStream:
    """An answer that goes on until the page leaves or `over` is set.

    Nothing is buffered here: the next moment is taken when the one before has been handed to the connection. How long
    that may take says `server`.
    """

    def __init__(self, live: Live, over: trio.Event) -> None:
        self._live = live
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_left, receive, nursery.cancel_scope)
            nursery.start_soon(_cancel_when_over, self._over, nursery.cancel_scope)
            await self._tell(send)
        await send({"type": "http.response.body", "body": b""})

    async def _tell(self, send: Send) -> None:
        await _send(send, _event("history", self._live.history()))
        with self._live.watch() as watch:
            while True:
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
