"""How long a node takes to start after a crash, and an empty one to catch up, with gigabytes in the store.

    python -m benchmarks.starts [--gib 10] [--body 4096] [--nodes 3] [--dir DIRECTORY]

A group of three is filled by batches. Then, one after the other:

- a follower is killed with SIGKILL and started again: until it answers, and until it has applied all that its leader
  has committed;
- the leader is killed and started again likewise, while the others elect another;
- all are killed at once and started again: until one serves;
- a follower is stopped and its store removed: until it has caught up, in bytes of the log a second. The rate of a copy
  of as many bytes into a new file and of a plain connection over the loopback is measured in the same run.

What is counted is the node's own CPU time, and the clock's time, which on a busy machine is mostly others'. Three
stores of N GiB are written to the disk; they are removed at the end. Linux only.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.settings.tables import StorageSettings
from broker.tools.bench.limits import measure_limits
from broker.tools.bench.process_cost import cpu_s
from broker.tools.cluster.layout import LocalClusterOptions, LocalNode
from broker.tools.cluster.local import LocalCluster

TOPIC: Final = "Starts"
BATCH_BYTES: Final = 1 << 20
LIMIT_S: Final = 3600.0
_GIB: Final = 1 << 30


class Starts:
    """The steps on one cluster, and what each of them took."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.results: list[dict[str, Any]] = []

    async def fill(self, total_bytes: int, body_bytes: int) -> None:
        """Send so many bytes of bodies, in batches."""
        async with AdminClient(self._cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=8)
        batch = [Message(TOPIC, os.urandom(body_bytes)) for _ in range(max(1, BATCH_BYTES // body_bytes))]
        left = -(-total_bytes // (body_bytes * len(batch)))
        begin = time.monotonic()

        async def send(producer: Producer) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await producer.send_batch(batch)

        async with (
            Producer(self._cluster.name_server_address, group="Filler", send_timeout_s=120.0) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(4):
                nursery.start_soon(send, producer)
        await self._cluster.wait_caught_up(LIMIT_S)
        status = await self._cluster.status(timeout_s=30.0)
        leader = next(one for one in status.values() if one.role == "leader")
        self._note("filled", time.monotonic() - begin, entries=leader.last_index, bytes=leader.last_position)

    async def follower_killed(self) -> None:
        """Kill a follower and start it."""
        follower = await self._follower()
        await self._cluster.kill(follower.id)
        await self._start_and_wait(follower, "follower killed")

    async def leader_killed(self) -> None:
        """Kill the leader, and start it when another leads."""
        leader = await self._cluster.leader()
        begin = time.monotonic()
        await self._cluster.kill(leader.id)
        await self._cluster.leader(LIMIT_S)
        self._note("another leads", time.monotonic() - begin)
        await self._start_and_wait(leader, "leader killed")

    async def all_killed(self) -> None:
        """Kill all at once, and start them."""
        for node in self._cluster.nodes.values():
            await self._cluster.kill(node.id)
        begin = time.monotonic()
        for node in self._cluster.nodes.values():
            self._cluster.start(node.id)
        await self._cluster.leader(LIMIT_S)
        self._note("all killed: one serves", time.monotonic() - begin, cpu_s=self._cpu())
        await self._cluster.wait_caught_up(LIMIT_S)
        self._note("all killed: all caught up", time.monotonic() - begin, cpu_s=self._cpu())

    async def empty_follower(self) -> None:
        """Stop a follower, remove its store, and start it."""
        follower = await self._follower()
        await self._cluster.stop(follower.id)
        await trio.to_thread.run_sync(shutil.rmtree, follower.data_directory)
        others = [
            node.child.pid
            for node in self._cluster.nodes.values()
            if node.child is not None and node.id != follower.id
        ]
        used = cpu_s(others)
        status = await self._cluster.status(timeout_s=30.0)
        log_bytes = max(one.last_position for one in status.values())
        taken = await self._start_and_wait(follower, "empty follower", bytes=log_bytes)
        self._note("empty follower: the others", taken, cpu_s=cpu_s(others) - used, bytes=log_bytes)

    async def _start_and_wait(self, node: LocalNode, what: str, **more: float) -> float:
        begin = time.monotonic()
        self._cluster.start(node.id)
        while node.id not in await self._cluster.status(timeout_s=30.0):  # noqa: ASYNC110 - nobody tells it
            await trio.sleep(0.02)
        assert node.child is not None
        self._note(f"{what}: answers", time.monotonic() - begin, cpu_s=cpu_s([node.child.pid]))
        await self._cluster.wait_caught_up(LIMIT_S)
        taken = time.monotonic() - begin
        self._note(f"{what}: caught up", taken, cpu_s=cpu_s([node.child.pid]), **more)
        return taken

    async def _follower(self) -> LocalNode:
        leader = await self._cluster.leader(LIMIT_S)
        return next(node for node in self._cluster.nodes.values() if node.id != leader.id)

    def _cpu(self) -> float:
        return cpu_s(node.child.pid for node in self._cluster.nodes.values() if node.child is not None)

    def _note(self, what: str, seconds: float, **more: float) -> None:
        found: dict[str, Any] = {"what": what, "seconds": round(seconds, 3), **more}
        if "bytes" in more:
            found["mb_per_s"] = round(more["bytes"] / seconds / 1e6, 1)
        self.results.append(found)
        print(json.dumps(found), flush=True)


async def run(directory: Path, total_bytes: int, body_bytes: int) -> list[dict[str, Any]]:
    """All steps in `directory`; returns what they took."""
    storage = StorageSettings(data_file_bytes=1 << 30)
    options = LocalClusterOptions(directory, storage=storage)
    async with LocalCluster(options) as cluster:
        await cluster.wait_ready()
        starts = Starts(cluster)
        await starts.fill(total_bytes, body_bytes)
        for step in (starts.follower_killed, starts.leader_killed, starts.all_killed, starts.empty_follower):
            await step()
    return starts.results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=10.0, help="bodies in the store")
    parser.add_argument("--body", type=int, default=4096, help="bytes of a body")
    parser.add_argument("--dir", type=Path, help="where the stores go; a temporary directory by default")
    parser.add_argument("--output", type=Path, help="keep the results as JSON in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trivet-starts-", dir=options.dir) as scratch:
        wanted = int(options.gib * _GIB)
        if shutil.disk_usage(scratch).free < 4 * wanted:
            print(f"the disk of {scratch} has no room for four times {options.gib:g} GiB", file=sys.stderr)
            return 2
        limits = measure_limits(Path(scratch))
        print(json.dumps({"limits": msgspec.to_builtins(limits), "load": os.getloadavg()[0]}), flush=True)
        results = trio.run(functools.partial(run, Path(scratch), wanted, options.body))
    if options.output is not None:
        kept = {"limits": msgspec.to_builtins(limits), "load": os.getloadavg()[0], "steps": results}
        options.output.write_text(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
