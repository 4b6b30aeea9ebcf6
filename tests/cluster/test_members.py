"""Members come and go under load, with processes killed in between: nothing is lost, the stores stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker.client.admin import AdminClient
from broker.client.errors import BrokerError
from broker.remoting.codes import ResponseCode
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import Load, check_identical, check_nothing_lost, ready_cluster, wait_unregistered

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def wait_role(cluster: LocalCluster, node_id: str, role: str) -> None:
    """Until the node says of itself that it has this role."""
    while True:
        status = (await cluster.status()).get(node_id)
        if status is not None and status.role == role:
            return
        await trio.sleep(0.05)


async def retire(cluster: LocalCluster, admin: AdminClient, node_id: str) -> None:
    """Remove a running node, see it step aside, and stop it."""
    await admin.remove_member(node_id)
    await wait_role(cluster, node_id, "outside")
    assert await cluster.stop(node_id)
    await wait_unregistered(cluster, node_id)
    cluster.layout.discard(node_id)


async def test_all_members_are_replaced_under_load(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster, AdminClient(cluster.name_server_address) as admin:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(300)
            for number, old in enumerate(list(cluster.nodes)):
                (joined,) = cluster.layout.add_machine()
                cluster.start(joined.id)
                await wait_role(cluster, joined.id, "outside")
                await admin.add_member(joined.id, joined.peer_address)
                await load.wait_for(20)
                victim = [node.id for node in cluster.nodes.values() if node is not joined][number]
                await cluster.kill(victim)
                await load.wait_for(20)
                cluster.start(victim)
                await admin.promote_member(joined.id)
                await cluster.wait_ready()
                await load.wait_for(20)
                await cluster.kill(joined.id)
                cluster.start(joined.id)
                await cluster.wait_caught_up()
                if number == 1:
                    await admin.transfer_leadership(old)
                    assert (await cluster.leader()).id == old
                await retire(cluster, admin, old)
                await load.wait_for(20)
        assert list(cluster.nodes) == ["n3", "n4", "n5"]
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)
        assert load.unknown == 0, "a send that may be repeated for two minutes found no leader"
        status = await admin.members()
        assert sorted(status.voters) == ["n3", "n4", "n5"]


async def test_a_dead_node_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster, AdminClient(cluster.name_server_address) as admin:
        load = Load(cluster)
        async with load.running():
            await load.wait_for(100)
            dead = (await cluster.leader()).id
            await cluster.kill(dead)
            await load.wait_for(20)
            with pytest.raises(BrokerError) as refused:
                await admin.remove_member((await cluster.leader()).id)
            assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
            await admin.remove_member(dead)
            cluster.layout.discard(dead)
            (joined,) = cluster.layout.add_machine()
            await admin.add_member(joined.id, joined.peer_address)
            cluster.start(joined.id)
            await admin.promote_member(joined.id)
            await cluster.wait_ready()
            await admin.transfer_leadership(joined.id)
            await load.wait_for(50)
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)
