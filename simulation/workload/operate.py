"""An operator of the group: moves leadership, adds, promotes and removes members, a step at a time when the plan says.

It believes nothing that the group does not say: the next step follows from the members that the leader names and from
what is committed, whatever became of the step before.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.remoting.node_status import NodeStatus
from broker.trace import TraceWriter
from simulation.client_runtime import ClientRuntime

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["operate"]

_CATCHING_UP_S = 3.0


async def operate(world: World, runtime: ClientRuntime, writer: TraceWriter) -> None:
    """Does what `World.transfers_wanted` and `World.member_changes_wanted` ask for."""
    random = runtime.random
    async with AdminClient(world.name_server_addresses, runtime=runtime) as admin:

        async def step(status: NodeStatus) -> None:
            try:
                await _next_step(world, random, admin, status)
            except ClientError as error:
                world.note("operator", f"in vain: {error}")

        if not any(fault.kind in ("transfer", "membership") for fault in world.plan.faults):
            await runtime.sleep(math.inf)  # nobody will ask
        while True:
            await runtime.sleep(0.2)
            try:
                if world.transfers_wanted:
                    world.transfers_wanted -= 1
                    target = random.choice((await admin.members()).voters)
                    await admin.transfer_leadership(target)
                    world.operated("transfer", target, "on request")
                elif world.member_changes_wanted:
                    # Two at once are as of two people who do not know of each other: the group must refuse one.
                    steps = min(2, world.member_changes_wanted)
                    world.member_changes_wanted -= steps
                    status = await admin.members()
                    async with runtime.task_group() as group:
                        for _ in range(steps):
                            group.start_soon(step, status)
            except ClientError as error:
                world.note("operator", f"in vain: {error}")


async def _next_step(world: World, random: Random, admin: AdminClient, status: NodeStatus) -> None:
    members = world.members
    known = (*status.voters, *status.learners)
    for host in members.in_service():
        if host.name not in known and host.name not in members.committed:
            members.retire(host)
            world.operated("membership", host.name, "is taken away")
    absent = [host.name for host in members.idle() if host.name in known]
    if absent:
        # It was taken for one that would not join, and has joined after all.
        await admin.remove_member(absent[0])
        world.operated("membership", absent[0], "removed, it is not there")
    elif status.learners:
        learner = status.learners[0]
        if random.random() < 0.75:
            await admin.promote_member(learner, timeout_s=_CATCHING_UP_S)
            world.operated("membership", learner, "promoted")
        else:
            await admin.remove_member(learner)
            world.operated("membership", learner, "removed, a learner")
    elif len(status.voters) > world.plan.nodes:
        voter = random.choice(status.voters)
        await admin.remove_member(voter)
        world.operated("membership", voter, "removed")
    elif members.idle():
        host = random.choice(members.idle())
        members.start_newcomer(host)
        await admin.add_member(host.name, host.peer_address)
        world.operated("membership", host.name, "added")
