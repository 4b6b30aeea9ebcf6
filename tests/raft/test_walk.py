"""Walks where members come and go find nothing, and find what a promise less would do."""

from collections.abc import Callable

import pytest

from tests.examples import examples
from tests.raft.walk import violations
from tests.simulation.planted_promises import (
    marked_vote_is_repeated_unmarked,
    only_the_candidates_voters_are_unanimous,
)


def test_walks_find_nothing() -> None:
    assert list(violations(range(examples(100)))) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant", [marked_vote_is_repeated_unmarked, only_the_candidates_voters_are_unanimous]
)
def test_a_rule_less_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert next(violations(range(1000)), None) is not None
