"""The sweep agrees with trying everything, on as many small histories as there is time for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_analysis.reference import LINEARIZABLE, UNDECIDED, VIOLATED, check_queue
from tests.spark_analysis.brute_force import is_linearizable
from tests.spark_analysis.histories import random_history


def agree(seed: int, **options: object) -> str:
    history = random_history(random.Random(seed), **options)  # type: ignore[arg-type]
    verdict, findings = check_queue(history)
    truth = is_linearizable(history)
    if verdict != UNDECIDED:
        assert (verdict == LINEARIZABLE) == truth, (seed, truth, verdict, findings, history)
    assert bool(findings) == (verdict != LINEARIZABLE)
    return verdict


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**40))
def test_single_values_are_decided_exactly(seed: int) -> None:
    assert agree(seed, batches=False) != UNDECIDED


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**40))
def test_retries_of_single_values_are_decided_exactly(seed: int) -> None:
    assert agree(seed, batches=False, values=3) != UNDECIDED


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**40))
def test_batches_are_never_judged_wrongly(seed: int) -> None:
    agree(seed)


@settings(max_examples=1500, deadline=None)
@given(st.integers(0, 2**40))
def test_retried_batches_are_never_judged_wrongly(seed: int) -> None:
    agree(seed, values=4)


@pytest.mark.parametrize("options", [{"batches": False}, {}])
def test_the_generator_gives_both_verdicts(options: dict[str, object]) -> None:
    verdicts = [agree(seed, **options) for seed in range(300)]
    assert verdicts.count(LINEARIZABLE) > 60
    assert verdicts.count(VIOLATED) > 60
    assert verdicts.count(UNDECIDED) < 30
