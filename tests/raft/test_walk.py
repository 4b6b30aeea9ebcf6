"""Walks where members come and go find nothing, and find what a promise less would do."""

import pytest

from tests.examples import examples
from tests.raft.walk import violations
from tests.simulation.planted_bugs import UNAIDED


def test_walks_find_nothing() -> None:
    assert list(violations(range(examples(100)))) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        "a marked vote is repeated unmarked",
        "only the candidate's voters are unanimous",
        "a new disk recovers with what is committed already",
        "a new disk acknowledges before its votes are known",
    ],
)
def test_a_rule_less_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    UNAIDED[rule].patch(monkeypatch)
    assert next(violations(range(1000)), None) is not None
