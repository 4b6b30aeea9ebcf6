"""An operator of the group: moves leadership, adds, promotes and removes members, a step at a time when the plan says.

It believes nothing that the group does not say: the next step follows from the members that the leader names and from
what is committed, whatever became of the step before.
"""

import math

from broker.client.admin import AdminClient
from broker.client.errors import ClientError
from broker.client.transport.runtime import Runtime
from broker.remoting.node_status import NodeStatus
from broker.trace import TraceWriter
from simulation.randomness import Random
from simulation.workload.context import Context

_CATCHING_UP_S = 3.0
_ASKING = (
    *("transfer", "membership", "transfer in a change", "change without one", "at a moment"),
    *("change over a slow disk", "recovery that lasts", "unheard promotion"),
)
"""The kinds of faults in which operators have something to do."""


async def operate(context: Context, runtime: Runtime, writer: TraceWriter) -> None:
    """Does what `Wishes.transfers` and `Wishes.member_changes` ask for, in the first group."""
    random = runtime.random
    group_name = context.groups[0]
    async with AdminClient(context.name_servers, runtime=runtime) as admin:

        async def step(status: NodeStatus) -> None:
            try:
                await _next_step(context, random, admin, status)
            except ClientError as error:
                context.journal.note("operator", f"in vain: {error}")

        if context.wishes.expected.isdisjoint(_ASKING):
            await runtime.sleep(math.inf)  # nobody will ask
        while True:
            await runtime.sleep(0.2)
            for host in context.members.tell_new_disks():
                context.journal.note("operator", f"starts {host.name} again, with the present members")
            try:
                if context.wishes.transfers:
                    context.wishes.transfers -= 1
                    target = random.choice((await admin.members(group_name)).voters)
                    await admin.transfer_leadership(target, group_name)
                    context.journal.operated("transfer", target, "on request")
                elif context.wishes.member_changes:
                    # Two at once are as of two people who do not know of each other: the group must refuse one.
                    steps = min(2, context.wishes.member_changes)
                    context.wishes.member_changes -= steps
                    status = await admin.members(group_name)
                    async with runtime.task_group() as group:
                        for _ in range(steps):
                            group.start_soon(step, status)
            except ClientError as error:
                context.journal.note("operator", f"in vain: {error}")


async def _next_step(context: Context, random: Random, admin: AdminClient, status: NodeStatus) -> None:
    members, group_name = context.members, context.groups[0]
    known = (*status.voters, *status.learners)
    for host in members.in_service():
        # What a leader says may be of a change that is not committed: a machine that is taken away before that breaks
        # what Raft assumes.
        if host.name not in known and host.name not in members.committed:
            members.retire(host)
            context.journal.operated("membership", host.name, "is taken away")
    may_add = bool(members.idle()) and len(status.learners) < context.facts.most_learners
    absent = [host.name for host in members.idle() if host.name in known]
    if absent:
        # It was taken for one that would not join, and has joined after all.
        await admin.remove_member(absent[0], group_name)
        context.journal.operated("membership", absent[0], "removed, it is not there")
    elif status.learners and not (may_add and random.random() < 0.5):
        learner = status.learners[0] if len(status.learners) == 1 else random.choice(status.learners)
        if random.random() < 0.75:
            await admin.promote_member(learner, group_name, timeout_s=_CATCHING_UP_S)
            context.journal.operated("membership", learner, "promoted")
        else:
            await admin.remove_member(learner, group_name)
            context.journal.operated("membership", learner, "removed, a learner")
    elif len(status.voters) > context.facts.nodes or (
        len(status.voters) > context.facts.fewest_voters and random.random() < 0.5
    ):
        voter = random.choice(status.voters)
        await admin.remove_member(voter, group_name)
        context.journal.operated("membership", voter, "removed")
    elif may_add:
        host = random.choice(members.idle())
        members.start_newcomer(host)
        await admin.add_member(host.name, host.peer_address, group_name)
        context.journal.operated("membership", host.name, "added")
