"""Nodes that come back with less than they had acknowledged, where members have come and gone (raft/recovery.py)."""

from __future__ import annotations

from random import Random

import pytest

from broker.peers.protocol import Frame, RaftFrame
from broker.replica.inner_limits import InnerLimits
from broker.replica.members_file import MembersFile
from broker.replica.recovering_file import RecoveringFile, RunFacts
from raft import Role
from raft.messages import AppendRequest
from raft.recovery_loss import Loss
from simulation.machines.simulated_disk import SimulatedDisk
from tests.broker.group_changes import add, change, done, promote
from tests.broker.harness import Group
from tests.broker.replica.test_recovering_file import damage_an_entry, sent


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    group.connect().create_topic("T", queues=1)
    return group


def damage_the_beginning(group: Group, node: str) -> None:
    """The log of a node that is down is given up nearly as a whole."""
    log = group.node(group.leader if group.leader != node else group.follower).replica.store.log
    damage_an_entry(group.members[node].disk, node, log.position_of(1) + 60)


@pytest.mark.parametrize("starts_twice", [False, True])
def test_a_new_disk_does_not_lead_alone_while_its_log_is_that_of_a_group_of_one(
    group: Group, starts_twice: bool
) -> None:
    first, *others = sorted(group.members, key=lambda node: node != group.leader)
    client = group.connect(first)
    for node in others:
        done(change(client, "remove", node))
    for node in others:
        add(client, node)
        sent(group, 10)
        promote(client, node)
    group.converge()
    group.limits = InnerLimits(append_bytes_max=1)  # one entry in each
    for node in others:
        group.kill(node)
        group.start(node)
    group.kill(first)
    leader = group.elect()
    known = group.node(leader).replica.raft.configurations
    alone = next(index for index, members in known if members.voters == (first,))
    grown = next(index for index, members in known if index > alone and len(members.voters) == 2)
    group.replace_disk(first)

    def too_far(source: str, target: str, frame: Frame) -> bool:
        """The log up to where the first node was the only voter arrives, and nothing behind that."""
        message = frame.message if isinstance(frame, RaftFrame) else None
        if target != first or not isinstance(message, AppendRequest):
            return False
        return bool(message.spans) and message.last_index >= grown

    group.lose = too_far
    group.start(first)
    raft = group.node(first).replica.raft
    group.run_until(lambda: raft.configuration_index >= alone and raft.commit_index >= alone)
    assert raft.configuration.voters == (first,)
    group.partition(first)
    if starts_twice:
        group.kill(first)
        group.start(first)
        raft = group.node(first).replica.raft
    group.advance(10)
    assert raft.role is not Role.LEADER
    assert raft.recovering is Loss.VOTE
    group.lose = lambda source, target, frame: False
    group.heal()
    group.run_until(lambda: raft.recovering is None)
    group.converge()


def test_members_of_before_what_is_known_to_be_committed_need_not_agree(group: Group) -> None:
    """One was removed long ago and is gone; of the two that remain one has lost nearly all of its log."""
    client = group.connect(group.leader)
    victim, gone = (node for node in group.members if node != group.leader)
    done(change(client, "remove", gone))
    add(client, gone)
    promote(client, gone)
    sent(group, 5)
    group.converge()
    group.kill(gone)
    done(change(client, "remove", gone))
    sent(group, 5)
    group.advance(10)  # checkpoints have noted that
    group.kill(victim)
    damage_the_beginning(group, victim)
    group.advance(10)
    group.start(victim)
    raft = group.node(victim).replica.raft
    assert gone in raft.configuration.voters
    assert gone not in raft.lost_voters
    group.elect()
    group.run_until(lambda: raft.recovering is None)
    group.converge()


def test_who_has_recovered_forgets_with_whom_it_had_committed_what_it_lacked(group: Group) -> None:
    """Otherwise a node that is gone by then had to agree when all lose their power months later."""
    victim = group.follower
    client = group.connect(group.leader)
    group.join("n3")
    add(client, "n3")
    promote(client, "n3")
    group.converge()
    group.kill(victim)
    damage_the_beginning(group, victim)
    group.start(victim)
    raft = group.node(victim).replica.raft
    assert "n3" in raft.lost_voters
    group.run_until(lambda: raft.recovering is None)
    assert raft.lost_voters == ()
    done(change(client, "remove", "n3"))
    group.advance(10)
    group.kill("n3")
    remaining = [node for node in group.members if node != "n3"]
    power_fails(group, remaining)
    assert "n3" not in group.node(victim).replica.raft.lost_voters
    group.elect()


def power_fails(group: Group, nodes: list[str]) -> None:
    for node in nodes:
        group.kill(node)
    for node in nodes:
        RecoveringFile(group.members[node].disk, RunFacts("async", "one")).keep(Loss.ENTRIES)
        group.start(node)


@pytest.mark.parametrize("remaining", [2, 1])
def test_whoever_was_removed_need_not_agree_right_behind_that(group: Group, remaining: int) -> None:
    """No checkpoint has noted the removal as committed yet, and the one that is removed was gone."""
    first, *others = sorted(group.members, key=lambda node: node != group.leader)
    *before, gone = others
    if remaining == 1:
        done(change(group.connect(first), "remove", before[0]))
        group.advance(10)
        group.kill(before.pop())
    else:
        group.kill(gone)
        group.advance(1)
    done(change(group.connect(first), "remove", gone))
    group.advance(0.2)
    if remaining == 1:
        group.kill(gone)
    power_fails(group, [first, *before])
    assert all(gone not in group.node(node).replica.raft.lost_voters for node in (first, *before))
    group.run_until(lambda: any(group.node(node).replica.serving for node in (first, *before)))


def test_a_node_without_a_term_takes_the_members_of_its_settings_each_time() -> None:
    disk = SimulatedDisk(Random(1))
    before = {"n0": "a:1", "n1": "a:2", "n2": "a:3"}
    membership = MembersFile(disk, before)
    membership.save(membership.load(-1, -1, blank="n1"))
    now = MembersFile(disk, before | {"n3": "a:4"})
    [(index, configuration)] = now.load(-1, -1, blank="n1")
    assert (index, configuration.voters) == (-1, ("n0", "n1", "n2", "n3"))
    assert now.lost_voters == configuration.voters
    [(_, kept)] = MembersFile(disk, before | {"n3": "a:4"}).load(-1, -1)
    assert kept.voters == ("n0", "n1", "n2"), (
        "it has a term, in which it may have promised something to these"
    )


def test_a_node_that_joins_stays_none_of_the_first_members() -> None:
    """Its settings say no more that it joins, and it has heard of nobody yet."""
    disk = SimulatedDisk(Random(1))
    addresses = {"n0": "a:1", "n1": "a:2"}
    joining = MembersFile(disk, addresses, newcomer="n1")
    joining.save(joining.load(-1, -1, blank="n1"))
    [(_, configuration)] = MembersFile(disk, addresses).load(-1, -1, blank="n1")
    assert configuration.voters == ("n0",)
