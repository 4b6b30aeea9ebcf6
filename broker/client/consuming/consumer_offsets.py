"""Where a consumer's stored positions are: at the brokers for a group, on its own machine for a broadcast consumer.

One storing at a time, so that no position goes back by being overtaken. An orderly consumer stores the positions of
queues only whose lock it holds: any other is somebody else's by now.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.client.consuming.intake import QueueReader
from broker.client.consuming.offset_file import LocalOffsets
from broker.client.consuming.order_locks import OrderLocks
from broker.client.consuming.queue_calls import QueueCalls
from broker.client.errors import ClientError, OffsetsNotStored
from broker.client.message import MessageQueue
from broker.client.transport.runtime import Event, Runtime


class StoredPositions:
    """The stored positions of one consumer.

    ``broadcast`` ones are kept in ``local``, and nowhere without it; ``locks`` are those of an orderly consumer.
    """

    def __init__(
        self,
        runtime: Runtime,
        calls: QueueCalls,
        *,
        broadcast: bool,
        local: LocalOffsets | None,
        locks: OrderLocks | None,
    ) -> None:
        self._runtime = runtime
        self._calls = calls
        self._broadcast = broadcast
        self._local = local
        self._locks = locks
        self._kept: dict[MessageQueue, int] = {}
        """What ``local`` holds."""
        self._storing: Event | None = None

    async def open(self) -> None:
        """Read what is kept on this machine. Raises as `LocalOffsets.load`."""
        if self._local is not None:
            self._kept = await self._local.load()

    def close(self) -> None:
        """Nothing more is stored."""
        if self._local is not None:
            self._local.close()

    async def find(self, queue: MessageQueue) -> int | None:
        """The stored position, None where there is none. Raises BrokerError, ConnectionFailed, NoRoute and the like."""
        if self._broadcast:
            return self._kept.get(queue)
        return await self._calls.committed_offset(queue)

    async def store(self, readers: Sequence[QueueReader]) -> list[ClientError]:
        """Store what is not stored yet; returns why some could not be."""
        if self._broadcast and self._local is None:
            return []
        while self._storing is not None:
            await self._storing.wait()
        self._storing = self._runtime.event()
        try:
            if self._local is not None:
                return await self._store_locally(self._local, readers)
            return await self._store_at_brokers(readers)
        finally:
            self._storing.set()
            self._storing = None

    async def _store_at_brokers(self, readers: Sequence[QueueReader]) -> list[ClientError]:
        changed: list[tuple[QueueReader, int]] = []
        for reader in readers:
            position = reader.position
            if position is None or position == reader.committed or reader.outdated:
                continue
            if self._locks is None or self._locks.is_held(reader.queue):
                changed.append((reader, position))
        by_queue = {reader.queue: reader for reader, _ in changed}
        failures = dict(
            await self._calls.commit_all(
                [(reader.queue, at) for reader, at in changed], lambda queue: by_queue[queue].outdated
            )
        )
        for reader, position in changed:
            if reader.queue not in failures:
                reader.committed = position
        return list(failures.values())

    async def _store_locally(self, local: LocalOffsets, readers: Sequence[QueueReader]) -> list[ClientError]:
        positions = dict(self._kept)  # those of queues that are not read now stay
        for reader in readers:
            if (at := reader.position) is not None and not reader.outdated:
                positions[reader.queue] = at
        if positions == self._kept:
            return []
        try:
            await local.store(positions)
        except OSError as error:
            failure = OffsetsNotStored(f"positions were not stored: {error}")
            failure.__cause__ = error
            return [failure]
        self._kept = positions
        return []
