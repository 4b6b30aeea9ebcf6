"""Traces of simulated runs with a planted mistake, in which clients or replicas recorded what came of it.

The simulator's own judges stop a run at the first broken invariant, which is mostly before any client could see it.
Here they are silenced, so that the run goes on, and the rules in plain Python (cheap, no Spark) say whether the clients
saw something; the seed that shows it may change with the code, so a few are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from broker.trace import TRACE_SUFFIX
from simulation.client_judge import ClientJudge
from simulation.group_model import GroupModel, Violation
from simulation.monitor import Monitor
from simulation.plan import Fault, Plan, draw_plan
from simulation.scheduler import MILLISECOND, SECOND
from simulation.workload.names import TOPIC
from simulation.world import Result, World
from spark_analysis.plain import check_traces
from tests.simulation.planted_bugs import PLANTED

SEEDS: Final = 8
_SECONDS: Final = 40


def kills(seed: int) -> Plan:
    """Every node is killed now and then."""
    faults = tuple(
        Fault(4 * SECOND + number * 1500 * MILLISECOND, "kill", 2 * number, 300 * MILLISECOND, 0.5)
        for number in range(9)
    )
    return replace(draw_plan(seed, seconds=_SECONDS), faults=faults)


def write_planted(
    name: str, plan_of: Callable[[int], Plan], directory: Path, *, seen_by_clients: bool
) -> Path:
    """The traces of the first seed in which the mistake ``name`` is seen; its directory.

    Of a mistake that only replicas record, the first seed.
    """
    for seed in range(SEEDS):
        world, result = _run_unjudged(name, plan_of(seed))
        clients = {one: data for one, data in result.traces.items() if one in world.histories}
        verdict = check_traces(clients, is_judged=lambda key: key.startswith(f"{TOPIC}/")).verdict
        if not seen_by_clients or verdict == "violated":
            return write_traces(result, directory / name.replace(" ", "-"))
    pytest.fail(f"{name!r} is seen in none of {SEEDS} seeds")


def write_traces(result: Result, directory: Path) -> Path:
    """As `trivet simulate --out` does."""
    directory.mkdir(parents=True)
    for name, data in result.traces.items():
        (directory / f"{name}{TRACE_SUFFIX}").write_bytes(data)
    return directory


class _Unstopped(World):
    def found(self, violation: Violation) -> None:
        """Goes on."""


def _run_unjudged(name: str, plan: Plan) -> tuple[World, Result]:
    with pytest.MonkeyPatch.context() as patch:
        for judge in (Monitor, GroupModel, ClientJudge):
            for method, function in list(vars(judge).items()):
                if callable(function) and not method.startswith("__"):
                    patch.setattr(judge, method, _silenced(function))
        PLANTED[name].patch(patch)
        world = _Unstopped(plan, keep_traces=True)
        return world, world.run()


def _silenced(function: Callable[..., Any]) -> Callable[..., Any]:
    def silenced(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Violation:
            return None

    return silenced
