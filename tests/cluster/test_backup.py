"""A group of real processes: backed up under load, destroyed, and made again from the backup."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import msgspec
import pytest
import trio

from broker.client.consuming.pull_consumer import PullConsumer
from broker.client.message import Message
from broker.client.producing.producer import Producer
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import (
    LIMIT_S,
    TOPIC,
    Load,
    check_identical,
    check_nothing_lost,
    read_everything,
    ready_cluster,
)

pytestmark = pytest.mark.cluster


async def trivet(*arguments: str, exit_code: int = 0) -> str:
    """What a command prints, on stderr if it fails."""
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            [sys.executable, "-m", "trivet", *arguments],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
    assert done.returncode == exit_code, done.stderr.decode()
    return (done.stderr if exit_code else done.stdout).decode()


async def restore_all(cluster: LocalCluster, backup: Path, lineage: str) -> None:
    """Makes every store of the backup, which nothing may be left of, and starts the group."""
    for node in cluster.nodes.values():
        raft = msgspec.structs.replace(node.settings.raft, lineage=lineage)
        node.settings = msgspec.structs.replace(node.settings, raft=raft)
        node.write_settings()
        await trivet("restore", str(backup), "--config", str(node.settings_path), "--yes")
    for node_id in cluster.nodes:
        cluster.start(node_id)
    await cluster.wait_ready()


async def test_backup_under_load_destroy_restore_read(tmp_path: Path) -> None:
    """All that was acknowledged before each backup is there again, where it was, and the group goes on."""
    backup = tmp_path / "backup"
    async with ready_cluster(tmp_path / "group") as cluster:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(400)
            told = json.loads(
                await trivet("backup", str(backup), "--namesrv", cluster.name_server_address, "--json")
            )
            await load.wait_for(50)
        async with PullConsumer(cluster.name_server_address, group="READER") as consumer:
            queue = (await consumer.queues(TOPIC))[0]
            await consumer.commit({queue: 17})
        await cluster.wait_caught_up()
        again = json.loads(
            await trivet(
                "backup", str(backup), "--namesrv", cluster.name_server_address, "--json", "--rate", "500"
            )
        )
        assert again["last_index"] > told["last_index"]
        assert again["read_bytes"] < again["bytes"]
        assert (await cluster.leader()).id != again["node"], "a follower is read where there is one"
        assert "every checksum" in await trivet("backup", "verify", str(backup))
        before = await read_everything(cluster.name_server_address)

        stores = [Path(node.settings.storage.path) for node in cluster.nodes.values()]
        for node_id in cluster.nodes:
            await cluster.kill(node_id)
        settings_path = cluster.nodes["n0"].settings_path
        complaint = await trivet("restore", str(backup), "--config", str(settings_path), "--yes", exit_code=1)
        assert "raft.lineage is not set" in complaint
        for store in stores:
            shutil.rmtree(store)
        await restore_all(cluster, backup, "second-life")
        assert await read_everything(cluster.name_server_address) == before
        await check_nothing_lost(cluster, load)
        async with PullConsumer(cluster.name_server_address, group="READER") as consumer:
            assert await consumer.committed(queue) == 17
        async with Producer(cluster.name_server_address, group="AFTER") as producer:
            result = await producer.send(Message(TOPIC, b"after"), queue=queue)
        assert result.queue_offset == len(before[queue])
        await check_identical(cluster)

        # It is a place that is used now, and its own store is refused under the old group's settings.
        complaint = await trivet("restore", str(backup), "--config", str(settings_path), "--yes", exit_code=1)
        assert "is not empty" in complaint
        node = cluster.nodes["n0"]
        await cluster.stop("n0")
        raft = msgspec.structs.replace(node.settings.raft, lineage="")
        node.settings = msgspec.structs.replace(node.settings, raft=raft)
        node.write_settings()
        complaint = await trivet("broker", "--config", str(settings_path), exit_code=2)
        assert "raft.lineage is ''" in complaint
        assert "second-life" in complaint
