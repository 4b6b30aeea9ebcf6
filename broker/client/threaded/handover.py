"""Messages on their way from a consumer to a reader in another thread, who may be interrupted anywhere in between."""

from __future__ import annotations

import trio

from broker.client.consuming.consumer import Consumer
from broker.client.message import MessageView


class Handover:
    """Hands messages over so that none is skipped: what was taken, and did not arrive, comes again.

    A consumer counts messages as done with when the next ones are taken. So none are taken before the reader has those
    before: an interrupt, or an await that is cancelled, may leave them behind.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._on_their_way: list[MessageView] = []
        self._one_at_a_time = trio.Lock()

    async def take(self, *, batch: bool = False) -> list[MessageView]:
        """Return the next message, or batch. Called in the consumer's thread; raises what reading raises."""
        async with self._one_at_a_time:  # one that was given up may not have noticed yet
            if not self._on_their_way:
                if batch:
                    self._on_their_way = list(await anext(self._consumer.batches()))
                else:
                    self._on_their_way = [await anext(self._consumer)]
            return self._on_their_way[: None if batch else 1]

    def arrived(self, messages: list[MessageView]) -> list[MessageView]:
        """Note that the reader has them. Called in the reader's thread."""
        del self._on_their_way[: len(messages)]
        return messages
