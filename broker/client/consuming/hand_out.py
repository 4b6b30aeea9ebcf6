"""Hands messages to the one task that reads a consumer: singly, or in the batches in which they were fetched.

A message is done with when the next one is asked for, so a reader that is gone leaves the last one to whoever reads
its queue next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from broker.client.consuming.intake import Batch, Intake, QueueReader
from broker.client.errors import UsageError
from broker.client.message import MessageView


class HandOut:
    """Hands out what an intake takes; iterating over it gives batches. Nothing is left open if that ends early.

    ``orderly``: only listeners are given anything, as they can be stopped at any message.

    Of the batch in hand the first ``_handed_out`` messages are handed out; all but the last of these are done with.
    """

    def __init__(self, intake: Intake, *, orderly: bool) -> None:
        self._intake = intake
        self._orderly = orderly
        self._in_hand: tuple[QueueReader, Batch] | None = None
        self._handed_out = 0
        self.on_their_way = 0
        """Of the messages that are handed out, the last so many have not arrived at a reader in another thread: these
        are not done with, and `take_back` has them handed out again (threaded/handover.py)."""
        self._is_read = False

    async def message(self) -> MessageView:
        """Return the next message; the one before it is done with. Raises as the next batch."""
        if self._in_hand is not None:
            reader, batch = self._in_hand
            at = self._handed_out
            if at:
                reader.finished(batch.messages[at - 1])
            # Within a batch without a checkpoint: `_next` has one for all of its messages.
            if at < len(batch.messages) and not reader.dropped:
                self._handed_out = at + 1
                return batch.messages[at]
        messages = await self._next()
        self._handed_out = 1
        return messages[0]

    def __aiter__(self) -> HandOut:
        return self

    async def __anext__(self) -> list[MessageView]:
        """Return the rest of the batch in hand, or the next one; the one before it is done with.

        Raises ClientClosed outside the client's block; UsageError if another task reads, and for an orderly consumer.
        """
        messages = await self._next()
        self._handed_out = len(messages)
        return list(messages)  # the application's own, from which it may take what it likes

    async def _next(self) -> list[MessageView]:
        """Have a batch in hand of which nothing is handed out yet, and return its messages; the others are settled."""
        with self._by_one_task():
            if self._orderly:
                raise UsageError(
                    "an orderly consumer is read by listen_orderly, which can be stopped at any message"
                )
            # The one checkpoint of a batch comes before anything is taken, so that a cancellation loses nothing.
            await self._intake.runtime.sleep(0)
            self._keep_rest()
            while self._in_hand is None:
                self._in_hand = self._intake.next_nowait()
                if self._in_hand is None:
                    await self._intake.wait_arrival()
            return self._in_hand[1].messages

    @contextlib.contextmanager
    def alone(self) -> Iterator[Intake]:
        """Give the intake to a listener, which itself accounts for what is done, while nobody else may read.

        Messages that were handed out before are done with; the rest of their batch comes first. Raises UsageError,
        ClientClosed.
        """
        with self._by_one_task():
            self._keep_rest()
            if self._in_hand is not None:
                self._intake.put_back(*self._in_hand)
                self._in_hand = None
            yield self._intake

    @contextlib.contextmanager
    def _by_one_task(self) -> Iterator[None]:
        self._intake.core.check_open()
        if self._is_read:
            raise UsageError("two tasks are reading from one consumer")
        self._is_read = True
        try:
            yield
        finally:
            self._is_read = False

    def settle(self) -> None:
        """Note that every message that was handed out and has arrived is done with."""
        if self._in_hand is None:
            return
        reader, batch = self._in_hand
        arrived = self._handed_out - self.on_their_way
        is_whole = arrived == len(batch.messages)
        if is_whole:
            reader.finished_batch(batch)
        elif arrived:
            reader.finished(batch.messages[arrived - 1])
        # Of a dropped reader the rest is not handed out any more: whoever has its queue now gets that.
        if is_whole or reader.dropped:
            self._in_hand = None
            self._handed_out = self.on_their_way = 0

    def take_back(self) -> None:
        """Hand out again what has not arrived, before anything else."""
        self._handed_out -= self.on_their_way
        self.on_their_way = 0

    def _keep_rest(self) -> None:
        """Settle, and leave in hand only messages that were not handed out one by one before."""
        self.settle()
        if self._in_hand is not None:
            _, batch = self._in_hand
            batch.messages = batch.messages[self._handed_out :]
            self._handed_out = 0
