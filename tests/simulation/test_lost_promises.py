"""Disks that go while a promise of theirs is under way: nobody is found guilty of that, and the promise stands."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from simulation.findings.report import describe_finding
from simulation.judges.beliefs import ELECTABLE
from simulation.judges.recoveries import Recoveries
from simulation.machines.broker_host import BrokerHost
from simulation.machines.frame_faults import FrameFaults
from simulation.plans.plan import Limits
from simulation.plans.seeds import dense_seed, plan_of_seed
from simulation.scheduler import MILLISECOND, SECOND
from simulation.world.building import World
from simulation.world.running import run_world
from tests.simulation.planted_bugs import UNAIDED

_BEGIN_NS = 8 * SECOND


def _world(nodes: int) -> World:
    """A busy group to which nothing happens but what a test does to it."""
    drawn = plan_of_seed(dense_seed(0), seconds=37, nodes=nodes)
    plan = replace(drawn, faults=(), flush="sync", producers=3, think_ms=50, limits=Limits())
    return World(replace(plan, data_file_bytes=1 << 20, calm_ns=11 * SECOND, end_ns=29 * SECOND))


def _leader_and_others(world: World) -> tuple[BrokerHost, list[BrokerHost]]:
    leader = world.members.leader()
    assert leader is not None
    return leader, [host for host in world.members.in_service() if host is not leader]


def _term_of(host: BrokerHost) -> int:
    assert host.process is not None, "it runs"
    return host.process.node.replica.raft.term


def _replace_disk(world: World, host: BrokerHost) -> None:
    host.kill()
    world.members.give_new_disk(host)
    host.start_after(5 * MILLISECOND)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("promise", ["vote", "acknowledgement"])
def test_who_loses_a_disk_behind_a_promise_has_kept_it(promise: str) -> None:
    """Another follower is away, so that the promise makes the majority when it arrives."""
    world = _world(3)
    replaced: list[str] = []

    def begin() -> None:
        leader, others = _leader_and_others(world)
        away, *wait = [leader, *others] if promise == "vote" else others
        term = _term_of(leader)
        away.kill()
        away.start_after(SECOND)
        for host in wait:
            host.after_turn.append(partial(look, term))

    def look(term: int, host: BrokerHost) -> None:
        assert host.process is not None, "it has a turn"
        raft = host.process.node.replica.raft
        has_voted = raft.term > term and raft.vote not in (None, host.name)
        has_acknowledged = raft.persisted_index > world.model.last_index
        if not replaced and (has_voted if promise == "vote" else has_acknowledged):
            replaced.append(host.name)
            world.scheduler.after(0, _replace_disk, world, host)

    world.scheduler.at(_BEGIN_NS, begin)
    result = run_world(world)
    assert result.violation is None, describe_finding(result, "this test")
    assert replaced


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("is_planted", [False, True])
def test_a_vote_outlives_the_disk_that_knew_of_it(monkeypatch: pytest.MonkeyPatch, is_planted: bool) -> None:
    """A candidate is heard by one voter alone, which has another disk then and follows the leader of the term before.

    With the mistake that counts for a commit, as one of five, and a last voter may still elect the candidate.
    """
    if is_planted:
        UNAIDED["a new disk acknowledges before its votes are known"].patch(monkeypatch)
        monkeypatch.setattr(Recoveries, "says", lambda *_: None)  # it sees that in most runs, long before
    world = _world(5)
    replaced: list[str] = []

    def is_deaf(host: BrokerHost, *sources: BrokerHost) -> None:
        for source in sources:
            lost = FrameFaults(loss=1.0, source=source.name)
            host.frame_faults.append(lost)
            world.scheduler.after(3 * SECOND // 2, host.end_frame_faults, lost)

    def begin() -> None:
        leader, (voter, candidate, late, other) = _leader_and_others(world)
        is_deaf(candidate, leader, late, other)
        is_deaf(late, leader, candidate)
        is_deaf(voter, leader)
        for host in (leader, other):
            is_deaf(host, candidate)
        voter.after_turn.append(partial(look, candidate))
        assert candidate.process is not None, "it runs"
        candidate.process.frames.call_to_arms(leader.name, _term_of(leader))

    def look(candidate: BrokerHost, voter: BrokerHost) -> None:
        assert voter.process is not None, "it has a turn"
        if not replaced and voter.process.node.replica.raft.vote == candidate.name:
            replaced.append(voter.name)
            voter.frame_faults.clear()
            is_deaf(voter, candidate)
            world.scheduler.after(0, _replace_disk, world, voter)

    world.scheduler.at(_BEGIN_NS, begin)
    result = run_world(world)
    assert replaced
    if is_planted:
        assert result.violation is not None
        assert result.violation.invariant == ELECTABLE
    else:
        assert result.violation is None, describe_finding(result, "this test")
