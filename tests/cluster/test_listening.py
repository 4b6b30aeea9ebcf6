"""Listeners of all kinds on real processes while the leader is killed: nothing lost, order kept, one holder a queue."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from broker.client.consuming.listening import Handler, listen
from broker.client.consuming.offset_file import OffsetFile
from broker.client.consuming.ordered_listening import listen_orderly
from broker.client.message import MessageQueue, MessageView
from tests.cluster.support import TOPIC, Load, check_identical, ready_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@dataclass
class Seen:
    """The messages that the members of a consumer group have handled, by queue, in that order."""

    offsets: dict[MessageQueue, list[int]] = field(default_factory=dict)
    places: set[tuple[MessageQueue, int]] = field(default_factory=set)
    at_work: dict[MessageQueue, str] = field(default_factory=dict)
    _progress: trio.Event = field(default_factory=trio.Event)

    def handler(self, member: str, *, alone: bool) -> Handler:
        async def handle(message: MessageView) -> None:
            queue = message.queue
            if alone:
                assert queue not in self.at_work, f"{member} and {self.at_work[queue]} both handle {queue}"
                self.at_work[queue] = member
            try:
                await trio.lowlevel.checkpoint()
                self.offsets.setdefault(queue, []).append(message.queue_offset)
                self.places.add((queue, message.queue_offset))
                self._progress.set()
            finally:
                if alone:
                    del self.at_work[queue]

        return handle

    async def wait_for(self, wanted: set[tuple[MessageQueue, int]]) -> None:
        """Wait until all of these have been handled."""
        while not wanted <= self.places:
            self._progress = trio.Event()
            await self._progress.wait()


@contextlib.asynccontextmanager
async def listener(consumer: Consumer, handler: Handler) -> AsyncIterator[Consumer]:
    """The consumer's listener in the background; an assertion that fails in the handler fails the test."""
    failed: list[Exception] = []

    async def guarded(message: MessageView) -> None:
        try:
            await handler(message)
        except AssertionError as error:
            failed.append(error)
            raise

    async def run() -> None:
        if consumer.order_locks is not None:
            await listen_orderly(consumer, guarded)
        else:  # one at a time keeps the order of each queue in a broadcast consumer, too
            await listen(consumer, guarded, concurrency=1 if consumer.broadcast else 20)

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield consumer
        nursery.cancel_scope.cancel()
    assert not failed, failed


async def test_listeners_of_all_kinds_and_a_killed_leader(tmp_path: Path) -> None:
    concurrent, orderly = Seen(), Seen()
    broadcast = [Seen(), Seen()]
    async with ready_cluster(tmp_path / "cluster") as cluster:
        address = cluster.name_server_address
        load = Load(cluster)

        def worker(number: int) -> contextlib.AbstractAsyncContextManager[Consumer]:
            consumer = Consumer(address, group="workers", topics=TOPIC, start="first")
            return listener(consumer, concurrent.handler(f"worker {number}", alone=False))

        def clerk(number: int) -> contextlib.AbstractAsyncContextManager[Consumer]:
            consumer = Consumer(address, group="clerks", topics=TOPIC, start="first", orderly=True)
            return listener(consumer, orderly.handler(f"clerk {number}", alone=True))

        def cache(number: int) -> contextlib.AbstractAsyncContextManager[Consumer]:
            file = OffsetFile(tmp_path / f"cache{number}" / "offsets.json")
            consumer = Consumer(
                address, group="caches", topics=TOPIC, start="first", broadcast=True, offsets=file
            )
            return listener(consumer, broadcast[number].handler(f"cache {number}", alone=True))

        async with worker(0), worker(1), clerk(0), cache(0):
            async with load.running():
                async with clerk(1), cache(1):
                    await load.wait_for(300)
                    leader = await cluster.leader()
                    await cluster.kill(leader.id)
                    await load.wait_for(300)
                    cluster.start(leader.id)
                    await cluster.wait_ready()
                await load.wait_for(300)  # a member of each has left, and what it had in hand is others' now
                async with clerk(2):
                    await load.wait_for(300)
            async with cache(1):
                wanted = {
                    (result.queue, result.queue_offset)
                    for results in load.acknowledged.values()
                    for _, result in results
                }

                for seen in (concurrent, orderly, *broadcast):
                    await seen.wait_for(wanted)
        await check_identical(cluster)
    for seen in (orderly, *broadcast):
        for queue, offsets in seen.offsets.items():
            if not queue.topic.startswith("%"):
                check_order(queue, offsets)


def check_order(queue: MessageQueue, offsets: list[int]) -> None:
    """From 0 on without a gap; a step back repeats what was handled before."""
    assert offsets[0] == 0
    done = 0
    for offset in offsets:
        assert offset <= done, f"{queue}: {offset} was handled after {done - 1}"
        done = max(done, offset + 1)
