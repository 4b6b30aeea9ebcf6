"""What a node makes of a message is held to Raft's rules: each breach is seen by its own check."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from raft.configuration import Configuration
from raft.effects import Role
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from raft.options import RaftOptions
from raft.recovery_loss import Loss
from raft.terms import LogTerms
from simulation.journal import Violation
from simulation.judges.steps import (
    CALLED,
    DEFENDED,
    GRANTED,
    PATIENT,
    PROMISED,
    PROMISES,
    STALE,
    STANDS,
    Steps,
    watch_patience,
)
from tests.simulation import stand_ins

_VOTERS = stand_ins.VOTERS


def _node() -> Any:
    """The Raft state of a node in term 3, with a log of two entries of term 2."""
    return stand_ins.raft(term=3, commit_index=0, log_terms=LogTerms(0, 1, [(0, 2)]))


class Watched:
    """A node whose steps are watched."""

    def __init__(self) -> None:
        self.node = _node()
        self.steps = Steps({"n0": self.node, "n1": _node()})

    def takes(self, message: Message, **changes: object) -> None:
        """It takes a message and becomes another by it."""
        self.steps.hears(message)
        for name, value in changes.items():
            setattr(self.node, name, value)
        self.steps.heard(message)

    def leads(self) -> Any:
        """It leads its term. Returns what it knows of n1."""
        peer = stand_ins.peer("n1", next_index=2, last_contact=7)
        self.node.role, self.node.leader, self.node.peers = Role.LEADER, "n0", {"n1": peer}
        return peer

    def is_promised(self, *voters: str, term: int = 4, recovering: bool = False) -> None:
        """Voters tell it that they would vote for it in that term."""
        for voter in voters:
            self.takes(VoteResponse(voter, "n0", term - 1, term, True, True, recovering))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_an_answer_of_its_term_may_change_what_a_leader_knows(watched: Watched) -> None:
    peer = watched.leads()
    answer = AppendResponse("n1", "n0", 3, True, 1, 1, 1)
    watched.steps.hears(answer)
    peer.match_index = 1
    watched.steps.heard(answer)


def test_an_answer_of_an_earlier_term_changes_nothing(watched: Watched) -> None:
    peer = watched.leads()
    answer = AppendResponse("n1", "n0", 2, True, 1, 1, 1)
    watched.takes(answer)
    watched.steps.hears(answer)
    peer.last_contact = 8
    with pytest.raises(Violation, match=STALE):
        watched.steps.heard(answer)


@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_vote_of_an_earlier_campaign_changes_nothing(watched: Watched, pre_vote: bool) -> None:
    watched.node.role = Role.CANDIDATE
    answer = VoteResponse("n1", "n0", 2, 3 if pre_vote else 2, True, pre_vote)
    watched.takes(answer)
    with pytest.raises(Violation, match=STALE):
        watched.takes(answer, role=Role.LEADER)


@pytest.mark.parametrize("pre_vote", [False, True])
def test_a_vote_of_this_campaign_counts(watched: Watched, pre_vote: bool) -> None:
    watched.takes(
        VoteResponse("n1", "n0", 3, 4 if pre_vote else 3, True, pre_vote), counted_votes=("n0", "n1")
    )


@pytest.mark.parametrize("changes", [{"term": 9}, {"vote": "n1"}])
def test_a_pre_vote_changes_neither_term_nor_vote(watched: Watched, changes: dict[str, object]) -> None:
    with pytest.raises(Violation, match=PROMISES):
        watched.takes(VoteRequest("n1", "n0", 9, 9, 9, pre_vote=True), **changes)


@pytest.mark.parametrize(("vote", "term", "is_found"), [("n0", 3, False), ("n1", 3, True), ("n0", 4, True)])
def test_who_had_lost_its_vote_may_take_it_for_used_at_any_message(
    watched: Watched, vote: str, term: int, is_found: bool
) -> None:
    watched.node.recovering = Loss.VOTE
    with pytest.raises(Violation) if is_found else nullcontext():
        watched.takes(
            VoteRequest("n1", "n0", 9, 9, 9, pre_vote=True), vote=vote, term=term, recovering=Loss.ENTRIES
        )


def test_a_leader_enters_no_term_for_who_asks_for_votes(watched: Watched) -> None:
    watched.leads()
    with pytest.raises(Violation, match=DEFENDED):
        watched.takes(VoteRequest("n1", "n0", 9, 9, 9), term=9, role=Role.FOLLOWER, peers={})


def test_a_leader_does_so_if_another_one_wanted_it(watched: Watched) -> None:
    watched.leads()
    request = VoteRequest("n1", "n0", 9, 9, 9, leadership_transfer=True)
    with pytest.raises(Violation, match=CALLED):
        watched.takes(request)
    watched.takes(TimeoutNow("n2", "n1", 8))
    watched.takes(request, term=9, vote="n1")


@pytest.mark.parametrize(("last_index", "last_term", "may"), [(1, 2, True), (0, 3, True), (0, 2, False)])
def test_a_vote_goes_to_a_log_that_lacks_nothing(
    watched: Watched, last_index: int, last_term: int, may: bool
) -> None:
    request = VoteRequest("n1", "n0", 3, last_index, last_term)
    if may:
        watched.takes(request, vote="n1")
    else:
        watched.takes(request)
        with pytest.raises(Violation, match=GRANTED):
            watched.takes(request, vote="n1")


def test_who_stands_was_promised_a_majority_for_that_term(watched: Watched) -> None:
    watched.is_promised("n1", term=3)
    with pytest.raises(Violation, match=PROMISED):
        watched.steps.stands("n0", 4)
    watched.is_promised("n1")
    watched.steps.stands("n0", 4)


def test_promises_of_nodes_that_recover_count_if_all_promise(watched: Watched) -> None:
    watched.is_promised("n1", recovering=True)
    with pytest.raises(Violation, match=PROMISED):
        watched.steps.stands("n0", 4)
    watched.is_promised("n2")
    watched.steps.stands("n0", 4)


def test_and_if_those_promise_with_whom_they_may_have_committed_what_they_lack(watched: Watched) -> None:
    promise = VoteResponse("n1", "n0", 3, 4, True, True, recovering=True, lost_voters=("n1", "n4"))
    watched.takes(promise)
    watched.is_promised("n2", recovering=True)
    with pytest.raises(Violation, match=PROMISED):
        watched.steps.stands("n0", 4)
    watched.is_promised("n4")
    watched.steps.stands("n0", 4)


_PATIENCE_NS = RaftOptions().election_timeout_min_ns


@pytest.mark.parametrize(
    ("changes", "deadline", "is_found"),
    [
        ({}, _PATIENCE_NS + 5, False),
        ({}, _PATIENCE_NS + 4, True),
        ({}, None, False),
        ({"recovering": Loss.ENTRIES}, 6, False),
        ({"leader": "n2"}, 6, False),
        ({"term": 4}, 6, False),
    ],
)
def test_who_hears_its_leader_waits_for_an_election_timeout(
    changes: dict[str, Any], deadline: int | None, is_found: bool
) -> None:
    raft = stand_ins.raft(**({"leader": "n1", "term": 3} | changes))
    raft.deadline = lambda: deadline
    watch_patience("n0", raft, _PATIENCE_NS)
    for message in (
        AppendRequest("n1", "n0", 3, 5, 3, (), 0, 1),
        SnapshotRequest("n1", "n0", 3, 5, 3, -1, Configuration(_VOTERS)),
    ):
        with pytest.raises(Violation, match=PATIENT) if is_found else nullcontext():
            raft.step(message, 5)
    raft.step(TimeoutNow("n1", "n0", 3), 5)


def test_whom_the_leader_calls_needs_no_promise(watched: Watched) -> None:
    watched.takes(TimeoutNow("n1", "n0", 3))
    watched.steps.stands("n0", 4)
    with pytest.raises(Violation, match=PROMISED):
        watched.steps.stands("n0", 5)


def test_only_voters_stand_and_those_whose_removal_is_not_committed(watched: Watched) -> None:
    node = watched.node
    watched.is_promised("n1", "n2")
    node.configuration = Configuration(("n1", "n2"), ("n0",))
    node.configurations = ((-1, Configuration(_VOTERS)), (1, node.configuration))
    node.configuration_index = 1
    watched.steps.stands("n0", 4)
    node.commit_index = 1
    with pytest.raises(Violation, match=STANDS):
        watched.steps.stands("n0", 4)
