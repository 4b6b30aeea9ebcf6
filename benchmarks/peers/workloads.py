"""The workloads of `trivet bench` for any system that is measured beside it, by a client of that system's own.

A: one send in flight, 1 KiB. B: 64 in flight. C: the best of a few batch sizes and windows, 1 KiB and 100 B. D: all of
it read back. E: SIGKILL of the leader, milliseconds to the first acknowledgement of a send begun after it, in attempts
of 250 ms. Each run has fresh servers; bodies are random bytes; the client is Python and shares the cores with the
servers.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from broker.tools.bench.process_cost import cpu_s, resident_mib

KIB = os.urandom(1024)
WARM_UP = 10_000
"""Sends, 64 under way, before A and B are measured: Java compiles as it runs."""
RUN_LIMIT_S = 180.0
ATTEMPT_TIMEOUT_S = 0.25
FAILOVER_LIMIT_S = 60.0
KILLS = 3

Setting = tuple[int, int]
"""Messages in a batch, and batches in flight; or 1 and messages in flight where batches form by themselves."""


class TryAgainError(Exception):
    """The system did not take the message, and says that it may take it later."""


class Group(Protocol):
    """Three fresh servers, and a client of theirs."""

    @property
    def pids(self) -> Sequence[int]:
        """All processes of the servers."""

    async def send(self, body: bytes) -> None:
        """Sends one message and waits until a majority has it. Raises OSError, TryAgainError."""

    async def send_all(self, body: bytes, count: int, setting: Setting) -> None:
        """Sends `count` messages as fast as the setting allows, and waits for all acknowledgements."""

    async def read_all(self, count: int) -> None:
        """Reads that many messages back."""

    async def kill_leader(self) -> None:
        """SIGKILL to whoever leads; returns when the process is gone."""

    async def reconnect(self) -> None:
        """Finds out anew whom to send to, after an attempt has failed."""


class System(Protocol):
    """One system to be measured. `settings` are those that C tries, by the bytes of a body."""

    name: str
    version: str
    settings: dict[int, list[Setting]]

    def fresh(self, folder: Path) -> AbstractAsyncContextManager[Group]:
        """Starts servers with empty stores in the folder, and stops them at the end."""


async def _closed_loop(group: Group, count: int, in_flight: int) -> dict[str, float]:
    """`count` sends by `in_flight` tasks, each waiting for its acknowledgement."""
    latencies: list[float] = []
    left, busy = count, 0

    async def task() -> None:
        nonlocal left, busy
        while left > 0:
            left -= 1
            begin = time.perf_counter()
            while True:
                try:
                    await group.send(KIB)
                    break
                except TryAgainError:
                    busy += 1
            latencies.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    async with asyncio.timeout(RUN_LIMIT_S):
        await asyncio.gather(*(task() for _ in range(in_flight)))
    seconds = time.perf_counter() - begin
    latencies.sort()
    return {
        "msgs_s": count / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "answered_busy": busy,
    }


async def _sends(system: System, count: int, in_flight: int, warm_up: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix=f"{system.name}-") as folder:
        async with system.fresh(Path(folder)) as group:
            await _closed_loop(group, warm_up, 64)
            servers, own = cpu_s(group.pids), time.process_time()
            figures = await _closed_loop(group, count, in_flight)
            figures["server_cpu_us_per_msg"] = (cpu_s(group.pids) - servers) / count * 1e6
            figures["client_cpu_us_per_msg"] = (time.process_time() - own) / count * 1e6
            figures["rss_mib"] = sum(map(resident_mib, group.pids))
            return figures


async def _batches(system: System, size: int, count: int) -> list[dict[str, Any]]:
    tried = []
    for setting in system.settings[size]:
        with tempfile.TemporaryDirectory(prefix=f"{system.name}-") as folder:
            async with system.fresh(Path(folder)) as group:
                await _closed_loop(group, max(500, count // 20), 64)
                whole = count // setting[0] * setting[0]
                begin = time.perf_counter()
                async with asyncio.timeout(RUN_LIMIT_S):
                    await group.send_all(KIB[:size], whole, setting)
                rate = whole / (time.perf_counter() - begin)
        tried.append({"batch": setting[0], "in_flight": setting[1], "msgs_s": rate})
    return tried


async def _read_back(system: System, count: int) -> float:
    with tempfile.TemporaryDirectory(prefix=f"{system.name}-") as folder:
        async with system.fresh(Path(folder)) as group:
            setting = system.settings[1024][-1]
            count -= count % setting[0]
            await group.send_all(KIB, count, setting)
            begin = time.perf_counter()
            async with asyncio.timeout(RUN_LIMIT_S):
                await group.read_all(count)
            return count / (time.perf_counter() - begin)


async def _failover(system: System) -> float:
    with tempfile.TemporaryDirectory(prefix=f"{system.name}-") as folder:
        async with system.fresh(Path(folder)) as group:
            await _closed_loop(group, 300, 1)
            await group.kill_leader()
            begin = time.monotonic()
            while time.monotonic() - begin < FAILOVER_LIMIT_S:
                try:
                    async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                        await group.send(KIB)
                except (OSError, TryAgainError, TimeoutError):
                    await asyncio.sleep(0.01)
                    try:
                        async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                            await group.reconnect()
                    except (OSError, TimeoutError):
                        pass
                    continue
                return (time.monotonic() - begin) * 1e3
            raise TimeoutError(f"no acknowledgement within {FAILOVER_LIMIT_S:.0f} s of the kill")


class Results:
    """Figures by workload, kept in a file as they come; a later run replaces only what it measured."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._figures: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
        output.parent.mkdir(parents=True, exist_ok=True)

    def keep(self, key: str, value: object) -> None:
        """Keeps and prints one figure, or several that belong together."""
        self._figures[key] = value
        print(f"{key:8s} {json.dumps(value)}", flush=True)
        self._output.write_text(json.dumps(self._figures, indent=1) + "\n")


def _median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _fastest(tried: list[dict[str, Any]]) -> dict[str, Any]:
    rate: Callable[[dict[str, Any]], float] = lambda setting: float(setting["msgs_s"])  # noqa: E731
    return max(tried, key=rate)


async def run(system: System, only: str, repetitions: int, scale: float, results: Results) -> None:
    """Runs the workloads named in `only`, with `scale` times the usual number of messages."""
    results.keep("version", system.version)
    results.keep("load", round(os.getloadavg()[0], 1))
    for name, count, in_flight in (("A", 2_000, 1), ("B", 20_000, 64)):
        if name in only:
            warm_up = max(200, int(WARM_UP * scale))
            runs = [await _sends(system, int(count * scale), in_flight, warm_up) for _ in range(repetitions)]
            results.keep(name, _median_of(runs))
    if "C" in only:
        for size in (1024, 100):
            tried = await _batches(system, size, int(100_000 * scale))
            results.keep(f"C_{size}", _fastest(tried))
            results.keep(f"C_{size}_all", tried)
    if "D" in only:
        results.keep("D", {"msgs_s": await _read_back(system, int(100_000 * scale))})
    if "E" in only:
        results.keep("E_ms", [round(await _failover(system)) for _ in range(KILLS)])
