"""Several faults in a certain order, of which chance makes one in thousands of runs.

Each is counted under its own name when it has begun; the faults in it are counted under theirs, too. What they still
have to do when the time of faults is over is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from log.entries.entry_reads import file_beginnings
from raft.configuration import RemoveMember
from simulation.faults import disk_faults, links, processes
from simulation.faults.moments import leads, votes_for_another, when_it_comes
from simulation.faults.operations import (
    ask_for_change,
    change_members_by_steps,
    give_leadership_to,
    hand_over_leadership,
    rivals,
)
from simulation.faults.stage import Stage
from simulation.faults.strikes import lose_words
from simulation.machines.broker_host import BrokerHost
from simulation.machines.frame_faults import FrameFaults
from simulation.plans.plan import Fault
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND

_PAUSED_NS_MIN: Final = 1200 * MILLISECOND
"""Long enough for the others to elect one of them, and to lose it again."""
_PARTED_NS_MIN: Final = 600 * MILLISECOND
_CALLED_NS: Final = (20 * MILLISECOND, 200 * MILLISECOND)
"""The bounds of the time from one call for an election to the next: less than a campaign's round to several rounds."""
_HEARD_LATE_NS: Final = 300 * MILLISECOND
_FORMER_LIFE_NS: Final = 400 * MILLISECOND
_BEHIND_A_VOTE_NS: Final = (0, 200 * MICROSECOND, MILLISECOND, 20 * MILLISECOND)
"""The times from a vote to the loss of its voter's disk: the vote is unsent then, on its way, or counted."""
_STEPPED_DOWN_NS: Final = 2500 * MILLISECOND
_STANDS_AGAIN: Final = 8
"""A bit of the target of *disk goes in an election*; set: when they meet the former leader stands again, else it still
leads."""
_VOTE_LATE_NS: Final = 6 * SECOND
_OUTLIVES_NS_MAX: Final = 2 * SECOND
"""The longest delay of a node's words: they may come when it has started again, if that is soon."""
_AWAY_NS_MIN: Final = 6 * SECOND
_WINNER_AWAY_NS: Final = 14 * SECOND
"""Longer than a core may be without a leader (judges/availability.py)."""
_LEADERLESS_NS: Final = 11 * SECOND
_LEFT_NS_MIN: Final = 2 * SECOND
_UNHEARD_NS: Final = 6 * SECOND
"""For how long a node is not heard at most."""
_RETURN_LOOK_NS: Final = 20 * MILLISECOND
_RETURN_LOOKS_MAX: Final = 200
_LOOKS_MAX: Final = 4000
_LOOK_NS: Final = MILLISECOND // 2
"""A change of members is looked for so often; its entry is uncommitted for a millisecond or two."""


def pause_and_others_die(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A process stands still while others are killed, one or each in turn; it goes on with what it believed."""
    if host.process is None or host.paused:
        return
    duration_ns = max(fault.duration_ns, _PAUSED_NS_MIN)
    others = [other for other in stage.members.in_service() if other is not host]
    victims = others if fault.amount < 0.5 else others[fault.target % max(len(others), 1) :][:1]
    host.pause()
    stage.done(fault, host.name, f"{duration_ns / SECOND:.1f} s, and {' '.join(one.name for one in victims)}")

    def kill(victim: BrokerHost) -> None:
        if not stage.is_calm():
            processes.kill(stage, victim, replace(fault, kind="kill", duration_ns=duration_ns // 4))

    for number, victim in enumerate(victims):
        stage.scheduler.after((number + 1) * duration_ns // (len(victims) + 2), kill, victim)
    stage.scheduler.after(duration_ns, host.resume)


def partition_and_power(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The leader is cut off from its peers, and while it is its machine goes dark; then all meet again."""
    leader = stage.members.leader()
    if leader is None:
        return
    lasts = replace(fault, duration_ns=max(fault.duration_ns, _PARTED_NS_MIN))
    others = [other.name for other in stage.members.machines if other is not leader]
    pairs = [pair for other in others for pair in ((leader.name, other), (other, leader.name))]
    stage.done(fault, leader.name)
    links.cut(stage, pairs, replace(lasts, kind="isolate"), leader.name, f"from {' '.join(others)}")

    def go_dark() -> None:
        if not stage.is_calm():
            processes.power(stage, leader, replace(lasts, kind="power", duration_ns=lasts.duration_ns // 4))

    stage.scheduler.after(int(lasts.duration_ns * fault.amount), go_dark)


def bit_rot_and_recovery(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A node that was down comes back, and while it lacks entries a bit flips on another one.

    Of three nodes one may lose data then: the others have lost nothing, and one of them only lacks what is new.
    """
    others = [other for other in stage.members.in_service() if other is not host]
    late = others[fault.target % len(others)] if others else host
    if late is host or late.process is None or not stage.others_are_whole(late):
        return
    late.kill()
    stage.done(fault, late.name, f"is down, then {host.name} is damaged")

    def come_back() -> None:
        late.start()
        if not stage.is_calm() and stage.members.may_lose_one() and stage.others_are_whole(host):
            disk_faults.harm(stage, host, replace(fault, kind="bit rot"), host.disk.medium.rot)

    stage.scheduler.after(max(fault.duration_ns, MILLISECOND), come_back)


def transfer_in_a_change(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Operators change the members, and leadership moves while the change is in the log and not yet committed."""
    stage.wishes.member_changes += 1
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        leader = stage.members.leader()
        if stage.is_calm() or looks > _LOOKS_MAX:
            return
        if leader is not None and leader.process is not None and not leader.paused:
            raft = leader.process.replica.raft
            if raft.configuration_index > raft.commit_index:
                target = hand_over_leadership(stage)
                if target is not None:
                    stage.done(fault, leader.name, f"to {target}, in entry {raft.configuration_index}")
                    return
        stage.scheduler.after(_LOOK_NS, look)

    look()


def overlapping_elections(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Elections are called before the last one is over, and what nodes say in one is heard in another."""
    if stage.members.leader() is None:
        return
    late = FrameFaults(
        reordering=0.3 + 0.5 * fault.amount,
        late_ns_max=_HEARD_LATE_NS,
        told=stage.counted_once("messages"),
    )
    shortest_ns, longest_ns = _CALLED_NS
    gap_ns = shortest_ns + fault.target * MILLISECOND % (longest_ns - shortest_ns)
    until_ns = stage.scheduler.now_ns + max(fault.duration_ns, _PAUSED_NS_MIN)
    for one in stage.members.machines:
        one.frame_faults.append(late)
    stage.done(fault, "group", f"every {gap_ns / MILLISECOND:.0f} ms")

    def call() -> None:
        if stage.is_calm() or stage.scheduler.now_ns >= until_ns:
            for one in stage.members.machines:
                one.end_frame_faults(late)
            return
        # Often sooner than the last election is over: what is late of that one is heard in the next.
        rivals(stage, host, replace(fault, kind="rivals"))
        stage.scheduler.after(gap_ns, call)

    call()


def leadership_returns(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A leader is deposed with its work half done, in half of the cases while it hands over, and leads again."""
    former = stage.members.leader()
    if former is None:
        return
    if fault.amount < 0.5:
        hand_over_leadership(stage)
    stage.done(fault, former.name)
    links.depose(stage, former, replace(fault, kind="depose", amount=0.5 + fault.amount / 2))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if not stage.is_calm() and looks < _RETURN_LOOKS_MAX and stage.members.leader() is not former:
            give_leadership_to(stage, former)
            stage.scheduler.after(_RETURN_LOOK_NS, look)

    stage.scheduler.after(max(fault.duration_ns, _PAUSED_NS_MIN), look)


def words_outlive_their_node(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A node's words come late, while it is killed, or its machine loses power, and soon starts again."""
    if host.process is None or host.paused:
        return
    late = FrameFaults(
        reordering=0.9,
        source=host.name,
        late_ns_max=_OUTLIVES_NS_MAX,
        told=stage.counted_once("messages"),
    )
    others = [other for other in stage.members.machines if other is not host]
    for other in others:
        other.frame_faults.append(late)
    stage.done(fault, host.name)

    def end() -> None:
        for other in others:
            other.end_frame_faults(late)
        if not stage.is_calm():
            soon = replace(fault, kind="power", duration_ns=int(fault.amount * _FORMER_LIFE_NS))
            processes.power(stage, host, soon)
            processes.kill(stage, host, replace(soon, kind="kill"))  # where power may not fail

    stage.scheduler.after(_FORMER_LIFE_NS, end)


def change_without_one(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Operators change the members step by step while one of the voters is down."""
    if host.process is None or host.name not in stage.members.committed_voters:
        return
    away_ns = max(fault.duration_ns, _AWAY_NS_MIN)
    stage.done(fault, host.name)
    processes.kill(stage, host, replace(fault, kind="kill", duration_ns=away_ns))
    change_members_by_steps(stage, away_ns)


def left_behind(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A leader is deposed, and before they meet again the others delete the heads of their logs: it needs a snapshot.

    What it has appended alone lies where the others' logs may begin by then.
    """
    former = stage.members.leader()
    if former is None:
        return
    lasts = replace(fault, duration_ns=max(fault.duration_ns, _LEFT_NS_MIN))
    stage.done(fault, former.name)
    links.depose(stage, former, replace(lasts, kind="depose", amount=0.5 + fault.amount / 2))

    def delete() -> None:
        if not stage.is_calm():
            alone = replace(lasts, kind="retention", amount=0.9, duration_ns=lasts.duration_ns // 2)
            for other in stage.members.in_service():
                if other is not former:
                    disk_faults.retention(stage, other, alone)

    stage.scheduler.after(lasts.duration_ns // 2, delete)


def elected_in_vain(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A leader is deposed, and who is elected in its place ends before any of its words is heard: it is killed, or
    stands still for long, so that no connection tells of it, and nothing else happens meanwhile.

    Those who are left have given their votes away, or have more in their logs than those who have.
    """
    former = stage.members.leader()
    hosts = stage.members.in_service()
    if former is None or any(one.process is None or one.paused for one in hosts):
        return  # of three none can be spared beside the one that is struck
    # For nothing, where the others have too little time in which they owe a leader.
    stands_still = fault.amount >= 0.5 and stage.scheduler.now_ns + _LEADERLESS_NS < stage.calm_ns
    depose = replace(fault, kind="depose", amount=0.5 + fault.amount / 2)
    stage.done(fault, former.name)
    links.depose(stage, former, replace(depose, duration_ns=0) if stands_still else depose)

    def strike(winner: BrokerHost, _: str) -> None:
        for peer in stage.members.machines:
            lose_words(stage, peer, winner, fault)
        if stands_still:
            processes.pause(stage, winner, replace(fault, kind="pause", duration_ns=_WINNER_AWAY_NS))
            stage.keep_quiet(_WINNER_AWAY_NS)
        else:
            processes.kill(stage, winner, replace(fault, kind="kill"))

    when_it_comes(stage, [one for one in hosts if one is not former], leads, 0, strike)


def disk_goes_in_an_election(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A leader is deposed, and a voter loses its disk right behind the vote that it gives in the election. The
    candidate may hear of the vote seconds later; meanwhile the deposed leader meets the voter, and neither of them the
    candidate.

    All others must be whole: of what the voter has promised they have to know enough.
    """
    former = stage.members.leader()
    if former is None or former.process is None or not stage.members.may_lose_one():
        return
    term = former.process.replica.raft.term
    stage.done(fault, former.name)
    parted_ns = _STEPPED_DOWN_NS if fault.target & _STANDS_AGAIN else 0
    depose = replace(fault, kind="depose", amount=0.5 + fault.amount / 2, duration_ns=parted_ns)
    links.depose(stage, former, depose)
    others = [one for one in stage.members.in_service() if one is not former]
    delay_ns = _BEHIND_A_VOTE_NS[fault.target % len(_BEHIND_A_VOTE_NS)]

    def strike(voter: BrokerHost, name: str) -> None:
        candidate = next((one for one in others if one.name == name), None)
        if candidate is None or voter.process is None or not stage.others_are_whole(voter):
            return
        late = FrameFaults(
            reordering=0.9,
            source=voter.name,
            late_ns_max=_VOTE_LATE_NS,
            told=stage.counted_once("messages"),
        )
        candidate.frame_faults.append(late)
        stage.scheduler.after(_VOTE_LATE_NS, candidate.end_frame_faults, late)
        links.sever(stage, [(former.name, candidate.name)], _VOTE_LATE_NS)
        gone = replace(fault, kind="new disk", duration_ns=fault.duration_ns % _FORMER_LIFE_NS)
        stage.scheduler.after(delay_ns, go, voter, candidate, gone)

    def go(voter: BrokerHost, candidate: BrokerHost, gone: Fault) -> None:
        if not stage.is_calm() and voter.process is not None and stage.others_are_whole(voter):
            links.sever(stage, [(voter.name, candidate.name)], _VOTE_LATE_NS)
            processes.exchange_disk(stage, voter, gone)

    when_it_comes(stage, others, lambda one: votes_for_another(one, term), 0, strike)


def more_than_is_known(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A follower hears its leader and is not heard, until that has written a snapshot, behind which it may delete more
    than it has heard of; then the follower is killed.

    It starts again when so much is deleted. So it is to have a snapshot, and may have more in its log than that stands
    for, without knowing that it is committed.
    """
    leader = stage.members.leader()
    hosts = stage.members.in_service()
    something_is_wrong = any(one.process is None or one.frame_faults for one in hosts)
    if leader is None or leader.process is None or something_is_wrong:
        return
    # The others must go on without it: with a second fault beside this one nothing might be committed, and no snapshot
    # written.
    others = [one for one in hosts if one is not leader]
    unheard = others[fault.target % len(others)]
    process, store = unheard.process, leader.process.replica.store
    lost = FrameFaults(loss=1.0, source=unheard.name, told=stage.counted_once("messages"))
    pressure = replace(fault, kind="retention", amount=0.9, duration_ns=_UNHEARD_NS + _AWAY_NS_MIN)
    for one in hosts:
        if one is not unheard:
            one.frame_faults.append(lost)
            disk_faults.retention(stage, one, pressure)
    stage.done(fault, unheard.name, f"hears {leader.name} and is not heard")
    heard_of = store.log.last_index
    until_ns = stage.scheduler.now_ns + _UNHEARD_NS

    def covers_more() -> bool:
        """True if the snapshot covers a whole file of which nothing was heard of the follower."""
        begins = [index for _, index in file_beginnings(store.log)]
        return any(heard_of < index <= store.snapshot.applied_index for index in begins)

    def wait_for_snapshot() -> None:
        is_over = unheard.process is not process or stage.is_calm() or stage.scheduler.now_ns > until_ns
        if not is_over and not covers_more():
            stage.scheduler.after(_RETURN_LOOK_NS, wait_for_snapshot)
            return
        for one in hosts:
            one.end_frame_faults(lost)
        if not stage.is_calm() and unheard.process is process:
            processes.kill(stage, unheard, replace(fault, kind="kill", duration_ns=_AWAY_NS_MIN))
            wait_for_head()

    def wait_for_head() -> None:
        # Started earlier it would be sent the entries that the leader still has, and would need no snapshot.
        if unheard.process is None and store.log.first_index <= heard_of + 1:
            stage.scheduler.after(_RETURN_LOOK_NS, wait_for_head)
        else:
            unheard.start()

    wait_for_snapshot()


def change_that_is_lost(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A leader is deposed, and takes an operator's change before it knows: its entry goes when they meet again."""
    leader = stage.members.leader()
    if leader is None or leader.process is None or leader.paused:
        return
    voters = stage.members.committed_voters
    others = [voter for voter in voters if voter != leader.name]
    if not stage.members.may_lose_one() or len(others) == len(voters):
        return
    leaves = others[fault.target % len(others)]
    links.depose(stage, leader, replace(fault, kind="depose", amount=0.5 + fault.amount / 2))

    # Right behind the cut it still believes that it leads: it appends the change, and can commit it no more.
    if ask_for_change(stage, leader, RemoveMember(leaves)):
        stage.done(fault, leader.name, f"and is to remove {leaves}")


def words_outlive_their_term(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A follower's words come late, while leadership goes to another one and returns."""
    former = stage.members.leader()
    voters = [one for one in stage.members.in_service() if one.name in stage.members.committed_voters]
    others = [one for one in voters if one is not former]
    if former is None or len(others) < 2:
        return
    slow, heir = (others[(fault.target + number) % len(others)] for number in (0, 1))
    late = FrameFaults(
        reordering=0.6,
        source=slow.name,
        late_ns_max=_OUTLIVES_NS_MAX,
        told=stage.counted_once("messages"),
    )
    for one in stage.members.machines:
        one.frame_faults.append(late)
    stage.done(fault, slow.name, f"while {heir.name} leads in the place of {former.name}")
    stage.availability.disturbed()
    looks = 0
    has_gone = False

    def look() -> None:
        nonlocal looks, has_gone
        looks += 1
        leader = stage.members.leader()
        has_gone = has_gone or leader is heir
        if stage.is_calm() or looks > _RETURN_LOOKS_MAX or (has_gone and leader is former):
            for one in stage.members.machines:
                one.end_frame_faults(late)
            return
        # An order may come to nothing, as when the heir is behind: it is given at each look until it is carried out.
        give_leadership_to(stage, former if has_gone else heir)
        stage.scheduler.after(_RETURN_LOOK_NS, look)

    look()
