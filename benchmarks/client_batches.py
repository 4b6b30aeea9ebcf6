"""What encoding batches costs Trivet's own client: beside a batch that was encoded before, at the same brokers.

    python -m benchmarks.client_batches [--flush sync] [--rounds 6] [--messages 20000] [--output FILE]

Batches of 256 x 1 KiB and of 1,000 x 100 B, four under way, in turns: *own* is `Producer.send_batch` with messages that
are encoded each time, each with a unique key; *prepared* sends one body again and again, whose messages have no
properties, through the same producer. So rates and the brokers' CPU differ by the properties and keys of the messages,
the client's CPU by their encoding. Medians of the rounds behind the first; microseconds of user and system time a
message, the brokers' of all three. Linux only.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from broker.client.admin import AdminClient
from broker.client.message import Message
from broker.client.producing.one_send import OneSend
from broker.client.producing.outgoing import BATCH_CODE
from broker.client.producing.producer import Producer
from broker.settings.tables import StorageSettings
from broker.tools.bench.process_cost import cpu_s
from broker.tools.bench.results import Flush
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from log.batch import BatchColumns, encode_columns

TOPIC: Final = "Batches"
IN_FLIGHT: Final = 4
KINDS: Final = ((1024, 256), (100, 1000))
"""Bytes of a body, and messages in a batch."""
WAYS: Final = ("own", "prepared")


class Bench:
    """A cluster and its client."""

    def __init__(self, cluster: LocalCluster, producer: Producer) -> None:
        self._pids = [node.child.pid for node in cluster.nodes.values() if node.child is not None]
        self._producer = producer

    async def rounds(self, body_bytes: int, batch: int, count: int, rounds: int) -> list[dict[str, Any]]:
        """Sends `count` messages a round in both ways; returns a row for each."""
        messages = [Message(TOPIC, os.urandom(body_bytes))] * batch
        bodies = [message.body for message in messages]
        packed = encode_columns(BatchColumns([0] * batch, bodies, [b""] * batch))  # type: ignore[arg-type]
        prepared = msgspec.structs.replace(self._producer.preparer.batch(messages), body=packed)
        assert prepared.code == BATCH_CODE, "it goes to the broker as any batch"

        async def own() -> None:
            await self._producer.send_batch(messages)

        async def again() -> None:
            await OneSend(self._producer.sender, prepared, messages[0], None).run()

        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way, send in zip(WAYS, (own, again), strict=True):
                found[way].append(await self._measured(send, -(-count // batch), batch))
        return [
            {"body": body_bytes, "batch": batch, "way": way}
            | {name: round(statistics.median(one[name] for one in rows[1:] or rows), 1) for name in rows[0]}
            for way, rows in found.items()
        ]

    async def _measured(
        self, send: Callable[[], Awaitable[None]], batches: int, batch: int
    ) -> dict[str, float]:
        left = batches

        async def some() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await send()

        servers, own, begin = cpu_s(self._pids), time.process_time(), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(some)
        seconds, count = time.perf_counter() - begin, batches * batch
        return {
            "msgs_s": count / seconds,
            "server_us": (cpu_s(self._pids) - servers) / count * 1e6,
            "client_us": (time.process_time() - own) / count * 1e6,
        }


async def run(flush: Flush, count: int, rounds: int, directory: Path) -> list[dict[str, Any]]:
    """Both kinds of batches on one cluster."""
    options = LocalClusterOptions(directory, storage=StorageSettings(flush=flush, data_file_bytes=256 << 20))
    async with LocalCluster(options) as cluster:
        await cluster.wait_ready()
        async with AdminClient(cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=1)
        async with Producer(cluster.name_server_address, group="Batches", send_timeout_s=30.0) as producer:
            bench = Bench(cluster, producer)
            return [row for kind in KINDS for row in await bench.rounds(*kind, count, rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--messages", type=int, default=20_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path, help="keep the results as JSON in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trivet-batches-") as directory:
        rows = trio.run(
            functools.partial(run, options.flush, options.messages, options.rounds, Path(directory))
        )
    for row in rows:
        print(json.dumps(row))
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
