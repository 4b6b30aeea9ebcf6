"""Damage on the disk of a node that runs is repaired, and mistakes about that are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.replica.repairs import RepairFlush, Repairs
from broker.replica.scrubbing import Scrubbing
from log.dispatching.queue_scrub import QueueScrub
from log.entries import entry_repair
from log.entries.entry_index import EntryIndex
from log.entries.entry_log import EntryLog
from log.entries.entry_reads import index_at
from log.errors import DamagedEntryError, DamagedLogError
from log.index.index_scrub import IndexScrubber
from log.notes.snapshot import SnapshotScrub
from simulation.faults import damage, disk_faults
from simulation.faults.stage import Stage
from simulation.judges.waits import MOVES
from simulation.machines.broker_host import BrokerHost
from simulation.machines.members import Members
from simulation.plans.plan import Fault, Plan
from simulation.plans.seeds import _with_damage
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import MILLISECOND, SECOND
from simulation.world.building import World
from simulation.world.running import run_plan, run_world
from tests.simulation import stand_ins

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = (1, 2)


def plan_of(seed: int) -> Plan:
    """A plan with small files in which nothing else happens than damage, to each kind of file in turn."""
    drawn = draw_swarm_plan(seed, seconds=40, groups=1)
    faults = tuple(
        Fault(time_ns, "damage", seed, MILLISECOND, number * 0.23 % 1)
        for number, time_ns in enumerate(range(8 * SECOND, drawn.calm_ns, SECOND // 2))
    )
    return replace(
        drawn,
        faults=faults,
        data_file_bytes=16 * 1024,
        think_ms=300,
        producers=3,
        queues=1,
        flush="sync",
        actors=tuple(name for name in drawn.actors if name in ("producer", "consumer", "auditor")),
        limits=replace(drawn.limits, snapshot_entries=100, queue_units=16, index_entries=50),
    )


def never_flushed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RepairFlush, "run", lambda self: None)


def written_a_page_too_far(patch: pytest.MonkeyPatch) -> None:
    original = EntryLog.file_of

    def put_back(log: EntryLog, entries: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:

            def file_of(self: EntryLog, position: int) -> Any:
                mapped, start = original(self, position)
                return _Shifted(mapped, shift=16), start

            inner.setattr(EntryLog, "file_of", file_of)
            return entry_repair.put_back(log, entries)

    patch.setattr("broker.replica.repairs.put_back", put_back)


class _Shifted:
    """A mapping in which everything is written a few bytes too far."""

    def __init__(self, mapped: Any, shift: int) -> None:
        self._mapped = mapped
        self.buffer = mapped.buffer[shift:]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapped, name)


def first_file_skipped(patch: pytest.MonkeyPatch) -> None:
    original = Scrubbing._take_entries

    def take_entries(self: Scrubbing, job: Any, now_ns: int) -> None:
        if job.start < job.mapped.size:
            job.problem, job.units = "", []
            job.next_index, job.next_position = self._behind_first_file(job)  # type: ignore[attr-defined]
        original(self, job, now_ns)

    def behind(self: Scrubbing, job: Any) -> tuple[int, int]:
        log = self._store.log
        start = job.start + log.file_bytes
        try:
            return (
                (index_at(log, start), start)
                if start < log.end_position
                else (log.last_index + 1, log.end_position)
            )
        except DamagedEntryError:
            return log.first_index, log.first_position  # a pass begins anew

    patch.setattr(Scrubbing, "_behind_first_file", behind, raising=False)
    patch.setattr(Scrubbing, "_take_entries", take_entries)


def index_units_not_made_anew(patch: pytest.MonkeyPatch) -> None:
    original = Scrubbing._take_entries

    def take_entries(self: Scrubbing, job: Any, now_ns: int) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(EntryIndex, "correct", lambda self, first, units: [])
            original(self, job, now_ns)

    patch.setattr(Scrubbing, "_take_entries", take_entries)


def units_of_queues_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueScrub, "check", lambda self, first, last: None)


def index_files_not_filled_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexScrubber, "put", lambda self, keys, offsets, times, now_ms: None)


def sound_entries_called_damaged(patch: pytest.MonkeyPatch) -> None:
    original = Scrubbing._take_entries

    def take_entries(self: Scrubbing, job: Any, now_ns: int) -> None:
        original(self, job, now_ns)
        if self.passes == 2 and job.index == self._store.log.first_index:
            error = DamagedEntryError("a file", 0, "nothing is wrong", job.position)
            self._repairs.damaged(job.index, job.index, error, now_ns)

    patch.setattr(Scrubbing, "_take_entries", take_entries)


PLANTS: dict[Plant, set[str]] = {
    never_flushed: {"damage is repaired"},
    written_a_page_too_far: {"damage is repaired", "a node fails", "state machine safety"},
    first_file_skipped: {"damage is repaired", "state machine safety", "queue agrees with log"},
    index_units_not_made_anew: {"damage is repaired", "a node fails"},
    units_of_queues_not_compared: {"queue agrees with log", "damage is repaired"},
    index_files_not_filled_anew: {"damage is repaired"},
    sound_entries_called_damaged: {"damage has a cause"},
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_damage_alone_is_repaired(seed: int) -> None:
    result = run_plan(plan_of(seed))
    assert result.violation is None
    assert result.fault_counts["damage"] >= 1


@pytest.mark.slow
def test_a_node_that_is_killed_with_its_damage_finds_it_when_it_starts() -> None:
    plan = plan_of(2)
    faults = tuple(replace(fault, target=fault.target | 3 << 8) for fault in plan.faults)
    result = run_plan(replace(plan, faults=faults))
    assert result.violation is None
    assert result.fault_counts["damage"] == result.fault_counts["kill"] >= 1


@pytest.fixture
def damage_of_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged is the newest of the log that a running node would read from its disk."""
    original = damage._old_pages

    def newest_page(stage: Stage, host: BrokerHost) -> list[tuple[str, str, int]]:
        return [page for page in original(stage, host) if page[0] == "data"][-1:]

    monkeypatch.setattr(damage, "_old_pages", newest_page)


def damaged_while_alone() -> Plan:
    """A plan in which a node without links starts over damage in what it dispatches anew, behind its checkpoint."""
    plan = plan_of(1)
    alone = Fault(9 * SECOND, "isolate", 1, 6 * SECOND, 0.8)
    damaged = Fault(9 * SECOND + SECOND // 2, "damage", 1 | 3 << 8, MILLISECOND, 0.0)
    limits = replace(plan.limits, snapshot_entries=1000, append_bytes=4096)
    return replace(plan, faults=(alone, damaged), think_ms=50, limits=limits)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.usefixtures("damage_of_the_newest")
def test_a_node_that_nobody_lends_what_it_dispatches_next_may_wait() -> None:
    """Its own process can do nothing about it (seed 8840480)."""
    result = run_plan(damaged_while_alone())
    assert result.fault_counts == {"isolate": 1, "damage": 1, "kill": 1}
    assert any("damage left reason=no peer is linked" in line for line in result.transcript)
    assert result.violation is None
    assert any("damage repaired reason=entries" in line for line in result.transcript)


@pytest.mark.slow
@pytest.mark.usefixtures("damage_of_the_newest")
def test_a_node_that_asks_nobody_for_what_it_dispatches_next_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rest(self: Repairs, place: Any, now_ns: int) -> bool:
        place.due_ns = now_ns + SECOND
        return False

    monkeypatch.setattr(Repairs, "_ask", rest)
    violation = run_plan(damaged_while_alone()).violation
    assert violation is not None
    assert violation.invariant == MOVES
    assert violation.node == "n1"
    assert "a node for what is committed has waited" in str(violation)


@pytest.mark.slow
def test_no_disk_is_replaced_while_another_node_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three nodes that lose what they hold are more than Raft survives (seed 8810702)."""
    plan, replaced = plan_of(1), []
    new_disks = tuple(
        replace(fault, kind="new disk", time_ns=fault.time_ns + 90 * MILLISECOND) for fault in plan.faults
    )
    faults = sorted((*plan.faults, *new_disks), key=lambda fault: fault.time_ns)
    original = Members.give_new_disk

    def give_new_disk(self: Members, host: BrokerHost) -> None:
        replaced.append([other.name for other in self.in_service() if other is not host and other.is_damaged])
        original(self, host)

    monkeypatch.setattr(Members, "give_new_disk", give_new_disk)
    result = run_plan(replace(plan, faults=tuple(faults)))
    assert result.fault_counts["damage"] >= 1
    assert replaced
    assert not any(replaced)
    assert result.violation is None


@pytest.mark.slow
def test_who_finds_its_disk_beyond_repair_when_all_is_mended_has_a_new_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may wait for it, as they had lost power, and have twelve seconds to elect (seed 9960962)."""
    plan = replace(plan_of(1), faults=(Fault(plan_of(1).calm_ns - SECOND, "kill", 0, 5 * SECOND, 0.5),))
    world = World(plan)
    replaced: list[tuple[str, int]] = []
    original = Members.give_new_disk

    def give_new_disk(self: Members, host: BrokerHost) -> None:
        replaced.append((host.name, world.scheduler.now_ns))
        original(self, host)

    monkeypatch.setattr(Members, "give_new_disk", give_new_disk)

    def damage() -> None:
        (host,) = [host for host in world.brokers if host.in_service and host.process is None]
        host.disk.write_durably("snapshot", b"no snapshot")
        host.disk_faulty = host.was_damaged = True

    world.scheduler.at(plan.calm_ns - SECOND // 2, damage)
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    assert [at_ns for _, at_ns in replaced] == [plan.calm_ns]


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in (*SEEDS, 5, 9):
        violation = run_plan(plan_of(seed)).violation
        if violation is not None:
            assert violation.invariant in PLANTS[plant]
            return
    raise AssertionError("it was not found")


@pytest.mark.slow
def test_a_snapshot_that_is_taken_for_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the node itself makes of it."""
    monkeypatch.setattr(SnapshotScrub, "run", lambda self: None)
    plan = plan_of(5)
    violation = run_plan(replace(plan, limits=replace(plan.limits, snapshot_entries=1000))).violation
    assert violation is not None
    assert violation.invariant == "damage is repaired"


def test_seeds_without_damage_are_what_they_were() -> None:
    drawn = [draw_swarm_plan(seed, seconds=40) for seed in range(20)]
    plans = [_with_damage(plan) for plan in drawn]
    damaged = [(plan, before) for plan, before in zip(plans, drawn, strict=True) if plan != before]
    assert 0 < len(damaged) < len(drawn)
    for plan, before in damaged:
        assert tuple(fault for fault in plan.faults if fault.kind != "damage") == before.faults


def test_a_node_that_does_not_start_over_a_log_that_others_can_repair_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def build_node(*_: object) -> None:
        raise DamagedLogError("data/0", 7, "planted")

    monkeypatch.setattr("simulation.machines.broker_host.build_node", build_node)
    world = World(replace(plan_of(1), faults=()))
    host = world.brokers[0]
    host.disk_faulty = host.was_damaged = True
    host.start()
    assert world.journal.finding is not None
    assert world.journal.finding.invariant == "a node starts over a log that others can repair"
    assert not host.needs_new_disk, "nobody is to hide it"


@pytest.mark.parametrize(
    ("amount", "there", "hit"),
    [
        (0.21, ("consumequeue/old/", "consumequeue/new/", "consumequeue"), "consumequeue/new/"),
        (0.21, ("consumequeue/old/", "consumequeue"), "consumequeue/old/"),
        (0.21, ("consumequeue",), "consumequeue"),
        (0.39, ("consumequeue/new/", "consumequeue"), "consumequeue"),
        (0.61, ("consumequeue/new/", "recovery-notes"), "recovery-notes"),
    ],
)
def test_damage_to_queues_hits_those_that_had_another_life(
    amount: float, there: tuple[str, ...], hit: str
) -> None:
    """Most of the time, those of the topic first that was deleted last, and any queue if none of them is there."""
    done: list[str] = []
    host = stand_ins.host(kill=lambda: None, start=lambda: None)
    stage = stand_ins.stand_in(
        members=stand_ins.stand_in(deleted_topics=("old", "new")),
        harmed=lambda _: None,
        done=lambda fault, name, what: done.append(what),
    )
    fault = Fault(0, "bit rot", 0, 0, amount)
    disk_faults.harm(stage, host, fault, lambda prefix: prefix if prefix in there else None)
    assert done == [hit]
    assert host.was_harmed
