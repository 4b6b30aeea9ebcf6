"""Every injected anomaly is caught and no good history is accused; Spark says the same as the reference."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.spark_analysis.brute_force import is_linearizable
from tests.spark_analysis.log_mutations import LOG_MUTATIONS, good_history
from tests.spark_analysis.mutations import score

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    ("kind", "histories", "rows"),
    [("log", 20, 25), ("transactions", 100, 3), ("models", 12, 32), ("raft", 40, 9)],
)
def test_mutation_score(kind: str, histories: int, rows: int) -> None:
    """A small share of what docs/checker.md reports: every mutation gets the answer that it must get."""
    found = score([kind], range(histories))
    assert {row: count for row, count in found.items() if count != histories} == {}
    assert len(found) == rows


@pytest.mark.parametrize("mutation", [None, *LOG_MUTATIONS])
def test_mutations_are_wrong_for_who_tries_every_order(mutation: Callable[..., None] | None) -> None:
    """The score means something only if what is injected is an anomaly, whatever the checker says."""
    judged = 0
    for seed in range(60):
        rng = random.Random(seed)
        history = good_history(rng, 6)
        with suppress(IndexError, ValueError):  # nothing to bend: too few acknowledged appends
            if mutation is not None:
                mutation(rng, history)
            assert is_linearizable(history) == (mutation is None), (seed, history)
            judged += 1
    assert judged >= 40
