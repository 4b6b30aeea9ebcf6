"""Administration: what a member says that cannot be read, a group that a name server has forgotten."""

from __future__ import annotations

import pytest

from broker.client.admin import AdminClient
from broker.client.errors import NoRoute
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand, response
from tests.broker.client.cluster import NAME_SERVER, one_group
from tests.broker.client.links import ClientRuntime, Link, World


async def test_a_status_that_cannot_be_read_is_asked_of_the_next_member(
    world: World, runtime: ClientRuntime
) -> None:
    members = one_group(world, members=2)

    def unreadable(link: Link, command: RemotingCommand) -> RemotingCommand:
        return response(command, 0, body=b"{")

    for member in members:
        member.script(RequestCode.TRIVET_NODE_STATUS, unreadable)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        with pytest.raises(NoRoute, match="unreadable response"):
            await admin.members()
    assert all(member.received(RequestCode.TRIVET_NODE_STATUS) for member in members)


async def test_a_group_that_a_name_server_has_forgotten_has_no_addresses(
    world: World, runtime: ClientRuntime
) -> None:
    """Seed 90123: a name server that has just started knows no broker yet, which ended a backup with a KeyError."""
    leader, follower = one_group(world, members=2)
    async with AdminClient(NAME_SERVER, runtime=runtime) as admin:
        assert await admin.addresses("g") == [leader.address, follower.address]
        with pytest.raises(NoRoute, match="no such group is registered; there are: g"):
            await admin.addresses("h")
