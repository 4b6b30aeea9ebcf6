"""Messages that no member sends that works: each is refused, and the log and what is acknowledged of it stay."""

import pytest

from raft import Raft
from raft.errors import ImpossibleMessage
from raft.messages import AppendResponse, Message, RecoveryRequest, SnapshotRequest
from tests.raft.one_node import THREE, append, become_leader, node, step


def follower() -> Raft:
    """Agrees with b, the leader of term 2, up to entry 5, of which 0 to 2 are committed."""
    raft = node([1, 1, 1], term=2)
    step(raft, append((2, 1), (2, 3), term=2, commit=2))
    assert (raft.agreed_index, raft.commit_index) == (5, 2)
    return raft


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (append((3, 2), (1, 2), term=2), "has changed its log at 4"),
        (SnapshotRequest("b", "a", 2, 5, 1, -1, THREE), "has changed its log at 4"),
        (append((5, 2), term=2)._replace(source="c"), "c and b both lead term 2"),
    ],
)
def test_a_follower_gives_up_nothing_that_it_agreed_on(message: Message, why: str) -> None:
    raft = follower()
    with pytest.raises(ImpossibleMessage, match=why):
        raft.step(message, 0)
    assert not raft.pending
    assert (raft.agreed_index, raft.log_terms.last_index) == (5, 5)


@pytest.mark.parametrize(
    "answer",
    [
        AppendResponse("b", "a", 2, True, 2, 2, 9),
        AppendResponse("b", "a", 2, True, 4, 4, 1),
        AppendResponse("b", "a", 2, True, 2, 1, 1),
    ],
    ids=["of a round to come", "beyond the log", "more on the disk than agreed on"],
)
def test_a_leader_counts_no_answer_that_cannot_be(answer: AppendResponse) -> None:
    raft = node([1, 1])
    become_leader(raft)
    with pytest.raises(ImpossibleMessage, match="an answer to round"):
        raft.step(answer, 0)
    assert raft.commit_index == -1


def test_a_leader_outlives_a_hint_at_what_is_before_every_log() -> None:
    raft = node([1, 1])
    become_leader(raft)
    raft.step(AppendResponse("b", "a", 2, False, -1, 1, 1, hint_index=-1, hint_term=-1), 0)
    for _ in range(2):
        raft.step(RecoveryRequest("b", "a", 2, 1), 0)
    peer = raft.peers["b"]
    assert (peer.match_index, peer.next_index) == (-1, 0)
