"""SIGKILL of each role at random moments under load, ten times in a row.

The moment is a number of acknowledgements, not a time, and both it and the victims come from a fixed seed, so that the
same things are tried on any machine. Processes that are killed keep what they wrote in the page cache, so nothing that
was acknowledged may be missing, whatever was killed together.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import (
    LIMIT_S,
    SMALL_FILES,
    Load,
    check_identical,
    check_nothing_lost,
    ready_cluster,
)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SEED = 20
KILLS = 10
ROLES = ("leader", "follower", "leader", "follower", "everyone")


async def victims_of(cluster: LocalCluster, role: str, dice: random.Random) -> list[str]:
    """The nodes to kill at once."""
    leader = (await cluster.leader()).id
    followers = [node_id for node_id in cluster.nodes if node_id != leader]
    match role:
        case "leader":
            return [leader]
        case "follower":
            return [dice.choice(followers)]
        case _:
            return [*followers, leader]


async def test_ten_kills_under_load_lose_nothing(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    async with ready_cluster(tmp_path) as cluster:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(500)
            for kill in range(KILLS):
                with trio.fail_after(LIMIT_S):
                    await load.wait_for(dice.randrange(1, 60))
                    victims = await victims_of(cluster, ROLES[kill % len(ROLES)], dice)
                    killed = [cluster.kill_nowait(node_id) for node_id in victims]
                    for child in killed:
                        await child.exited.wait()
                    if len(victims) == 1:
                        await load.wait_for(dice.randrange(1, 60))  # the other two go on without it
                    for node_id in victims:
                        cluster.start(node_id)
                    await cluster.wait_ready()
                    if dice.random() < 0.5:
                        await cluster.wait_caught_up()
        assert load.unknown == 0, "a send that may be repeated for two minutes found no leader"
        await check_nothing_lost(cluster, load)
        comparison = await check_identical(cluster)
        assert comparison.entries >= load.count
        assert comparison.bytes > SMALL_FILES.data_file_bytes, "the load was too small for a file to be full"


async def test_killed_leader_with_sync_flush(tmp_path: Path) -> None:
    """The same contract where every acknowledgement waits for the disk."""
    import msgspec

    storage = msgspec.structs.replace(SMALL_FILES, flush="sync")
    async with ready_cluster(tmp_path, storage=storage) as cluster:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(50)
            leader = await cluster.leader()
            await cluster.kill(leader.id)
            await load.wait_for(50)
            cluster.start(leader.id)
            await cluster.wait_ready()
            await load.wait_for(50)
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)
