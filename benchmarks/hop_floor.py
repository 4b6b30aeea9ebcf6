"""What the hops of one message cost without Trivet: the same processes, sockets and bytes, and nothing done with them.

    python -m benchmarks.hop_floor [--rounds 20] [--sends 200] [--work 0 25 50] [--flush sync]

A client sends 1 KiB to a leader, the leader to two followers; each acknowledges, and at the first acknowledgement the
leader answers: four hops one behind the other, as a send to a group of three has them. Each process is a loop in Python
over an epoll set and non-blocking sockets, as Trivet's brokers read them, but nothing is decoded, checked, stored or
counted. With `--work` each stage (the leader's two, the follower's one) spends so many microseconds in Python before it
writes, and half as many behind. The client waits by epoll, and by a task of Trio's, as Trivet's own does. With
`--flush sync` a follower writes each message to a file and flushes it before it acknowledges, the leader behind its
writes to both, in their loops, without a thread.

A group of real brokers is sent to in turns with these in the same run, so that all meet the same machine. Printed are
medians and least values of the rounds' medians. Linux only.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import trio

from broker.client.admin import AdminClient
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.settings.tables import StorageSettings
from broker.tools.bench.results import Flush, this_machine
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster

TOPIC: Final = "HopFloor"
BODY: Final = os.urandom(1024)
REQUEST: Final = BODY + bytes(300)
"""A send's frame: its body, and what its header takes."""
APPEND: Final = REQUEST + bytes(100)
SHORT: Final = bytes(150)
"""An acknowledgement, or an answer."""
WARM: Final = 100
FILE_BYTES: Final = 16 << 20


def work(microseconds: int) -> None:
    """Spends time in the interpreter."""
    until = perf_counter_ns() + 1000 * microseconds
    while perf_counter_ns() < until:
        pass


class Ends:
    """Sockets of one process, each with what is done when so many bytes have come."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._sockets: dict[int, tuple[socket.socket, int, Callable[[], None]]] = {}

    def add(self, end: socket.socket, size: int, done: Callable[[], None]) -> None:
        """Calls `done` for every `size` bytes that come."""
        end.setblocking(False)
        self._epoll.register(end.fileno(), select.EPOLLIN)
        self._sockets[end.fileno()] = (end, size, done)

    def run(self) -> None:
        """Reads until one of them is closed."""
        held = dict.fromkeys(self._sockets, 0)
        while True:
            for descriptor, _ in self._epoll.poll():
                end, size, done = self._sockets[descriptor]
                data = end.recv(1 << 17)
                if not data:
                    return
                held[descriptor] += len(data)
                while held[descriptor] >= size:
                    held[descriptor] -= size
                    done()


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


class BareGroup:
    """A leader and two followers as processes, without any broker in them. `connection` is the client's end."""

    def __init__(self, work_us: int, flushes: bool) -> None:
        self.work_us = work_us
        self.flushes = flushes
        self.connection, self._client = pair()
        self._links = [pair(), pair()]
        self.pids = [self._fork(self._lead)]
        self.pids += [self._fork(partial(self._follow, far)) for _, far in self._links]
        for end in (self._client, *(end for both in self._links for end in both)):
            end.close()

    def _fork(self, run: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self.connection.close()
                run()
            finally:
                os._exit(0)
        return pid

    def _lead(self) -> None:
        for _, far in self._links:
            far.close()
        ends, store = Ends(), self._file()
        answered = True

        def requested() -> None:
            nonlocal answered
            answered = False
            work(self.work_us)
            for near, _ in self._links:
                near.send(APPEND)
            store()
            work(self.work_us // 2)

        def acknowledged() -> None:
            nonlocal answered
            if not answered:
                answered = True
                work(self.work_us)
                self._client.send(SHORT)
                work(self.work_us // 2)

        ends.add(self._client, len(REQUEST), requested)
        for near, _ in self._links:
            ends.add(near, len(SHORT), acknowledged)
        ends.run()

    def _follow(self, far: socket.socket) -> None:
        self._client.close()
        for near, other in self._links:
            near.close()
            if other is not far:
                other.close()
        ends, store = Ends(), self._file()

        def appended() -> None:
            work(self.work_us)
            store()
            far.send(SHORT)
            work(self.work_us // 2)

        ends.add(far, len(APPEND), appended)
        ends.run()

    def _file(self) -> Callable[[], None]:
        """Stores one message on a disk, where that is wanted."""
        if not self.flushes:
            return lambda: None
        file = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)
        os.posix_fallocate(file, 0, FILE_BYTES)
        place = 0

        def store() -> None:
            nonlocal place
            os.pwrite(file, REQUEST, place)
            os.fdatasync(file)
            place = (place + len(REQUEST)) % (FILE_BYTES - len(REQUEST))

        return store

    def close(self) -> None:
        """Ends the processes."""
        self.connection.close()
        for pid in self.pids:
            # A group that was forked later holds ends of this one's sockets, too.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def by_epoll(group: BareGroup) -> Callable[[], Awaitable[None]]:
    """A client that waits in a set of its own."""
    connection, ready = group.connection, select.epoll()
    ready.register(connection.fileno(), select.EPOLLIN)

    async def send() -> None:
        connection.send(REQUEST)
        ready.poll()
        assert len(connection.recv(1 << 17)) == len(SHORT), "an answer comes in one piece"

    return send


async def by_trio(group: BareGroup) -> Callable[[], Awaitable[None]]:
    """A client that waits with Trio."""
    connection = group.connection

    async def send() -> None:
        connection.send(REQUEST)
        await trio.lowlevel.wait_readable(connection)
        assert len(connection.recv(1 << 17)) == len(SHORT), "an answer comes in one piece"

    return send


async def by_brokers(directory: Path, stack: AsyncExitStack, flush: Flush) -> Callable[[], Awaitable[None]]:
    """A client of real brokers."""
    storage = StorageSettings(flush=flush, data_file_bytes=64 << 20)
    cluster = await stack.enter_async_context(
        LocalCluster(LocalClusterOptions(directory / "cluster", storage=storage))
    )
    await cluster.wait_ready()
    async with AdminClient(cluster.name_server_address) as admin:
        await admin.create_topic(TOPIC, queues=1)
    producer = await stack.enter_async_context(Producer(cluster.name_server_address, group="HopFloor"))
    message = Message(TOPIC, BODY)

    async def send() -> None:
        await producer.send(message)

    return send


async def median_us(send: Callable[[], Awaitable[None]], sends: int) -> float:
    """The median of so many sends, in microseconds."""
    times = []
    for _ in range(sends):
        began_ns = perf_counter_ns()
        await send()
        times.append(perf_counter_ns() - began_ns)
    return statistics.median(times) / 1e3


async def run(bare: list[BareGroup], rounds: int, sends: int, flush: Flush) -> None:
    """Measures all in turns, and prints a table; two groups of each kind, one behind the other."""
    senders: dict[str, Callable[[], Awaitable[None]]] = {}
    for near, far in zip(bare[::2], bare[1::2], strict=True):
        senders[f"epoll, {near.work_us} us of Python a stage"] = await by_epoll(near)
        senders[f"client by Trio, {far.work_us} us of Python a stage"] = await by_trio(far)
    with tempfile.TemporaryDirectory(prefix="trivet-hop-floor-") as scratch:
        async with AsyncExitStack() as stack:
            senders["Trivet"] = await by_brokers(Path(scratch), stack, flush)
            medians: dict[str, list[float]] = {name: [] for name in senders}
            for number in range(rounds + 1):
                for name, send in senders.items():
                    median = await median_us(send, sends if number else WARM)
                    if number:
                        medians[name].append(median)
    build, load = this_machine().python_build.words, os.getloadavg()[0]
    print(f"{rounds} rounds of {sends} sends, flush {flush}, an interpreter {build}, load {load:.1f}\n")
    print("| one message of 1 KiB at a time | p50, us: median of the rounds | least |\n|---|---|---|")
    for name, found in medians.items():
        print(f"| {name} | {statistics.median(found):.0f} | {min(found):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sends", type=int, default=200)
    parser.add_argument(
        "--work", type=int, nargs="+", default=[0, 25, 50], help="microseconds, for each stage"
    )
    parser.add_argument("--flush", choices=("async", "sync"), default="async")
    options = parser.parse_args()
    # Forked before there are threads, or anything of Trio's to inherit.
    groups = [BareGroup(work_us, options.flush == "sync") for work_us in options.work for _ in range(2)]
    try:
        trio.run(run, groups, options.rounds, options.sends, options.flush)
    finally:
        for group in groups:
            group.close()


if __name__ == "__main__":
    main()
