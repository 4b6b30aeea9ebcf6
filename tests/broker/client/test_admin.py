"""Administration: what a member says that cannot be read."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from broker.client.admin import AdminClient
from broker.client.errors import NoRoute
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, response
from broker.remoting.route import BrokerData, ClusterInfo
from tests.broker.client.fake_cluster import NAME_SERVER, one_group
from tests.broker.client.links import ClientRuntime, Link, World


async def test_a_status_that_cannot_be_read_is_asked_of_the_next_member(
    autojump_clock: MockClock, world: World, runtime: ClientRuntime
) -> None:
    members = one_group(world, members=2)
    addresses = {number: member.address for number, member in enumerate(members)}
    group = BrokerData(broker_addresses=addresses, broker_name="g", cluster="c")

    def info(link: Link, command: RemotingCommand) -> RemotingCommand:
        return response(command, 0, body=ClusterInfo({"g": group}, {"c": ["g"]}).encode())

    def unreadable(link: Link, command: RemotingCommand) -> RemotingCommand:
        return response(command, 0, body=b"{")

    world.servers[NAME_SERVER].script(RequestCode.GET_BROKER_CLUSTER_INFO, info)
    for member in members:
        member.script(RequestCode.TRIVET_NODE_STATUS, unreadable)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        with pytest.raises(NoRoute, match="unreadable response"):
            await admin.members()
    assert all(member.received(RequestCode.TRIVET_NODE_STATUS) for member in members)
