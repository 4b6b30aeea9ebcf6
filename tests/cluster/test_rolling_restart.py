"""A rolling restart under load: no send fails, and no route is ever without a master."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker.client.transport.connection import Connection
from broker.client.transport.trio_runtime import TrioRuntime
from broker.remoting.codes import RequestCode
from broker.remoting.route import ClusterInfo
from broker.tools.cluster.local import LocalCluster
from tests.cluster.support import Load, check_identical, check_nothing_lost, ready_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROUNDS = 2


class Watch:
    """Asks the name server again and again, as a client that looks its route up at any moment."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.looks = 0
        self.without_master: list[dict[int, str]] = []

    async def run(self) -> None:
        runtime = TrioRuntime()
        address = self._cluster.name_server_address
        connection = Connection(runtime, address, await runtime.connect(address), {})
        async with trio.open_nursery() as tasks:
            tasks.start_soon(connection.run)
            while True:
                reply = await connection.call(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=60.0)
                self._look(ClusterInfo.decode(reply.body))

    def _look(self, info: ClusterInfo) -> None:
        self.looks += 1
        addresses = info.broker_table[self._cluster.layout.options.group].broker_addresses
        if 0 not in addresses:
            self.without_master.append(addresses)


async def test_each_node_is_stopped_in_order_and_started_again(tmp_path: Path) -> None:
    async with ready_cluster(tmp_path) as cluster, trio.open_nursery() as tasks:
        watch = Watch(cluster)
        tasks.start_soon(watch.run)
        load = Load(cluster)
        async with load.running():
            for _ in range(ROUNDS):
                for _ in cluster.nodes:
                    leader = (await cluster.leader()).id  # the one whose stop could be noticed
                    await load.wait_for(50)
                    assert await cluster.stop(leader)
                    await load.wait_for(50)
                    cluster.start(leader)
                    await cluster.wait_ready()
                    await cluster.wait_caught_up()
        tasks.cancel_scope.cancel()
        assert load.unknown == 0
        assert watch.looks > 100
        assert watch.without_master == []
        await check_nothing_lost(cluster, load)
        await check_identical(cluster)
