"""Brokers that speak RocketMQ's protocol, Trivet among them, by one lean client (`lean_client.py`).

`dledger` acknowledges from the page caches of a majority, whatever ``flushDiskType`` says; `master-slave` has no
consensus: a master that waits for its slave and for the disks of both (``SYNC_MASTER``, ``SYNC_FLUSH``). The
reference's servers come from Maven (``tests/interop/artifacts.py``), with their defaults but for ports and folders.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.peers.lean_client import (
    BATCHES,
    QUEUES,
    SENDS,
    SYSTEM_BUSY,
    TOPIC,
    Connection,
    RefusedError,
    batch_body,
    messages_in,
    pull_template,
)
from benchmarks.peers.processes import until
from benchmarks.peers.workloads import KIB, Group, Setting, System, TryAgainError
from broker.state.release import THIS_RELEASE
from tests.interop import wire
from tests.interop.artifacts import REFERENCE_VERSION
from tests.interop.cluster import Cluster, TrivetCluster, kill_leader, make_topic
from tests.interop.reference import ReferenceCluster

HEAP_MIB = 1024
_REFERENCE = {
    # The defaults, where the tests' reference has smaller or more convenient values.
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "sendMessageThreadPoolNums": str(min(4, os.cpu_count() or 4)),
    "pullMessageThreadPoolNums": str(16 + 2 * (os.cpu_count() or 4)),
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "60000",
}
_PULL_MESSAGES = 32
_PULLS_IN_FLIGHT = 8


class _LeanGroup:
    """A group whose leader the lean client is connected to."""

    def __init__(self, cluster: Cluster, connection: Connection) -> None:
        self._cluster = cluster
        self._connection = connection
        self._sent = 0

    @property
    def pids(self) -> list[int]:
        slaves = self._cluster.slaves if isinstance(self._cluster, ReferenceCluster) else ()
        return [node.pid for node in (*self._cluster.nodes, *slaves)]

    async def send(self, body: bytes) -> None:
        self._sent += 1
        try:
            await self._connection.ask(SENDS[self._sent % QUEUES], body)
        except RefusedError as error:
            raise (TryAgainError if error.code == SYSTEM_BUSY else ConnectionError)(str(error)) from error

    async def send_all(self, body: bytes, count: int, setting: Setting) -> None:
        batch, in_flight = setting
        data = body if batch == 1 else batch_body(body, batch)
        await self._connection.send_all(SENDS if batch == 1 else BATCHES, data, count // batch, in_flight)

    async def read_all(self, count: int) -> None:
        leader = self._cluster.leader().address
        ends = [await asyncio.to_thread(wire.max_offset, leader, TOPIC, queue) for queue in range(QUEUES)]
        pulls = [(queue, at) for queue in range(QUEUES) for at in range(0, ends[queue], _PULL_MESSAGES)][::-1]
        got = 0

        async def read() -> None:
            nonlocal got
            while pulls:
                queue, offset = pulls.pop()
                wanted = min(_PULL_MESSAGES, ends[queue] - offset)
                while wanted > 0:
                    found = messages_in(await self._connection.ask(pull_template(queue, offset, wanted)))
                    got, offset, wanted = got + found, offset + found, wanted - found

        await asyncio.gather(*(read() for _ in range(_PULLS_IN_FLIGHT)))
        assert got == sum(ends) >= count, f"read {got} of {sum(ends)}"

    async def kill_leader(self) -> None:
        await asyncio.to_thread(kill_leader, self._cluster)

    async def reconnect(self) -> None:
        self._connection.transport.close()
        leader = await asyncio.to_thread(self._cluster.leader)
        self._connection = await Connection.open(leader.address)

    def close(self) -> None:
        self._connection.transport.close()


class _RocketmqSystem:
    """A system whose groups `start` starts in a folder."""

    settings: dict[int, list[Setting]] = {
        1024: [(1, 64), (1, 256), (64, 4), (256, 2), (256, 4)],
        100: [(1, 256), (256, 4), (1000, 2), (1000, 4)],
    }

    def __init__(self, name: str, version: str, start: Callable[[Path], Cluster]) -> None:
        self.name = name
        self.version = version
        self._start = start

    @asynccontextmanager
    async def fresh(self, folder: Path) -> AsyncIterator[Group]:
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, folder))
        try:
            cluster = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on: what it starts must not outlive this program.
            await asyncio.to_thread((await starting).stop)
            raise
        try:
            await asyncio.to_thread(make_topic, cluster, TOPIC, QUEUES)
            group = _LeanGroup(cluster, await Connection.open(cluster.leader().address))
            # A slave that has registered may not have begun to copy.
            await until(lambda: group.send(KIB), "a replica", (ConnectionError, TryAgainError))
            yield group
            group.close()
        finally:
            await asyncio.to_thread(cluster.stop)


def _dledger(folder: Path) -> Cluster:
    return ReferenceCluster(folder, 3, _REFERENCE, heap_mib=HEAP_MIB, lasting=True)


def _master_slave(folder: Path) -> Cluster:
    settings = {**_REFERENCE, "brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}
    return ReferenceCluster(folder, 1, settings, heap_mib=HEAP_MIB, slaves=1, lasting=True)


_RELEASE = f"Trivet {THIS_RELEASE.name}, lean client"
SYSTEMS: dict[str, Callable[[], System]] = {
    "dledger": lambda: _RocketmqSystem(
        "dledger", f"RocketMQ {REFERENCE_VERSION}, DLedger, {HEAP_MIB} MiB heap", _dledger
    ),
    "master-slave": lambda: _RocketmqSystem(
        "master-slave", f"RocketMQ {REFERENCE_VERSION}, SYNC_MASTER and SYNC_FLUSH", _master_slave
    ),
    "trivet-async": lambda: _RocketmqSystem("trivet-async", _RELEASE, TrivetCluster),
    "trivet-sync": lambda: _RocketmqSystem(
        "trivet-sync", _RELEASE, lambda folder: TrivetCluster(folder, flush="sync")
    ),
}
