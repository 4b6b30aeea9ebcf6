"""Faults of machines and their processes: they end, stand still, lose power, disk or time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulation.faults.disk_faults import flush_failure, kill_while_it_recovers
from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.machines.clock import RATE_MAX_PPM
from simulation.plans.plan import Fault
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload.order import LOCK_TTL_MS

_SEVERAL_CLIENTS: Final = 1
"""A bit of the target of *client pause*; set: each client whose own bit is set stands still."""
_CHOSEN_CLIENT: Final = 2
"""The bit of the first client; those of the others follow."""
_OTHER_WORK_MS_MAX: Final = 60
_APPLICATION_DOWN: Final = 0.25
_CLIENT_PAUSE_NS: Final = (LOCK_TTL_MS * MILLISECOND, LOCK_TTL_MS * MILLISECOND + 6 * SECOND)
"""Others ask for an order lock that has run out within some seconds."""


def kill(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """SIGKILL; the process starts again later."""
    if host.process is not None:
        host.kill()
        stage.done(fault, host.name)
        host.start_after(fault.duration_ns)


def stop(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """SIGTERM; a process that is paused gets it when it goes on.

    By the amount: below a fifth its next flush fails; from a half on power fails behind the close, from 0.8 on inside.
    """
    if host.process is None or host.process.is_stopping:
        return
    stage.armed(fault, host.name)
    if fault.amount < 0.2:
        flush_failure(stage, host, replace(fault, kind="flush failure"))
    operations = 1 + int((fault.amount - 0.8) * 60) if fault.amount >= 0.8 else 0
    may_lose_power = False

    def before_close() -> None:
        nonlocal may_lose_power
        stage.done(fault, host.name, "closes")
        # Asked now and not when it began to stop: meanwhile others may have failed, with whom it would be too many.
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
    """True if the contract covers it: with async flush a minority may lose power, while all others are whole."""
    if host.process is None:
        return False
    if stage.flush == "sync":
        return True
    return stage.others_are_whole(host)


def power(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The machine goes dark, and starts again later."""
    if _may_lose_power(stage, host):
        host.lose_power(fault.kind)
        stage.done(fault, host.name)
        host.start_after(fault.duration_ns)


def power_inside(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The machine goes dark within one of its next durable operations."""
    if _may_lose_power(stage, host):
        operations = 1 + int(fault.amount * 12)
        host.disk.arm_power_failure(operations)
        stage.armed(fault, host.name, f"in {operations} operations")


def power_of_all(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """All machines go dark at once.

    With async flush no node knows then what it has lost, and waits for all others (docs/operations.md). So there none
    of them may be without what it had.
    """
    if stage.flush == "async" and not stage.members.have_their_data():
        return
    running = [other for other in stage.members.in_service() if other.process is not None]
    for other in stage.members.in_service():
        if other in running:
            other.lose_power(fault.kind)
        other.start_after(fault.duration_ns)
    report = stage.done if running else stage.armed
    report(fault, "group")


def pause(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The process stands still."""
    if host.process is not None and not host.paused:
        host.pause()
        stage.done(fault, host.name, f"{fault.duration_ns / SECOND:.1f} s")
        stage.scheduler.after(fault.duration_ns, host.resume)


def other_work(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The machine has other work: its process hears all, and gets to each turn up to 60 ms later.

    So what takes a node many turns lasts for seconds, and whatever else happens meets it half done.
    """
    delay_ns = int(MILLISECOND * _OTHER_WORK_MS_MAX**fault.amount)
    host.other_work_ns.append(delay_ns)
    host.was_held_up(stage.scheduler.now_ns + fault.duration_ns)
    stage.done(fault, host.name, f"{delay_ns / MILLISECOND:.0f} ms a turn, for {fault.duration_s:.1f} s")

    def undo() -> None:
        if delay_ns in host.other_work_ns:
            host.other_work_ns.remove(delay_ns)

    stage.scheduler.after(fault.duration_ns, undo)


def suspend(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The machine is suspended: the process stands still, and so does the monotonic clock. The wall clock does not."""
    if host.process is None or host.paused:
        return
    process, before_ns = host.process, host.clock.now_ns()
    host.pause()
    stage.done(fault, host.name, f"{fault.duration_ns / SECOND:.1f} s")

    def resume() -> None:
        if host.process is process and host.paused:
            lost_ns = host.clock.now_ns() - before_ns
            host.clock.stood_still(lost_ns)
            host.surroundings.watcher.stood_still(host, lost_ns)
            stage.journal.stood_still(lost_ns)
        host.resume()

    stage.scheduler.after(fault.duration_ns, resume)


def new_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The process is killed, and starts again with an empty disk."""

    stage.when_others_are_whole(host, lambda: exchange_disk(stage, host, fault))


def exchange_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The process is killed now, whatever the group is at, and starts again with an empty disk."""
    host.kill()
    stage.members.give_new_disk(host)
    stage.done(fault, host.name)
    host.start_after(fault.duration_ns)
    kill_while_it_recovers(stage, host, fault, fault.duration_ns)


def clock_rate(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The monotonic clock goes at another rate from now on."""
    rate = int((2 * fault.amount - 1) * RATE_MAX_PPM)
    host.clock.set_rate(rate)
    if host.process is not None:
        host.process.wake()
    stage.done(fault, host.name, f"{rate / 10_000:+.1f} %")


def wall_jump(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The wall clock jumps by up to an hour in either direction."""
    milliseconds = int((2 * fault.amount - 1) * 3_600_000)
    host.clock.jump_wall(milliseconds)
    stage.done(fault, host.name, f"{milliseconds / 1000:+.0f} s")


def name_server(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A name server ends, and starts again later."""
    server = stage.name_servers[fault.target % len(stage.name_servers)]
    report = stage.done if server.is_running else stage.armed
    server.fail(fault.amount)
    report(fault, server.name)
    stage.scheduler.after(fault.duration_ns, server.start)


def client_pause(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A client process stands still, or each of half of them: three of five for longer than locks and calls live."""
    if not stage.clients:
        return  # a plan that was shrunk to nodes and faults
    chosen = [stage.clients[fault.target % len(stage.clients)]]
    if fault.target & _SEVERAL_CLIENTS:
        chosen = [
            client for number, client in enumerate(stage.clients) if fault.target >> number & _CHOSEN_CLIENT
        ]
    shortest_ns, longest_ns = _CLIENT_PAUSE_NS
    duration_ns = fault.duration_ns
    if fault.amount < 0.6:
        duration_ns = shortest_ns + int(fault.amount / 0.6 * (longest_ns - shortest_ns))
    for client in chosen:
        if client.is_running and not client.is_paused:
            client.pause()
            stage.done(fault, client.name, f"{duration_ns / SECOND:.1f} s")
            stage.scheduler.after(duration_ns, client.resume)


def client_kill(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A client process ends, and starts again later; in a quarter of the cases all of its application do."""
    if not stage.clients:
        return  # a plan that was shrunk to nodes and faults
    chosen = stage.clients[fault.target % len(stage.clients)]
    application = chosen.name.rstrip("0123456789")
    is_down = fault.amount < _APPLICATION_DOWN
    for client in stage.clients:
        if client is chosen or (is_down and client.name.rstrip("0123456789") == application):
            report = stage.done if client.is_running else stage.armed
            client.kill()
            report(fault, client.name)
            stage.scheduler.after(fault.duration_ns, client.start)
