"""Messages on their way from a consumer to a reader in another thread, who may be interrupted anywhere in between."""

from __future__ import annotations

import trio

from broker.client.consuming.hand_out import HandOut
from broker.client.message import MessageView


class Handover:
    """Hands messages over so that none is skipped: what was taken, and did not arrive, comes again.

    An interrupt, or an await that is cancelled, may leave messages behind. Until they have arrived no `commit` counts
    them as done with.
    """

    def __init__(self, hand_out: HandOut) -> None:
        self._hand_out = hand_out
        self._one_at_a_time = trio.Lock()

    async def take(self, *, batch: bool = False) -> list[MessageView]:
        """Return the next message, or batch. Called in the consumer's thread; raises what reading raises."""
        async with self._one_at_a_time:  # one that was given up may not have noticed yet
            self._hand_out.take_back()
            messages = await anext(self._hand_out) if batch else [await self._hand_out.message()]
            self._hand_out.on_their_way = len(messages)
            return messages

    def arrived(self, messages: list[MessageView]) -> list[MessageView]:
        """Note that the reader has them. Called in the reader's thread."""
        if messages:
            self._hand_out.on_their_way = 0
        return messages
