"""Intervals that are longer than a run: short, they are reached, and what they gate happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.administration.backup_processor import BackupProcessor
from broker.delayed.delays import DelayService
from broker.state.commands import CommitOffsets, ForgetOffsets, PutTopic, RaiseHead, encode_command
from broker.state.topic_rules import topic_config
from simulation.journal import Violation
from simulation.judges.group_model import CommittedQueue, GroupModel
from simulation.plans.intervals import with_short_intervals
from simulation.plans.plan import Fault, Limits, Plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.workload.reset_rules import TOPIC as CHAPTERS
from simulation.workload.reset_rules import Resets
from simulation.world.building import World
from simulation.world.running import run_world
from spark_analysis.checking.plain import check_traces

_NAMES = ("unused_offsets_look_ms", "writers_kept_ms", "delays_idle_ms", "backup_lease_ms")
_USUAL = Limits()


def _plan(*faults: Fault, limits: Limits, actors: tuple[str, ...] = ()) -> Plan:
    return replace(
        draw_swarm_plan(3, seconds=40, groups=1),
        flush="sync",
        faults=faults,
        think_ms=200,
        data_file_bytes=16 * 1024,
        limits=limits,
        actors=("producer", "consumer", "auditor", "administrator", "operator", *actors),
    )


def test_what_is_short_is_drawn_apart() -> None:
    plan = draw_swarm_plan(1, seconds=40, groups=1)
    assert with_short_intervals(plan, share=0) == plan
    short = [with_short_intervals(replace(plan, seed=seed), share=1) for seed in range(100)]
    for name in _NAMES:
        assert 45 < sum(getattr(one.limits, name) < getattr(_USUAL, name) for one in short) < 75
    for one in short:
        beside = [fault for fault in one.faults if fault not in plan.faults]
        assert bool(beside) == (one.limits.unused_offsets_look_ms < _USUAL.unused_offsets_look_ms)
        # Longer than two looks, and over when all faults are.
        assert all(fault.duration_ns >= 4 * SECOND for fault in beside)
        assert all(fault.time_ns + fault.duration_ns <= one.calm_ns for fault in beside)


@pytest.mark.slow
def test_consumers_that_are_away_for_long_are_forgotten_with_what_they_would_read() -> None:
    limits = replace(_USUAL, unused_offsets_look_ms=500)
    away = with_short_intervals(_plan(limits=limits), share=1).faults
    assert [fault.kind for fault in away] == ["client kill"]
    disks = (Fault(5 * SECOND, "retention", 0, 14 * SECOND, 0.0),)
    plan = _plan(*disks, replace(away[0], time_ns=7 * SECOND, duration_ns=11 * SECOND), limits=limits)
    world = World(plan, keep_traces=True)
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    told = {name: result.traces[name] for name in world.traces.histories}
    assert check_traces(told).verdict == "linearizable"
    del told["group"]
    assert check_traces(told).counts.keys() == {"stale-offset"}, "somebody was told of none, behind one"
    histories = [history for (group, _, _), history in world.model.offsets.items() if group == "readers"]
    assert any(offset is None for history in histories for _, offset in history)
    assert all(history[-1][1] is not None for history in histories), "they have come back"


@pytest.mark.slow
def test_a_writer_is_forgotten_and_what_it_writes_again_is_new() -> None:
    limits = replace(_USUAL, writers_kept_ms=1000)
    result = run_world(World(_plan(limits=limits, actors=("writer",))))
    assert result.violation is None, str(result.violation)
    assert result.work_counts["writer forgotten"] > 0
    assert result.work_counts["portion done"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("idle_ms", "is_told"), [(200, True), (60_000, False)])
def test_the_log_is_told_that_nothing_is_delivered_any_more(
    monkeypatch: pytest.MonkeyPatch, idle_ms: int, *, is_told: bool
) -> None:
    told: list[None] = []
    original = DelayService._settle_when_idle

    def settle(self: DelayService) -> None:
        before_ns = self._rounds._idle_from_ns
        original(self)
        if self._rounds._idle_from_ns != before_ns:
            told.append(None)

    monkeypatch.setattr(DelayService, "_settle_when_idle", settle)
    limits = replace(_USUAL, delays_idle_ms=idle_ms)
    result = run_world(World(_plan(limits=limits, actors=("courier",))))
    assert result.violation is None, str(result.violation)
    assert bool(told) is is_told


@pytest.mark.slow
def test_a_backup_is_over_while_its_reader_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[None] = []
    original = BackupProcessor._end

    def end(self: BackupProcessor) -> None:
        if self._time.now_ns >= self._lease.due_ns:
            over.append(None)
        original(self)

    monkeypatch.setattr(BackupProcessor, "_end", end)
    faults = [Fault(at * SECOND, "client pause", 1, SECOND, 0.9) for at in range(5, 18, 2)]
    limits = replace(_USUAL, backup_lease_ms=50)
    result = run_world(World(_plan(*faults, limits=limits, actors=("archivist",))))
    assert result.violation is None, str(result.violation)
    assert over
    assert result.work_counts["backup restored"] > 0


@pytest.mark.parametrize(("offset", "leads_somewhere"), [(0, False), (1, True), (2, True)])
def test_an_offset_that_leads_somewhere_is_not_forgotten(offset: int, leads_somewhere: bool) -> None:
    """The first of two messages is deleted; whoever has read both stands at the end of the queue."""
    model, key = GroupModel(), ("readers", "events", 0)

    def commit(*commands: PutTopic | RaiseHead | CommitOffsets | ForgetOffsets) -> None:
        for command in commands:
            model._apply("n0", 0, 1, encode_command(command), 1)

    commit(PutTopic(topic_config("events", 1), 0), CommitOffsets(((*key, offset),)))
    queue = model.queues["events", 0] = CommittedQueue()
    queue.positions += [100, 200]
    commit(RaiseHead(200))
    if leads_somewhere:
        with pytest.raises(Violation, match="offsets stay while they lead somewhere"):
            commit(ForgetOffsets(((*key, offset),)))
    else:
        commit(ForgetOffsets(((*key, offset + 1),)))  # it was another one then
        commit(ForgetOffsets(((*key, offset),)))
        assert model.offsets[key] == [(1, offset), (1, None)]


def test_a_resetter_knows_what_is_forgotten() -> None:
    """And with it an order that nobody has followed; what was reported since is somebody's."""
    resets = World(_plan(limits=_USUAL, actors=("resetter",))).invariant(Resets)
    place = resets.place("listeners", 0)
    place.offset = place.parked = 5
    resets.applied(ForgetOffsets((("listeners", CHAPTERS, 0, 4), ("listeners", "events", 0, 5))), 1)
    assert (place.offset, place.parked, place.is_excused) == (5, 5, False)
    resets.applied(ForgetOffsets((("listeners", CHAPTERS, 0, 5),)), 2)
    place = resets.place("listeners", 0)
    assert (place.offset, place.parked, place.is_excused) == (None, None, True), "it need not be followed"
