"""Leaders that know less of a follower than it has: a snapshot comes to a log that reaches beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import pytest

from simulation.plans.plan import Plan
from simulation.plans.seeds import plan_of_seed
from simulation.world.running import run_plan
from tests.simulation.planted_bugs import UNAIDED, run_planted

_KIND = "more than is known"
_SEEDS = 12
"""Seeds come to mean other runs as the code changes; of those with this kind two in five come to such a snapshot."""


def _plans() -> Iterator[Plan]:
    """Yields the plans of seeds in which this happens."""
    for seed in count():
        plan = plan_of_seed(seed, seconds=40)
        if any(fault.kind == _KIND for fault in plan.faults):
            yield plan


def test_in_one_of_twenty_seeds_leaders_know_less_and_nothing_else_happens() -> None:
    plans = list(islice(_plans(), 20))
    assert 250 < plans[-1].seed < 700
    assert all({fault.kind for fault in plan.faults} == {_KIND} for plan in plans)


@pytest.mark.in_turn
@pytest.mark.slow
def test_a_snapshot_comes_to_a_log_that_reaches_beyond_it() -> None:
    for plan in islice(_plans(), _SEEDS):
        result = run_plan(plan)
        assert result.violation is None, str(result.violation)
        if "a snapshot for a log that reaches beyond it" in result.marks:
            return
    pytest.fail("no run came to it")


@pytest.mark.slow
@pytest.mark.hunt
def test_a_snapshot_that_takes_the_log_behind_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    UNAIDED["a snapshot takes the log behind it"].patch(monkeypatch)
    found = (run_planted(plan).violation for plan in islice(_plans(), _SEEDS))
    violation = next((one for one in found if one is not None), None)
    assert violation is not None
    assert violation.invariant == "committed entries stay"
