"""How each kind of fault is done to the stage, and undone.

A fault that cannot be done when its time comes (the host is down already, the group is not in the state that an
operator would wait for) is left out; what was done is counted in `Journal.fault_counts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker.replica.operator_requests import hand_over
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.machines.clock import RATE_MAX_PPM
from simulation.machines.network import DELAY_MAX_NS, DELAY_MIN_NS, Link
from simulation.machines.peer_links import FrameFaults
from simulation.plans.plan import Fault
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND

__all__ = ["heal_everything", "inject"]

_PATIENCE_TRIES: Final = 200
_PATIENCE_NS: Final = 10 * MILLISECOND
_DEPOSED_NS: Final = 1500 * MILLISECOND
"""Longer than a leader without a majority goes on."""
_FAR_CLIENTS_NS: Final = 200 * MILLISECOND
_DISK_PRESSURE: Final = 0.87
"""Above `disk_force_percent`, below `disk_full_percent`: the oldest files go, sends are taken."""
_PEERS_SHARE: Final = 0.6
"""Of what happens to one direction between two hosts, that between brokers."""
_RETENTION_LOOKS_NS: Final = 2 * SECOND
"""Two of the intervals at which nodes look."""


def inject(stage: Stage, fault: Fault) -> None:
    """Does the fault, now."""
    _INJECTORS[fault.kind](stage, _target(stage, fault), fault)


def _target(stage: Stage, fault: Fault) -> BrokerHost:
    """Odd targets mean the leader, while there is one: most of what can go wrong goes wrong around it."""
    leader = stage.members.leader() if fault.target & 1 else None
    hosts = stage.members.in_service()
    return leader or hosts[(fault.target >> 1) % len(hosts)]


def _done(stage: Stage, host: str, fault: Fault, detail: str = "") -> None:
    stage.journal.fired(fault.kind)
    stage.journal.record_fault(fault.kind, host, detail)


def _armed(stage: Stage, host: str, fault: Fault, detail: str = "") -> None:
    """As `_done`, for what takes effect when somebody next does what it is about, and is counted then."""
    stage.journal.record_fault(fault.kind, host, detail)


def _counted_once(stage: Stage, kind: str) -> Callable[[], None]:
    """What counts a fault when it is called first: an armed one that meets something."""
    counted = False

    def met() -> None:
        nonlocal counted
        if not counted:
            counted = True
            stage.journal.fired(kind)

    return met


# ---- network -------------------------------------------------------------------------------------------


def _others(stage: Stage, name: str) -> list[str]:
    return [other for other in stage.host_names if other != name]


def _both_ways(stage: Stage, one: str, other: str) -> tuple[Link, Link]:
    return stage.network.link(one, other), stage.network.link(other, one)


def _loss(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    probability = 0.3 * fault.amount
    links = [link for other in _others(stage, host.name) for link in _both_ways(stage, host.name, other)]
    for link in links:
        link.loss = probability
    _armed(stage, host.name, fault, f"{probability:.0%} of its segments")  # each lost one counts

    def undo() -> None:
        for link in links:
            link.loss = 0.0

    stage.scheduler.after(fault.duration_ns, undo)


def _delay(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    slow_ns = int(MILLISECOND * 400**fault.amount)
    links = [link for other in _others(stage, host.name) for link in _both_ways(stage, host.name, other)]
    slowed = _counted_once(stage, fault.kind)
    for link in links:
        link.delay_min_ns, link.delay_max_ns = slow_ns // 4, slow_ns
        link.slowed_by = slowed
    _armed(stage, host.name, fault, f"up to {slow_ns / MILLISECOND:.0f} ms")

    def undo() -> None:
        for link in links:
            link.delay_min_ns, link.delay_max_ns = DELAY_MIN_NS, DELAY_MAX_NS
            link.slowed_by = None

    stage.scheduler.after(fault.duration_ns, undo)


def _cut(stage: Stage, pairs: list[tuple[str, str]], fault: Fault, host: str, detail: str) -> None:
    held_up = _counted_once(stage, fault.kind)
    for source, target in pairs:
        stage.network.set_cut(source, target, True)
        stage.network.link(source, target).held_by.append(held_up)
    _armed(stage, host, fault, detail)

    def undo() -> None:
        for source, target in pairs:
            _let_go(stage, source, target, held_up)
            stage.network.set_cut(source, target, False)

    stage.scheduler.after(fault.duration_ns, undo)


def _let_go(stage: Stage, source: str, target: str, held_up: Callable[[], None]) -> None:
    """The link need not tell this fault any more; healing may have ended that already."""
    held_by = stage.network.link(source, target).held_by
    if held_up in held_by:
        held_by.remove(held_up)


def _direction(stage: Stage, host: BrokerHost, fault: Fault) -> tuple[str, str]:
    """One direction between a broker and, in most cases, another one, else a client or a name server."""
    peers = [other.name for other in stage.members.in_service() if other is not host]
    brokers = [other.name for other in stage.members.machines]
    outside = [name for name in stage.host_names if name not in brokers]
    share = fault.amount / _PEERS_SHARE
    if share < 1:
        other = peers[int(share * len(peers))]
    else:
        other = outside[int((fault.amount - _PEERS_SHARE) / (1 - _PEERS_SHARE) * len(outside))]
    return (other, host.name) if fault.target >> 8 & 1 else (host.name, other)


def _cut_one_way(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    source, target = _direction(stage, host, fault)
    _cut(stage, [(source, target)], fault, source, f"towards {target}")


def _isolate(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    others = [other.name for other in stage.members.machines if other is not host]
    if fault.amount < 0.3:
        others = _others(stage, host.name)  # from its clients and name servers too
    _cut(
        stage,
        [pair for other in others for pair in ((host.name, other), (other, host.name))],
        fault,
        host.name,
        f"from {' '.join(others)}",
    )


def _partition(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    side = fault.target
    left = [name for number, name in enumerate(stage.host_names) if side >> number & 1]
    right = [name for name in stage.host_names if name not in left]
    pairs = [pair for one in left for other in right for pair in ((one, other), (other, one))]
    if pairs:
        _cut(stage, pairs, fault, "group", f"{' '.join(left)} | {' '.join(right)}")


def _depose(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The leader and some clients on one side, its peers on the other, and every connection in between is reset.

    So the peers elect at once, while it believes for most of an election timeout that it leads, and is asked by clients
    that nobody told. The other clients are cut off a little later, when they hear of the new leader, and go on there.
    In half of all cases the others change their leader once more before they meet again.
    """
    leader = stage.members.leader()
    if leader is None:
        return
    peers = [broker.name for broker in stage.members.machines if broker is not leader]
    near = [client.name for number, client in enumerate(stage.clients) if not fault.target >> number & 2]
    far = [client.name for client in stage.clients if client.name not in near]
    duration_ns = max(fault.duration_ns, _DEPOSED_NS)
    _sever(stage, [(one, other) for one in [leader.name, *near] for other in peers], duration_ns)
    stage.scheduler.after(
        _FAR_CLIENTS_NS, _sever, stage, [(leader.name, client) for client in far], duration_ns
    )
    _done(stage, leader.name, fault, f"and with it {' '.join(near) or 'no client'}")
    if fault.amount < 0.5:
        stage.scheduler.after(duration_ns // 2, _hand_over, stage)


def _sever(stage: Stage, pairs: list[tuple[str, str]], duration_ns: int) -> None:
    """Resets all connections between the hosts of each pair, and lets none through for a while."""
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


def _hand_over(stage: Stage) -> str | None:
    """The leader, if it runs, hands over to another voter; to whom, if to anybody."""
    leader = stage.members.leader()
    if leader is None or leader.process is None or leader.paused:
        return None
    process = leader.process
    process.begin()
    target = hand_over(process.node.replica)
    process.wake()
    return target


def _link(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """One connection between two brokers breaks, and only that: the one in the other direction goes on."""
    if host.process is None:
        return
    accepted = host.process.links.accepted()
    if accepted:
        chosen = accepted[int(fault.amount * len(accepted))]
        chosen.reset()
        _done(stage, host.name, fault, f"from {chosen.peer.host}")


def _rivals(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """All followers are called to stand for election, as by a transfer's message that comes late, or twice."""
    leader = stage.members.leader()
    if leader is None or leader.process is None:
        return
    term = leader.process.node.replica.raft.term
    called = []
    for other in stage.members.in_service():
        process = None if other is leader or other.paused else other.process
        if process is not None and process.links.call_to_arms(leader.name, term):
            called.append(other.name)
    if called:
        _done(stage, leader.name, fault, f"{' '.join(called)} stand against it")


def _clog(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    source, target = _direction(stage, host, fault)
    held_up = _counted_once(stage, fault.kind)
    stage.network.set_clogged(source, target, True)
    stage.network.set_cut(source, target, True)
    stage.network.link(source, target).held_by.append(held_up)
    _armed(stage, source, fault, f"towards {target}")

    def undo() -> None:
        _let_go(stage, source, target, held_up)
        stage.network.set_cut(source, target, False)
        stage.network.set_clogged(source, target, False)

    stage.scheduler.after(fault.duration_ns, undo)


def _reset(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    endpoints = stage.network.endpoints_of(host.name)
    brokers = [broker.name for broker in stage.members.machines]
    peers = [end for end in endpoints if end.peer.host in brokers]
    if fault.amount < 0.5 and peers:
        chosen = [peers[int(2 * fault.amount * len(peers))]]  # one direction of one link between brokers
    else:
        chosen = endpoints[: 1 + int(2 * (fault.amount - 0.5) * len(endpoints))]
    for endpoint in chosen:
        endpoint.reset()
    report = _done if chosen else _armed  # of a host that is down there is none
    report(stage, host.name, fault, f"{len(chosen)} connections")


def _messages(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    share = 0.3 * fault.amount
    host.frame_faults = FrameFaults(
        loss=share / 2,
        duplication=share / 2,
        reordering=share / 2,
        corruption=share / 4,
        told=_counted_once(stage, fault.kind),
    )
    _armed(stage, host.name, fault, f"{share:.0%}")

    def undo() -> None:
        host.frame_faults = None

    stage.scheduler.after(fault.duration_ns, undo)


# ---- processes -----------------------------------------------------------------------------------------


def _kill(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if host.process is not None:
        host.kill()
        _done(stage, host.name, fault)
        host.start_after(fault.duration_ns)


def _stop(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """SIGTERM; a process that is paused gets it when it goes on.

    By the amount: below a fifth its next flush fails, from a half on power fails behind the close, from 0.8 on inside.
    """
    if host.process is None or host.process.stop is not None:
        return
    _armed(stage, host.name, fault)
    if fault.amount < 0.2:
        _flush_failure(stage, host, replace(fault, kind="flush failure"))
    operations = 1 + int((fault.amount - 0.8) * 60) if fault.amount >= 0.8 else 0
    may_lose_power = False

    def before_close() -> None:
        nonlocal may_lose_power
        _done(stage, host.name, fault, "closes")
        may_lose_power = not stage.is_calm() and _may_lose_power(stage, host)
        if operations and may_lose_power:
            host.disk.arm_power_failure(operations)

    def stopped() -> None:
        host.stopped_in_order()
        if fault.amount >= 0.5 and may_lose_power:
            host.lose_power(fault.kind)
            host.note("stopped in order, and loses power")
        host.start_after(fault.duration_ns)

    host.process.stop_in_order(before_close, stopped)


def _may_lose_power(stage: Stage, host: BrokerHost) -> bool:
    """With async flush only a minority may, and only while all others hold what they acknowledged."""
    if host.process is None:
        return False
    if stage.flush == "sync":
        return True
    return _others_are_whole(stage, host)


def _others_are_whole(stage: Stage, host: BrokerHost) -> bool:
    others = [other.process for other in stage.members.in_service() if other is not host]
    return all(other is not None and other.node.replica.raft.recovering is None for other in others)


def _power(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if _may_lose_power(stage, host):
        host.lose_power(fault.kind)
        _done(stage, host.name, fault)
        host.start_after(fault.duration_ns)


def _power_inside(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if host.process is not None:
        operations = 1 + int(fault.amount * 12)
        host.disk.arm_power_failure(operations)
        _armed(stage, host.name, fault, f"in {operations} operations")


def _power_of_all(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    running = [other for other in stage.members.in_service() if other.process is not None]
    for other in stage.members.in_service():
        if other in running:
            other.lose_power(fault.kind)
        other.start_after(fault.duration_ns)
    report = _done if running else _armed
    report(stage, "group", fault)


def _pause(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if host.process is not None and not host.paused:
        host.pause()
        _done(stage, host.name, fault, f"{fault.duration_ns / SECOND:.1f} s")
        stage.scheduler.after(fault.duration_ns, host.resume)


def _new_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    def wipe() -> None:
        host.kill()
        stage.members.give_new_disk(host)
        _done(stage, host.name, fault)
        host.start_after(fault.duration_ns)

    _when_others_are_whole(stage, host, wipe)


def _when_others_are_whole(stage: Stage, host: BrokerHost, act: Callable[[], None], tries: int = 0) -> None:
    """What an operator would wait for before giving up a replica: all others hold everything, nothing is under way.

    A group of three that has lost one replica's data cannot bear the loss of another's; Raft promises nothing then.
    """
    if stage.is_calm() or tries > _PATIENCE_TRIES:
        return
    if stage.members.is_settled():
        act()
    else:
        stage.scheduler.after(_PATIENCE_NS, _when_others_are_whole, stage, host, act, tries + 1)


def _clock_rate(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    rate = int((2 * fault.amount - 1) * RATE_MAX_PPM)
    host.clock.set_rate(rate)
    if host.process is not None:
        host.process.wake()
    _done(stage, host.name, fault, f"{rate / 10_000:+.1f} %")


def _wall_jump(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    milliseconds = int((2 * fault.amount - 1) * 3_600_000)
    host.clock.jump_wall(milliseconds)
    _done(stage, host.name, fault, f"{milliseconds / 1000:+.0f} s")


def _name_server(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    name_server = stage.name_servers[fault.target % len(stage.name_servers)]
    report = _done if name_server.is_running else _armed
    name_server.fail(fault.amount)
    report(stage, name_server.name, fault)
    stage.scheduler.after(fault.duration_ns, name_server.start)


# ---- disks ---------------------------------------------------------------------------------------------


def _slow_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    host.disk_delay_ns = int(MILLISECOND * 1000**fault.amount)
    host.disk_slowed = _counted_once(stage, fault.kind)
    _armed(stage, host.name, fault, f"{host.disk_delay_ns / MILLISECOND:.0f} ms a flush")

    def undo() -> None:
        _quicken(host)

    stage.scheduler.after(fault.duration_ns, undo)


def _quicken(host: BrokerHost) -> None:
    host.disk_delay_ns = 100 * MICROSECOND
    host.disk_slowed = None


def _full_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    host.disk.full = host.disk_faulty = True
    _armed(stage, host.name, fault)

    def undo() -> None:
        host.disk.full = False

    stage.scheduler.after(fault.duration_ns, undo)


def _retention(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    hosts = stage.members.in_service() if fault.amount < 0.5 else [host]
    for one in hosts:
        one.disk.used_by_others = _DISK_PRESSURE
    # Counted by the monitor when a log's head goes.
    stage.journal.record_fault(fault.kind, "group" if len(hosts) > 1 else host.name, "")

    def undo() -> None:
        for one in hosts:
            one.disk.used_by_others = 0.0

    stage.scheduler.after(fault.duration_ns + _RETENTION_LOOKS_NS, undo)


def _flush_failure(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if not _others_are_whole(stage, host):
        return  # pages that leave the cache unwritten can make a node recover, and a majority must not
    host.disk.failing_flushes = 1
    host.disk_faulty = True
    _armed(stage, host.name, fault)


def _read_failure(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    host.disk.failing_reads = 1 + int(3 * fault.amount)
    host.disk_faulty = True
    _armed(stage, host.name, fault)


def _harm(stage: Stage, host: BrokerHost, fault: Fault, harm: Callable[[str], str | None]) -> None:
    prefixes = (host.options.dledger_directory, "consumequeue", "index", "recovery-notes", "")
    prefix = prefixes[int(fault.amount * len(prefixes))]

    def act() -> None:
        host.kill()
        what = harm(prefix)
        if what is not None:
            host.disk_faulty = True
            stage.wiped(host)
            _done(stage, host.name, fault, what)
        host.start()

    _when_others_are_whole(stage, host, act)


def _bit_rot(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    _harm(stage, host, fault, host.disk.rot)


def _misdirected_write(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    _harm(stage, host, fault, host.disk.misdirect)


# ---- operations ----------------------------------------------------------------------------------------


def _transfer(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if fault.amount < 0.5:
        stage.wishes.transfers += 1  # counted by the operator who has got one
        return
    leader = stage.members.leader()
    target = _hand_over(stage)
    if leader is not None and target is not None:
        _done(stage, leader.name, fault, f"to {target}")


def _membership(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    stage.wishes.member_changes += 1 if fault.amount < 0.6 else 2  # counted by the operator


def _client_kill(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    if not stage.clients:
        return  # a plan that was shrunk to nodes and faults
    client = stage.clients[fault.target % len(stage.clients)]
    report = _done if client.is_running else _armed
    client.kill()
    report(stage, client.name, fault)
    stage.scheduler.after(fault.duration_ns, client.start)


def _topics(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    stage.wishes.topic_changes += 1  # counted by the administrator who has made one


_INJECTORS: Final[dict[str, Callable[[Stage, BrokerHost, Fault], None]]] = {
    "loss": _loss,
    "delay": _delay,
    "cut one way": _cut_one_way,
    "isolate": _isolate,
    "partition": _partition,
    "depose": _depose,
    "clog": _clog,
    "reset": _reset,
    "link": _link,
    "messages": _messages,
    "kill": _kill,
    "stop": _stop,
    "power": _power,
    "power inside": _power_inside,
    "power of all": _power_of_all,
    "pause": _pause,
    "new disk": _new_disk,
    "clock rate": _clock_rate,
    "wall jump": _wall_jump,
    "name server": _name_server,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "flush failure": _flush_failure,
    "read failure": _read_failure,
    "bit rot": _bit_rot,
    "misdirected write": _misdirected_write,
    "retention": _retention,
    "transfer": _transfer,
    "rivals": _rivals,
    "membership": _membership,
    "client kill": _client_kill,
    "topics": _topics,
}


def heal_everything(stage: Stage) -> None:
    """Ends all faults: whatever still runs differently from a healthy group is put right."""
    for source in stage.host_names:
        for target in stage.host_names:
            if source != target:
                stage.network.heal(source, target)
    for host in stage.members.machines:
        host.frame_faults = None
        host.disk.full = False
        host.disk.used_by_others = 0.0
        host.disk.failing_flushes = host.disk.failing_reads = 0
        host.disk.arm_power_failure(0)
        _quicken(host)
        host.resume()
        if host.needs_new_disk:
            # Its disk was found damaged beyond repair: the operator gives it a new one.
            stage.members.give_new_disk(host)
        host.start()
    for name_server in stage.name_servers:
        name_server.heal()
    for client in stage.clients:
        client.start()
