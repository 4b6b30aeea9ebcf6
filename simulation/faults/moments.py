"""A fault that strikes while something is under way that is over in a moment.

Drawn times meet what lasts: that a node is down, that a disk is slow. What lasts for milliseconds (a hand-over, a batch
half in the log, a snapshot on its way, a vote) is met by one fault in thousands, and which fault it is decides what
goes wrong. So this one brings the moment about, waits until a node's turn has come to it, and does something then to
this node or to the one that it deals with. Which moment and which strike is drawn, each with each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from broker.replica.replica import Replica
from raft.effects import Role
from raft.progress import PeerState
from simulation.faults import disk_faults, links, processes
from simulation.faults.operations import hand_over_leadership
from simulation.faults.stage import Stage
from simulation.faults.strikes import STRIKES
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import LEADER_BITS, Fault
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND

_PATIENCE_NS: Final = 8 * SECOND
"""The time for which a moment is waited for."""
_BEHIND_NS: Final = (0, 100 * MICROSECOND, MILLISECOND)
"""The times behind the moment at which a fault strikes: before anybody hears of it, on its way, behind it."""
_AWAY_NS: Final = 5500 * MILLISECOND
"""A node that is to need a snapshot is down so long: retention looks every second. It first makes one of its own, then
the group agrees on what goes, and that goes at the next look, a few files each time."""

_AT_WORK_NS: Final = 4 * SECOND
"""Longer than a deposed leader is cut off from the others."""

ANYBODY: Final = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A state of a node that is over within milliseconds: how it is brought about, and how one sees it."""

    brought_about: Callable[[Stage, Fault], object]
    """Brings it about."""
    with_whom: Callable[[BrokerHost], str | None]
    """Asked of a running node: None while the moment has not come there; else the node that it deals with, or
    `ANYBODY`."""


# ---- moments ----------------------------------------------------------------------------------------


def _nothing(stage: Stage, fault: Fault) -> None:
    """The load brings it about."""


def _hand_over(stage: Stage, fault: Fault) -> None:
    hand_over_leadership(stage)


def _call_one(stage: Stage, fault: Fault) -> None:
    """One of the followers is called to stand for election."""
    leader, follower = _leader_and_another(stage, fault)
    if leader is not None and follower is not None and follower.process is not None:
        assert leader.process is not None, "it serves"
        stage.availability.disturbed()
        follower.process.frames.call_to_arms(leader.name, leader.process.replica.raft.term)


def _change_members(stage: Stage, fault: Fault) -> None:
    stage.wishes.member_changes += 1


def _leave_behind(stage: Stage, fault: Fault) -> None:
    """A follower is down until the others have deleted the heads of their logs."""
    leader, follower = _leader_and_another(stage, fault)
    if leader is None or follower is None or follower.process is None:
        return
    processes.kill(stage, follower, replace(fault, kind="kill", duration_ns=_AWAY_NS))
    # From a half on the fault is of one machine.
    alone = replace(fault, kind="retention", amount=0.9, duration_ns=2 * SECOND)
    for other in stage.members.in_service():
        if other is not follower:
            disk_faults.retention(stage, other, alone)


def _leave_behind_at_work(stage: Stage, fault: Fault) -> None:
    """All machines have other work when it comes back, so that the snapshot that it needs is written, and read, for up
    to some seconds.
    """
    _leave_behind(stage, fault)
    work = replace(fault, kind="other work", duration_ns=_PATIENCE_NS, amount=0.6 + 0.4 * fault.amount)
    for host in stage.members.in_service():
        processes.other_work(stage, host, work)


def _lose_power(stage: Stage, fault: Fault) -> None:
    """A follower comes back with less than it had, or with nothing."""
    leader, follower = _leader_and_another(stage, fault)
    if leader is None or follower is None:
        return
    soon = replace(fault, duration_ns=fault.duration_ns % SECOND)
    if stage.flush == "async":
        processes.power(stage, follower, replace(soon, kind="power"))
    else:
        processes.new_disk(stage, follower, replace(soon, kind="new disk"))


def _depose(stage: Stage, fault: Fault) -> None:
    leader = stage.members.leader()
    if leader is not None:
        # From a half on nobody hands over once more while they are parted.
        links.depose(stage, leader, replace(fault, kind="depose", amount=0.5 + fault.amount / 2))


def _cut_off_at_work(stage: Stage, fault: Fault) -> None:
    """The leader is deposed together with all clients: what it appends alone goes when it meets the others again. These
    are to have less by then, so that clients come to them later.
    """
    leader = stage.members.leader()
    if leader is not None:
        peers = [other.name for other in stage.members.machines if other is not leader]
        links.depose(stage, leader, replace(fault, kind="depose", target=0, amount=0.5 + fault.amount / 2))
        links.sever(stage, [(client.name, peer) for client in stage.clients for peer in peers], _AT_WORK_NS)


def _leader_and_another(stage: Stage, fault: Fault) -> tuple[BrokerHost | None, BrokerHost | None]:
    leader = stage.members.leader()
    others = [host for host in stage.members.in_service() if host is not leader and host.process is not None]
    return leader, others[fault.target % len(others)] if others else None


def _replica(host: BrokerHost) -> Replica:
    assert host.process is not None, "it has a turn"
    return host.process.replica


def leads(host: BrokerHost) -> str | None:
    """A moment that begins with an election, and lasts as long as the leadership."""
    return ANYBODY if _replica(host).raft.role is Role.LEADER else None


def votes_for_another(host: BrokerHost, behind_term: int) -> str | None:
    """A moment that begins with a vote for another node, in a later term than that, and lasts until the term has a
    leader.
    """
    raft = _replica(host).raft
    if raft.term <= behind_term or raft.leader is not None or raft.vote == host.name:
        return None
    return raft.vote


def _while_leading(with_whom: Callable[[BrokerHost], str | None]) -> Callable[[BrokerHost], str | None]:
    def led(host: BrokerHost) -> str | None:
        return None if leads(host) is None else with_whom(host)

    return led


def _heir(host: BrokerHost) -> str | None:
    return _replica(host).raft.transferee


def _who_needs_a_snapshot(host: BrokerHost) -> str | None:
    peers = _replica(host).raft.peers.values()
    return next((peer.node for peer in peers if peer.state is PeerState.SNAPSHOT), None)


def _who_was_sent_a_snapshot(host: BrokerHost) -> str | None:
    """A peer that has not answered yet."""
    peers = _replica(host).raft.peers.values()
    return next((peer.node for peer in peers if peer.snapshot_deadline is not None), None)


def _whose_snapshot_comes(host: BrokerHost) -> str | None:
    """The node whose snapshot is being read here, or is on its way to the disk."""
    replica = _replica(host)
    source = replica.from_peers.snapshots.source
    if source is not None:
        return source
    return replica.raft.leader or ANYBODY if replica.upkeep.takes_snapshot else None


def _batch(host: BrokerHost) -> str | None:
    """A batch of which a part is in the log."""
    under_way = _replica(host).leadership.batches.under_way
    return None if under_way is None or under_way.waiter is None else ANYBODY


def _change(host: BrokerHost) -> str | None:
    raft = _replica(host).raft
    return ANYBODY if raft.configuration_index > raft.commit_index else None


def _new_leader(host: BrokerHost) -> str | None:
    return None if _replica(host).serving else ANYBODY


def _read(host: BrokerHost) -> str | None:
    return ANYBODY if _replica(host).leadership.reads.confirming else None


def _candidacy(host: BrokerHost) -> str | None:
    return ANYBODY if _replica(host).raft.role is Role.CANDIDATE else None


def _recovery(host: BrokerHost) -> str | None:
    raft = _replica(host).raft
    return None if raft.recovering is None else raft.leader or ANYBODY


def _truncated(host: BrokerHost) -> str | None:
    """A log that has been truncated, and has not become as long again."""
    assert host.process is not None, "it has a turn"
    replica = _replica(host)
    is_shorter = replica.store.log.last_index < host.process.last_index_max
    return (replica.raft.leader or ANYBODY) if is_shorter else None


def _held_requests(host: BrokerHost) -> str | None:
    assert host.process is not None, "it has a turn"
    return ANYBODY if host.process.node.held_count else None


MOMENTS: Final = {
    "a hand-over": Moment(_hand_over, _while_leading(_heir)),
    "a candidacy": Moment(_call_one, _candidacy),
    "a snapshot on its way": Moment(_leave_behind, _while_leading(_who_needs_a_snapshot)),
    "a long snapshot on its way": Moment(_leave_behind_at_work, _while_leading(_who_needs_a_snapshot)),
    "a snapshot that was sent": Moment(_leave_behind, _while_leading(_who_was_sent_a_snapshot)),
    "a snapshot that comes": Moment(_leave_behind_at_work, _whose_snapshot_comes),
    "a batch half in the log": Moment(_nothing, _while_leading(_batch)),
    "a change of members": Moment(_change_members, _while_leading(_change)),
    "a leader that does not serve yet": Moment(_hand_over, _while_leading(_new_leader)),
    "a read to be confirmed": Moment(_nothing, _while_leading(_read)),
    "a node that recovers": Moment(_lose_power, _recovery),
    "requests without a leader": Moment(_depose, _held_requests),
    "a log that is truncated": Moment(_cut_off_at_work, _truncated),
}


# ---- the fault ---------------------------------------------------------------------------------------


def at_a_moment(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Brings a moment about, and strikes when it has come; the target says which moment, the amount which strike."""
    number, names = fault.target >> LEADER_BITS, tuple(MOMENTS)
    moment_name = names[number % len(names)]
    delay_ns = _BEHIND_NS[number // len(names) % len(_BEHIND_NS)]
    strike_name = tuple(STRIKES)[int(fault.amount * len(STRIKES))]
    moment = MOMENTS[moment_name]

    def strike(one: BrokerHost, name: str) -> None:
        others = [other for other in stage.members.in_service() if other is not one]
        other = next((other for other in others if other.name == name), None)
        if other is None:
            other = others[number % len(others)]
        stage.done(fault, one.name, f"{moment_name} with {other.name}: {strike_name}")
        STRIKES[strike_name](stage, one, other, fault)

    # Watched first: what is brought about may be over in the next turn.
    when_it_comes(stage, stage.members.machines, moment.with_whom, delay_ns, strike)
    moment.brought_about(stage, fault)


def when_it_comes(
    stage: Stage,
    watched: Sequence[BrokerHost],
    with_whom: Callable[[BrokerHost], str | None],
    delay_ns: int,
    strike: Callable[[BrokerHost, str], object],
) -> None:
    """Waits until a moment comes at one of the nodes watched (`with_whom` as in `Moment`), and calls `strike` once, so
    long behind that, with this node and the one that it deals with. If it does not come soon nothing is struck.
    """
    until_ns = stage.scheduler.now_ns + _PATIENCE_NS

    def end() -> None:
        for one in watched:
            if look in one.after_turn:
                one.after_turn.remove(look)

    def look(one: BrokerHost) -> None:
        if stage.is_calm() or stage.scheduler.now_ns > until_ns:
            end()
            return
        name = None if one.process is None else with_whom(one)
        if name is not None:
            end()
            stage.scheduler.after(delay_ns, strike_in_time, one, name)

    def strike_in_time(one: BrokerHost, name: str) -> None:
        if not stage.is_calm():
            strike(one, name)

    for one in watched:
        one.after_turn.append(look)
    # Machines that make no turn any more do not look either.
    stage.scheduler.after(_PATIENCE_NS, end)
