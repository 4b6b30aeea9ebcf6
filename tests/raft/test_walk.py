"""Walks where members come and go find nothing, and find what a promise less would do."""

from collections.abc import Callable

import pytest

from raft.quorum import VoteTally
from raft.recovery import Recovery
from tests.examples import examples
from tests.raft.walk import violations


def test_walks_find_nothing() -> None:
    assert list(violations(range(examples(100)))) == []


def marked_votes_are_repeated_unmarked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "forgets_votes", property(lambda self: False))


def who_may_lack_something_names_nobody(patch: pytest.MonkeyPatch) -> None:
    """Only the candidate's own voters have to agree."""
    original = VoteTally.__init__
    patch.setattr(VoteTally, "__init__", lambda tally, voters, _=(): original(tally, voters))
    patch.setattr(VoteTally, "needs", lambda tally, others: [])


@pytest.mark.slow
@pytest.mark.parametrize("plant", [marked_votes_are_repeated_unmarked, who_may_lack_something_names_nobody])
def test_a_rule_less_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert next(violations(range(1000)), None) is not None
