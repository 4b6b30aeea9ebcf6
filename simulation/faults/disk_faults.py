"""Faults of disks: slow, full, failing, or damaged while nobody looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.plans.plan import Fault
from simulation.scheduler import MICROSECOND, MILLISECOND, SECOND

_DISK_PRESSURE: Final = 0.87
"""Above `disk_force_percent`, below `disk_full_percent`: the oldest files go, sends are taken."""
_RECOVERING_NS: Final = 5 * MILLISECOND
"""A recovering node is killed again within this time: many have their entries back a few milliseconds later."""
_QUEUES: Final = "consumequeue"
_MADE_AGAIN_SHARE: Final = 0.7
"""The share of the damage to queues that hits the newest file of one whose topic was deleted and made again."""
_RETENTION_LOOKS_NS: Final = 3 * SECOND
"""Three of the intervals at which nodes look: the group agrees at one of them on what goes at the next."""


def slow_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Flushes take up to a second."""
    slow_down(host, int(MILLISECOND * 1000**fault.amount), stage.counted_once(fault.kind))
    stage.armed(fault, host.name, f"{host.disk_delay_ns / MILLISECOND:.0f} ms a flush")
    stage.lasts(host.name, fault.kind, fault.duration_ns, lambda: quicken(host))


def slow_down(host: BrokerHost, delay_ns: int, met: Callable[[], object] = lambda: None) -> None:
    """Each flush takes so long, until `quicken`; calls `met` when one does."""
    host.disk_delay_ns = delay_ns
    host.disk_slowed = met


def quicken(host: BrokerHost) -> None:
    """The disk is as fast as it was made."""
    host.disk_delay_ns = 100 * MICROSECOND
    host.disk_slowed = None


def full_disk(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Fills the disk: nothing new finds space on it while the fault lasts."""
    host.disk.fill()
    host.disk_faulty = True
    stage.armed(fault, host.name)

    def undo() -> None:
        host.disk.full = False

    stage.lasts(host.name, fault.kind, fault.duration_ns, undo)


def retention(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Disks look so full that nodes delete their logs' heads."""
    hosts = stage.members.in_service() if fault.amount < 0.5 else [host]
    # Counted by the monitor when a log's head goes.
    stage.journal.record_fault(fault.kind, "group" if len(hosts) > 1 else host.name, "")
    for one in hosts:
        _press(stage, one, fault.duration_ns + _RETENTION_LOOKS_NS)


def _press(stage: Stage, host: BrokerHost, duration_ns: int) -> None:
    host.disk.used_by_others = _DISK_PRESSURE

    def undo() -> None:
        host.disk.used_by_others = 0.0

    stage.lasts(host.name, "retention", duration_ns, undo)


def flush_failure(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The next flush fails."""
    if not stage.others_are_whole(host):
        return  # pages that leave the cache unwritten can make a node recover, and a majority must not
    host.disk.failing_flushes = 1
    host.disk_faulty = True
    stage.armed(fault, host.name)


def read_failure(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """The next files that are opened or read cannot be."""
    host.disk.failing_reads = 1 + int(3 * fault.amount)
    host.disk_faulty = True
    stage.armed(fault, host.name)


def no_descriptors(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """No file and no connection can be opened: the process has as many as it may have, or the machine has."""
    of_process = fault.amount < 0.5
    if of_process and host.process is None:
        return
    host.use_up_descriptors(stage.counted_once(fault.kind), of_process=of_process)
    host.disk_faulty = True
    stage.armed(fault, host.name, "of the process" if of_process else "of the machine")
    stage.lasts(host.name, fault.kind, fault.duration_ns, host.free_descriptors)


def harm(stage: Stage, host: BrokerHost, fault: Fault, damage: Callable[[str], str | None]) -> None:
    """Kills the process, lets `damage` work on the files below a prefix, and starts it again."""
    prefixes = (host.options.dledger_directory, _QUEUES, "index", "recovery-notes", "")
    place, within = divmod(fault.amount * len(prefixes), 1)
    prefix = prefixes[int(place)]
    host.kill()
    # A queue that had another life is built in another way: of all queues they are few.
    lives = stage.members.deleted_topics if prefix == _QUEUES and within < _MADE_AGAIN_SHARE else ()
    places = [*(f"{_QUEUES}/{topic}/" for topic in reversed(lives)), prefix]
    what = next((what for what in map(damage, places) if what is not None), None)
    if what is not None:
        host.disk_faulty = host.was_harmed = True
        stage.harmed(host)
        stage.done(fault, host.name, what)
    host.start()
    if what is not None:
        kill_while_it_recovers(stage, host, fault, 0)


def kill_while_it_recovers(stage: Stage, host: BrokerHost, fault: Fault, starts_after_ns: int) -> None:
    """In half of the cases a node that recovers from `fault` is killed again: what it lacks must be remembered."""

    def kill() -> None:
        process = host.process
        if process is not None and not host.paused and process.replica.raft.recovering is not None:
            stage.done(replace(fault, kind="kill"), host.name, "while it recovers")
            host.kill()
            host.start()

    if fault.duration_ns % 2:
        stage.scheduler.after(starts_after_ns + fault.duration_ns % _RECOVERING_NS, kill)


def bit_rot(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A bit flips while the host is down."""
    stage.when_others_are_whole(host, lambda: harm(stage, host, fault, host.disk.medium.rot))


def misdirected_write(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """A page holds another page's bytes."""
    stage.when_others_are_whole(host, lambda: harm(stage, host, fault, host.disk.medium.misdirect))
