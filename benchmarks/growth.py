"""What a group's messages and its rest cost while more and more stands idle beside them.

    python -m benchmarks.growth [--only topics connections ...] [--dir DIRECTORY]
    python -m benchmarks.growth_plot

Each row grows on a fresh group of three: topics of eight queues with messages in each, connections that have asked once
and say nothing more, consumer groups with a member that waits for messages of another topic, timed messages that are
due much later. At each size the same is measured:

- a message's CPU time, of all three brokers, when 64 messages of 1 KiB are under way to one topic (the least of some
  rounds, since others' work on the machine only adds);
- the CPU time of the brokers and the name server while nobody sends, in percent of a core;
- a broker's memory beside what it maps of its store, the largest of the three.

CPU times are those of the processes' clocks, in nanoseconds. Linux only.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import trio

from broker.client.admin import AdminClient
from broker.client.consuming.consumer import Consumer
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.remoting.addresses import split_address
from broker.remoting.codes import RequestCode
from broker.remoting.command import encode_head, request
from broker.tools.bench.process_cost import resident_without_mappings_mib
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from log.notes.checkpoint import NOTES

RESULTS: Final = Path(__file__).parent / "results" / "growth.json"
TOPIC: Final = "Busy"
IDLE_TOPIC: Final = "Idle"
MESSAGES: Final = 3_000
ROUNDS: Final = 4
IDLE_S: Final = 30.0
"""Brokers register so often: each of them does so once while nobody sends."""
LOOK_AGAIN_S: Final = 1.0
CHUNK: Final = 20_000
LATER_MS: Final = 12 * 3600 * 1000
SIZES: Final[dict[str, tuple[int, ...]]] = {
    "topics": (1, 10, 100, 1_000),
    "connections": (1, 10, 100, 1_000, 9_000),
    "groups": (1, 10, 100),
    "delayed": (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
}


class Bench:
    """One cluster, on which one row grows."""

    def __init__(
        self, cluster: LocalCluster, admin: AdminClient, producer: Producer, stack: AsyncExitStack
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._producer = producer
        self._stack = stack
        self._sockets: list[socket.socket] = []
        self._has = 0

    async def topics(self, size: int) -> None:
        """Have `size` idle topics of eight queues, a message in each queue."""
        for number in range(self._has, size):
            topic = f"{IDLE_TOPIC}{number}"
            await self._admin.create_topic(topic, queues=8)
            await self._producer.send_many(Message(topic, b"x") for _ in range(8))
        self._has = size

    async def connections(self, size: int) -> None:
        """Have `size` connections to the leader that have asked one question."""
        address = split_address((await self._cluster.leader()).address)
        question = encode_head(request(RequestCode.TRIVET_NODE_STATUS, None, opaque=1), 0)
        while self._has < size:
            some = [socket.create_connection(address, 30.0) for _ in range(min(100, size - self._has))]
            for connection in some:
                connection.sendall(question)
            for connection in some:
                connection.recv(1 << 16)
            self._sockets += some
            self._has += len(some)
            await trio.lowlevel.checkpoint()

    async def groups(self, size: int) -> None:
        """Have `size` consumer groups, each with a member that waits at eight queues."""
        if not self._has:
            await self._admin.create_topic(IDLE_TOPIC, queues=8)
        for number in range(self._has, size):
            consumer = Consumer(self._cluster.name_server_address, group=f"G{number}", topics=IDLE_TOPIC)
            await self._stack.enter_async_context(consumer)
        self._has = size

    async def delayed(self, size: int) -> None:
        """Have `size` timed messages that wait."""
        while self._has < size:
            count = min(CHUNK, size - self._has)
            messages: Iterable[Message] = itertools.repeat(
                Message(TOPIC, b"x" * 70, delay_ms=LATER_MS), count
            )
            await self._producer.send_many(messages, in_flight=256)
            self._has += count

    async def measure(self, row: str, size: int) -> dict[str, Any]:
        """Measure at the present size."""
        brokers = [node.child.pid for node in self._cluster.nodes.values() if node.child is not None]
        everyone = [child.pid for child in self._cluster.children()]
        await self._settle()
        idle = cpu_ns(everyone)
        await trio.sleep(IDLE_S)  # the length of the measurement, not a wait for something
        idle = cpu_ns(everyone) - idle
        costs = []
        body = Message(TOPIC, os.urandom(1024))
        for _ in range(ROUNDS):
            begin = cpu_ns(brokers)
            await self._producer.send_many(itertools.repeat(body, MESSAGES))
            costs.append((cpu_ns(brokers) - begin) / MESSAGES / 1000)
        store = self._cluster.layout.directory
        return {
            "row": row,
            "size": size,
            "us_per_message": round(min(costs), 1),
            "rounds": [round(cost, 1) for cost in costs],
            "idle_percent": round(idle / IDLE_S / 1e7, 3),
            "memory_mib": round(max(resident_without_mappings_mib(pid, store) for pid in brokers), 1),
            "load": round(os.getloadavg()[0], 1),
        }

    async def _settle(self) -> None:
        """Wait until each broker has noted on its disk all that it has dispatched.

        A checkpoint flushes the files that are new since the last one, and with thousands of queues that takes a minute
        or more where others use the disk: for so long its node is not idle.
        """
        upto = await self._cluster.wait_caught_up()
        for node in self._cluster.nodes.values():
            # A process on its own writes the file.
            while _noted_index(Path(node.settings.storage.path)) < upto[node.group]:  # noqa: ASYNC110
                await trio.sleep(LOOK_AGAIN_S)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._sockets:
            connection.close()


def _noted_index(store: Path) -> int:
    """The entry up to which the store's last checkpoint has noted its queues and index files; -1 without one."""
    # Those that are still being written have a suffix.
    notes = [path.read_bytes() for path in store.glob(f"{NOTES}*") if not path.suffix]
    return max((int(json.loads(one.partition(b"\n")[0])["dispatchedIndex"]) for one in notes), default=-1)


def cpu_ns(pids: Iterable[int]) -> int:
    """The CPU time of the processes, of threads that have ended, too."""
    # The clock that clock_getcpuclockid(3) would name.
    return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in pids)


GROW: Final[dict[str, Callable[[Bench, int], Awaitable[None]]]] = {
    "topics": Bench.topics,
    "connections": Bench.connections,
    "groups": Bench.groups,
    "delayed": Bench.delayed,
}


async def run(row: str, sizes: Iterable[int], directory: Path) -> list[dict[str, Any]]:
    """One row on a fresh cluster."""
    found = []
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(LocalCluster(LocalClusterOptions(directory)))
        await cluster.wait_ready()
        admin = await stack.enter_async_context(AdminClient(cluster.name_server_address))
        await admin.create_topic(TOPIC, queues=8)
        producer = await stack.enter_async_context(
            Producer(cluster.name_server_address, group="Growth", send_timeout_s=60.0)
        )
        bench = Bench(cluster, admin, producer, stack)
        stack.callback(bench.close)
        await producer.send_many(itertools.repeat(Message(TOPIC, b"warm" * 256), MESSAGES))
        for size in sizes:
            await GROW[row](bench, size)
            found.append(await bench.measure(row, size))
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--up-to", type=int, default=10**9, help="leave out greater sizes")
    parser.add_argument("--dir", type=Path, help="where the stores go; a temporary directory by default")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    # Each connection is a file here, too.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[dict[str, Any]] = []
    if options.output.exists():
        rows = [one for one in json.loads(options.output.read_text()) if one["row"] not in options.only]
    for row in options.only:
        sizes = [size for size in SIZES[row] if size <= options.up_to]
        with tempfile.TemporaryDirectory(prefix="trivet-growth-", dir=options.dir) as directory:
            rows += trio.run(functools.partial(run, row, sizes, Path(directory)))
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
