"""What the client costs: CPU time a message, beside a server that costs nothing and beside a lean client.

    python -m benchmarks.client_cost [--messages N] [--rounds N] [--only WAY...] [--profile WAY]

A stub in a process of its own (`stub_broker.py`) answers every send as soon as it is read. Each row is one way to send
or read, user and system time of this process alone in microseconds a message, the best of some rounds, as other work on
the machine only ever adds to it. The floor is a loop over one asyncio transport that frames a request and waits for its
answer: what a program would write that needs nothing else, neither repetition nor time limits.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from benchmarks.stub_broker import BODY_BYTES, GROUP, TOPIC
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.tools.bench.results import this_machine

IN_FLIGHT: Final = 64
WARM_UP: Final = 2_000


# Trivet's client -----------------------------------------------------------------------------------------------------


async def send_one_by_one(producer: Producer, count: int) -> None:
    """64 tasks, each of which waits for one send before the next."""
    left = count

    async def send_some() -> None:
        nonlocal left
        message = Message(TOPIC, bytes(BODY_BYTES))
        while left > 0:
            left -= 1
            await producer.send(message)

    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(send_some)


async def send_by_outbox(producer: Producer, count: int) -> None:
    """One task that puts all into an outbox."""
    message = Message(TOPIC, bytes(BODY_BYTES))
    async with producer.outbox(in_flight=IN_FLIGHT) as outbox:
        for _ in range(count):
            await outbox.send(message)


async def send_many(producer: Producer, count: int) -> None:
    """One call for all."""
    message = Message(TOPIC, bytes(BODY_BYTES))
    results = await producer.send_many((message for _ in range(count)), in_flight=IN_FLIGHT)
    assert len(results) == count


async def produce(port: int, way: Callable[[Producer, int], Awaitable[None]], count: int) -> float:
    """CPU seconds of one way to send."""
    async with Producer(f"127.0.0.1:{port}", group="COST", send_timeout_s=30) as producer:
        await way(producer, WARM_UP)
        begin = time.process_time()
        await way(producer, count)
        return time.process_time() - begin


async def consume(port: int, count: int) -> float:
    """CPU seconds of reading so many messages, without looking into them."""
    async with PullConsumer(f"127.0.0.1:{port}", group="COST") as consumer:
        consumer.assign({MessageQueue(TOPIC, GROUP, 0): 0})
        await consumer.poll(1000, 10)
        begin = time.process_time()
        read = 0
        while read < count:
            messages = await consumer.poll(1000, 10)
            read += len(messages)
        return (time.process_time() - begin) * count / read


# The floor -----------------------------------------------------------------------------------------------------------

_START: Final = struct.Struct(">II")
_HEADER: Final = (
    '{"code":310,"extFields":{"a":"COST","b":"%s","c":"TBW102","d":"4","e":"0","f":"0","g":"%d","h":"0",'
    '"i":"UNIQ_KEY\\u0001%032X\\u0002","j":"0","k":"false","m":"false","n":"%s"},"flag":0,"language":"PYTHON",'
    '"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":409}'
)


class LeanClient(asyncio.Protocol):
    """Sends and matches answers by their opaque, nothing else."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self._opaque = 0
        self._rest = b""
        self._out: list[bytes] = []
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= 8:
            length = int.from_bytes(data[at : at + 4], "big")
            if at + 4 + length > len(data):
                break
            header = data[at + 8 : at + 4 + length]
            begin = header.index(b'"opaque":') + 9
            opaque = int(header[begin : header.index(b",", begin)])
            at += 4 + length
            self.waiting.pop(opaque).set_result(header)
        self._rest = data[at:]

    def send(self, body: bytes) -> asyncio.Future[bytes]:
        """Send one message; the answer's header."""
        self._opaque += 1
        header = (_HEADER % (TOPIC, time.time_ns() // 1_000_000, self._opaque, GROUP, self._opaque)).encode()
        loop = asyncio.get_running_loop()
        if not self._out:
            loop.call_soon(self._flush)
        self._out += (_START.pack(4 + len(header) + len(body), len(header)), header, body)
        future = self.waiting[self._opaque] = loop.create_future()
        return future

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()


async def send_lean(port: int, count: int) -> float:
    """CPU seconds of the lean client, 64 tasks."""
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(LeanClient, "127.0.0.1", port)

    async def all_of(count: int) -> None:
        left = count

        async def send_some() -> None:
            nonlocal left
            body = bytes(BODY_BYTES)
            while left > 0:
                left -= 1
                await client.send(body)

        await asyncio.gather(*(send_some() for _ in range(IN_FLIGHT)))

    await all_of(WARM_UP)
    begin = time.process_time()
    await all_of(count)
    taken = time.process_time() - begin
    transport.close()
    return taken


# The command ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """A row: ``run`` gets the stub's port and the number of messages, and returns CPU seconds."""

    name: str
    run: Callable[[int, int], float]
    times: int = 1
    """So many times the number of messages, for what is fast."""


def _sending(way: Callable[[Producer, int], Awaitable[None]]) -> Callable[[int, int], float]:
    return lambda port, count: trio.run(produce, port, way, count)


WAYS: Final = {
    "floor": Way(
        "floor: lean asyncio client, 64 tasks", lambda port, count: asyncio.run(send_lean(port, count))
    ),
    "send": Way("producer.send, 64 tasks", _sending(send_one_by_one)),
    "outbox": Way("outbox(in_flight=64)", _sending(send_by_outbox)),
    "many": Way("send_many(in_flight=64)", _sending(send_many)),
    "consume": Way("PullConsumer.poll, 1 KiB", lambda port, count: trio.run(consume, port, count), 10),
}


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--profile", choices=WAYS)
    chosen = parser.parse_args()
    stub = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stub_broker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert stub.stdin is not None
    assert stub.stdout is not None
    port = int(stub.stdout.readline())
    try:
        if chosen.profile is not None:
            _profile(partial(WAYS[chosen.profile].run, port, chosen.messages * WAYS[chosen.profile].times))
            return
        print(
            f"Python {sys.version.split()[0]}, {this_machine().python_build.words}; us of CPU a message, 1 KiB"
        )
        taken: dict[str, list[float]] = {name: [] for name in chosen.only}
        for _ in range(chosen.rounds):
            for name in chosen.only:
                count = chosen.messages * WAYS[name].times
                taken[name].append(WAYS[name].run(port, count) / count * 1e6)
        for name, figures in taken.items():
            middle = sorted(figures)[len(figures) // 2]
            print(f"{WAYS[name].name:40} {min(figures):7.2f}   median {middle:7.2f}")
    finally:
        stub.stdin.close()
        stub.wait()


def _profile(run: Callable[[], float]) -> None:
    profile = cProfile.Profile()
    profile.runcall(run)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
