"""What operators and late messages do to a group that is otherwise healthy."""

from __future__ import annotations

from broker.replica.operator_requests import hand_over
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import Fault


def hand_over_leadership(stage: Stage) -> str | None:
    """The leader, if it runs, hands over to another voter. Returns to whom; None if nobody takes over."""
    leader = stage.members.leader()
    if leader is None or leader.process is None or leader.paused:
        return None
    process = leader.process
    process.begin()
    target = hand_over(process.node.replica)
    process.wake()
    return target


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
    term = leader.process.node.replica.raft.term
    called = []
    for other in stage.members.in_service():
        process = None if other is leader or other.paused else other.process
        if process is not None and process.frames.call_to_arms(leader.name, term):
            called.append(other.name)
    if called:
        stage.done(fault, leader.name, f"{' '.join(called)} stand against it")
