"""A follower on a real file system without space stays, says so, and goes on when there is some."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import Load, check_identical, check_nothing_lost, ready_cluster
from tests.full_disks import fill

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

DISK_BYTES = 48 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted tmpfs of `DISK_BYTES`."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system takes root")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def move(store: Path, to: Path) -> None:
    """Moves a store, and leaves a link to it."""
    shutil.move(store, to)
    store.symlink_to(to)


async def is_full(cluster: LocalCluster, node_id: str) -> bool:
    status = await cluster.status()
    return node_id in status and status[node_id].disk_full


def test_a_follower_whose_disk_fills_stays_and_goes_on(tmp_path: Path, small_disk: Path) -> None:
    async def main() -> None:
        async with ready_cluster(tmp_path / "cluster") as cluster:
            leader = await cluster.leader()
            victim = next(node for node in cluster.nodes.values() if node is not leader)
            await cluster.stop(victim.id)
            move(Path(victim.settings.storage.path), small_disk / "store")
            cluster.start(victim.id)
            await cluster.wait_ready()
            child = victim.child
            load = Load(cluster)
            async with load.running():
                await load.wait_for(200)
                filler = small_disk / "filler"
                await trio.to_thread.run_sync(fill, filler)
                while not await is_full(cluster, victim.id):
                    await load.wait_for(200)
                await load.wait_for(500)
                assert victim.running
                filler.unlink()
                while await is_full(cluster, victim.id):
                    await load.wait_for(20)
            assert victim.child is child, "the process is the one that was started"
            await check_identical(cluster)
            await check_nothing_lost(cluster, load)
            logged = victim.log_path.read_text()
            assert "Traceback" not in logged
            assert "disk full" in logged

    trio.run(main)
