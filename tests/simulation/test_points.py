"""For each way in which runs are made to come to something: a mistake that is found there, and not without it.

The table is in docs/planted-mistakes.md. Each row names a plan and what is taken out of it; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from broker.tools.cli.futures import Futures
from simulation.judges.availability import Availability
from simulation.judges.derived import Derived
from simulation.judges.later_lives import LaterLives
from simulation.plans.plan import Limits, Plan, Shape, decode_plan, encode_plan
from simulation.plans.seeds import dense_seed
from simulation.world.building import World
from simulation.world.running import run_world
from tests.simulation import test_damage, test_idleness
from tests.simulation.aimed_plans import aimed_plan
from tests.simulation.detection import dense_plan_of
from tests.simulation.planted_bugs import PLANTED, UNAIDED, plan_of, run_planted
from tests.simulation.planting import Patch

_HEADING: Final = "| point | mistake |"
_ELSEWHERE: Final = "runs of hours"
"""What they hold is not judged in any other run: tests/simulation/test_long_runs.py has their mistakes."""
_POINTS: Final = {
    *("pairs of kinds", "choreographies", "moments", "small limits", "messages beyond a limit"),
    *("retention by age", "topics made again", "two voters", "learners", "five nodes", "several groups"),
    *("damage while nodes run", "a core", "overload", "places that run out", "other futures"),
    *(
        "room that runs out",
        "descriptors that run out",
        "mixed releases",
        "clocks",
        "quiet clients",
        "what nodes derive",
        "producers that change their minds",
        "intervals longer than a run",
        _ELSEWHERE,
    ),
}
_FUTURES: Final = "other futures"
_FUTURES_MAX: Final = 3
_SEEDS: Final = 6
"""Seeds come to mean other runs as the code changes: then another one of so many shows it."""


@dataclass(frozen=True, slots=True)
class _Row:
    point: str
    mistake: str
    way: str
    """Whose plan it is: a key of `_WAYS`."""
    seed: int
    taken_out: str
    """A key of `_TAKEN_OUT`, and what of it: "kind: suspend"."""
    found_as: tuple[str, ...]


def _cells() -> list[list[str]]:
    text = Path("docs/planted-mistakes.md").read_text().partition(_HEADING)[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


def _rows() -> list[_Row]:
    return [
        _Row(point, mistake, *_way_and_seed(plan), taken_out=taken_out, found_as=tuple(found_as.split("; ")))
        for point, mistake, plan, taken_out, found_as in _cells()
        if point != _ELSEWHERE
    ]


def _way_and_seed(plan: str) -> tuple[str, int]:
    way, _, seed = plan.partition(", seed ")
    return way, int(seed)


def _number(seed: int) -> int:
    """The number of a dense seed."""
    return next(number for number in range(seed + 1) if dense_seed(number) == seed)


def _dense(name: str, seed: int) -> Plan:
    return dense_plan_of((PLANTED | UNAIDED)[name], _number(seed))


_WAYS: Final[dict[str, Callable[[str, int], Plan]]] = {
    "drawn": lambda name, seed: plan_of((PLANTED | UNAIDED)[name], seed),
    "dense": _dense,
    "aimed": aimed_plan,
    "damage": lambda name, seed: test_damage.plan_of(seed),
    "idle": lambda name, seed: replace(test_idleness._plan(), seed=seed),
}

_OF_TESTS: Final[dict[str, Patch]] = {
    "a leader that is idle forgets its heartbeats": test_idleness._rests,
    "a repair is never flushed": test_damage.never_flushed,
}
"""Mistakes that stand beside their plans."""


def _patch_of(mistake: str) -> Patch:
    return _OF_TESTS[mistake] if mistake in _OF_TESTS else (PLANTED | UNAIDED)[mistake].patch


def _without_kinds(plan: Plan, kinds: list[str]) -> Plan:
    return replace(plan, faults=tuple(fault for fault in plan.faults if fault.kind not in kinds))


def _without_actors(plan: Plan, actors: list[str]) -> Plan:
    return replace(plan, actors=tuple(name for name in plan.actors if name not in actors))


def _usual_limits(plan: Plan, names: list[str]) -> Plan:
    return replace(plan, limits=replace(plan.limits, **{name: getattr(Limits(), name) for name in names}))


def _usual_shape(plan: Plan, names: list[str]) -> Plan:
    return replace(plan, shape=replace(plan.shape, **{name: getattr(Shape(), name) for name in names}))


def _one_group(plan: Plan, _: list[str]) -> Plan:
    return replace(plan, groups=1, faults=tuple(fault for fault in plan.faults if fault.group == 0))


def _never_idle(plan: Plan, _: list[str]) -> Plan:
    return replace(plan, idle_ns=0, end_ns=plan.end_ns - plan.idle_ns)


_TAKEN_OUT: Final[dict[str, Callable[[Plan, list[str]], Plan]]] = {
    "kind": _without_kinds,
    "actor": _without_actors,
    "limits": _usual_limits,
    "shape": _usual_shape,
    "two of five nodes": lambda plan, _: replace(plan, nodes=3),
    "the second group": _one_group,
    "the idle stretch": _never_idle,
    "judge": lambda plan, _: plan,
}
_JUDGES: Final = {
    "availability": (Availability, "start"),
    "derived": (Derived, "check"),
    "later_lives": (LaterLives, "turned"),
}
"""Those that can be left out, each with what begins it."""


def _found_as(plan: Plan, mistake: str = "", judge: str = "") -> str:
    """The invariant that a run of the plan violates, with the mistake in the code and without the judge; or ""."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if judge:
            patch.setattr(*_JUDGES[judge], lambda *_: None)
        if mistake:
            _patch_of(mistake)(patch)
        result = run_planted(plan) if mistake else run_world(World(plan))
    return "" if result.violation is None else result.violation.invariant


def _future_that_finds(mistake: str, plan: Plan) -> Plan:
    """The plan of a future of the run; the plan itself if none finds the mistake."""
    with pytest.MonkeyPatch.context() as patch:
        _patch_of(mistake)(patch)
        futures = Futures(
            set(), _FUTURES_MAX, lambda result, _: result.violation and encode_plan(result.plan)
        )
        futures.ended(run_planted(plan, futures.explore))
    found = [decode_plan(plan) for plan in futures.outcomes if plan is not None]
    return found[0] if found else plan


def test_each_point_has_a_row() -> None:
    assert {cells[0] for cells in _cells()} == _POINTS


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize("row", _rows(), ids=lambda row: f"{row.point}: {row.mistake}, {row.taken_out}")
def test_a_mistake_is_found_by_what_a_plan_comes_to_and_not_without_it(row: _Row) -> None:
    for seed in _seeds(row):
        plan = _WAYS[row.way](row.mistake, seed)
        what, _, of_it = row.taken_out.partition(": ")
        judge = of_it if what == "judge" else ""
        if what == _FUTURES:
            without, plan = plan, _future_that_finds(row.mistake, plan)
        else:
            without = _TAKEN_OUT[what](plan, of_it.split(", "))
        is_less = without != plan or bool(judge)
        if is_less and _found_as(plan, row.mistake) in row.found_as:
            assert not _found_as(plan), "it is not the mistake that is found"
            if not _found_as(without, row.mistake, judge):
                return
    raise AssertionError(f"no seed of {_SEEDS} finds it, and holds without what is taken out")


def _seeds(row: _Row) -> list[int]:
    """The row's seed and those behind it."""
    if row.way != "dense":
        return list(range(row.seed, row.seed + _SEEDS))
    number = _number(row.seed)
    return [dense_seed(number + more) for more in range(_SEEDS)]


def _kin() -> list[tuple[str, str, list[str]]]:
    """The ten mistakes of the first hunts, what each is planted as, and what is planted of its kind."""
    text = Path("docs/planted-mistakes.md").read_text().partition("| of the kind |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    return [(kind, planted, kin.split("; ")) for kind, planted, kin in rows]


def test_each_of_the_ten_first_has_three_of_its_kind() -> None:
    rows = _kin()
    assert len({planted for _, planted, _ in rows}) == len(rows) == 10
    for _, planted, kin in rows:
        assert {planted, *kin} <= {*PLANTED, *UNAIDED}
        assert len({*kin} - {planted}) == len(kin) >= 3
