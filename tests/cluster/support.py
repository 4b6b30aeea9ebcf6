"""Helpers for tests of real processes: small files so that every roll happens, a load, and the checks after it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError, NotDelivered, SendOutcomeUnknown
from broker.client.message import Message, MessageQueue, SendResult
from broker.client.producing.producer import Producer
from broker.settings.tables import StorageSettings
from broker.tools.cluster.compare import Comparison, compare_stores
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from broker.tools.cluster.query import cluster_info

TOPIC = "Load"
QUEUES = 4
SENDERS = 8
PAUSE_S = 0.01
"""Of each sender between two messages while nobody waits for more: servers that start need the CPU."""
READER_GROUP = "TOOLS_CONSUMER"
LIMIT_S = 600.0
"""Ends a test that hangs; no test depends on how long anything takes."""

SMALL_FILES = StorageSettings(
    data_file_bytes=256 * 1024,
    entry_index_file_bytes=32 * 512,
    consume_queue_file_bytes=20 * 256,
    index_file_slots=1000,
    index_file_entries=4000,
    max_message_bytes=64 * 1024,
)


def options(directory: Path, **changes: object) -> LocalClusterOptions:
    """Three nodes on free ports with small files."""
    return LocalClusterOptions(directory, **{"storage": SMALL_FILES, **changes})  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def ready_cluster(directory: Path, **changes: object) -> AsyncIterator[LocalCluster]:
    """A cluster that serves, with the topic; everything in the block must end within `LIMIT_S`."""
    with trio.fail_after(LIMIT_S):
        async with LocalCluster(options(directory, **changes)) as cluster:
            await cluster.wait_ready()
            async with AdminClient(cluster.name_server_address) as admin:
                await repeated(partial(admin.create_topic, TOPIC, queues=QUEUES))
            yield cluster


async def wait_unregistered(cluster: LocalCluster, node_id: str) -> None:
    """Waits until the name server no longer has the node, which must be down."""
    node = cluster.nodes[node_id]
    assert not node.running, f"{node_id} runs, and stays registered"
    while True:
        group = (await cluster_info(cluster.name_server_address)).broker_table.get(node.group)
        if group is None or node.registered_address not in group.broker_addresses.values():
            return
        await trio.sleep(0.05)


async def repeated(call: Callable[[], Awaitable[None]]) -> None:
    """A call that may be made again, until it has not failed for want of time: clients wait for seconds only."""
    while True:
        try:
            return await call()
        except ClientError as error:
            if not error.retry_may_help:
                raise


class Reachable(Protocol):
    """A group with a name server."""

    @property
    def name_server_address(self) -> str: ...


@dataclass
class Load:
    """Senders that each send one numbered message after the other to one queue, until told to stop.

    They do so without a pause while a test waits for more: then what the test does next meets all of them at work.
    """

    cluster: Reachable
    acknowledged: dict[int, list[tuple[int, SendResult]]] = field(default_factory=dict)
    """By sender: number of the message and where it was stored, in the order of sending."""
    count: int = 0
    unknown: int = 0
    _wanted: int = 0
    _progress: trio.Event = field(default_factory=trio.Event)
    _stopping: bool = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Send while the block lasts; what is under way when it ends is finished."""
        async with (
            Producer(
                self.cluster.name_server_address, group="LOAD", send_timeout_s=120.0, attempt_timeout_s=1.0
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            for sender in range(SENDERS):
                nursery.start_soon(self._send, producer, sender)
            self._stopping = False
            yield self
            self._stopping = True

    async def _send(self, producer: Producer, sender: int) -> None:
        stored = self.acknowledged.setdefault(sender, [])
        number = stored[-1][0] + 1 if stored else 0
        while not self._stopping:
            try:
                result = await producer.send(message_of(sender, number), queue=f"sender-{sender}")
            except (SendOutcomeUnknown, NotDelivered):
                self.unknown += 1
            else:
                stored.append((number, result))
                self.count += 1
                self._progress.set()
            number += 1
            if self.count >= self._wanted:
                await trio.sleep(PAUSE_S)

    async def wait_for(self, more: int) -> None:
        """Wait until so many more messages have been acknowledged."""
        self._wanted = self.count + more
        while self.count < self._wanted:
            self._progress = trio.Event()
            await self._progress.wait()


def message_of(sender: int, number: int) -> Message:
    """The message with that number; its body tells both."""
    return Message(TOPIC, f"{sender} {number} ".encode() * (1 + number % 40), keys=(f"{sender}-{number}",))


async def read_everything(name_server: str) -> dict[MessageQueue, list[bytes]]:
    """The bodies of every message of the topic, by queue, at their offsets from 0 on."""
    found: dict[MessageQueue, list[bytes]] = {}
    async with PullConsumer(name_server, group=READER_GROUP) as consumer:
        queues = await consumer.queues(TOPIC)
        ends = {queue: await consumer.max_offset(queue) for queue in queues}
        consumer.assign(dict.fromkeys(queues, 0))
        found = {queue: [] for queue in queues}
        while any(len(found[queue]) < end for queue, end in ends.items()):
            for message in await consumer.poll(timeout_s=LIMIT_S):
                assert message.queue_offset == len(found[message.queue]), "a queue has a hole"
                found[message.queue].append(message.body)
    return found


async def check_nothing_lost(cluster: Reachable, load: Load) -> None:
    """Every acknowledged message is where the answer said it is, and each sender's messages are in order."""
    stored = await read_everything(cluster.name_server_address)
    for sender, results in load.acknowledged.items():
        last_offset = -1
        for number, result in results:
            bodies = stored[result.queue]
            assert result.queue_offset < len(bodies), (
                f"message {sender}-{number} was acknowledged, and is not there"
            )
            assert bodies[result.queue_offset] == message_of(sender, number).body
            assert result.queue_offset > last_offset, f"message {sender}-{number} is out of order"
            last_offset = result.queue_offset


async def check_identical(cluster: LocalCluster) -> Comparison:
    """All nodes run and have caught up; their files hold the same bytes up to the commit index."""
    commit_index = (await cluster.wait_caught_up())[cluster.layout.options.group]
    return await trio.to_thread.run_sync(
        compare_stores, {node.id: node.data_directory for node in cluster.nodes.values()}, commit_index
    )


def pids_of(cluster: LocalCluster) -> Sequence[int]:
    """Of the name server and every node."""
    return [child.pid for child in cluster.children()]
