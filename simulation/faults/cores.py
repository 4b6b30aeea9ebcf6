"""A core of the group is left alone, and the rest is broken for good: until all faults end, nothing is mended there.

The core is a majority of the voters, no larger than it must be. What a node outside does is said for each: it is gone,
nobody hears it, it hears nobody, it comes and goes, it is slow, or its disk is. None of these is worse towards one
member of the core than towards another, so that no leader can reach enough of it to stay and too little to commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulation.faults import disk_faults
from simulation.faults.healing import heal_everything
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import Fault
from simulation.randomness import Random, stream
from simulation.scheduler import MILLISECOND, SECOND

_COMES_AND_GOES_NS: Final = (300 * MILLISECOND, 3 * SECOND)
"""The time for which such a node is there, or is not: shorter than an election timeout, or longer."""
_AGAIN_NS: Final = 200 * MILLISECOND
"""A node is broken anew so often: an earlier fault that ends later would mend it."""
_SLOW_LINK_NS: Final = 400 * MILLISECOND
_SLOW_LINK_LOSS: Final = 0.3
_SLOW_FLUSH_NS: Final = SECOND
_LEADER_OUTSIDE: Final = 1
"""A bit of the fault's target: if set, the leader of the moment stays outside the core where that has enough others."""
_STEP: Final = 3
"""The distance of the kinds of two successive nodes outside in the list of kinds."""


def core(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Mends everything, leaves a majority of the voters alone from now on, and breaks all other nodes."""
    # Of its own, so that what the fault says fixes the core, whatever was drawn before.
    random = stream(f"core {fault.target} {fault.amount}")
    stage.wishes.withdraw()
    # Whatever was broken before may be in the core, or hit one of its members harder than another.
    heal_everything(stage)
    in_service = stage.members.in_service()
    voters = [one for one in in_service if one.name in stage.members.committed_voters]
    # A node that lost what it had promised is no help: its vote counts only together with those of all others.
    fit = [one for one in voters if one.process is not None and one.process.replica.raft.recovering is None]
    random.shuffle(fit)
    leader = stage.members.leader()
    if leader in fit and fault.target & _LEADER_OUTSIDE:
        fit.append(fit.pop(fit.index(leader)))
    chosen = [*fit, *(one for one in voters if one not in fit)][: len(voters) // 2 + 1]
    outside = [one for one in in_service if one not in chosen]
    kinds = []
    for number, one in enumerate(outside):
        name = KINDS[(int(fault.amount * len(KINDS)) + number * _STEP) % len(KINDS)]
        kinds.append(f"{one.name} {name}")
        _keep(stage, one, _BROKEN[name], random)
    names = " ".join(sorted(one.name for one in chosen))
    stage.done(fault, "group", f"{names} left alone, {', '.join(kinds) or 'nobody else'}")
    stage.availability.stands()


def _keep(
    stage: Stage, host: BrokerHost, breaks: Callable[[Stage, BrokerHost, Random], int], random: Random
) -> None:
    """Breaks a node, and looks again after the time that `breaks` returns, until all faults end."""

    def again() -> None:
        if not stage.is_calm():
            stage.scheduler.after(breaks(stage, host, random), again)

    again()


def _cut(stage: Stage, host: BrokerHost, *, hears: bool = False, is_heard: bool = False) -> None:
    """Cuts what comes to a node, or what it says, or both, from and to all brokers; the rest is whole."""
    for other in stage.members.machines:
        if other is not host:
            for source, target, is_open in (
                (host.name, other.name, is_heard),
                (other.name, host.name, hears),
            ):
                # Looked at anew each time: an earlier fault that ends takes one cut away, whosever it was.
                if bool(stage.network.link(source, target).cut) is is_open:
                    stage.network.set_cut(source, target, not is_open)


def _gone(stage: Stage, host: BrokerHost, random: Random) -> int:
    if not host.is_broken:
        host.is_broken = True
        host.kill()
    return _AGAIN_NS


def _isolated(stage: Stage, host: BrokerHost, random: Random) -> int:
    _cut(stage, host)
    return _AGAIN_NS


def _deaf(stage: Stage, host: BrokerHost, random: Random) -> int:
    _cut(stage, host, is_heard=True)
    return _AGAIN_NS


def _mute(stage: Stage, host: BrokerHost, random: Random) -> int:
    _cut(stage, host, hears=True)
    return _AGAIN_NS


def _flaps(stage: Stage, host: BrokerHost, random: Random) -> int:
    # The link to any other machine tells: all of them are cut alike.
    is_open = not stage.network.link(
        host.name, stage.members.machines[host is stage.members.machines[0]].name
    ).cut
    _cut(stage, host, hears=not is_open, is_heard=not is_open)
    return random.randrange(*_COMES_AND_GOES_NS)


def _restarts(stage: Stage, host: BrokerHost, random: Random) -> int:
    if host.process is None:
        host.start()
    else:
        host.kill()
    return random.randrange(*_COMES_AND_GOES_NS)


def _stands_still(stage: Stage, host: BrokerHost, random: Random) -> int:
    if host.paused:
        host.resume()
    else:
        host.pause()
    return random.randrange(*_COMES_AND_GOES_NS)


def _slow(stage: Stage, host: BrokerHost, random: Random) -> int:
    for other in stage.members.machines:
        for source, target in ((host.name, other.name), (other.name, host.name)):
            if other is not host:
                link = stage.network.link(source, target)
                link.delay_min_ns, link.delay_max_ns = _SLOW_LINK_NS // 4, _SLOW_LINK_NS
                link.loss = _SLOW_LINK_LOSS
    return _AGAIN_NS


def _slow_disk(stage: Stage, host: BrokerHost, random: Random) -> int:
    disk_faults.slow_down(host, _SLOW_FLUSH_NS)
    return _AGAIN_NS


def _full_disk(stage: Stage, host: BrokerHost, random: Random) -> int:
    host.disk.fill()
    host.disk_faulty = True
    return _AGAIN_NS


_BROKEN: Final[dict[str, Callable[[Stage, BrokerHost, Random], int]]] = {
    "gone": _gone,
    "isolated": _isolated,
    "deaf": _deaf,
    "mute": _mute,
    "comes and goes": _flaps,
    "starts again and again": _restarts,
    "stands still again and again": _stands_still,
    "with slow links": _slow,
    "with a slow disk": _slow_disk,
    "with a full disk": _full_disk,
}
KINDS: Final = tuple(_BROKEN)
"""A fault's amount says, by tenths, which of these the first node outside is; others follow from it."""
