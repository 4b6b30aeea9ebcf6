"""How long sends take under steady load, and while something else goes on: the tail, the longest pause and its cause.

    python -m benchmarks.steady_load [--only steady "rolling restart" ...] [--rate 1000] [--seconds 60] [--flush sync]

The loop is open: a send is due by a schedule, whatever became of those before it, and its time is counted from then on.
A client that waited for each answer would send nothing during a pause, and so would meet it once; here everybody who
would have come meanwhile is counted. What the client itself was late with is told apart.

Each scenario has a group of three of its own, with files small enough for what it is about. *Longest* is the longest
time of one send, *silence* the longest time without an acknowledgement. The causes are what brokers say of themselves
between the looks around the longest one (benchmarks/pause_causes.py), of a fifth of its time or more.

Figures mean something on a machine of their own: client and brokers share its cores. Linux only.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from benchmarks.pause_causes import LOOK_EVERY_S, Looks
from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.replica.inner_limits import InnerLimits
from broker.settings.tables import RetentionSettings, Settings, StorageSettings
from broker.tools.cluster.layout import LocalClusterOptions, LocalNode
from broker.tools.cluster.local import LocalCluster

TOPIC: Final = "Steady"
QUEUES: Final = 8
BODY_BYTES: Final = 1024
SETTLE_S: Final = 2.0
"""Before the first send that counts, and behind what a scenario does, as a part of the seconds asked for."""
LIMIT_S: Final = 120.0
SNAPSHOT_ENTRIES: Final = InnerLimits().snapshot_interval_entries
BACKLOG_BYTES: Final = 512 << 20


@dataclass
class Sends:
    """The sends of one scenario; times in seconds by time.monotonic."""

    done: list[tuple[float, float]] = field(default_factory=list)
    """(when it was due, when it was acknowledged)"""
    failed: int = 0
    under_way: int = 0
    client_late: float = 0.0
    """The longest time by which the client began a send too late."""


class Scenario:
    """A cluster under load, and what goes on beside it."""

    def __init__(self, cluster: LocalCluster, producer: Producer, rate: float, seconds: float) -> None:
        self.cluster = cluster
        self.producer = producer
        self.rate = rate
        self.seconds = seconds
        self.sends = Sends()
        self.did: dict[str, Any] = {}
        """What went on beside the load, for the record."""

    async def load(self) -> None:
        """Send by the schedule for so many seconds, and wait for all answers."""
        sends, interval = self.sends, 1 / self.rate
        message = Message(TOPIC, os.urandom(BODY_BYTES))
        begin = time.monotonic()
        async with trio.open_nursery() as nursery:
            for number in range(int(self.seconds * self.rate)):
                due = begin + number * interval
                await trio.sleep(max(0.0, due - time.monotonic()))
                sends.client_late = max(sends.client_late, time.monotonic() - due)
                nursery.start_soon(self._send, message, due)

    async def _send(self, message: Message, due: float) -> None:
        sends = self.sends
        sends.under_way += 1
        try:
            await self.producer.send(message)
        except ClientError:
            sends.failed += 1
        else:
            sends.done.append((due, time.monotonic()))
        finally:
            sends.under_way -= 1

    async def nothing(self) -> None:
        """Steady load alone."""

    async def rolling_restart(self) -> None:
        """Stop and start every node in order, the leader last."""
        leader = await self.cluster.leader()
        nodes = sorted(self.cluster.nodes.values(), key=lambda node: node.id == leader.id)
        for node in nodes:
            await self.cluster.stop(node.id)
            self.cluster.start(node.id)
            await self.cluster.wait_caught_up(LIMIT_S)
        self.did["restarted"] = len(nodes)

    async def catch_up(self) -> None:
        """Kill a follower, and start it a third of the time later."""
        follower = await self._follower()
        await self.cluster.kill(follower.id)
        await trio.sleep(self.seconds / 3)
        self.cluster.start(follower.id)
        begin = time.monotonic()
        await self.cluster.wait_caught_up(LIMIT_S)
        self.did["caught up in s"] = round(time.monotonic() - begin, 2)

    async def read_backlog(self) -> None:
        """Read all that was there before the load, from the beginning, which nobody has in memory."""
        read = 0
        async with PullConsumer(self.cluster.name_server_address, group="Backlog") as consumer:
            consumer.assign(dict.fromkeys(await consumer.queues(TOPIC), 0))
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                read += len(await consumer.poll())
        self.did["read"] = read

    async def fill_for_snapshot(self) -> None:
        """Bring the log so far that a snapshot of many topics is due in the midst of the load."""
        async with AdminClient(self.cluster.name_server_address) as admin:
            for number in range(500):
                await admin.create_topic(f"Idle{number}", queues=8)
        load = int(self.seconds * self.rate)
        await self._fill(SNAPSHOT_ENTRIES - load // 2 - 2_000, 16)

    async def fill_backlog(self) -> None:
        """Store a backlog, and have the system forget it as far as it does."""
        await self._fill(BACKLOG_BYTES // 16_384, 16_384)
        await self.cluster.wait_caught_up(LIMIT_S)
        os.sync()
        for node in self.cluster.nodes.values():
            for file in node.data_directory.rglob("*"):
                if file.is_file():
                    descriptor = os.open(file, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)

    async def _fill(self, count: int, body_bytes: int) -> None:
        await self.producer.send_many(itertools.repeat(Message(TOPIC, os.urandom(body_bytes)), count))

    async def _follower(self) -> LocalNode:
        leader = await self.cluster.leader()
        return next(node for node in self.cluster.nodes.values() if node.id != leader.id)


@dataclass(frozen=True)
class Kind:
    """A scenario: what is done before the load, what beside it, and the settings of its brokers."""

    beside: Callable[[Scenario], Awaitable[None]] = Scenario.nothing
    before: Callable[[Scenario], Awaitable[None]] = Scenario.nothing
    storage: StorageSettings = field(default_factory=StorageSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)


_SMALL_FILES: Final = StorageSettings(
    data_file_bytes=4 << 20, consume_queue_file_bytes=20 * 1024, max_message_bytes=1 << 20
)
KINDS: Final[dict[str, Kind]] = {
    "steady": Kind(),
    "rolling restart": Kind(Scenario.rolling_restart),
    "catch-up": Kind(Scenario.catch_up),
    "files roll": Kind(storage=_SMALL_FILES),
    "snapshot": Kind(before=Scenario.fill_for_snapshot),
    # Any disk is fuller than a tenth: the oldest file goes at every look.
    "retention": Kind(
        storage=_SMALL_FILES,
        retention=RetentionSettings(interval_ms=1000, disk_clean_percent=10, disk_force_percent=10),
    ),
    "cold backlog": Kind(
        Scenario.read_backlog,
        before=Scenario.fill_backlog,
        storage=StorageSettings(data_file_bytes=64 << 20, memory_percent=1),
    ),
}


async def run(name: str, rate: float, seconds: float, flush: str, directory: Path) -> dict[str, Any]:
    """One scenario on a fresh cluster."""
    kind = KINDS[name]

    def change(settings: Settings) -> Settings:
        return msgspec.structs.replace(settings, retention=kind.retention)

    storage = msgspec.structs.replace(kind.storage, flush=flush)
    options = LocalClusterOptions(directory, storage=storage, change=change, metrics=True)
    async with LocalCluster(options) as cluster:
        await cluster.wait_ready()
        async with AdminClient(cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        async with Producer(
            cluster.name_server_address, group="SteadyLoad", send_timeout_s=30.0, attempt_timeout_s=5.0
        ) as producer:
            scenario = Scenario(cluster, producer, rate, seconds)
            await kind.before(scenario)
            await producer.send_many(itertools.repeat(Message(TOPIC, b"warm" * 256), 2_000))
            looks = Looks(cluster)
            async with trio.open_nursery() as looking:
                looking.start_soon(looks.run)
                await trio.sleep(SETTLE_S)
                async with trio.open_nursery() as work:
                    work.start_soon(scenario.load)
                    await trio.sleep(min(SETTLE_S, seconds / 4))
                    await kind.beside(scenario)
                await trio.sleep(2 * LOOK_EVERY_S)
                looking.cancel_scope.cancel()
    return summary(name, scenario, looks)


def summary(name: str, scenario: Scenario, looks: Looks) -> dict[str, Any]:
    """The figures of one scenario, times in milliseconds."""
    sends = scenario.sends
    times = sorted(end - due for due, end in sends.done)
    due, end = max(sends.done, key=lambda one: one[1] - one[0])
    longest = end - due
    ends = sorted(end for _, end in sends.done)
    silence = max((later - earlier for earlier, later in itertools.pairwise(ends)), default=0.0)

    def at(share: float) -> float:
        return round(times[min(len(times) - 1, int(share * len(times)))] * 1e3, 2)

    return {
        "scenario": name,
        "sends": len(times),
        "failed": sends.failed,
        "p50": at(0.5),
        "p99": at(0.99),
        "p99.9": at(0.999),
        "longest": round(longest * 1e3, 1),
        "silence": round(silence * 1e3, 1),
        "client late": round(sends.client_late * 1e3, 1),
        "causes": looks.causes(due, end, longest / 5),
        "load": round(os.getloadavg()[0], 1),
        **scenario.did,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    columns = ("p50", "p99", "p99.9", "longest", "silence", "client late", "failed")
    lines = [
        f"| beside the load, ms | {' | '.join(columns)} | what went on in the longest |",
        f"|{'---|' * (len(columns) + 2)}",
    ]
    for row in rows:
        figures = (row[key] for key in columns)
        causes = "; ".join(row["causes"][:3]) or "nothing that took a fifth of it"
        lines.append(f"| {row['scenario']} | {' | '.join(map(str, figures))} | {causes} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--rate", type=float, default=1000.0, help="sends that are due in a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, for each scenario")
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--dir", type=Path, help="where the stores go; a temporary directory by default")
    parser.add_argument("--output", type=Path, help="keep the results as JSON in this file")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        with tempfile.TemporaryDirectory(prefix="trivet-steady-", dir=options.dir) as scratch:
            one = functools.partial(run, name, options.rate, options.seconds, options.flush, Path(scratch))
            rows.append(trio.run(one))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
