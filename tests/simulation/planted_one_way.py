"""Mistakes about sends that nobody waits for, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from collections import deque

import pytest

from broker.client.producing.one_send import OneSend
from broker.client.producing.outbox import Outbox
from broker.client.producing.window import Window
from broker.client.transport.connection import Connection, Fields
from broker.client.transport.runtime import Buffer
from tests.simulation.planting import planted


@planted("one way: sent twice", "nothing tells that it arrived", actor="poster")
def sent_twice(patch: pytest.MonkeyPatch) -> None:
    """Once more, as nothing tells whether the first one arrived."""
    original = Connection.send_one_way_with_room

    async def send(self: Connection, code: int, fields: Fields = None, body: Buffer = b"") -> None:
        await original(self, code, fields, body)
        await original(self, code, fields, body)

    patch.setattr(Connection, "send_one_way_with_room", send)


@planted("outbox: failures forgotten", "a block left as if all were stored", actor="poster")
def failures_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An outbox whose block is left as if all were stored."""
    patch.setattr(Outbox, "failures", lambda self: [])


@planted("outbox: last come, first sent", "a queue that is a pile", actor="poster")
def last_come_first_sent(patch: pytest.MonkeyPatch) -> None:
    """An outbox that begins with what it took last."""

    class Pile(deque[OneSend]):
        def popleft(self) -> OneSend:
            return self.pop()

    original = Window.__init__

    def init(self: Window, *arguments: object) -> None:
        original(self, *arguments)  # type: ignore[arg-type]
        self._waiting = Pile()

    patch.setattr(Window, "__init__", init)
