"""Fixtures of the operations' tests: a cluster in memory, and a client for administration."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker.client.admin import AdminClient
from tests.broker.client.cluster import NAME_SERVER, Broker, Cluster
from tests.broker.client.conftest import runtime, world
from tests.broker.client.links import ClientRuntime, World

__all__ = ["admin", "leaders", "runtime", "world"]


@pytest.fixture
def leaders(world: World) -> list[Broker]:
    """The leaders of two broker groups, a of three nodes and b of one; both have the topic t, of two queues."""
    cluster = Cluster(world)
    found = [cluster.add_group("a", 3)[0], cluster.add_group("b")[0]]
    for broker in found:
        broker.create_topic("t", 2)
    return found


@pytest.fixture
async def admin(leaders: list[Broker], runtime: ClientRuntime) -> AsyncIterator[AdminClient]:
    async with AdminClient(NAME_SERVER, runtime=runtime) as client:
        yield client
