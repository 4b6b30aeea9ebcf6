"""What waits with all the help that it takes must move; what lacks help, or moves, may take its time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from broker.reading.held_pulls import HeldPulls
from broker.replica.read_barriers import ReadBarriers
from broker.requests.deadline import NEVER
from broker.state.release import THIS_RELEASE
from raft.effects import Role
from raft.recovery_loss import Loss
from raft.terms import LogTerms
from simulation.faults.moments import MOMENTS
from simulation.faults.operations import EARLIER_RELEASE
from simulation.faults.strikes import STRIKES
from simulation.journal import Violation
from simulation.judges import waits
from simulation.judges.power_losses import CAUSE
from simulation.judges.waits import MOVES, WAITS, Help, Seen, Wait, Waits
from simulation.plans.plan import Fault
from simulation.plans.seeds import dense_seed, plan_of_seed
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import run_plan, run_world
from tests.simulation import stand_ins
from tests.simulation.aimed_plans import LOST, at_moments
from tests.simulation.planted_bugs import UNAIDED, plan_of, run_planted

NAMES = stand_ins.VOTERS


class _Group:
    """Three nodes with links, of which n0 leads, and one thing that waits, at n1 unless a test says otherwise."""

    def __init__(self, patch: pytest.MonkeyPatch, helped_by: Help, at: str = "n1") -> None:
        self.state: object = "as it was"
        self.links = {(one, other): stand_ins.link() for one in NAMES for other in NAMES}
        self.waits = Waits(stand_ins.stand_in(link=lambda one, other: self.links[one, other]))
        self.hosts: dict[str, Any] = {name: _host(name) for name in NAMES}
        wait = Wait(
            "something", helped_by, SECOND, lambda seen: self.state if seen.replica.node_id == at else None
        )
        patch.setattr(waits, "WAITS", (wait,))

    def look_from_to(self, begin_s: float, end_s: float) -> None:
        for tick in range(round(begin_s * 5), round(end_s * 5)):
            self.waits.look(self.hosts, NAMES, tick * SECOND // 5)


def _host(name: str) -> Any:
    links = {other: object() for other in NAMES if other != name}
    raft = stand_ins.raft(role=Role.LEADER if name == "n0" else Role.FOLLOWER)
    replica = stand_ins.replica(name, raft=raft, serving=name == "n0", links=links)
    return stand_ins.host(name, process=stand_ins.process(node=stand_ins.node(replica=replica)))


@pytest.mark.parametrize("helped_by", Help)
def test_what_does_not_move_is_found(monkeypatch: pytest.MonkeyPatch, helped_by: Help) -> None:
    group = _Group(monkeypatch, helped_by, "n0" if helped_by is Help.MAJORITY else "n1")
    group.look_from_to(0, 1.2)
    with pytest.raises(Violation, match=MOVES):
        group.look_from_to(1.2, 1.6)


def test_what_moves_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _Group(monkeypatch, Help.LEADER)
    for second in range(5):
        group.state = second
        group.look_from_to(second, second + 1)


def test_what_does_not_wait_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _Group(monkeypatch, Help.LEADER)
    group.state = None
    group.look_from_to(0, 5)


def test_a_node_that_knows_no_term_yet_cannot_know_its_leader() -> None:
    """Its leader alone does not tell it enough: the requests that it holds wait for others, too (seed 9700262)."""
    [wait] = [wait for wait in WAITS if wait.what == "a request for a leader"]
    request = object()
    for is_mute in (True, False):
        replica = stand_ins.replica(raft=stand_ins.raft(recovery=stand_ins.stand_in(is_mute=is_mute)))
        node = stand_ins.node(replica=replica, first_held=request)
        seen = Seen(stand_ins.process(node=node), None)
        assert wait.state(seen) is (None if is_mute else request)


@pytest.mark.parametrize("old", ["n0", "n1", ""])
def test_who_has_lost_its_votes_waits_until_it_and_its_leader_are_upgraded(old: str) -> None:
    """The earlier release does not say so, and its leaders append nothing for it (seed 9910010)."""
    [wait] = [wait for wait in WAITS if wait.what == "a node that recovers"]
    for loss in (Loss.VOTE, Loss.ENTRIES):
        replicas = [
            stand_ins.replica(
                name,
                raft=stand_ins.raft(recovering=loss, persisted_index=4),
                release=EARLIER_RELEASE if name == old else THIS_RELEASE,
                disk_space=stand_ins.stand_in(is_full=lambda _: False),
            )
            for name in ("n0", "n1")
        ]
        node = stand_ins.node(replica=replicas[1], time=stand_ins.stand_in(now_ns=0))
        state = wait.state(Seen(stand_ins.process(node=node), replicas[0]))
        assert (state is None) == (bool(old) and loss is Loss.VOTE)


@pytest.mark.parametrize("applies", [True, False])
def test_a_node_whose_log_alone_grows_waits_for_what_is_committed(applies: bool) -> None:
    """Nobody gets what it has not dispatched."""
    [wait] = [wait for wait in WAITS if wait.what == "a node for what is committed"]
    leader = stand_ins.replica("n0", raft=stand_ins.raft(commit_index=9))
    states = []
    for last_index in (4, 5):
        raft = stand_ins.raft(log_terms=LogTerms(0, last_index, ((0, 1),)), persisted_index=last_index)
        store = stand_ins.store(log=stand_ins.stand_in(damaged=None))
        replica = stand_ins.replica("n1", raft=raft, store=store, applied_index=last_index if applies else 3)
        replica.disk_space = stand_ins.stand_in(is_full=lambda _: False)
        node = stand_ins.node(replica=replica, time=stand_ins.stand_in(now_ns=0))
        states.append(wait.state(Seen(stand_ins.process(node=node), leader)))
    assert None not in states
    assert (states[0] != states[1]) == applies


@pytest.mark.parametrize("lost", ["machine", "path", "connection", "leader", "majority"])
def test_the_time_begins_when_the_help_is_there(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    group = _Group(monkeypatch, Help.LEADER)
    group.look_from_to(0, 0.8)
    host = group.hosts["n1"]
    if lost == "machine":
        host.paused = True
    elif lost == "path":
        group.links["n1", "n0"].cut = 1
    elif lost == "connection":
        del host.process.running.links.accepted["n0"]
    elif lost == "leader":
        group.hosts["n0"].process.node.replica.serving = False
    else:
        for name in ("n1", "n2"):
            group.links["n0", name].slowed_by = group
    group.look_from_to(0.8, 5)
    host.paused = False
    group.links["n1", "n0"].cut = 0
    host.process.running.links.accepted["n0"] = object()
    group.hosts["n0"].process.node.replica.serving = True
    for name in ("n1", "n2"):
        group.links["n0", name].slowed_by = None
    group.look_from_to(5, 6.2)
    with pytest.raises(Violation, match="has waited for 1"):
        group.look_from_to(6.2, 6.6)


def test_a_disk_that_was_full_between_two_looks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it leaves behind is no shorter than what a long one does: seed 9975353."""
    group = _Group(monkeypatch, Help.NOBODY)
    group.look_from_to(0, 0.8)
    group.hosts["n1"].disk.fillings += 1
    group.look_from_to(0.8, 1.8)
    with pytest.raises(Violation, match=r"has waited for 1\.2 s"):
        group.look_from_to(1.8, 2.4)


def test_a_new_connection_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    group = _Group(monkeypatch, Help.LEADER)
    for second in range(5):
        group.hosts["n0"].process.running.links.accepted["n1"] = object()
        group.look_from_to(second, second + 1)


@pytest.mark.slow
@pytest.mark.in_turn
def test_runs_see_all_that_waits() -> None:
    """A row that no run ever fills checks nothing."""
    rare = {
        "a pull for a message or order that is there",
        "a pull for what its consumer group wants",
        "a snapshot for the disk",
        "messages for a place",
        "a request for a leader",
        "a pull for its next leader",  # gone within milliseconds, as the next is: the test below has them stay
        "a read for its next leader",
    }
    wanted, seen = {wait.what for wait in WAITS} - rare, set[str]()
    for number in range(12):
        world = World(plan_of_seed(dense_seed(number), seconds=40))
        result = run_world(world)
        assert result.violation is None, f"{result.plan.seed}: {result.violation}"
        seen.update(*(group.availability.waits.looked_at for group in world.groups))
        if wanted <= seen:
            return
    raise AssertionError(f"no run has seen {wanted - seen}")


class _Overlooked(deque[Callable[[], None]]):
    """Reads that no turn sees; one that saw them and told none would want the next at once, for ever."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("what", ["a pull", "a read"])
def test_what_a_former_leader_never_hands_on_is_found(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def forget(pulls: HeldPulls) -> None:
        pulls._leave_at.due_ns = NEVER

    if what == "a pull":
        monkeypatch.setattr(HeldPulls, "_hand_some_on", forget)
    else:
        original = ReadBarriers.__init__

        def begin(reads: ReadBarriers) -> None:
            original(reads)
            reads.lost_reads = _Overlooked()

        monkeypatch.setattr(ReadBarriers, "__init__", begin)
    found = (run_plan(plan_of_seed(dense_seed(number), seconds=40)).violation for number in range(6))
    first = next((violation for violation in found if violation is not None), None)
    assert f"{what} for its next leader has waited" in str(first)


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("moment", MOMENTS)
def test_each_moment_comes(moment: str) -> None:
    """And is struck at, by one strike or another, in one plan or another."""
    names = tuple(MOMENTS)
    for number, strike in enumerate(STRIKES):
        plan = plan_of_seed(dense_seed(1 + number), seconds=40)
        actors = tuple(dict.fromkeys((*plan.actors, "operator")))
        target = (names.index(moment) + len(names) * number) << 1
        fault = Fault(8 * SECOND, "at a moment", target, SECOND // 2, (number + 0.5) / len(STRIKES))
        world = World(replace(plan, actors=actors, faults=(fault,)))
        result = run_world(world)
        assert result.violation is None, f"{strike}: {result.violation}"
        if result.fault_counts.get("at a moment"):
            return
    raise AssertionError("it never came")


_STRUCK = {
    "a hand-over that was asked for is not given up": ("a hand-over", LOST),
    "who leads an earlier term is not told of the later one": ("a candidacy", ("its words are lost",)),
    "a snapshot without an answer is not offered again": ("a snapshot on its way", LOST),
    "a batch that is stored in part counts as stored": (
        "a batch half in the log",
        ("it is killed", "it loses power"),
    ),
    "a truncation leaves the note of what is flushed": (
        "a log that is truncated",
        ("it is killed", "it loses power"),
    ),
}
"""Mistakes of docs/planted-mistakes.md that no drawn time met: the moment that each is about, and what strikes then."""


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("name", _STRUCK)
def test_what_shows_at_a_moment_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moment, strikes = _STRUCK[name]
    UNAIDED[name].patch(monkeypatch)
    found = None
    for seed in range(20):
        plan = plan_of(UNAIDED[name], seed)
        faults = tuple(at_moments(moment, strikes)(Random(seed)))
        found = run_planted(replace(plan, faults=faults, flush="sync")).violation
        if found is not None:
            break
    assert found is not None
    # An assertion of the log may see it before anybody waits in vain.
    allowed = (MOVES, CAUSE, "stored once", "liveness", "acknowledged messages are committed", "a node fails")
    assert found.invariant in allowed, str(found)
