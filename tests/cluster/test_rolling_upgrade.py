"""A group of the release before this one is upgraded under load, goes back, and is upgraded again: no send fails.

The earlier release is the code of its commit in this repository, unpacked, and run by the same interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.remoting.node_status import NodeStatus
from broker.state.release import FIRST_FORMAT, THIS_RELEASE
from broker.tools.cluster.child import Child
from broker.tools.cluster.ports import PortReservations
from broker.tools.cluster.query import node_status
from tests.cluster.support import LIMIT_S, QUEUES, TOPIC, Load, check_nothing_lost, repeated
from tests.earlier_release import unpack_earlier_release

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NODES = ("n0", "n1", "n2")
HOST = "127.0.0.1"

Release = Literal["earlier", "this"]
_STEPS: tuple[tuple[str, Release], ...] = (("n0", "this"), ("n1", "this"), ("n0", "earlier"), ("n0", "this"))


@pytest.fixture(scope="module")
def earlier_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the code of the earlier release."""
    return unpack_earlier_release(tmp_path_factory.mktemp("earlier"))


class MixedGroup:
    """A name server of this release, and three brokers, each of the release that it was started with."""

    def __init__(
        self, directory: Path, earlier_code: Path, ports: PortReservations, tasks: trio.Nursery
    ) -> None:
        self._directory = directory
        self._earlier_code = earlier_code
        self._tasks = tasks
        self._children: dict[str, Child] = {}
        names_port = ports.reserve(0, "name server")
        self.name_server_address = f"{HOST}:{names_port}"
        self._addresses = {node: f"{HOST}:{ports.reserve(0, node)}" for node in NODES}
        peers = {node: f"{HOST}:{ports.reserve(0, f'{node} for peers')}" for node in NODES}
        peers_table = "\n".join(f'{node} = "{address}"' for node, address in peers.items())
        for node, address in self._addresses.items():
            (directory / f"{node}.toml").write_text(
                f'[node]\nid = "{node}"\nlisten = "{address}"\nname_servers = ["{self.name_server_address}"]\n'
                f'[storage]\npath = "{directory / node}"\ndata_file_bytes = 262144\nmax_message_bytes = 65536\n'
                f"entry_index_file_bytes = 16384\n[raft.peers]\n{peers_table}\n"
            )
        self._launch("namesrv", ["namesrv", "--listen", self.name_server_address], "this")

    def start(self, node: str, release: Release) -> None:
        self._launch(node, ["broker", "--config", str(self._directory / f"{node}.toml")], release)

    async def restart(self, node: str, release: Release) -> None:
        """Stops it in order, and starts it as that release; returns when all have caught up."""
        assert await self._children[node].stop(60.0), f"{node} did not stop in order"
        self.start(node, release)
        await self.wait_for(are_level)

    async def expect_stop(self, node: str, release: Release, words: str) -> None:
        """Starts it anew as that release, which is to end of its own accord with these words."""
        assert await self._children[node].stop(60.0)
        self.start(node, release)
        child = self._children[node]
        child.expected_to_end = True
        await child.exited.wait()
        assert words in self.log_of(node)

    def _launch(self, name: str, arguments: list[str], release: Release) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(self._earlier_code if release == "earlier" else ROOT))
            patch.setenv("PYTHONSAFEPATH", "1")  # not the directory that the tests are run in
            child = Child(name, arguments, self._directory / f"{name}.log")
        self._children[name] = child
        self._tasks.start_soon(child.watch)

    async def statuses(self) -> dict[str, NodeStatus]:
        found = {}
        for node, address in self._addresses.items():
            try:
                found[node] = await node_status(address, timeout_s=5.0)
            except ClientError:
                pass
        return found

    async def wait_for(self, condition: Callable[[dict[str, NodeStatus]], bool]) -> dict[str, NodeStatus]:
        """Asks all nodes until the condition holds of what they say."""
        with trio.fail_after(LIMIT_S):
            while True:
                for child in self._children.values():
                    assert child.running or child.expected_to_end, child.how_it_ended()
                found = await self.statuses()
                if len(found) == len(NODES) and condition(found):
                    return found
                await trio.sleep(0.05)

    async def stop(self) -> None:
        for child in reversed(self._children.values()):
            if child.running:
                await child.stop(60.0)

    def log_of(self, node: str) -> str:
        return (self._directory / f"{node}.log").read_text()


def are_level(found: dict[str, NodeStatus]) -> bool:
    """One leads, the others follow it closely."""
    leaders = [status for status in found.values() if status.serving]
    return (
        len(leaders) == 1
        and all(status.leader == leaders[0].node for status in found.values())
        and all(peer.state == "replicate" for peer in leaders[0].peers)
    )


async def test_upgraded_under_load_and_back_and_again_without_a_failed_send(
    tmp_path: Path, earlier_code: Path
) -> None:
    ports = PortReservations(HOST)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as tasks:
            group = MixedGroup(tmp_path, earlier_code, ports, tasks)
            try:
                await _upgrade_and_back(group)
            finally:
                with trio.CancelScope(shield=True):
                    await group.stop()
    ports.release()


async def _upgrade_and_back(group: MixedGroup) -> None:
    for node in NODES:
        group.start(node, "earlier")
    await group.wait_for(are_level)
    async with AdminClient(group.name_server_address) as admin:
        await repeated(partial(admin.create_topic, TOPIC, queues=QUEUES))
    load = Load(group)
    async with load.running():
        for node, release in _STEPS:
            await load.wait_for(200)
            await group.restart(node, release)
        found = await group.statuses()
        assert [found[node].release for node in NODES] == [THIS_RELEASE.name, THIS_RELEASE.name, ""]
        assert {status.format for status in found.values()} == {FIRST_FORMAT}, "n2 reads no other"
        await load.wait_for(200)
        await group.restart("n2", "this")
        await group.wait_for(
            lambda found: all(status.format == THIS_RELEASE.newest_format for status in found.values())
        )
        await load.wait_for(200)
    assert load.unknown == 0, "a send failed, or its outcome is unknown"
    await check_nothing_lost(group, load)
    assert all("Traceback" not in group.log_of(node) for node in NODES)
    # Behind the raise the earlier release stops over what it cannot read; this one goes on there. (The first release
    # did not look for a note of the format yet, and names the field that it does not know.)
    await group.expect_stop("n1", "earlier", "unknown field `format`")
    group.start("n1", "this")
    await group.wait_for(are_level)
    await check_nothing_lost(group, load)
