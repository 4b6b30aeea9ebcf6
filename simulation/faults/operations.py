"""Faults by operators and late messages, for a group that is otherwise healthy."""

from __future__ import annotations

from typing import Final

from broker.replica.proposals import CallbackWaiter, ignore
from broker.requests.errors import ReplicaError
from broker.state.release import THIS_RELEASE, Release
from log.errors import DiskFullError
from raft.configuration import Change
from raft.errors import RaftError
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import Fault
from simulation.scheduler import SECOND

STEPS: Final = 4
"""The steps by which operators change the members while something lasts."""


def hand_over_leadership(stage: Stage) -> str | None:
    """The leader, if it runs, hands over to another voter. Returns to whom; None if nobody takes over."""
    leader = stage.members.leader()
    if leader is None or leader.process is None or leader.paused:
        return None
    process = leader.process
    process.begin()
    target = process.replica.group_changes.hand_over()
    process.wake()
    return target


def give_leadership_to(stage: Stage, target: BrokerHost) -> bool:
    """The leader, if it runs, hands over to that voter. Returns False if it will not."""
    leader = stage.members.leader()
    if leader is None or leader.process is None or leader.paused or leader is target:
        return False
    process = leader.process
    process.begin()
    try:
        process.replica.group_changes.transfer(target.name)
    except RaftError:
        return False
    process.wake()
    return True


def ask_for_change(stage: Stage, leader: BrokerHost, change: Change) -> bool:
    """Asks a node that believes to lead for a change of members. Returns False if it does not append the change now."""
    process = leader.process
    if process is None:
        return False
    is_taken = False

    def ask() -> None:
        nonlocal is_taken
        process.begin()
        try:
            process.replica.group_changes.change_members(change, None, CallbackWaiter(ignore, ignore))
        except (RaftError, ReplicaError, DiskFullError) as error:
            stage.journal.note(leader.name, f"refuses {change}: {error}")
            return
        process.wake()
        is_taken = True

    process.guarded(ask)()
    return is_taken


def change_members_by_steps(stage: Stage, lasts_ns: int) -> None:
    """Operators are to change the members step by step in that time."""

    def step() -> None:
        if not stage.is_calm():
            stage.wishes.member_changes += 1

    for number in range(STEPS):
        stage.scheduler.after(number * lasts_ns // STEPS, step)


def transfer(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Leadership moves, by the node itself or by an operator's request."""
    if fault.amount < 0.5:
        stage.wishes.transfers += 1  # counted by the operator who has got one
        return
    leader = stage.members.leader()
    target = hand_over_leadership(stage)
    if leader is not None and target is not None:
        stage.done(fault, leader.name, f"to {target}")


def membership(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Operators are to change the group's members by one step or two."""
    stage.wishes.member_changes += 1 if fault.amount < 0.6 else 2  # counted by the operator


def topics(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The administrator is to make or delete a topic."""
    stage.wishes.topic_changes += 1  # counted by the administrator who has made one


def rivals(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """All followers are called to stand for election, as by a transfer's message that comes late, or twice."""
    leader = stage.members.leader()
    if leader is None or leader.process is None:
        return
    term = leader.process.replica.raft.term
    called = []
    for other in stage.members.in_service():
        process = None if other is leader or other.paused else other.process
        if process is not None and process.frames.call_to_arms(leader.name, term):
            called.append(other.name)
    if called:
        stage.availability.disturbed()
        stage.done(fault, leader.name, f"{' '.join(called)} stand against it")


EARLIER_RELEASE: Final = Release("earlier", oldest_protocol=7, newest_protocol=7, newest_format=1)
"""The release before this one, as far as its nodes speak, read and write otherwise (broker/state/release.py)."""


def release(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A node starts again as the other release. Back to the earlier one only while no member has applied a raise of the
    format beyond what that one reads.
    """
    process = host.process
    if process is None or host.paused or process.is_stopping:
        return
    if host.release is THIS_RELEASE:
        nodes = [other.process.node for other in stage.members.machines if other.process is not None]
        # Nodes of the earlier release could not read what the group writes from then on, and their operator knows that.
        if any(node.replica.metadata.format > EARLIER_RELEASE.newest_format for node in nodes):
            return
        target = EARLIER_RELEASE
    else:
        target = THIS_RELEASE

    def ended() -> None:
        host.release, host.went_back = target, target is not THIS_RELEASE
        stage.done(fault, host.name, f"now {target.name}")
        host.start_after(min(fault.duration_ns, SECOND))

    def stopped() -> None:
        host.stopped_in_order()
        ended()

    if fault.amount < 0.5:
        host.kill()
        ended()
    else:
        process.stop_in_order(lambda: None, stopped)


def finish_upgrade(host: BrokerHost) -> None:
    """The operator brings a node that is still of the earlier release to this one."""
    if host.release is not THIS_RELEASE:
        host.release = THIS_RELEASE
        host.kill()
