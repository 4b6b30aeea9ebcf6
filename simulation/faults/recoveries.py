"""Disks that are replaced or slow where that is felt: while a vote counts, while members change, while a node recovers.

A node with a new disk has its promises back within milliseconds where nothing is in its way, and nobody asks it for
anything meanwhile. What the recovering mode is for (raft/recovery.py) shows where it lasts, or where somebody counts on
what the disk had.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from raft.configuration import PromoteLearner
from raft.progress import PeerState
from raft.recovery_loss import Loss
from simulation.faults import disk_faults, links, processes
from simulation.faults.moments import votes_for_another, when_it_comes
from simulation.faults.operations import (
    STEPS,
    ask_for_change,
    change_members_by_steps,
    hand_over_leadership,
)
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.machines.frame_faults import FrameFaults
from simulation.plans.plan import LEADER_BITS, Fault
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND

_LEADERS_DISK: Final = 2
"""A bit of the target of *change over a slow disk*; set: the leader's disk is the slow one."""
_LEADERSHIP_MOVES: Final = 2
"""A bit of the target of *recovery that lasts*; set: leadership moves as soon as the node knows its term."""
_LASTS_NS: Final = 6 * SECOND
_SLOW: Final = 0.67
"""The amount of *slow disk* from which on a flush takes a tenth of a second and more."""
_BEHIND_A_VOTE_NS: Final = (0, 100 * MICROSECOND, MILLISECOND)
_BACK_NS: Final = 30 * MILLISECOND
"""The candidate still waits for the votes of its term when the voter is back."""
_ON_ITS_WAY_NS: Final = 3 * MILLISECOND
_UNHEARD_NS: Final = 1500 * MILLISECOND
_AWAY_NS: Final = 4 * SECOND
_ASKED_AGAIN_NS: Final = SECOND
_COMMITTED_NS: Final = 8 * MILLISECOND
"""A change of members is committed by then, and not flushed yet with async flush."""


def change_over_a_slow_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Operators change the members step by step, and flushes of the leader take up to a second meanwhile; or those of
    the next node that has lost its votes, as a learner that joins has.
    """
    leader = stage.members.leader()
    if leader is None:
        return
    slow = replace(
        fault,
        kind="slow disk",
        amount=_SLOW + (1 - _SLOW) * fault.amount,
        duration_ns=max(fault.duration_ns, _LASTS_NS),
    )
    if fault.target & _LEADERS_DISK:
        stage.done(fault, leader.name)
        disk_faults.slow_disk(stage, leader, slow)
    else:
        stage.done(fault, "group", "over the disk of who has lost its votes")
        slow_down_who_recovers(stage, slow)
    change_members_by_steps(stage, slow.duration_ns)


def recovery_that_lasts(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A voter's disk is replaced by an empty one that is slow, and operators change the members while its node
    recovers; in half of the cases leadership moves as soon as that knows its term.
    """

    def strike() -> None:
        if host.name not in stage.members.committed_voters:
            return
        lasts_ns = max(fault.duration_ns, _LASTS_NS)
        slow = replace(
            fault, kind="slow disk", amount=_SLOW + (1 - _SLOW) * fault.amount, duration_ns=lasts_ns
        )
        stage.done(fault, host.name)
        if fault.target & _LEADERSHIP_MOVES:
            when_it_comes(stage, [host], _has_lost_its_votes, 0, lambda *_: hand_over_leadership(stage))
        processes.exchange_disk(
            stage, host, replace(fault, kind="new disk", duration_ns=fault.duration_ns % _BACK_NS)
        )
        disk_faults.slow_disk(stage, host, slow)
        change_members_by_steps(stage, lasts_ns)

    stage.when_others_are_whole(host, strike)


def forgotten_vote(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A follower is called to stand for election, and nobody hears it but one voter, who loses its disk right behind
    its vote, before that is heard. It is back while the candidate still waits for votes, and is asked again. In a
    larger group another voter ends then, too: of it nobody can say in which term it is.

    All others must be whole: of what the voter has promised they have to know enough.
    """
    leader = stage.members.leader()
    voters = [one for one in stage.members.in_service() if one.name in stage.members.committed_voters]
    others = [one for one in voters if one is not leader]
    if leader is None or leader.process is None or len(others) < 2 or leader not in voters:
        return
    first = fault.target >> LEADER_BITS
    voter, candidate = others[first % len(others)], others[(first + 1) % len(others)]
    if candidate.process is None or candidate.paused or not stage.others_are_whole(voter):
        return
    term = leader.process.replica.raft.term
    stage.done(fault, voter.name, f"is to vote for {candidate.name}")
    unheard = FrameFaults(loss=1.0, source=candidate.name, told=stage.counted_once("messages"))
    deaf = [one for one in stage.members.machines if one not in (voter, candidate)]
    lost = FrameFaults(loss=1.0, source=voter.name, told=stage.counted_once("messages"))
    for one in deaf:
        one.frame_faults.append(unheard)
        stage.scheduler.after(_UNHEARD_NS, one.end_frame_faults, unheard)
    candidate.frame_faults.append(lost)
    # Should nobody vote, that ends with the rest.
    stage.scheduler.after(_UNHEARD_NS, candidate.end_frame_faults, lost)

    def strike(*_: object) -> None:
        if voter.process is None or not stage.others_are_whole(voter):
            return
        away = [one for one in others if one not in (voter, candidate)]
        if len(voters) > 3 and away:
            processes.kill(stage, away[0], replace(fault, kind="kill", duration_ns=_AWAY_NS))
        # By then what was under way has come to nothing.
        back_ns = _ON_ITS_WAY_NS + fault.duration_ns % _BACK_NS
        processes.exchange_disk(stage, voter, replace(fault, kind="new disk", duration_ns=back_ns))
        stage.scheduler.after(back_ns, candidate.end_frame_faults, lost)
        when_it_comes(stage, [voter], _has_lost_its_votes, 0, reconnect)

    # A node that does not know its term hears no request for a vote: it is asked again on a new connection.
    def reconnect(*_: object) -> None:
        links.sever(stage, [(voter.name, candidate.name)], MILLISECOND)

    delay_ns = _BEHIND_A_VOTE_NS[first % len(_BEHIND_A_VOTE_NS)]
    when_it_comes(stage, [voter], lambda one: votes_for_another(one, term), delay_ns, strike)
    stage.availability.disturbed()
    candidate.process.frames.call_to_arms(leader.name, term)


def unheard_promotion(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """With two voters, the leader makes a voter of a learner, and the other voter does not hear of it. Then the leader
    loses power before it has flushed the change, and the new voter is killed. So no log of a node that runs has the
    change: only the leader knows, from its file of members (broker/replica/members_file.py), of the third voter.
    """
    if stage.flush != "async":
        return
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        if not is_over and not stage.is_calm() and asked <= STEPS:
            stage.wishes.member_changes += 1
            stage.scheduler.after(_ASKED_AGAIN_NS, ask)

    is_over = False

    def strike(leader: BrokerHost, name: str) -> None:
        nonlocal is_over
        is_over = True
        learner = next((one for one in stage.members.in_service() if one.name == name), None)
        others = [
            one
            for one in stage.members.in_service()
            if one is not leader and one.name in stage.members.committed_voters
        ]
        if learner is None or leader.process is None or not others or not stage.others_are_whole(leader):
            return
        (other,) = others
        lost = FrameFaults(loss=1.0, source=leader.name, told=stage.counted_once("messages"))
        other.frame_faults.append(lost)
        process = leader.process

        def go_dark() -> None:
            # Of two voters none can be spared: nobody leads while a learner alone has the newest entries and a voter
            # recovers (raft/recovery.py, What is claimed).
            is_voter = name in stage.members.committed_voters
            if is_voter and not stage.is_calm() and leader.process is process:
                stage.done(fault, leader.name, f"{name} is a voter, of which {other.name} has not heard")
                soon = replace(fault, kind="power", duration_ns=fault.duration_ns % _BACK_NS)
                processes.power(stage, leader, soon)
                processes.kill(stage, learner, replace(fault, kind="kill", duration_ns=_AWAY_NS))
            other.end_frame_faults(lost)

        ask_for_change(stage, leader, PromoteLearner(name))
        stage.scheduler.after(_COMMITTED_NS, go_dark)

    when_it_comes(stage, stage.members.machines, _learner_of_two_voters, 0, strike)
    ask()


def _learner_of_two_voters(host: BrokerHost) -> str | None:
    assert host.process is not None, "it has a turn"
    replica = host.process.replica
    raft = replica.raft
    voters, learners = raft.configuration.voters, raft.configuration.learners
    if not replica.serving or len(voters) != 2 or host.name not in voters or not learners:
        return None
    peer = raft.peers.get(learners[0])
    is_ready = peer is not None and peer.state is PeerState.REPLICATE and not peer.recovering
    return learners[0] if is_ready and raft.configuration_index <= raft.commit_index else None


def slow_down_who_recovers(stage: Stage, slow: Fault) -> None:
    """The disk of the next node that has lost its votes, and knows its term, is slow."""
    when_it_comes(
        stage,
        stage.members.machines,
        _has_lost_its_votes,
        0,
        lambda one, _: disk_faults.slow_disk(stage, one, slow),
    )


def _has_lost_its_votes(host: BrokerHost) -> str | None:
    assert host.process is not None, "it has a turn"
    raft = host.process.replica.raft
    return None if raft.recovering is not Loss.VOTE else raft.leader or ""
