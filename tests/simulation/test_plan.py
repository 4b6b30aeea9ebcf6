"""Plans that come from files: what this version cannot run is refused when it is read, with the reason."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from simulation.plans.plan import FAULT_KINDS, Fault, Plan, decode_plan, encode_plan
from simulation.plans.swarm import _DRAWN_APART, draw_swarm_plan
from simulation.scheduler import SECOND

_PLAN = draw_swarm_plan(7, seconds=30)


def _with(**changes: object) -> Plan:
    return replace(_PLAN, **changes)  # type: ignore[arg-type]


def _fault(kind: str = "kill", time_ns: int = 5 * SECOND, amount: float = 0.5) -> Plan:
    return _with(faults=(Fault(time_ns, kind, 1, SECOND, amount),))


@pytest.mark.parametrize("plan", [_with(nodes=5), _with(faults=()), _with(actors=()), _fault()])
def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert decode_plan(encode_plan(plan)) == plan


def test_kinds_drawn_apart_leave_the_other_faults_of_a_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = _DRAWN_APART
    plans = [draw_swarm_plan(seed) for seed in range(20)]
    monkeypatch.setattr("simulation.plans.swarm._DRAWN_APART", ())
    monkeypatch.setattr(
        "simulation.plans.swarm.FAULT_KINDS", tuple(kind for kind in FAULT_KINDS if kind not in apart)
    )
    for plan in plans:
        others = tuple(fault for fault in plan.faults if fault.kind not in apart)
        assert replace(plan, faults=others) == draw_swarm_plan(plan.seed)
    assert {fault.kind for plan in plans for fault in plan.faults} >= set(apart)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (_fault(kind="meteor"), "no kind of fault is called 'meteor': a plan of another version"),
        (_with(actors=("producer", "wizard")), "no actor is called 'wizard'"),
        (_with(nodes=0), "out of the range"),
        (_with(data_file_bytes=7), "out of the range"),
        (_with(think_ms=0), "out of the range"),
        (_with(queues=0), "out of the range"),
        (_with(end_ns=1), "out of the range"),
        (_fault(time_ns=-5), "out of the range"),
        (_fault(amount=1.5), "out of the range"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(plan: Plan, reason: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=reason):
        decode_plan(encode_plan(plan))


def test_a_file_that_is_cut_is_refused() -> None:
    data = encode_plan(_PLAN)
    with pytest.raises(msgspec.DecodeError):
        decode_plan(data[: len(data) // 2])
