"""``trivet cluster`` as a process: its READY line, clean stops, and children that never outlive it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.client.errors import ClientError
from broker.tools.cluster.layout import LocalClusterOptions
from broker.tools.cluster.local import LocalCluster
from broker.tools.cluster.query import node_status

pytestmark = pytest.mark.cluster

LIMIT_S = 240.0


class Supervisor:
    """A running ``trivet cluster`` whose READY line has been read."""

    def __init__(self, process: subprocess.Popen[bytes], ready: dict[str, Any]) -> None:
        self.process = process
        self.ready = ready

    @property
    def node_pids(self) -> list[int]:
        return [node["pid"] for node in self.ready["nodes"]]

    async def wait(self) -> int:
        """Its exit code."""
        with trio.fail_after(LIMIT_S):
            return await trio.to_thread.run_sync(self.process.wait, LIMIT_S)

    async def read_error_line(self) -> str:
        """The next line on its stderr."""
        assert self.process.stderr is not None
        with trio.fail_after(LIMIT_S):
            line: bytes = await trio.to_thread.run_sync(self.process.stderr.readline)
        return line.decode()


def start(*arguments: str) -> subprocess.Popen[bytes]:
    """``trivet ARGUMENTS`` as a process with pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "trivet", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@contextlib.asynccontextmanager
async def supervised(directory: Path) -> AsyncIterator[Supervisor]:
    """Start it on free ports and read its READY line; at the end it is gone, whatever happened."""
    ports = ("--port", "0", "--namesrv-port", "0")
    process = start("cluster", "--dir", str(directory), *ports, "--ready-timeout", str(LIMIT_S))
    try:
        assert process.stdout is not None
        with trio.fail_after(LIMIT_S):
            line = await trio.to_thread.run_sync(process.stdout.readline)
        assert line.startswith(b"READY "), line
        yield Supervisor(process, json.loads(line.removeprefix(b"READY ")))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextlib.contextmanager
def watched(pids: list[int]) -> Iterator[list[int]]:
    """Descriptors that become readable when the processes end."""
    descriptors = [os.pidfd_open(pid) for pid in pids]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


async def wait_serves(address: str, process_id: int) -> None:
    """Until this process answers there."""
    with trio.fail_after(LIMIT_S):
        while True:
            with contextlib.suppress(ClientError):
                assert (await node_status(address)).process_id == process_id
                return
            await trio.sleep(0.05)


async def wait_ended(descriptors: list[int]) -> None:
    with trio.fail_after(LIMIT_S):
        for descriptor in descriptors:
            await trio.lowlevel.wait_readable(descriptor)


async def test_ready_line_says_who_serves(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        while not await says_who_serves(tmp_path):
            pass


async def says_who_serves(directory: Path) -> bool:
    """Compares the READY line with the nodes; returns False if another one leads since, as the machine stood still."""
    async with supervised(directory) as supervisor:
        nodes = supervisor.ready["nodes"]
        assert [node["id"] for node in nodes] == ["n0", "n1", "n2"]
        assert sorted(node["role"] for node in nodes) == ["follower", "follower", "leader"]
        serving = []
        for node in nodes:
            status = await node_status(node["address"], timeout_s=LIMIT_S)
            assert status.node == node["id"]
            assert status.process_id == node["pid"]
            serving += [status.node] if status.serving else []
        return serving == [node["id"] for node in nodes if node["role"] == "leader"]


async def test_both_signals_stop_everything_cleanly_and_the_directory_is_used_again(tmp_path: Path) -> None:
    """What the group knew is there after a stop and a start."""
    committed = 0
    for number in (signal.SIGTERM, signal.SIGINT):
        async with supervised(tmp_path) as supervisor:
            known = [
                await node_status(node["address"], timeout_s=LIMIT_S) for node in supervisor.ready["nodes"]
            ]
            before, committed = committed, max(status.commit_index for status in known)
            assert committed > before, (
                "it began where the stop before had left it, and a leader's first entry is new"
            )
            with watched(supervisor.node_pids) as nodes:
                supervisor.process.send_signal(number)
                assert await supervisor.wait() == 0
                await wait_ended(nodes)
            assert supervisor.process.stderr is not None
            assert supervisor.process.stderr.read() == b""


async def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    async with supervised(tmp_path) as supervisor:
        with watched(supervisor.node_pids) as nodes:
            supervisor.process.kill()
            await wait_ended(nodes)


async def test_a_killed_node_is_reported_and_can_be_started_again(tmp_path: Path) -> None:
    async with supervised(tmp_path) as supervisor:
        victim = supervisor.ready["nodes"][1]
        os.kill(victim["pid"], signal.SIGKILL)
        line = await supervisor.read_error_line()
        assert f"n1 (pid {victim['pid']}) was ended by SIGKILL" in line
        command = line.strip().rpartition("start it again with: trivet ")[2].split()
        again = start(*command)
        try:
            await wait_serves(victim["address"], again.pid)
            again.send_signal(signal.SIGTERM)
            await trio.to_thread.run_sync(again.communicate)
            assert again.returncode == 0
        finally:
            if again.poll() is None:
                again.kill()
                again.communicate()
        supervisor.process.terminate()
        assert await supervisor.wait() == 0


async def test_a_cancelled_cluster_stops_its_servers_in_order(tmp_path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        with trio.CancelScope() as scope:
            async with LocalCluster(LocalClusterOptions(tmp_path)) as cluster:
                await cluster.wait_ready()
                scope.cancel()
                await trio.sleep_forever()
        assert [child.return_code for child in cluster.children()] == [0, 0, 0, 0]
