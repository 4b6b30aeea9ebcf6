"""The judge of reads: a majority must have answered a round that began after the read came."""

from __future__ import annotations

from typing import Any

import pytest

from raft.configuration import Configuration
from raft.effects import Role
from raft.messages import AppendResponse
from simulation.journal import Violation
from simulation.judges.reads import CONFIRMED, Reads
from tests.simulation import stand_ins


class Leader:
    """n0, which leads term 1, with two other voters and a learner. Round 1 has begun."""

    def __init__(self) -> None:
        members = Configuration(("n0", "n1", "n2"), ("n3",))
        self.raft = stand_ins.raft(role=Role.LEADER, configuration=members)
        self.reads = Reads()
        self.reads.elected("n0", 1)
        self.turn(1)

    def turn(self, heartbeat_round: int, *waiting: object) -> None:
        """A turn is over: so many rounds have begun, and these reads wait."""
        self.raft.heartbeat_round = heartbeat_round
        self.reads.turned("n0", self.raft, waiting)

    def answer(self, source: str, heartbeat_round: int, term: int = 1) -> None:
        self.reads.heard(AppendResponse(source, "n0", term, True, 0, 0, heartbeat_round))


@pytest.fixture
def leader() -> Leader:
    return Leader()


def broken() -> Any:
    return pytest.raises(Violation, match=rf"^{CONFIRMED} \(n0\)")


def test_a_round_that_began_after_the_read_confirms_it(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.answer("n2", 2)
    leader.turn(2)


def test_a_round_that_was_open_when_the_read_came_does_not(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.answer("n1", 1)
    with broken():
        leader.turn(2)


def test_the_answer_of_a_learner_does_not_count(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.answer("n3", 2)
    with broken():
        leader.turn(2)


def test_an_answer_of_an_earlier_term_does_not_count(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.answer("n1", 2, term=0)
    with broken():
        leader.turn(2)


def test_a_round_that_has_lost_its_answers_is_followed_by_another(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.turn(3, "read")
    leader.answer("n1", 3)
    leader.turn(3)


def test_the_majority_may_be_of_the_members_before_a_change(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.answer("n1", 2)
    five = Configuration(("n0", "n1", "n2", "n3", "n4"))
    leader.raft.configurations = (*leader.raft.configurations, (7, five))
    leader.turn(2)


def test_reads_that_are_lost_with_the_leadership_are_none_that_are_confirmed(leader: Leader) -> None:
    leader.turn(2, "read")
    leader.raft.role = Role.FOLLOWER
    leader.turn(0)
    leader.raft.role, leader.raft.term = Role.LEADER, 3
    leader.reads.elected("n0", 3)
    leader.turn(1)
