"""A finding is reduced to what it takes, and its report is all that a reader needs to see it again."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import simulation.findings.shrink
from broker.tools.cli.simulate import Shrinking, simulate
from simulation.findings.report import describe_finding
from simulation.findings.shrink import RunLimit, Shrunk, cause_of, run_until, shrink
from simulation.journal import Violation
from simulation.judges.own_state import FLUSHED
from simulation.plans.plan import FAULT_KINDS, Fault, Plan, decode_plan, encode_plan
from simulation.plans.swarm import draw_swarm_plan
from simulation.scheduler import SECOND
from simulation.workload import ACTORS
from simulation.world.running import Result, run_plan
from tests.simulation.planted_bugs import PLANTED

MISTAKE = "failed flush passed over"
FOUND_AS = FLUSHED
"""Of its node alone, long before entries are lost that a majority was to have."""

# ---- the search, over worlds that are only made up -----------------------------------------------------


def made_up(plan: Plan, found_ns: int, violation: Violation | None) -> Result:
    return Result(plan, violation, found_ns, "", {}, 0, 0, 0, 0, 0, {}, [], [])


class MadeUpWorld:
    """Breaks an invariant by certain faults and actors, and another one by others; counts its runs."""

    def __init__(self, faults: tuple[Fault, ...], actors: tuple[str, ...], others: tuple[Fault, ...]) -> None:
        self.faults = faults
        self.actors = actors
        self.others = others
        self.runs: list[Plan] = []

    def run(self, plan: Plan, limit: RunLimit) -> Result | None:
        self.runs.append(plan)
        result = self.outcome(plan)
        return result if result.violation is not None and result.simulated_ns <= limit.time_ns else None

    def outcome(self, plan: Plan) -> Result:
        """Returns the result of the plan: what breaks first."""
        has = {(fault.time_ns, fault.kind) for fault in plan.faults}
        found: list[tuple[int, Violation]] = []
        for name, faults, actors in (
            ("durability", self.faults, self.actors),
            ("log matching", self.others, ()),
        ):
            if {(fault.time_ns, fault.kind) for fault in faults} <= has and set(actors) <= set(plan.actors):
                at_ns = max((fault.time_ns for fault in faults), default=5 * SECOND)
                found.append((at_ns + 1, Violation(name, "n0", "made up")))
        if not found:
            return made_up(plan, plan.end_ns, None)
        at_ns, violation = min(found, key=lambda one: one[0])
        return made_up(plan, at_ns, violation)


FAULTS = st.lists(
    st.builds(
        Fault,
        st.integers(4 * SECOND, 39 * SECOND),
        st.sampled_from(FAULT_KINDS[:6]),
        st.integers(0, 7),
        st.integers(1_000_000, SECOND),
        st.floats(0, 1),
    ),
    max_size=25,
    unique_by=lambda fault: fault.time_ns,
).map(lambda faults: tuple(sorted(faults, key=lambda fault: fault.time_ns)))


@st.composite
def findings(draw: st.DrawFn) -> tuple[MadeUpWorld, Result]:
    """A world in which a plan fails by "durability", which takes some of its faults and actors."""
    faults = draw(FAULTS)
    actors = tuple(draw(st.lists(st.sampled_from(list(ACTORS)), min_size=1, unique=True)))

    def some_of(items: tuple[Fault, ...]) -> tuple[Fault, ...]:
        chosen = draw(st.lists(st.sampled_from(items), max_size=4, unique=True)) if items else []
        return tuple(sorted(chosen, key=lambda fault: fault.time_ns))

    needed_actors = tuple(draw(st.lists(st.sampled_from(actors), max_size=2, unique=True)))
    world = MadeUpWorld(some_of(faults), needed_actors, some_of(faults))
    plan = replace(
        draw_swarm_plan(1),
        nodes=draw(st.sampled_from((3, 5))),
        faults=faults,
        actors=actors,
        producers=3,
        queues=4,
    )
    result = world.outcome(plan)
    if result.violation is None or result.violation.invariant != "durability":
        world.others = (Fault(0, "never", 0, 0, 0.0),)
        result = world.outcome(plan)
    return world, result


def is_within(small: Plan, plan: Plan) -> bool:
    """True if everything of the small plan is something of the other one, at most as long and as much."""
    originals = {(fault.time_ns, fault.kind): fault for fault in plan.faults}
    faults_are = all(
        (original := originals.pop((fault.time_ns, fault.kind), None)) is not None
        and replace(original, duration_ns=fault.duration_ns) == fault
        and fault.duration_ns <= original.duration_ns
        for fault in small.faults
    )
    return (
        faults_are
        and small.faults == tuple(sorted(small.faults, key=lambda fault: fault.time_ns))
        and list(small.actors) == [actor for actor in plan.actors if actor in small.actors]
        and small.nodes <= plan.nodes
        and small.producers <= plan.producers
        and small.queues <= plan.queues
        and small.end_ns <= plan.end_ns
        and small.end_ns - small.calm_ns == plan.end_ns - plan.calm_ns
        and replace(
            small, chance=None, faults=(), actors=(), nodes=3, producers=1, queues=1, calm_ns=0, end_ns=0
        )
        == replace(plan, faults=(), actors=(), nodes=3, producers=1, queues=1, calm_ns=0, end_ns=0)
    )


@given(findings(), st.integers(0, 60))
@settings(deadline=None)
def test_the_result_fails_and_is_part_of_the_plan_within_the_budget(
    finding: tuple[MadeUpWorld, Result], runs_max: int
) -> None:
    world, failed = finding
    shrunk = shrink(failed, runs_max=runs_max, run=world.run)
    assert shrunk.runs == len(world.runs) <= runs_max
    assert len(set(world.runs)) == len(world.runs), "no plan is run twice"
    again = world.outcome(shrunk.result.plan)
    assert again.violation is not None
    assert again.violation.invariant == "durability"
    assert is_within(shrunk.result.plan, failed.plan)
    # The same budget of runs, the same result.
    world.runs.clear()
    assert shrink(failed, runs_max=runs_max, run=world.run).result.plan == shrunk.result.plan


@given(findings())
@settings(deadline=None)
def test_with_runs_enough_nothing_is_left_that_can_be_left_out(finding: tuple[MadeUpWorld, Result]) -> None:
    world, failed = finding
    shrunk = shrink(failed, runs_max=10_000, run=world.run)
    plan = shrunk.result.plan
    assert shrunk.end == "minimal"
    assert [(fault.time_ns, fault.kind) for fault in plan.faults] == [
        (fault.time_ns, fault.kind) for fault in world.faults
    ]
    assert set(plan.actors) == set(world.actors) or (not world.actors and len(plan.actors) == 1)
    assert (plan.nodes, plan.producers, plan.queues) == (3, 1, 1)
    assert plan.calm_ns <= max(shrunk.result.simulated_ns + 3 * SECOND, 4 * SECOND)


@pytest.mark.parametrize("lucky", [0, 2, 5])
def test_a_plan_that_misses_the_finding_with_some_draws_is_tried_with_others(lucky: int) -> None:
    faults = tuple(Fault((5 + number) * SECOND, "kill", number, SECOND, 0.5) for number in range(6))
    world = MadeUpWorld(faults[2:3], ("producer",), (Fault(0, "never", 0, 0, 0.0),))
    plan = replace(draw_swarm_plan(1), faults=faults, actors=("producer", "consumer"))

    def run(plan: Plan, limit: RunLimit) -> Result | None:
        return world.run(plan, limit) if len(plan.faults) == len(faults) or plan.chance == lucky else None

    shrunk = shrink(world.outcome(plan), run=run).result.plan
    assert [fault.time_ns for fault in shrunk.faults] == [faults[2].time_ns]
    assert (shrunk.actors, shrunk.chance) == (("producer",), lucky)


@given(findings(), st.integers(0, 20))
@settings(deadline=None)
def test_whoever_stops_it_has_the_smallest_so_far(finding: tuple[MadeUpWorld, Result], asked: int) -> None:
    world, failed = finding
    told: list[Result] = [failed]
    shrunk = shrink(
        failed,
        run=world.run,
        may_go_on=lambda: len(world.runs) < asked,
        progress=lambda progress: told.append(progress.best),
    )
    assert shrunk.end == "stopped" or len(world.runs) <= asked
    assert shrunk.result is told[-1]


def test_findings_count_as_the_same_by_their_invariant_and_not_by_what_they_name() -> None:
    def durability(index: int) -> Violation:
        return Violation("durability", "group", f"entries 0..{index} are committed on 1 of 3 disks")

    assert cause_of(durability(4)) == cause_of(durability(7))
    assert cause_of(durability(4)) != cause_of(Violation("log matching", "group", ""))


def test_what_does_not_recover_and_what_fails_is_told_apart() -> None:
    behind = Violation("liveness", "n1", "applied 29 of 109 at the end")
    assert cause_of(behind) == cause_of(Violation("liveness", "n2", "applied 3 of 5 at the end"))
    assert cause_of(behind) != cause_of(Violation("liveness", "n1", "it does not run at the end"))

    def failure(function: str, error: str) -> Violation:
        place = f'  File "a.py", line 7, in {function}\n    call()\n'
        text = f"Traceback (most recent call last):\n{place}{error}: 5 of 7\n"
        return Violation("a node fails", "n0", text)

    assert cause_of(failure("append", "KeyError")) == cause_of(failure("append", "KeyError"))
    assert cause_of(failure("append", "KeyError")) != cause_of(failure("append", "ValueError"))
    assert cause_of(failure("append", "KeyError")) != cause_of(failure("truncate", "KeyError"))


# ---- real runs -----------------------------------------------------------------------------------------


def plan_with_much_else() -> Plan:
    """Faults that matter with the mistake, among many that do not."""
    faults = [Fault((5 + number) * SECOND, "name server", number, SECOND, 0.5) for number in range(4)]
    faults += [Fault((5 + number) * SECOND, "wall jump", number, SECOND, 0.5) for number in range(4)]
    # Of all nodes at a time, so that a majority may lack what it acknowledged.
    faults += [
        Fault(7 * SECOND + number // 3 * SECOND // 2, "flush failure", 2 * (number % 3), SECOND, 0.5)
        for number in range(15)
    ]
    faults += [Fault((8 + number) * SECOND, "topics", number, SECOND, 0.5) for number in range(2)]
    drawn = draw_swarm_plan(3, seconds=30)
    return replace(
        drawn,
        flush="sync",
        producers=1,
        think_ms=40,  # so that something is under way whenever the disks fail, whatever else the seed draws
        actors=("producer", "consumer", "auditor", "administrator"),
        faults=tuple(sorted(faults, key=lambda fault: fault.time_ns)),
    )


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan, and code that makes its faults matter."""
    PLANTED[MISTAKE].patch(monkeypatch)
    return plan_with_much_else()


@pytest.fixture(scope="module")
def found() -> Result:
    """What the plan finds. It is run once: nobody changes a result."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[MISTAKE].patch(patch)
        result = run_plan(plan_with_much_else(), keep_traces=True)
    assert result.violation is not None
    assert result.violation.invariant == FOUND_AS
    return result


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.usefixtures("plan")
def test_a_finding_shrinks_to_the_faults_that_it_takes(found: Result) -> None:
    small = shrink(found, runs_max=25).result
    assert small.violation is not None
    assert small.violation.invariant == FOUND_AS
    assert len(small.plan.faults) <= 4
    assert {fault.kind for fault in small.plan.faults} == {"flush failure"}
    # What is left is a plan like any other: it survives its file, and breaks the same way.
    again = run_plan(decode_plan(encode_plan(small.plan)))
    assert again.violation is not None
    assert again.trace_digest == small.trace_digest


@pytest.mark.slow
def test_a_run_with_a_limit_finds_what_comes_before_it_and_nothing_else(plan: Plan, found: Result) -> None:
    assert run_until(plan, RunLimit(found.simulated_ns - 1)) is None
    assert run_until(plan, RunLimit(plan.end_ns, events=found.events - 1)) is None
    result = run_until(plan, RunLimit(found.simulated_ns, events=found.events))
    assert result is not None
    assert (result.simulated_ns, result.trace_digest) == (found.simulated_ns, found.trace_digest)


def test_a_report_tells_what_happened_last_and_how_to_see_it_again(found: Result) -> None:
    text = describe_finding(found, "trivet simulate --replay here.json")
    assert f"{FOUND_AS} (n" in text
    assert "FAULT flush failure" in text
    assert "appends " in text
    assert "commits up to " in text
    assert "producer0.1 append events/" in text
    assert all(f"\n{node}: " in text for node in ("n0", "n1", "n2"))
    assert text.endswith("again: trivet simulate --replay here.json")
    # In the order of time.
    lines = text.partition("the last of what happened")[2].splitlines()[1:]
    times = [float(line.split()[0]) for line in lines[: lines.index("")]]
    assert times == sorted(times)
    assert f"VIOLATION {FOUND_AS}" in lines[lines.index("") - 1]


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def file(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(plan))
    return path


@pytest.mark.slow
def test_a_replay_runs_the_plan_once_and_writes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation.findings.shrink, "shrink", None)
    assert simulate(replay=file) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seed 3\n")
    assert f"again: trivet simulate --replay {file}\n" in printed
    assert [path.name for path in file.parent.iterdir()] == ["plan.json"]


@pytest.mark.slow
def test_a_replay_with_out_leaves_the_traces(file: Path, tmp_path: Path) -> None:
    assert simulate(replay=file, out=tmp_path / "traces") == 1
    assert (tmp_path / "traces" / "n0.trace").stat().st_size > 0


def stub_shrink(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object] = lambda: None
) -> list[Result | None]:
    """Shrinks with the real search; `act` happens in the middle of the first run. Returns what the runs found."""
    results: list[Result | None] = []

    def run(plan: Plan, limit: RunLimit) -> Result | None:
        if not results:
            act()
        results.append(run_until(plan, limit))
        return results[-1]

    monkeypatch.setattr(simulation.findings.shrink, "run_until", run)
    return results


@pytest.mark.slow
@pytest.mark.in_turn
def test_a_replay_shrinks_when_asked_and_keeps_to_the_budget(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = stub_shrink(monkeypatch)
    before = file.read_bytes()
    assert simulate(replay=file, shrinking=Shrinking(shrink=True, shrink_runs=3)) == 1
    assert len(results) == 3
    printed = capsys.readouterr().out
    assert "shrunk by 3 runs" in printed
    assert "no runs are left" in printed
    small = file.parent / "simulation-findings" / "seed-3-shrunk.json"
    assert printed.endswith("again: trivet simulate --replay simulation-findings/seed-3-shrunk.json\n")
    assert len(decode_plan(small.read_bytes()).faults) < len(decode_plan(before).faults)
    assert file.read_bytes() == before


@pytest.mark.slow
@pytest.mark.in_turn
def test_an_interrupt_while_shrinking_keeps_the_smallest_so_far(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = stub_shrink(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    handler = signal.getsignal(signal.SIGINT)
    assert simulate(replay=file, shrinking=Shrinking(shrink=True), out=tmp_path / "out") == 1
    assert len(results) == 1, "the run that was under way is the last"
    assert results[0] is not None, "the first run cuts what comes behind the finding"
    assert signal.getsignal(signal.SIGINT) == handler
    assert "shrunk by 1 run in " in (printed := capsys.readouterr().out)
    assert "(interrupted)" in printed
    small = decode_plan((tmp_path / "out" / "seed-3-shrunk.json").read_bytes())
    assert small == results[0].plan


@pytest.mark.slow
def test_a_seed_with_a_finding_leaves_both_plans_where_it_was_told(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulation.plans.seeds.plan_of_seed", lambda *_, **__: plan)
    monkeypatch.setattr(
        simulation.findings.shrink, "shrink", lambda failed, **_: Shrunk(failed, runs=0, end="minimal")
    )
    assert simulate(seed=1, out=tmp_path / "out") == 1
    assert (tmp_path / "out" / "seed-3.json").read_bytes() == encode_plan(plan)
    assert (tmp_path / "out" / "seed-3-shrunk.json").exists()
    assert simulate(seed=1) == 1
    assert (tmp_path / "simulation-findings" / "seed-3.json").exists()


@pytest.mark.slow
def test_a_batch_reports_a_finding_and_shrinks_it_when_all_seeds_have_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In the worker as well: it is a fork.
    monkeypatch.setattr("simulation.plans.seeds.plan_of_seed", lambda *_, **__: plan)
    assert simulate(seeds="1-1", out=tmp_path, shrinking=Shrinking(shrink_runs=1)) == 1
    printed = capsys.readouterr().out
    reported, batch, shrunk = (
        printed.index(text)
        for text in (f"seed 3: {FOUND_AS} (n", "1 seeds, 1 findings", "shrunk by 1 run in ")
    )
    assert reported < batch < shrunk
    assert printed.endswith(f"again: trivet simulate --replay {tmp_path / 'seed-3-shrunk.json'}\n")
    assert decode_plan((tmp_path / "seed-3.json").read_bytes()) == plan
    assert len(decode_plan((tmp_path / "seed-3-shrunk.json").read_bytes()).faults) < len(plan.faults)
