"""The workloads of ``trivet bench``, each against a group of its own that nothing else has used.

- A: one send in flight, 1 KiB.
- B: 64 sends in flight, 1 KiB, by `Producer.send_many`, and once more by 64 tasks that each wait for one send before
  the next, which tells latencies; with the CPU time per message, and the memory of the servers at the end.
- C: the highest acknowledged rate over a few batch sizes and windows, 1 KiB and 100 B.
- D: 100,000 messages of 1 KiB read back by one client.
- E: SIGKILL of the leader, three times; milliseconds from the kill to the first acknowledgement of a send begun after
  it, by a producer whose attempts take 250 ms at most.
- I: the cost of an idle group.

Bodies are random bytes, so that nothing gains by compressing them. The producer is this project's own, in this process,
on the same cores as the servers.
"""

import itertools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import trio
import trio.lowlevel

from broker.client.admin import AdminClient
from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.errors import ClientError
from broker.client.message import Message, MessageQueue
from broker.client.producing.producer import Producer
from broker.settings.tables import StorageSettings
from broker.tools.bench.process_cost import cpu_s, resident_mib, resident_without_mappings_mib
from broker.tools.bench.results import Flush, Measurement, Setting, quantile
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster

TOPIC = "Bench"
GROUP = "BENCH"
READER_GROUP = "TOOLS_CONSUMER"
"""A consumer group that exists on every broker: it reads queues without being a member of anything."""
KIB = 1024
IN_FLIGHT = 64
DATA_FILE_BYTES = 256 * 1024 * 1024
IDLE_S = 5.0
KILLS = 3
ATTEMPT_TIMEOUT_S = 0.25
FAILOVER_LIMIT_S = 60.0

_BATCH_SETTINGS = ((64, 1), (64, 4), (256, 2), (256, 4))
"""Batch size and batches in flight that C tries for 1 KiB."""
_SMALL_BATCH_SETTINGS = ((256, 2), (256, 4), (1000, 2), (1000, 4))
"""Batch size and batches in flight that C tries for 100 B."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of messages, by workload."""

    warm_up: int = 500
    one_in_flight: int = 2_000
    many_in_flight: int = 20_000
    batched: int = 60_000
    read_back: int = 100_000


QUICK = Scale(warm_up=100, one_in_flight=300, many_in_flight=2_000, batched=6_000, read_back=5_000)


async def run_workload(name: str, flush: Flush, directory: Path, scale: Scale) -> list[Measurement]:
    """One workload on a fresh cluster in ``directory``."""
    storage = StorageSettings(flush=flush, data_file_bytes=DATA_FILE_BYTES)
    async with LocalCluster(LocalClusterOptions(directory, storage=storage)) as cluster:
        await cluster.wait_ready()
        async with AdminClient(cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=1)
        measured = await WORKLOADS[name](cluster, scale)
    return [msgspec.structs.replace(one, workload=name, flush=flush) for one in measured]


async def _one_in_flight(cluster: LocalCluster, scale: Scale) -> list[Measurement]:
    async with _producer(cluster) as producer:
        await _send_all(producer, scale.warm_up, 1)
        measured = await _measured(cluster, producer, scale.one_in_flight, 1)
    return [msgspec.structs.replace(measured, description="1 in flight, 1 KiB")]


async def _many_in_flight(cluster: LocalCluster, scale: Scale) -> list[Measurement]:
    async with _producer(cluster) as producer:
        await _send_many(producer, scale.warm_up)
        meter = _Meter(cluster)
        await _send_many(producer, scale.many_in_flight)
        together = meter.read(scale.many_in_flight)
        by_tasks = await _measured(cluster, producer, scale.many_in_flight, IN_FLIGHT)
    resident, beside = _memory(cluster)
    return [
        msgspec.structs.replace(
            together,
            description=f"{IN_FLIGHT} in flight, 1 KiB, send_many",
            memory_mib=resident,
            memory_beside_mappings_mib=beside,
        ),
        msgspec.structs.replace(by_tasks, description=f"{IN_FLIGHT} tasks, 1 KiB, send"),
    ]


async def _batches(cluster: LocalCluster, scale: Scale) -> list[Measurement]:
    found = []
    pids = _broker_pids(cluster)
    async with _producer(cluster) as producer:
        for body_bytes, settings in ((KIB, _BATCH_SETTINGS), (100, _SMALL_BATCH_SETTINGS)):
            body = os.urandom(body_bytes)
            tried = []
            for batch, in_flight in settings:
                await _send_batches(producer, body, batch, in_flight, scale.warm_up)
                # Measured from here on: the warm-up has opened connections and files, and has run the code often.
                used, own = cpu_s(pids), time.process_time()
                rate = await _send_batches(producer, body, batch, in_flight, scale.batched)
                tried.append(
                    Setting(
                        batch=batch,
                        in_flight=in_flight,
                        body_bytes=body_bytes,
                        msgs_per_s=rate,
                        server_cpu_us_per_msg=(cpu_s(pids) - used) / scale.batched * 1e6,
                        client_cpu_us_per_msg=(time.process_time() - own) / scale.batched * 1e6,
                    )
                )
            best = max(tried, key=lambda setting: setting.msgs_per_s)
            found.append(
                Measurement(
                    description=f"batches of {best.batch}, {best.in_flight} in flight, {body_bytes} B",
                    messages=scale.batched,
                    msgs_per_s=best.msgs_per_s,
                    server_cpu_us_per_msg=best.server_cpu_us_per_msg,
                    client_cpu_us_per_msg=best.client_cpu_us_per_msg,
                    settings=tuple(tried),
                )
            )
    return found


async def _read_back(cluster: LocalCluster, scale: Scale) -> list[Measurement]:
    async with _producer(cluster) as producer:
        await _send_batches(producer, os.urandom(KIB), 256, 2, scale.read_back)
    # Measured from here on: what was sent before is only there to be read.
    pids = _broker_pids(cluster)
    async with PullConsumer(cluster.name_server_address, group=READER_GROUP) as consumer:
        queue = MessageQueue(TOPIC, cluster.layout.options.group, 0)
        end = await consumer.max_offset(queue)
        used = cpu_s(pids)
        begin = time.perf_counter()
        consumer.assign({queue: 0})
        read = 0
        while read < end:
            messages = await consumer.poll(max_messages=1000, timeout_s=10.0)
            if not messages:
                raise trio.TooSlowError(f"{read:,} of {end:,} messages were read back, then nothing for 10 s")
            read += len(messages)
            assert messages[-1].queue_offset == read - 1, "messages came out of order"
        seconds = time.perf_counter() - begin
    return [
        Measurement(
            description="read back, 1 KiB",
            messages=read,
            msgs_per_s=read / seconds,
            server_cpu_us_per_msg=(cpu_s(pids) - used) / read * 1e6,
        )
    ]


async def _failover(cluster: LocalCluster, scale: Scale) -> list[Measurement]:
    taken = []
    async with _producer(cluster, attempt_timeout_s=ATTEMPT_TIMEOUT_S) as producer:
        await _send_all(producer, scale.warm_up, 1)
        for _ in range(KILLS):
            leader = await cluster.leader()
            with trio.fail_after(FAILOVER_LIMIT_S):
                taken.append(await _kill_under_load(cluster, producer, leader.id))
            # The next kill meets a whole group: one that still catches up would be without a majority, or slower.
            cluster.start(leader.id)
            await cluster.wait_ready()
            await cluster.wait_caught_up()
    return [
        Measurement(
            description="leader killed to first acknowledgement",
            failover_ms=tuple(taken),
            p50_ms=quantile(taken, 0.5),
        )
    ]


async def _kill_under_load(cluster: LocalCluster, producer: Producer, leader: str) -> float:
    """Milliseconds from SIGKILL to the first acknowledgement of a send begun after it."""
    message = Message(TOPIC, os.urandom(KIB))
    for _ in range(20):
        await producer.send(message)
    killed = cluster.kill_nowait(leader)
    killed_s = time.perf_counter()
    while True:
        try:
            await producer.send(message)
        except ClientError as error:
            if not error.retry_may_help:
                raise
        else:
            break
    taken_ms = (time.perf_counter() - killed_s) * 1000
    await killed.exited.wait()
    return taken_ms


async def _idle(cluster: LocalCluster, scale: Scale) -> list[Measurement]:
    await cluster.wait_caught_up()
    pids = [child.pid for child in cluster.children()]
    used = cpu_s(pids)
    await trio.sleep(IDLE_S)  # the length of the measurement, not a wait for something
    percent = (cpu_s(pids) - used) / IDLE_S * 100
    resident, beside = _memory(cluster)
    return [
        Measurement(
            description=f"idle for {IDLE_S:g} s, four processes",
            idle_cpu_percent=percent,
            memory_mib=resident,
            memory_beside_mappings_mib=beside,
        )
    ]


WORKLOADS: dict[str, Callable[[LocalCluster, Scale], Awaitable[list[Measurement]]]] = {
    "A": _one_in_flight,
    "B": _many_in_flight,
    "C": _batches,
    "D": _read_back,
    "E": _failover,
    "I": _idle,
}


def _producer(cluster: LocalCluster, attempt_timeout_s: float | None = None) -> Producer:
    return Producer(
        cluster.name_server_address, group=GROUP, send_timeout_s=30.0, attempt_timeout_s=attempt_timeout_s
    )


async def _send_all(producer: Producer, count: int, in_flight: int) -> list[float]:
    """Send ``count`` messages of 1 KiB from ``in_flight`` tasks; returns the latencies in ms."""
    body = os.urandom(KIB)
    latencies: list[float] = []
    left = count

    async def send_some() -> None:
        nonlocal left
        message = Message(TOPIC, body)
        now = time.perf_counter
        while left > 0:
            left -= 1
            begin = now()
            await producer.send(message)
            latencies.append((now() - begin) * 1000)

    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(send_some)
    return latencies


class _Meter:
    """The time and the CPU time, of the brokers and of this process, since it was made."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._pids = _broker_pids(cluster)
        self._used, self._own = cpu_s(self._pids), time.process_time()
        self._begin = time.perf_counter()

    def read(self, messages: int) -> Measurement:
        """Return how many messages a second these were, and what CPU time each has taken, in microseconds."""
        seconds = time.perf_counter() - self._begin
        return Measurement(
            messages=messages,
            msgs_per_s=messages / seconds,
            server_cpu_us_per_msg=(cpu_s(self._pids) - self._used) / messages * 1e6,
            client_cpu_us_per_msg=(time.process_time() - self._own) / messages * 1e6,
        )


async def _measured(cluster: LocalCluster, producer: Producer, count: int, in_flight: int) -> Measurement:
    meter = _Meter(cluster)
    latencies = await _send_all(producer, count, in_flight)
    return msgspec.structs.replace(
        meter.read(count), p50_ms=quantile(latencies, 0.5), p99_ms=quantile(latencies, 0.99)
    )


async def _send_many(producer: Producer, count: int) -> None:
    message = Message(TOPIC, os.urandom(KIB))
    await producer.send_many(itertools.repeat(message, count), in_flight=IN_FLIGHT)


async def _send_batches(producer: Producer, body: bytes, batch: int, in_flight: int, count: int) -> float:
    """Send ``count`` messages in batches from ``in_flight`` tasks; returns messages per second."""
    messages = [Message(TOPIC, body) for _ in range(batch)]
    left = -(-count // batch)
    sent = left * batch

    async def send_some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await producer.send_batch(messages)

    begin = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(send_some)
    return sent / (time.perf_counter() - begin)


def _broker_pids(cluster: LocalCluster) -> list[int]:
    return [node.child.pid for node in cluster.nodes.values() if node.child is not None]


def _memory(cluster: LocalCluster) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Resident memory of each broker: all of it, and beside the mappings of its store."""
    resident, beside = [], []
    for node in cluster.nodes.values():
        if node.child is not None:
            resident.append(resident_mib(node.child.pid))
            beside.append(resident_without_mappings_mib(node.child.pid, Path(node.settings.storage.path)))
    return tuple(resident), tuple(beside)
