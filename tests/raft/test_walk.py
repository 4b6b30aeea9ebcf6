"""Walks where members come and go find nothing, and find what a promise less would do."""

import pytest

from tests.examples import examples
from tests.raft.walk import violations
from tests.simulation.planted_bugs import UNAIDED


def test_walks_find_nothing() -> None:
    assert list(violations(range(examples(100)))) == []


@pytest.mark.slow
@pytest.mark.hunt
@pytest.mark.parametrize(
    ("rule", "first"),
    [
        ("a marked vote is repeated unmarked", 0),
        ("only the candidate's voters are unanimous", 144),
        ("a new disk recovers with what is committed already", 591),
        ("a new disk acknowledges before its votes are known", 0),
    ],
)
def test_a_rule_less_is_found(rule: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`first` is the seed that finds it now: those before it are walks that find nothing."""
    UNAIDED[rule].patch(monkeypatch)
    assert next(violations((*range(first, 1000), *range(first))), None) is not None
