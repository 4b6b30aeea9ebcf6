"""Damage on the disk of a node that runs: a bit flips, or a page holds another page's bytes, in files of any age.

Only where a process would read its disk again: what was written or checked lately is in memory, of the log its newest
files (`EntryLog.checked_position`), of queues the file under work. One machine of a group is hit in a whole run, always
the same: what it has lost the others hold, whatever else befalls it.
"""

from __future__ import annotations

from dataclasses import replace

from simulation.faults.stage import Stage
from simulation.machines.broker_host import BrokerHost
from simulation.machines.inode import PAGE_BYTES
from simulation.plans.plan import Fault
from simulation.scheduler import MILLISECOND, SECOND

_MISDIRECTED_SHARE = 0.4
_PATIENCE_NS = 4 * SECOND
_RETRY_NS = 20 * MILLISECOND
_KILL_BITS = 8
_KILLED_OF = 4
"""Of so many nodes that are damaged one is killed right behind; the target says which, above these bits."""


def damage(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    """Damages a page of an old file of a running node, as soon as all others hold what is in such files."""
    hit = [other for other in stage.members.machines if other.was_damaged]
    victim = hit[0] if hit else host
    if not stage.members.may_lose_one() or stage.is_calm():
        return
    if _others_hold_it(stage, victim):
        _harm(stage, victim, fault)
    elif stage.scheduler.now_ns < fault.time_ns + _PATIENCE_NS:
        stage.scheduler.after(_RETRY_NS, damage, stage, victim, fault)


def _others_hold_it(stage: Stage, host: BrokerHost) -> bool:
    if host.process is None or not host.in_service:
        return False
    end = host.process.replica.store.log.checked_position
    others = [other.process for other in stage.members.in_service() if other is not host]
    return all(
        other is not None
        and other.replica.raft.recovering is None
        and other.replica.store.log.end_position >= end
        for other in others
    )


def _harm(stage: Stage, host: BrokerHost, fault: Fault) -> None:
    assert host.process is not None, "it holds what others hold"
    medium = host.disk.medium
    if host.is_damaged:
        return  # one place at a time
    pages = _old_pages(stage, host)
    if not pages:
        return
    kinds = sorted({kind for kind, _, _ in pages})
    # Few snapshots and queues stand beside many pages of the log: each kind of file is as likely.
    kind = kinds[int(fault.amount * len(kinds))]
    path, begin = host.fault_random.choice([(path, begin) for one, path, begin in pages if one == kind])
    page = medium.page(path, begin)
    what = (
        medium.misdirect_page(path, begin)
        if host.fault_random.random() < _MISDIRECTED_SHARE
        else medium.rot_page(path, begin)
    )
    if what is not None:
        host.disk_faulty = host.was_damaged = True
        host.damaged_pages = [page]
        stage.done(fault, host.name, what)
        if (fault.target >> _KILL_BITS) % _KILLED_OF == _KILLED_OF - 1:
            # Its next start meets what nobody has read, let alone repaired.
            stage.done(replace(fault, kind="kill"), host.name, "with that damage")
            host.kill()
            host.start_after(fault.duration_ns)


def _old_pages(stage: Stage, host: BrokerHost) -> list[tuple[str, str, int]]:
    """Returns (kind of file, path, first byte) of the pages that a running node would read from its disk."""
    assert host.process is not None, "it runs"
    store = host.process.replica.store
    entries, medium = store.log, host.disk.medium
    directory = host.options.dledger_directory
    pages: list[tuple[str, str, int]] = []
    # What another node has deleted from its log nobody could lend.
    others = [other.process for other in stage.members.in_service() if other is not host]
    begins = [one.replica.store.log.first_position for one in others if one is not None]
    held_from = max([entries.first_position, *begins])
    for start in entries.file_starts():
        path = f"{directory}/data/{start:020d}"
        for begin in medium.used_pages(path):
            if held_from <= start + begin and start + begin + PAGE_BYTES <= entries.checked_position:
                pages.append(("data", path, begin))
    for path in medium.numbered_files(f"{directory}/index/")[:-1]:
        pages += [("units", path, begin) for begin in medium.used_pages(path)]
    for queue in store.queues:
        for path in medium.numbered_files(f"{queue.directory}/")[:-1]:
            pages += [("queues", path, begin) for begin in medium.used_pages(path)]
    for name in store.index.full_files():
        file = store.index.named(name)
        if file is not None and file.is_summed_up:  # by a checkpoint: until then it has just been written
            pages += [("keys", f"index/{name}", begin) for begin in medium.used_pages(f"index/{name}")]
    pages += [("snapshot", "snapshot", begin) for begin in medium.used_pages("snapshot")]
    return pages
