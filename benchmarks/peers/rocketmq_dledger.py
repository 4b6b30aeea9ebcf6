"""RocketMQ in DLedger mode, three replicas on loopback, by the same workloads as ``trivet bench``.

    python -m benchmarks.peers.rocketmq_dledger --only ABCDE --output bench-results/rocketmq_dledger.json

An acknowledgement waits for a majority's page caches, no fsync, whatever ``flushDiskType`` says (spec: DLedger ignores
it), so its figures stand beside Trivet's ``async``. Servers come from Maven (``tests/interop/artifacts.py``), with the
defaults of a DLedger group but for ports and folders; every workload has fresh ones. Bodies are random bytes.

- A: one send in flight, 1 KiB. B: 64 in flight. C: the best of a few batch sizes and windows, 1 KiB and 100 B.
- D: 100,000 messages of 1 KiB read back by one client, the best of a few numbers of pulls in flight.
- E: SIGKILL of the leader, milliseconds to the first acknowledgement of a send begun after it. The client asks the
  name server before each attempt of at most 250 ms: stock clients ask every 30 s and take that much longer.

The client is a minimal one over asyncio streams that encodes by templates and matches answers by opaque: it costs less
than a full client, which is in RocketMQ's favour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker.tools.bench.process_cost import cpu_s, resident_mib
from tests.interop import wire
from tests.interop.artifacts import REFERENCE_VERSION
from tests.interop.cluster import Cluster, kill_leader, make_topic
from tests.interop.reference import ReferenceCluster

TOPIC = "Bench"
QUEUES = 4
KIB = os.urandom(1024)
HEAP_MIB = 1024
RUN_LIMIT_S = 180.0
ATTEMPT_TIMEOUT_S = 0.25
FAILOVER_LIMIT_S = 60.0

SEND_V2 = 310
SEND_BATCH = 320
PULL = 11

SETTINGS = {
    # The defaults, where the tests' reference has smaller or more convenient values.
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": str(300_000 * 20),
    "sendMessageThreadPoolNums": str(min(4, os.cpu_count() or 4)),
    "pullMessageThreadPoolNums": str(16 + 2 * (os.cpu_count() or 4)),
    "transactionTimeOut": "6000",
    "transactionCheckInterval": "60000",
}

_FRAME = struct.Struct(">II")
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_CODE = re.compile(rb'"code":(\d+)')


SYSTEM_BUSY = 2


class RefusedError(Exception):
    """The broker answered a send or pull with an error code."""

    def __init__(self, code: int, detail: str = "") -> None:
        super().__init__(f"code {code} {detail}")
        self.code = code


class Connection(asyncio.Protocol):
    """One connection; ``answers`` maps opaques to what is called with (code, body)."""

    def __init__(self) -> None:
        self.answers: dict[int, Callable[[int, bytes], None]] = {}
        self.transport: asyncio.Transport
        self.lost: BaseException | None = None
        self._buffer = bytearray()
        self._opaque = 0

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, host, int(port))
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = error or ConnectionError("closed")
        for answer in list(self.answers.values()):
            answer(-1, b"")
        self.answers.clear()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= 8:
            length, word = _FRAME.unpack_from(buffer, start)
            end = start + 4 + length
            if end > size:
                break
            body_start = start + 8 + (word & 0xFFFFFF)
            header = bytes(buffer[start + 8 : body_start])
            opaque, code = _OPAQUE.search(header), _CODE.search(header)
            assert opaque is not None
            assert code is not None
            answer = self.answers.pop(int(opaque[1]), None)
            if answer is not None:
                answer(int(code[1]), bytes(buffer[body_start:end]))
            start = end
        del buffer[:start]

    def request(
        self, template: tuple[bytes, bytes], body: bytes, answer: Callable[[int, bytes], None]
    ) -> None:
        """Sends one request; ``template`` is its header around the opaque."""
        if self.lost is not None:
            raise ConnectionError("closed")
        self._opaque += 1
        self.answers[self._opaque] = answer
        header = b"%b%d%b" % (template[0], self._opaque, template[1])
        self.transport.write(_FRAME.pack(4 + len(header) + len(body), len(header)) + header + body)

    async def ask(self, template: tuple[bytes, bytes], body: bytes = b"") -> bytes:
        """The body of the answer; raises RefusedError for a code other than success."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answer(code: int, answered: bytes) -> None:
            if future.done():
                return
            if code == 0:
                future.set_result(answered)
            else:
                future.set_exception(RefusedError(code))

        self.request(template, body, answer)
        return await future


def template(code: int, fields: dict[str, str]) -> tuple[bytes, bytes]:
    """A JSON header cut in two at the place of its opaque."""
    header = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 0, "version": 407}
    text = json.dumps(header, separators=(",", ":")).encode()
    before, after = text.split(b'"opaque":0', 1)
    return before + b'"opaque":', after


def send_template(code: int, queue: int) -> tuple[bytes, bytes]:
    """SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE to one queue."""
    fields = {"a": "BENCH", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "h": "0", "i": ""}
    fields |= {
        "g": str(int(time.time() * 1000)),
        "j": "0",
        "k": "false",
        "m": str(code == SEND_BATCH).lower(),
    }
    return template(code, fields)


SENDS = [send_template(SEND_V2, queue) for queue in range(QUEUES)]
BATCHES = [send_template(SEND_BATCH, queue) for queue in range(QUEUES)]


def batch_body(body: bytes, count: int) -> bytes:
    """``count`` messages without properties in the form of SEND_BATCH_MESSAGE."""
    size = 4 + 4 + 4 + 4 + 4 + len(body) + 2
    return (struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body + b"\0\0") * count


def pull_template(queue: int, offset: int, count: int) -> tuple[bytes, bytes]:
    fields = {"consumerGroup": "BENCH", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset)}
    fields |= {"maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return template(PULL, fields | {"subscription": "*", "subVersion": "0"})


@asynccontextmanager
async def fresh_group() -> AsyncIterator[tuple[Cluster, Connection]]:
    """New, empty servers and a connection to their leader."""
    with tempfile.TemporaryDirectory(prefix="rocketmq-bench-") as folder:
        group = ReferenceCluster(Path(folder), 3, SETTINGS, heap_mib=HEAP_MIB)
        try:
            make_topic(group, TOPIC, QUEUES)
            connection = await Connection.open(group.leader().address)
            yield group, connection
            connection.transport.close()
        finally:
            group.stop()


async def closed_loop(connection: Connection, count: int, in_flight: int) -> dict[str, float]:
    """``count`` sends by ``in_flight`` workers, each waiting for its acknowledgement."""
    latencies: list[float] = []
    left, busy = count, 0

    async def worker(queue: int) -> None:
        nonlocal left, busy
        while left > 0:
            left -= 1
            begin = time.perf_counter()
            while True:
                try:
                    await connection.ask(SENDS[queue], KIB)
                    break
                except RefusedError as error:
                    if error.code != SYSTEM_BUSY:
                        raise
                    busy += 1  # any client sends again then
            latencies.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    async with asyncio.timeout(RUN_LIMIT_S):
        await asyncio.gather(*(worker(i % QUEUES) for i in range(in_flight)))
    seconds = time.perf_counter() - begin
    latencies.sort()
    return {
        "msgs_s": count / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "answered_busy": busy,
    }


async def measured(count: int, in_flight: int) -> dict[str, float]:
    """``closed_loop`` on fresh servers, with their CPU time and memory."""
    async with fresh_group() as (group, connection):
        await closed_loop(connection, max(200, count // 4), in_flight)  # warm-up: Java compiles as it runs
        pids = [node.pid for node in group.nodes]
        servers, own = cpu_s(pids), time.process_time()
        result = await closed_loop(connection, count, in_flight)
        result["server_cpu_us_per_msg"] = (cpu_s(pids) - servers) / count * 1e6
        result["client_cpu_us_per_msg"] = (time.process_time() - own) / count * 1e6
        result["rss_mib"] = sum(map(resident_mib, pids))
        return result


async def windowed(
    connection: Connection, size: int, batch: int, window: int, count: int
) -> dict[str, float]:
    """Messages a second with ``window`` requests of ``batch`` messages in flight; busy answers are sent again."""
    body = KIB[:size] if batch == 1 else batch_body(KIB[:size], batch)
    templates = SENDS if batch == 1 else BATCHES
    requests = count // batch
    sent = acknowledged = busy = 0
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answer(code: int, _: bytes) -> None:
        nonlocal acknowledged, busy, sent
        if code == 0:
            acknowledged += 1
        elif code == SYSTEM_BUSY:
            busy += 1
            sent -= 1
        elif not done.done():
            done.set_exception(RefusedError(code))
        if sent < requests and not done.done():
            send_one()
        elif acknowledged == requests and not done.done():
            done.set_result(None)

    def send_one() -> None:
        nonlocal sent
        sent += 1
        connection.request(templates[sent % QUEUES], body, answer)

    begin = time.perf_counter()
    async with asyncio.timeout(RUN_LIMIT_S):
        for _ in range(min(window, requests)):
            send_one()
        await done
    return {"msgs_s": requests * batch / (time.perf_counter() - begin), "answered_busy": busy}


async def best_batching(size: int, count: int) -> list[dict[str, Any]]:
    settings = (
        [(1, 64), (1, 256), (64, 4), (256, 2), (256, 4)]
        if size == 1024
        else [(1, 256), (256, 4), (1000, 2), (1000, 4)]
    )
    tried = []
    for batch, window in settings:
        async with fresh_group() as (_, connection):
            await closed_loop(connection, max(500, count // 20), 64)  # warm-up
            figures = await windowed(connection, size, batch, window, count)
            setting: dict[str, Any] = {"batch": batch, "in_flight": window, **figures}
            tried.append(setting)
            show(f"C {size}", setting)
    return tried


async def read_back(count: int) -> list[dict[str, Any]]:
    """Every queue from its beginning to its end, by a few numbers of pulls in flight."""
    tried = []
    async with fresh_group() as (group, connection):
        await closed_loop(connection, 64, 1)
        await windowed(connection, 1024, 64, 4, count)
        leader = group.leader().address
        ends = [await asyncio.to_thread(wire.max_offset, leader, TOPIC, queue) for queue in range(QUEUES)]
        for in_flight in (1, 8, 32, 8):
            starts = [(queue, offset) for queue in range(QUEUES) for offset in range(0, ends[queue], 32)]
            starts.reverse()
            got = 0

            async def reader(pending: list[tuple[int, int]]) -> None:
                nonlocal got
                while pending:
                    queue, offset = pending.pop()
                    wanted = min(32, ends[queue] - offset)
                    while wanted > 0:
                        found = messages_in(await connection.ask(pull_template(queue, offset, wanted)))
                        got, offset, wanted = got + found, offset + found, wanted - found

            begin = time.perf_counter()
            async with asyncio.timeout(RUN_LIMIT_S):
                await asyncio.gather(*(reader(starts) for _ in range(in_flight)))
            assert got == sum(ends), f"read {got} of {sum(ends)}"
            tried.append({"pulls_in_flight": in_flight, "msgs_s": got / (time.perf_counter() - begin)})
            show("D", tried[-1])
    return tried


def messages_in(records: bytes) -> int:
    """Count the records that lie back to back; each begins with its size."""
    count = position = 0
    while position < len(records):
        (size,) = struct.unpack_from(">i", records, position)
        position += size
        count += 1
    assert position == len(records), "a record is cut off"
    return count


async def failover() -> float:
    """Milliseconds from SIGKILL of the leader to the first acknowledgement of a send begun after it."""
    async with fresh_group() as (group, connection):
        await closed_loop(connection, 300, 1)
        kill_leader(group)
        begin = time.monotonic()
        while time.monotonic() - begin < FAILOVER_LIMIT_S:
            try:
                async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                    leader = await asyncio.to_thread(group.leader)
                    attempt = await Connection.open(leader.address)
                    try:
                        await attempt.ask(SENDS[0], KIB)
                    finally:
                        attempt.transport.close()
            except (OSError, LookupError, RefusedError, TimeoutError):
                await asyncio.sleep(0.01)
                continue
            return (time.monotonic() - begin) * 1e3
        raise TimeoutError(f"no acknowledgement within {FAILOVER_LIMIT_S:.0f} s of the kill")


def show(label: str, value: object) -> None:
    print(f"{label:8s} {json.dumps(value)}", flush=True)


def median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def fastest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    return max(tried, key=lambda setting: float(setting["msgs_s"]))


class Results:
    """Figures by workload, kept in a file as they come; a later run replaces only what it measured."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._figures: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
        output.parent.mkdir(parents=True, exist_ok=True)

    def keep(self, key: str, value: object) -> None:
        self._figures[key] = value
        show(key, value)
        self._output.write_text(json.dumps(self._figures, indent=1) + "\n")


async def run(only: str, repetitions: int, scale: float, results: Results) -> None:
    """Runs the workloads named in ``only``, with ``scale`` times the usual number of messages."""
    results.keep("version", f"RocketMQ {REFERENCE_VERSION}, DLedger, {HEAP_MIB} MiB heap")
    for name, count, in_flight in (("A", 2_000, 1), ("B", 20_000, 64)):
        if name in only:
            runs = [await measured(int(count * scale), in_flight) for _ in range(repetitions)]
            results.keep(name, median_of(runs))
            results.keep(f"{name}_runs", [figures["msgs_s"] for figures in runs])
    if "C" in only:
        for size in (1024, 100):
            tried = await best_batching(size, int(100_000 * scale))
            results.keep(f"C_{size}", fastest(tried))
            results.keep(f"C_{size}_all", tried)
    if "D" in only:
        tried = await read_back(int(100_000 * scale))
        results.keep("D", fastest(tried))
        results.keep("D_all", tried)
    if "E" in only:
        results.keep("E_ms", [round(await failover()) for _ in range(repetitions)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="ABCDE", help="workloads to run")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of A, B and E")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="a fraction of the messages: does it run, not how fast"
    )
    parser.add_argument("--output", type=Path, default=Path("bench-results/rocketmq_dledger.json"))
    options = parser.parse_args()
    asyncio.run(run(options.only.upper(), options.repetitions, options.scale, Results(options.output)))


if __name__ == "__main__":
    main()
