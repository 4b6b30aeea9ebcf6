"""Faults of the network: links that lose, delay, hold back or break."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from simulation.faults.operations import hand_over_leadership
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.machines.frame_faults import FrameFaults
from simulation.machines.network import DELAY_MAX_NS, DELAY_MIN_NS, Endpoint, Link
from simulation.plans.plan import Fault
from simulation.scheduler import MICROSECOND, MILLISECOND

_IN_THE_MIDDLE_NS: Final = 200 * MICROSECOND
"""The time in which a clogged link brings one or two parts of a message."""
_DEPOSED_NS: Final = 1500 * MILLISECOND
"""Longer than a leader without a majority goes on."""
_FAR_CLIENTS_NS: Final = 200 * MILLISECOND
_LATE_NS_MAX: Final = (30 * MILLISECOND, 300 * MILLISECOND, 3000 * MILLISECOND)
"""A third of the faults of messages each: what comes late comes in its round, after it, after several terms."""
_PEERS_SHARE: Final = 0.6
"""The share of faults of one direction that hit one between two brokers."""
_TOWARDS_HOST: Final = 1 << 8
"""A bit of a fault's target; set: the direction is towards the host, not from it."""
_LATE_BITS_FROM: Final = 9
"""The bits of a fault's target from this one on pick how late single messages come."""
_FAR_CLIENT: Final = 1 << 1
"""The bit of the first client in a fault's target, and one bit more for each further client; set: that client is on the
side of the peers when a leader is deposed."""


def _others(stage: Stage, name: str) -> list[str]:
    return [other for other in stage.host_names if other != name]


def _on_all_links(
    stage: Stage, host: BrokerHost, fault: Fault, done: Callable[[Link], None], undone: Callable[[Link], None]
) -> None:
    """Does something to each link from and to a host, until the last fault of its kind there has ended."""
    for other in _others(stage, host.name):
        for source, target in ((host.name, other), (other, host.name)):
            link = stage.network.link(source, target)
            done(link)
            stage.lasts(f"{source} {target}", fault.kind, fault.duration_ns, partial(undone, link))


def loss(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Segments on all links of a host are lost, and sent again."""
    probability = 0.3 * fault.amount

    def lose(link: Link) -> None:
        link.loss = probability

    def undo(link: Link) -> None:
        link.loss = 0.0

    _on_all_links(stage, host, fault, lose, undo)
    stage.armed(fault, host.name, f"{probability:.0%} of its segments")  # each lost one counts


def delay(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """All links of a host are slow."""
    slow_ns = int(MILLISECOND * 400**fault.amount)
    slowed = stage.counted_once(fault.kind)

    def slow(link: Link) -> None:
        link.delay_min_ns, link.delay_max_ns = slow_ns // 4, slow_ns
        link.slowed_by = slowed

    def undo(link: Link) -> None:
        link.delay_min_ns, link.delay_max_ns = DELAY_MIN_NS, DELAY_MAX_NS
        link.slowed_by = None

    _on_all_links(stage, host, fault, slow, undo)
    stage.armed(fault, host.name, f"up to {slow_ns / MILLISECOND:.0f} ms")


def cut(stage: Stage, pairs: list[tuple[str, str]], fault: Fault, host: str, detail: str) -> None:
    """Cuts the link of each pair of hosts for the fault's duration."""
    held_up = stage.counted_once(fault.kind)
    for source, target in pairs:
        stage.network.set_cut(source, target, True)
        stage.network.link(source, target).held_by.append(held_up)
    stage.armed(fault, host, detail)

    def undo() -> None:
        for source, target in pairs:
            _let_go(stage, source, target, held_up)
            stage.network.set_cut(source, target, False)

    stage.scheduler.after(fault.duration_ns, undo)


def _let_go(stage: Stage, source: str, target: str, held_up: Callable[[], None]) -> None:
    """Tells the link that this fault is over, unless healing has told it already."""
    held_by = stage.network.link(source, target).held_by
    if held_up in held_by:
        held_by.remove(held_up)


def _direction(stage: Stage, host: BrokerHost, fault: Fault) -> tuple[str, str]:
    """Picks a direction between a broker and, in three of five cases, another one, else a client or a name server."""
    peers = [other.name for other in stage.members.in_service() if other is not host]
    brokers = [other.name for other in stage.members.machines]
    outside = [name for name in stage.host_names if name not in brokers]
    share = fault.amount / _PEERS_SHARE
    if share < 1:
        other = peers[int(share * len(peers))]
    else:
        other = outside[int((fault.amount - _PEERS_SHARE) / (1 - _PEERS_SHARE) * len(outside))]
    return (other, host.name) if fault.target & _TOWARDS_HOST else (host.name, other)


def cut_one_way(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """One direction between a broker and another host delivers nothing."""
    source, target = _direction(stage, host, fault)
    cut(stage, [(source, target)], fault, source, f"towards {target}")


def isolate(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A broker is cut off from all others, in three tenths of the cases from clients and name servers, too."""
    others = [other.name for other in stage.members.machines if other is not host]
    if fault.amount < 0.3:
        others = _others(stage, host.name)  # from its clients and name servers too
    cut(
        stage,
        [pair for other in others for pair in ((host.name, other), (other, host.name))],
        fault,
        host.name,
        f"from {' '.join(others)}",
    )


def partition(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The hosts fall into two halves that do not reach each other."""
    side = fault.target
    left = [name for number, name in enumerate(stage.host_names) if side >> number & 1]
    right = [name for name in stage.host_names if name not in left]
    pairs = [pair for one in left for other in right for pair in ((one, other), (other, one))]
    if pairs:
        cut(stage, pairs, fault, "group", f"{' '.join(left)} | {' '.join(right)}")


def depose(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The leader and some clients on one side, its peers on the other, and every connection in between is reset.

    So the peers elect at once, while it believes for most of an election timeout that it leads, and is asked by clients
    that nobody told. The other clients are cut off a little later, when they hear of the new leader, and go on there.
    In half of all cases the others change their leader once more before they meet again.
    """
    leader = stage.members.leader()
    if leader is None:
        return
    peers = [broker.name for broker in stage.members.machines if broker is not leader]
    near = [
        client.name for number, client in enumerate(stage.clients) if not fault.target >> number & _FAR_CLIENT
    ]
    far = [client.name for client in stage.clients if client.name not in near]
    duration_ns = max(fault.duration_ns, _DEPOSED_NS)
    sever(stage, [(one, other) for one in [leader.name, *near] for other in peers], duration_ns)
    stage.scheduler.after(
        _FAR_CLIENTS_NS, sever, stage, [(leader.name, client) for client in far], duration_ns
    )
    stage.done(fault, leader.name, f"and with it {' '.join(near) or 'no client'}")
    if fault.amount < 0.5:
        stage.scheduler.after(duration_ns // 2, hand_over_leadership, stage)


def sever(stage: Stage, pairs: list[tuple[str, str]], duration_ns: int) -> None:
    """Resets all connections between the hosts of each pair, and lets none through for a while."""
    # Some call this later than the fault that they are part of, when all faults may have ended.
    if stage.is_calm():
        return
    both = dict.fromkeys((*pairs, *((other, one) for one, other in pairs)))
    for source, target in both:
        stage.network.set_cut(source, target, True)
    for endpoint in stage.network.endpoints():
        if (endpoint.host, endpoint.peer.host) in both and not endpoint.closed:
            endpoint.reset()

    def undo() -> None:
        for source, target in both:
            stage.network.set_cut(source, target, False)

    stage.scheduler.after(duration_ns, undo)


def link(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A connection between two brokers breaks; the one in the other direction goes on."""
    if host.process is None:
        return
    accepted = host.process.accepted_from_peers()
    if accepted:
        chosen = accepted[int(fault.amount * len(accepted))]
        chosen.reset()
        stage.done(fault, host.name, f"from {chosen.peer.host}")


def break_in_the_middle(stage: Stage, host: BrokerHost, other: BrokerHost, fault: Fault) -> None:
    """The first message from a host to another one that is longer than a clogged link takes at once gets there in part:
    then the connection breaks.
    """
    link = stage.network.link(host.name, other.name)
    is_over = is_undone = False

    def taken() -> None:
        nonlocal is_over
        if is_over:
            return
        for endpoint in stage.network.endpoints_of(host.name):
            if endpoint.link is link and endpoint.has_unsent:
                is_over = True
                stage.done(fault, host.name, f"to {other.name}, in the middle of a message")
                stage.scheduler.after(_IN_THE_MIDDLE_NS, break_now, endpoint)
                return

    def break_now(endpoint: Endpoint) -> None:
        endpoint.reset()
        undo()

    def undo() -> None:
        nonlocal is_undone
        if not is_undone:
            is_undone = True
            stage.network.set_clogged(host.name, other.name, False)
            if link.slowed_by is taken:
                link.slowed_by = None

    # A clogged link takes a window's worth and no more: what has not all gone is longer than that.
    stage.network.set_clogged(host.name, other.name, True)
    link.slowed_by = taken
    stage.scheduler.after(fault.duration_ns, undo)


def clog(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A link takes a few KiB and then nothing."""
    source, target = _direction(stage, host, fault)
    held_up = stage.counted_once(fault.kind)
    # What the window takes is held back as well: the kernel of the sender has it, and the receiver does not get it.
    stage.network.set_clogged(source, target, True)
    stage.network.set_cut(source, target, True)
    stage.network.link(source, target).held_by.append(held_up)
    stage.armed(fault, source, f"towards {target}")

    def undo() -> None:
        _let_go(stage, source, target, held_up)
        stage.network.set_cut(source, target, False)
        stage.network.set_clogged(source, target, False)

    stage.scheduler.after(fault.duration_ns, undo)


def reset(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Connections of a host break: one of two between brokers, or some of any."""
    endpoints = stage.network.endpoints_of(host.name)
    brokers = [broker.name for broker in stage.members.machines]
    peers = [end for end in endpoints if end.peer.host in brokers]
    if fault.amount < 0.5 and peers:
        chosen = [peers[int(2 * fault.amount * len(peers))]]  # one direction of one link between brokers
    else:
        chosen = endpoints[: 1 + int(2 * (fault.amount - 0.5) * len(endpoints))]
    for endpoint in chosen:
        endpoint.reset()
    report = stage.done if chosen else stage.armed  # of a host that is down there is none
    report(fault, host.name, f"{len(chosen)} connections")


def messages(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Single Raft messages to a host are lost, doubled, late or changed."""
    share = 0.3 * fault.amount
    faults = FrameFaults(
        loss=share / 2,
        duplication=share / 2,
        reordering=share / 2,
        corruption=share / 4,
        late_ns_max=_LATE_NS_MAX[(fault.target >> _LATE_BITS_FROM) % len(_LATE_NS_MAX)],
        told=stage.counted_once(fault.kind),
    )
    host.frame_faults.append(faults)
    stage.armed(fault, host.name, f"{share:.0%}")
    stage.scheduler.after(fault.duration_ns, host.end_frame_faults, faults)
