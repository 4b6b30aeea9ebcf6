"""A node that recovers is held to what it may say meanwhile: each breach is seen by its own check."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from raft.effects import Role
from raft.messages import (
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from raft.recovery_loss import Loss
from raft.terms import LogTerms
from simulation.journal import Violation
from simulation.judges.recoveries import ALL_TOLD, APPENDED, COMMITTED, MARKED, MUTE, USED, Recoveries
from tests.simulation import stand_ins

_COMMITTED = 5


class Group:
    """n0, which has a new disk and knows its term; n1, which leads term 3 with a log of seven entries; and n2."""

    def __init__(self) -> None:
        self.node, self.leader = stand_ins.raft(term=3), stand_ins.raft(term=3, role=Role.LEADER)
        self.node.recovering, self.leader.node_id = Loss.VOTE, "n1"
        self.leader.log_terms = LogTerms(0, 6, [(0, 3)])
        rafts: Any = {"n0": self.node, "n1": self.leader}
        self.judge = Recoveries(rafts, lambda: _COMMITTED)
        for name, raft in rafts.items():
            self.judge.started(name, raft)

    def is_told(self, *nodes: str, term: int = 3, has_history: bool = True) -> None:
        for node in nodes:
            self.judge.heard(RecoveryResponse(node, "n0", term, 7, has_history))

    def says(self, message: Message) -> None:
        self.judge.says("n0", message)

    def votes(self, term: int, *, pre_vote: bool = False, marked: bool = True) -> None:
        self.says(VoteResponse("n0", "n2", 3, term, True, pre_vote, marked))

    def asks(self, *, lost_votes: bool = True) -> None:
        self.judge.heard(RecoveryRequest("n0", "n1", 3, 7, lost_votes))

    def ends(self, commit_index: int) -> None:
        self.node.recovering, self.node.commit_index = None, commit_index
        self.judge.turned("n0", self.node)


@pytest.fixture
def group() -> Group:
    return Group()


def _finds(invariant: str | None) -> AbstractContextManager[object]:
    return nullcontext() if invariant is None else pytest.raises(Violation, match=invariant)


def test_who_does_not_know_its_term_asks_and_says_nothing_else(group: Group) -> None:
    group.node.recovering = Loss.ALL
    group.says(RecoveryRequest("n0", "n1", 0, 7))
    group.says(RecoveryResponse("n0", "n1", 0, 7, False))
    with pytest.raises(Violation, match=MUTE):
        group.says(VoteRequest("n0", "n1", 4, 0, 3, pre_vote=True))


@pytest.mark.parametrize("loss", [Loss.ENTRIES, Loss.VOTE])
def test_votes_of_who_recovers_are_marked(group: Group, loss: Loss) -> None:
    group.is_told("n1", "n2")
    group.node.recovering = loss
    group.votes(4)
    with pytest.raises(Violation, match=MARKED):
        group.votes(4, marked=False)


@pytest.mark.parametrize("pre_vote", [False, True])
def test_nobody_votes_before_all_have_told_their_terms(group: Group, pre_vote: bool) -> None:
    group.is_told("n1")
    group.is_told("n2", has_history=False)
    with pytest.raises(Violation, match=f"{ALL_TOLD}.* n2 may"):
        group.votes(4, pre_vote=pre_vote)
    group.is_told("n2")
    group.votes(4, pre_vote=pre_vote)


def test_who_was_with_it_before_is_one_of_them(group: Group) -> None:
    group.node.lost_voters = ("n0", "n3")
    group.is_told("n1", "n2")
    with pytest.raises(Violation, match=ALL_TOLD):
        group.judge.stands("n0", 4)


def test_who_knows_its_votes_waits_for_nobody(group: Group) -> None:
    group.node.recovering = Loss.ENTRIES
    group.votes(3)
    group.judge.stands("n0", 4)


@pytest.mark.parametrize(("term", "found"), [(5, None), (4, USED), (3, USED)])
def test_the_vote_of_a_term_that_was_told_is_used(group: Group, term: int, found: str | None) -> None:
    group.is_told("n1", term=3)
    group.is_told("n2", term=4)
    group.votes(4, pre_vote=True)
    with _finds(found):
        group.votes(term)


def test_a_new_process_has_to_be_told_anew(group: Group) -> None:
    group.is_told("n1", "n2")
    group.judge.started("n0", group.node)
    with pytest.raises(Violation, match=ALL_TOLD):
        group.votes(4)


@pytest.mark.parametrize(
    ("loss", "index", "found"),
    [(Loss.VOTE, _COMMITTED, None), (Loss.VOTE, _COMMITTED + 1, COMMITTED), (Loss.ENTRIES, 9, None)],
)
def test_it_acknowledges_what_is_committed(group: Group, loss: Loss, index: int, found: str | None) -> None:
    group.node.recovering = loss
    for message in (
        AppendResponse("n0", "n1", 3, True, index, 9, 1),
        SnapshotResponse("n0", "n1", 3, index),
    ):
        with _finds(found):
            group.says(message)


def test_it_recovers_with_an_entry_behind_its_question(group: Group) -> None:
    group.judge.turned("n0", group.node)
    group.asks()
    with pytest.raises(Violation, match=APPENDED):
        group.ends(6)


def test_with_one_that_was_appended_since_it_does(group: Group) -> None:
    group.asks()
    group.leader.log_terms = LogTerms(0, 9, [(0, 3)])
    group.asks()
    group.ends(7)


def test_whoever_does_not_say_that_its_votes_are_lost_is_given_none(group: Group) -> None:
    group.asks(lost_votes=False)
    with pytest.raises(Violation, match=APPENDED):
        group.ends(7)


def test_who_leads_recovers_with_its_own_commit(group: Group) -> None:
    group.judge.elected("n0")
    group.ends(0)


def test_who_lacks_entries_alone_is_appended_nothing(group: Group) -> None:
    group.node.recovering = Loss.ENTRIES
    group.judge.turned("n0", group.node)
    group.ends(0)
