"""Clients are quiet for minutes: the leader stays, nothing grows, nobody wakes for nothing, and all goes on then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.replica.log_head import LogHead
from broker.retention.retention import Retention
from broker.state.commands import RaiseHead
from log.entries.expired_files import HeadLook
from raft.leader import Leader
from simulation.judges.idleness import KEEPS_LEADER, SETTLED_NS, SLEEPS, STAYS
from simulation.plans.plan import Plan
from simulation.plans.seeds import idle_plan, plan_of_seed
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import MILLISECOND, SECOND
from simulation.world.building import World
from simulation.world.running import run_plan, run_world


def _plan() -> Plan:
    plan = draw_swarm_plan(3, seconds=40)
    actors = ("producer", "consumer", "administrator", "scheduler")
    return idle_plan(replace(plan, actors=actors, faults=(), flush="sync", producers=3, think_ms=200))


def test_in_some_seeds_clients_are_quiet_for_minutes_and_only_those_that_can_be() -> None:
    plans = [plan_of_seed(seed, seconds=40) for seed in range(500)]
    idle = [plan for plan in plans if plan.idle_ns]
    assert 12 <= len(idle) <= 30
    for plan in idle:
        assert plan.idle_ns > SETTLED_NS
        assert plan.end_ns > plan.calm_ns + plan.idle_ns
        assert not {"auditor", "clerk", "puller"} & {*plan.actors}


@pytest.mark.slow
@pytest.mark.in_turn
def test_nothing_is_sent_meanwhile_and_all_goes_on_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a node's scrubber that never rests taken for one that wakes for nothing."""
    monkeypatch.setattr(World, "_scrub_rate", lambda self: 2 * 1024 * 1024)
    world = World(replace(_plan(), data_file_bytes=16 * 1024))
    plan = world.plan
    stored: list[int] = []
    for at_ns in (plan.calm_ns + 12 * SECOND + SETTLED_NS, plan.calm_ns + 12 * SECOND + plan.idle_ns):
        world.scheduler.at(at_ns, lambda: stored.append(world.model.last_index))
    result = run_world(world)
    assert result.violation is None, str(result.violation)
    assert stored[0] == stored[1] < world.model.last_index - 10
    assert min(host.scrubs for host in world.brokers if host.process is not None) > 5_000


def _rests(patch: pytest.MonkeyPatch) -> None:
    """A leader that had nothing to do for half a minute forgets its heartbeats once, for four seconds."""
    original = Leader.tick
    busy: dict[int, tuple[int, int]] = {}
    rested: list[int] = []

    def tick(self: Leader, now: int) -> int | None:
        silence = original(self, now)
        last_index, since = busy.setdefault(self._state.term, (-1, now))
        if self._state.log.last_index > last_index:
            busy[self._state.term] = self._state.log.last_index, now
        elif now - since > 30 * SECOND and not rested:
            rested.append(now)
            self._round_due = False
            self._heartbeat_due = now + 4 * SECOND
        return silence

    patch.setattr(Leader, "tick", tick)


def _says_its_head_again(patch: pytest.MonkeyPatch) -> None:
    """A leader raises the group's head to where it is, each time it looks."""
    original = LogHead.look

    def look(self: LogHead, look: HeadLook) -> int | None:
        if self._leadership.serving and self.is_agreed_upon:
            self._leadership.propose_command(RaiseHead(self._store.head_position))
        return original(self, look)

    patch.setattr(LogHead, "look", look)
    patch.setattr(Retention, "_applied", lambda self, command: None)  # which would have it look again at once


def _looks_all_the_time(patch: pytest.MonkeyPatch) -> None:
    """One node looks at its disk 125 times a second."""
    original = Retention.look
    looking: list[Retention] = []

    def look(self: Retention, *, at_any_hour: bool = False) -> None:
        original(self, at_any_hour=at_any_hour)
        if not looking or looking == [self]:
            looking[:] = [self]
            self._deadline.due_ns = self._time.now_ns + 8 * MILLISECOND

    patch.setattr(Retention, "look", look)


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize(
    ("mistake", "invariant"),
    [(_rests, KEEPS_LEADER), (_says_its_head_again, STAYS), (_looks_all_the_time, SLEEPS)],
)
def test_what_is_wrong_with_an_idle_group_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    violation = run_plan(_plan()).violation
    assert violation is not None
    assert violation.invariant == invariant, str(violation)
