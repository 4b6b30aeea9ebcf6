"""The stored offsets of a consumer: at the brokers for a consumer group, on its own machine for a broadcast consumer.

There is one storing at a time: of two at once the older offset could arrive last. An orderly consumer stores the
offsets only of queues whose lock it holds, since another member may have the others by now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.client.consuming.intake import QueueReader
from broker.client.consuming.offset_file import LocalOffsets
from broker.client.consuming.order_locks import OrderLocks
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.errors import ClientError, OffsetsNotStored
from broker.client.message import MessageQueue
from broker.client.transport.runtime import Event, Runtime


@dataclass(eq=False)
class StoredOffsets:
    """Finds and stores the offsets of one consumer.

    With ``_broadcast`` they are kept in ``_local``, without that in memory. An orderly consumer has ``_locks``.
    """

    _runtime: Runtime
    _calls: QueueCalls
    _broadcast: bool
    _local: LocalOffsets | None
    _locks: OrderLocks | None
    _kept: dict[MessageQueue, int] = field(default_factory=dict)
    """The offsets of a broadcast consumer; ``_local`` holds the same."""
    _storing: Event | None = None

    async def open(self) -> None:
        """Read the offsets that are kept on this machine. Raises DamagedOffsets, OSError, UsageError."""
        if self._local is not None:
            self._kept = await self._local.load()

    def close(self) -> None:
        """End the use of the store on this machine."""
        if self._local is not None:
            self._local.close()

    async def find(self, queue: MessageQueue, *, zero_if_young: bool = True) -> int | None:
        """Return the queue's stored offset, None if there is none (`QueueCalls.committed_offset`).

        Raises BrokerError, ConnectionFailed, NoRoute, NameServerUnavailable.
        """
        if self._broadcast:
            return self._kept.get(queue)
        return await self._calls.committed_offset(queue, zero_if_young=zero_if_young)

    async def store(self, readers: Sequence[QueueReader]) -> list[ClientError]:
        """Store the readers' consumer offsets that are not stored yet; returns an error for each that failed."""
        while self._storing is not None:
            await self._storing.wait()
        self._storing = self._runtime.event()
        try:
            return await (
                self._store_locally(readers) if self._broadcast else self._store_at_brokers(readers)
            )
        finally:
            self._storing.set()
            self._storing = None

    async def _store_at_brokers(self, readers: Sequence[QueueReader]) -> list[ClientError]:
        changed: list[tuple[QueueReader, int]] = []
        for reader in readers:
            offset = reader.consumer_offset
            # An outdated one would undo what an administrator has set.
            if offset is None or offset == reader.committed or reader.outdated:
                continue
            if self._locks is None or self._locks.is_held(reader.queue):
                changed.append((reader, offset))
        by_queue = {reader.queue: reader for reader, _ in changed}
        failures = dict(
            await self._calls.commit_all(
                [(reader.queue, at) for reader, at in changed], lambda queue: by_queue[queue].outdated
            )
        )
        for reader, offset in changed:
            if reader.queue not in failures:
                reader.committed = offset
        return list(failures.values())

    async def _store_locally(self, readers: Sequence[QueueReader]) -> list[ClientError]:
        offsets = dict(self._kept)  # those of queues that are not read now stay
        for reader in readers:
            if (at := reader.consumer_offset) is not None and not reader.outdated:
                offsets[reader.queue] = at
        if offsets == self._kept:
            return []
        if self._local is not None:
            try:
                await self._local.store(offsets)
            except OSError as error:
                failure = OffsetsNotStored(f"consumer offsets were not stored: {error}")
                failure.__cause__ = error
                return [failure]
        self._kept = offsets
        return []
