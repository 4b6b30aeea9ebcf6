"""The judge of the group's time: a new leader goes on from what it heard, as true time does."""

from __future__ import annotations

from typing import Any

import pytest

from broker.peers.protocol import RaftFrame
from raft.effects import Role
from raft.messages import AppendRequest
from simulation.journal import Violation
from simulation.judges.group_time import GOES_ON, GroupTime
from tests.simulation import stand_ins

S = 1_000_000_000
DAWN_MS = 1_700_000_000_000


def replica(role: Role, term: int, leader: str, time_ms: int) -> Any:
    clock = stand_ins.stand_in(ahead_ms=lambda wall_ms: DAWN_MS + time_ms - wall_ms)
    return stand_ins.replica(raft=stand_ins.raft(role=role, term=term, leader=leader), clock=clock)


def after_a_word(sent_at_ms: int = 10_000) -> GroupTime:
    """n0 leads term 1 and has its last turn at 10 s; n1 hears then what n0 has said."""
    judge = GroupTime()
    judge.turned("n0", replica(Role.LEADER, 1, "n0", 10_000), 10 * S)
    word = RaftFrame(AppendRequest("n0", "n1", 1, 0, 1, (), 0, 1), time_ms=DAWN_MS + sent_at_ms)
    judge.taken(word, replica(Role.FOLLOWER, 1, "n0", sent_at_ms), 10 * S)
    return judge


def elected(judge: GroupTime, time_ms: int, name: str = "n1") -> None:
    """A second later a node leads term 2, by this time."""
    judge.role(name, replica(Role.LEADER, 2, name, time_ms), 11 * S)


@pytest.mark.parametrize("time_ms", [10_840, 11_000, 11_160])
def test_it_may_be_wrong_by_what_monotonic_clocks_are(time_ms: int) -> None:
    elected(after_a_word(), time_ms)


@pytest.mark.parametrize(("time_ms", "by"), [(10_820, r"-0\.180"), (11_180, r"0\.180"), (0, "-11")])
def test_it_neither_falls_back_nor_leaps_ahead(time_ms: int, by: str) -> None:
    with pytest.raises(Violation, match=rf"^{GOES_ON} \(n1\): its time in term 2 is ahead by {by}"):
        elected(after_a_word(), time_ms)


def test_a_word_that_came_late_excuses_so_much() -> None:
    elected(after_a_word(sent_at_ms=8_000), 9_000)
    with pytest.raises(Violation):
        elected(after_a_word(sent_at_ms=8_000), 8_800)


def a_word(judge: GroupTime, true_ms: int, time_ms: int) -> None:
    """n0, which leads term 1, has a turn, and n1 hears what it says."""
    judge.turned("n0", replica(Role.LEADER, 1, "n0", time_ms), true_ms * 1_000_000)
    word = RaftFrame(AppendRequest("n0", "n1", 1, 0, 1, (), 0, 1), time_ms=DAWN_MS + time_ms)
    judge.taken(word, replica(Role.FOLLOWER, 1, "n0", time_ms), true_ms * 1_000_000)


def test_who_follows_a_leader_whose_clock_stood_still_is_ahead_for_a_while() -> None:
    def after_words_of(seconds: int) -> GroupTime:
        judge = after_a_word()
        judge.stood_still("n0", 59 * S)
        for true_ms in range(70_000, 70_000 + seconds * 1000, 500):
            a_word(judge, true_ms, true_ms - 59_000)
        return judge

    def leads(judge: GroupTime, at_ms: int, time_ms: int) -> None:
        judge.role("n1", replica(Role.LEADER, 2, "n1", time_ms), at_ms * 1_000_000)

    leads(after_words_of(0), 70_000, 70_000)
    leads(after_words_of(3), 73_000, 73_000)
    leads(after_words_of(3), 73_000, 14_000)
    leads(after_words_of(6), 76_000, 17_000)
    unexplained = after_a_word()
    a_word(unexplained, 70_000, 11_000)
    for judge, at_ms, time_ms in (
        (unexplained, 70_500, 70_500),
        (after_words_of(6), 76_000, 76_000),
        (after_words_of(3), 73_000, 80_000),
        (after_words_of(3), 73_000, 13_000),
    ):
        with pytest.raises(Violation):
            leads(judge, at_ms, time_ms)


def test_who_has_heard_no_leader_since_it_started_is_passed_over() -> None:
    judge = after_a_word()
    elected(judge, 0, "n2")
    judge.stopped("n1")
    elected(judge, 0)
