"""Trivet's own client, a lean one and RocketMQ's at the same brokers of Trivet, in turns.

    python -m benchmarks.clients_in_turns [--flush sync] [--only A B] [--clients own lean] [--rounds 6]

A: one send of 1 KiB in flight. B: 64. C: batches of 256 x 1 KiB and of 1,000 x 100 B, four in flight. *own* is Trivet's
producer: `send`; `send_many`, and as *own, tasks* `send` by 64 tasks; `send_batch`. *lean* is the client of
benchmarks/peers: messages without properties, in C one encoded batch again and again; *lean, keyed* sends the
properties that Trivet's own has, a unique key a message, so that brokers have the same to do; *prepared* sends the lean
batch by Trivet's producer. *java* is RocketMQ's producer, A and B only; it needs Java and Maven.

Each round begins with another client. Medians of the rounds behind the first, which warms up; microseconds of user and
system time a message, the brokers' of all three, and system time alone. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import trio

from benchmarks.peers.lean_client import (
    QUEUES,
    SEND_BATCH,
    SEND_V2,
    TOPIC,
    Connection,
    batch_body,
    send_template,
)
from broker.client.admin import AdminClient
from broker.client.message import Message
from broker.client.producing.one_send import OneSend
from broker.client.producing.producer import Producer
from broker.settings.tables import StorageSettings
from broker.tools.bench.process_cost import cpu_s, user_and_system_s
from broker.tools.bench.results import Flush, this_machine
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from tests.interop.artifacts import JAVA_CLIENT_VERSIONS, java, java_client_classpath

JAVA_PRODUCER: Final = Path(__file__).parent / "peers" / "JavaProducer.java"


class Work(NamedTuple):
    """What a client does in its turn."""

    name: str
    body_bytes: int
    batch: int
    in_flight: int
    messages: int


WORKS: Final = (
    Work("A", 1024, 1, 1, 500),
    Work("B", 1024, 1, 64, 20_000),
    Work("C", 1024, 256, 4, 40_000),
    Work("C", 100, 1000, 4, 100_000),
)

Turn = Callable[[], Awaitable[float | None]]
"""One client's turn; returns the median of its sends in milliseconds where it waits for one by one."""


class Own:
    """Trivet's producer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def turns(self, work: Work) -> dict[str, Turn]:
        body = os.urandom(work.body_bytes)
        message = Message(TOPIC, body)
        if work.name == "A":
            return {"own": functools.partial(self._one_by_one, message, work.messages)}
        if work.name == "B":
            return {
                "own": functools.partial(self._many, message, work),
                "own, tasks": functools.partial(
                    self._tasks, lambda: self._producer.send(message), work.messages, work.in_flight
                ),
            }
        messages = [message] * work.batch
        prepared = msgspec.structs.replace(
            self._producer.preparer.batch(messages), body=batch_body(body, work.batch)
        )
        batches = -(-work.messages // work.batch)
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "own": lambda: self._producer.send_batch(messages),
            "prepared": lambda: OneSend(self._producer.sender, prepared, message, None).run(),
        }
        return {
            name: functools.partial(self._tasks, send, batches, work.in_flight) for name, send in ways.items()
        }

    async def _one_by_one(self, message: Message, count: int) -> float:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await self._producer.send(message)
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e3

    async def _many(self, message: Message, work: Work) -> None:
        await self._producer.send_many(itertools.repeat(message, work.messages), in_flight=work.in_flight)

    async def _tasks(self, send: Callable[[], Awaitable[object]], count: int, in_flight: int) -> None:
        async def some() -> None:
            nonlocal count
            while count > 0:
                count -= 1
                await send()

        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(some)


class Lean:
    """The lean client, whose event loop runs in a worker thread while it has its turn."""

    def __init__(self, leader: str, producer: Producer) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(Connection.open(leader))
        self._preparer = producer.preparer

    def turns(self, work: Work) -> dict[str, Turn]:
        body = os.urandom(work.body_bytes)
        if work.batch == 1:
            bodies = {"lean": body, "lean, keyed": body}
            keyed = self._preparer.message(Message(TOPIC, body)).properties
        else:
            encoded = self._preparer.batch([Message(TOPIC, body)] * work.batch)
            bodies = {"lean": batch_body(body, work.batch), "lean, keyed": bytes(encoded.body)}
            keyed = encoded.properties
        code = SEND_V2 if work.batch == 1 else SEND_BATCH
        return {
            name: functools.partial(
                self._turn, work, bodies[name], [send_template(code, queue, text) for queue in range(QUEUES)]
            )
            for name, text in (("lean", ""), ("lean, keyed", keyed))
        }

    async def _turn(self, work: Work, data: bytes, templates: list[tuple[bytes, bytes]]) -> float | None:
        requests = -(-work.messages // work.batch)
        if work.name != "A":
            sending = self._connection.send_all(templates, data, requests, work.in_flight)
            await trio.to_thread.run_sync(self._loop.run_until_complete, sending)
            return None
        return await trio.to_thread.run_sync(
            self._loop.run_until_complete, self._one_by_one(templates, data, requests)
        )

    async def _one_by_one(self, templates: list[tuple[bytes, bytes]], data: bytes, count: int) -> float:
        times = []
        for number in range(count):
            began = time.perf_counter()
            await self._connection.ask(templates[number % QUEUES], data)
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e3

    def close(self) -> None:
        self._connection.transport.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class Java:
    """RocketMQ's producer, in a process of its own."""

    def __init__(self, name_server: str, folder: Path) -> None:
        options = [f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}", "-Xmx256m"]
        classpath = java_client_classpath(JAVA_CLIENT_VERSIONS[0])
        self._log = (folder / "java.log").open("w")
        self.process = subprocess.Popen(
            [java(), *options, "-cp", classpath, str(JAVA_PRODUCER), name_server, TOPIC],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def turns(self, work: Work) -> dict[str, Turn]:
        return {"java": functools.partial(self._turn, work)} if work.batch == 1 else {}

    async def _turn(self, work: Work) -> float | None:
        return await trio.to_thread.run_sync(self._ordered, work)

    def _ordered(self, work: Work) -> float | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{work.messages} {work.in_flight} {work.body_bytes}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise OSError(f"the Java producer has ended: {Path(self._log.name).read_text()[-2000:]}")
        median_ms: float | None = json.loads(answer)["p50_ms"]
        return median_ms

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@contextmanager
def clients(names: list[str], producer: Producer, cluster: LocalCluster, leader: str) -> Iterator[list[Any]]:
    """The clients of these names."""
    found: list[Any] = []
    with ExitStack() as stack:
        for name in names:
            if name == "own":
                found.append(Own(producer))
                continue
            if name == "lean":
                client: Lean | Java = Lean(leader, producer)
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trivet-java-")))
                client = Java(cluster.name_server_address, folder)
            stack.callback(client.close)
            found.append(client)
        yield found


async def measured(work: Work, turn: Turn, brokers: list[int], others: list[int]) -> dict[str, float]:
    """What one turn takes; `others` are clients in processes of their own."""
    user, system = user_and_system_s(brokers)
    own, began = time.process_time() + cpu_s(others), time.perf_counter()
    median_ms = await turn()
    seconds = time.perf_counter() - began
    user_now, system_now = user_and_system_s(brokers)
    count = -(-work.messages // work.batch) * work.batch
    figures = {
        "msgs_s": count / seconds,
        "server_us": (user_now + system_now - user - system) / count * 1e6,
        "server_system_us": (system_now - system) / count * 1e6,
        "client_us": (time.process_time() + cpu_s(others) - own) / count * 1e6,
    }
    return figures if median_ms is None else {"p50_ms": median_ms, **figures}


async def run(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """All works on one cluster; returns a row for each work and client."""
    flush: Flush = options.flush
    storage = StorageSettings(flush=flush, data_file_bytes=256 << 20)
    rows = []
    async with LocalCluster(LocalClusterOptions(directory, storage=storage)) as cluster:
        await cluster.wait_ready()
        async with AdminClient(cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        brokers = [node.child.pid for node in cluster.nodes.values() if node.child is not None]
        leader = (await cluster.leader()).address
        producer = Producer(cluster.name_server_address, group="BENCH", send_timeout_s=30.0)
        async with producer:
            with clients(options.clients, producer, cluster, leader) as all_clients:
                others = [client.process.pid for client in all_clients if isinstance(client, Java)]
                for work in WORKS:
                    if work.name not in options.only:
                        continue
                    work = work._replace(messages=int(work.messages * options.scale))
                    turns = {name: turn for one in all_clients for name, turn in one.turns(work).items()}
                    found: dict[str, list[dict[str, float]]] = {name: [] for name in turns}
                    for number in range(options.rounds + 1):
                        names = list(turns)[number % len(turns) :] + list(turns)[: number % len(turns)]
                        for name in names:
                            found[name].append(await measured(work, turns[name], brokers, others))
                    for name, rounds in found.items():
                        rows.append(_row(work, name, rounds))
                        print(json.dumps(rows[-1]), flush=True)
    return rows


def _row(work: Work, client: str, rounds: list[dict[str, float]]) -> dict[str, Any]:
    figures = {
        name: round(statistics.median(one[name] for one in rounds[1:]), 3 if name == "p50_ms" else 1)
        for name in rounds[0]
    }
    return {"work": work.name, "body": work.body_bytes, "batch": work.batch, "client": client, **figures}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    parser.add_argument("--only", nargs="+", choices="ABC", default=["A", "B", "C"])
    parser.add_argument(
        "--clients", nargs="+", choices=("own", "lean", "java"), default=["own", "lean", "java"]
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--scale", type=float, default=1.0, help="a fraction of the messages of a turn")
    parser.add_argument("--output", type=Path, help="keep the results as JSON in this file")
    options = parser.parse_args()
    print(
        f"flush {options.flush}, an interpreter {this_machine().python_build.words}, load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory(prefix="trivet-clients-") as directory:
        rows = trio.run(functools.partial(run, options, Path(directory)))
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
