"""Dense plans: what they are made of, that choreographies happen, and that worlds reach what limits gate."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from simulation import journal
from simulation.findings.report import describe_finding
from simulation.plans.dense import KINDS, draw_dense_plan, kinds_of, round_length
from simulation.plans.plan import (
    CHOREOGRAPHIES,
    LASTING,
    LATER_KINDS,
    Fault,
    Limits,
    Plan,
    Shape,
    decode_plan,
    encode_plan,
)
from simulation.plans.seeds import dense_seed, plan_of_seed
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.world.building import World
from simulation.world.running import Result, run_plan, run_world
from tests.simulation.planted_bugs import UNAIDED

_LATER_CHOREOGRAPHIES = LATER_KINDS[3:]
_SELDOM_SMALL = {
    *("deliveries", "delivery_bytes", "scanned_units", "timer_run_units"),
    *("topics", "groups", "stored_offsets"),
    *("unused_offsets_look_ms", "writers_kept_ms", "delays_idle_ms", "backup_lease_ms"),
}
_LITTLE_ROOM = {
    *("log_mappings", "queue_mappings", "index_mappings", "dispatch_files", "dispatch_keys"),
    *("held_requests", "forwarded", "unhandled"),
    *("queues_per_command", "transactions_at_once", "operations_waiting"),
}
_BASE_LOAD = ("producer", "consumer", "auditor", "administrator", "operator")


@pytest.mark.parametrize("number", [0, 1])
def test_each_pair_of_kinds_meets_in_each_round(number: int) -> None:
    length = round_length()
    numbers = range(number * length, (number + 1) * length)
    plans = [kinds_of(at) for at in numbers]
    faults = [draw_dense_plan(dense_seed(at), at, seconds=40).faults for at in numbers]
    met = {
        frozenset(pair)
        for each in faults
        for pair in combinations({fault.kind for fault in each} & {*KINDS}, 2)
    }
    assert met == {frozenset(pair) for pair in combinations(KINDS, 2)}
    assert {len(kinds) for kinds in plans} == {2, 3, 4}


def test_the_next_round_deals_the_kinds_anew() -> None:
    length = round_length()
    assert kinds_of(0) != kinds_of(length)


def test_two_in_five_seeds_are_dense_and_a_fifth_has_five_nodes() -> None:
    plans = [plan_of_seed(seed, seconds=40) for seed in range(500)]
    dense = [plans[dense_seed(number)] for number in range(200)]
    assert dense == [draw_dense_plan(plan.seed, number, seconds=40) for number, plan in enumerate(dense)]
    assert not any(kind in CHOREOGRAPHIES for plan in plans if plan not in dense for kind in _kinds(plan))
    assert 80 <= sum(plan.nodes == 5 for plan in plans if not _kinds(plan) & {*LASTING}) <= 120
    assert [plan.seed % 10 for plan in plans if _kinds(plan) & {*LASTING}] == [4, 7] * 50
    assert any(plan.flush == "async" for plan in dense)
    assert 40 <= sum(any(fault.kind == "membership" for fault in plan.faults) for plan in dense) <= 90
    for plan in dense:
        kinds = {fault.kind for fault in plan.faults}
        beside = (
            {"client kill"} if plan.limits.unused_offsets_look_ms < Limits().unused_offsets_look_ms else set()
        )
        beside |= {"bit rot"} if "tenant" in plan.actors else set()
        assert kinds <= {*kinds_of(dense.index(plan)), "membership", *beside, *_LATER_CHOREOGRAPHIES}
        assert len({*plan.actors} - {"postponer", "subscriber", "waverer", "founder"}) <= 6 + 2
        assert all(fault.time_ns + fault.duration_ns <= plan.calm_ns for fault in plan.faults)
        assert decode_plan(encode_plan(plan)) == plan
        assert plan == plan_of_seed(plan.seed, seconds=40), "a seed's plan is a function of the seed"
    usual = Limits()
    for name in Limits.__dataclass_fields__:
        small = sum(getattr(plan.limits, name) < getattr(usual, name) for plan in dense)
        # Three of ten plans do little at once; each of these numbers is small in most of them.
        # A founder is in a few more than one of ten, and small is then what it finds.
        # Half of the plans have little room; each bound of it is small in most of these.
        share = 0.1 if name in _SELDOM_SMALL else 0.2 if name in _LITTLE_ROOM else 0.5
        assert small > len(dense) * share or name == "window_bytes", name


def test_the_number_of_nodes_may_be_told() -> None:
    assert {plan_of_seed(seed, nodes=nodes).nodes for seed in range(5) for nodes in (3,)} == {3}
    assert {plan_of_seed(seed, nodes=nodes).nodes for seed in range(5) for nodes in (5,)} == {5}


def _kinds(plan: Plan) -> set[str]:
    return {fault.kind for fault in plan.faults}


def _holds(result: Result) -> None:
    assert result.violation is None, describe_finding(result, "no command")


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4, 13])
def test_a_dense_seed_holds(number: int) -> None:
    result = run_plan(plan_of_seed(dense_seed(number), seconds=30))
    _holds(result)
    assert result.acknowledged > 0


def _plan(*, faults: tuple[Fault, ...] = (), actors: tuple[str, ...] = _BASE_LOAD, seconds: int = 30) -> Plan:
    """A group of three with sync flush, and nothing else than these faults."""
    plan = replace(draw_swarm_plan(3, seconds=30), flush="sync", faults=faults, actors=actors, think_ms=200)
    return replace(plan, calm_ns=(seconds - 20) * SECOND, end_ns=seconds * SECOND)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in (*CHOREOGRAPHIES, *LATER_KINDS[2:])
        if kind
        not in ("at a moment", "no descriptors")  # these wait for something, and have tests of their own
    ],
)
def test_a_choreography_happens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small amount and with a large one, in one run."""
    monkeypatch.setattr(
        journal, "_TRANSCRIPT_LINES", 100_000
    )  # where much happens the first lines would be gone
    # The promotion waits for two voters and a learner, and seldom meets them.
    times = range(4, 17) if kind == "unheard promotion" else (4, 6, 8, 11, 13, 15)
    faults = tuple(Fault(at * SECOND, kind, at, SECOND, 0.2 if at < 10 else 0.7) for at in times)
    plan = _plan(faults=faults, seconds=37)
    if kind == "unheard promotion":  # of what was flushed at once power takes nothing
        plan = replace(plan, flush="async", shape=Shape(fewest_voters=2))
    result = run_plan(plan)
    _holds(result)
    begins = [float(line.split()[0]) for line in result.transcript if f"FAULT {kind}" in line]
    assert len(begins) == result.fault_counts[kind]
    assert min(begins) < 10 < max(begins), "neither amount stops it from beginning"
    parts = {
        "kills while paused": "kill",
        "power while cut off": "power",
        "bit rot while recovering": "bit rot",
        "transfer in a change": "membership",
        "overlapping elections": "rivals",
        "leadership returns": "depose",
        "words outlive their node": "power",
        "words outlive their term": "messages",
        "change without one": "membership",
        "left behind": "retention",
        "more than is known": "retention",
        "change that is lost": "depose",
        "other work": "other work",
        "client pause": "client pause",
        "elected in vain": "depose",
        "disk goes in an election": "new disk",
        "change over a slow disk": "membership",
        "recovery that lasts": "new disk",
        "forgotten vote": "new disk",
        "unheard promotion": "power",
    }
    assert result.fault_counts.get(parts[kind], 0) > 0 or any(
        f"FAULT {parts[kind]}" in line for line in result.transcript
    )


@pytest.mark.slow
def test_of_two_voters_whose_promotion_is_late_none_loses_power() -> None:
    """The other voter hears nothing of it, and turns take so long that it is not committed when power would fail."""
    promotions = [Fault(at * SECOND // 2, "unheard promotion", at, SECOND // 100, 0.5) for at in range(8, 28)]
    work = [Fault(at * SECOND, "other work", at, 3 * SECOND, 0.9) for at in range(4, 14)]
    faults = tuple(sorted(promotions + work, key=lambda fault: fault.time_ns))
    plan = replace(_plan(faults=faults, seconds=37), flush="async", shape=Shape(fewest_voters=2))
    result = run_plan(plan)
    _holds(result)
    assert "message loss" in result.fault_counts
    assert "power" not in result.fault_counts


@pytest.mark.slow
def test_small_limits_are_reached() -> None:
    """Snapshots are written, heads go for their age, one entry travels at a time, and files of all sorts roll."""
    small = Limits(
        append_bytes=512,
        snapshot_entries=20,
        catch_up_entries=1,
        pull_bytes=1,
        hour_ms=1000,
        reserved_hours=3,
        window_bytes=512,
        pending_messages=8,
        open_transactions=2,
        held_pulls=1,
        log_index_units=16,
        queue_units=4,
        index_slots=1,
        index_entries=20,
    )
    actors = (*_BASE_LOAD, "transactor", "courier", "scheduler")
    plan = replace(_plan(actors=actors), limits=small, data_file_bytes=16 * 1024)
    world = World(plan)
    _holds(run_world(world))
    for host in world.brokers[: plan.nodes]:
        assert host.process is not None
        store = host.process.node.replica.store
        assert store.snapshot.applied_index > 0
        assert store.log.first_index > 0


@pytest.mark.slow
def test_operators_go_through_two_voters_and_have_two_learners() -> None:
    faults = tuple(Fault(at * SECOND // 2, "membership", 0, 0, 0.2) for at in range(8, 56))
    plan = replace(_plan(faults=faults, seconds=50), shape=Shape(spares=2, fewest_voters=2, most_learners=2))
    world = World(plan)
    sizes: set[tuple[int, int]] = set()

    def look() -> None:
        sizes.add((len(world.model.voters), len(world.model.learners)))
        world.scheduler.after(SECOND // 10, look)

    look()
    _holds(run_world(world))
    assert {voters for voters, _ in sizes} >= {2, 3}
    assert max(learners for _, learners in sizes) == 2


@pytest.mark.parametrize(
    ("name", "invariant"),
    [
        ("a deleted topic's queues go on", "queue order"),
        ("bodies of any size are taken", "bodies are as long as allowed"),
    ],
)
def test_a_topic_that_comes_and_goes_shows_what_is_wrong_with_it(name: str, invariant: str) -> None:
    plan = _plan(actors=("administrator", "tenant"))
    _holds(run_plan(plan))
    with pytest.MonkeyPatch.context() as patch:
        UNAIDED[name].patch(patch)
        found = run_plan(plan).violation
    assert found is not None
    assert found.invariant == invariant, found


def _aging_plan(*actors: str) -> Plan:
    """Heads of the log go for their age all the time."""
    limits = replace(Limits(), hour_ms=500, reserved_hours=1, snapshot_entries=20)
    return replace(_plan(actors=(*_BASE_LOAD, *actors)), limits=limits, data_file_bytes=16 * 1024)


@pytest.mark.slow
def test_age_takes_nothing_that_waits() -> None:
    world = World(_aging_plan("transactor", "courier", "scheduler"))
    _holds(run_world(world))
    logs = [
        one.process.node.replica.store.log for one in world.members.in_service() if one.process is not None
    ]
    assert logs
    assert all(log.first_index > 0 for log in logs), "age has taken files of all nodes"


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize(
    ("name", "actor"),
    [
        ("age takes open half messages", "transactor"),
        ("age takes delayed messages", "courier"),
        ("age takes timed messages", "scheduler"),
    ],
)
def test_what_age_took_while_it_waited_is_missed(name: str, actor: str) -> None:
    """The leader alone says what age takes: it looks once a second, and most decisions come sooner than that.

    It asks about open transactions once a second, too, from the beginning of its leadership on, and gives up those that
    are as old as what may go: so the first leader, which looks right behind that, would never see one.
    """
    lead_in_turn = tuple(Fault(at * SECOND + SECOND // 3, "transfer", 0, 0, 0.7) for at in (3, 6))
    with pytest.MonkeyPatch.context() as patch:
        UNAIDED[name].patch(patch)
        plan = replace(_aging_plan(actor), faults=lead_in_turn)
        results = (run_plan(replace(plan, seed=seed)) for seed in range(12))
        found = next((result.violation for result in results if result.violation is not None), None)
    assert found is not None
    assert found.invariant == "age spares what waits", found


@pytest.mark.slow
def test_a_snapshot_of_what_was_lost_shows_at_the_next_start() -> None:
    faults = tuple(
        Fault(at * SECOND, "power", 2 * number, SECOND // 5, 0.5) for number, at in enumerate(range(5, 10))
    )
    limits = replace(Limits(), snapshot_entries=20)
    plan = replace(_plan(faults=faults), flush="async", limits=limits, think_ms=100)
    _holds(run_plan(plan))
    with pytest.MonkeyPatch.context() as patch:
        UNAIDED["a snapshot is written before its entries are durable"].patch(patch)
        result = run_plan(plan)
    assert result.violation is not None
    assert result.violation.invariant == "snapshots are of what is durable"
