"""What a node believes is held to what it has heard and to what is so: each breach is seen by its own check."""

from __future__ import annotations

from typing import Any

import pytest

from log.formats.layout import ENTRY_MAGIC, HEADER
from raft.configuration import Configuration
from raft.effects import Role
from raft.messages import AppendResponse, RecoveryRequest, VoteResponse
from raft.recovery_loss import Loss
from raft.terms import LogTerms
from simulation.journal import Violation
from simulation.judges.beliefs import (
    ACKNOWLEDGED,
    ANSWERED,
    COUNTED_ON,
    ELECTABLE,
    HELD,
    LEFT,
    PROMOTED,
    VOTED_FOR,
    Beliefs,
)
from simulation.judges.group_model import GroupModel
from simulation.scheduler import SECOND
from tests.simulation import stand_ins

_CATCH_UP = 2


class Node(stand_ins.RaftState):
    """The Raft state of a node that has a log of entries of one term."""

    def __init__(self, name: str, voters: tuple[str, ...], entries: int) -> None:
        self.name = name
        super().__init__(configuration=Configuration(voters))
        self.holds(entries)

    def holds(self, entries: int) -> None:
        """Its log has so many entries."""
        self.log_terms = LogTerms(0, entries - 1, [(0, 1)] if entries else [])
        self.persisted_index = entries - 1


class Group:
    """Nodes that are watched; the first, n0, leads term 1 by the votes of n0 and n1, and all have three entries."""

    def __init__(self, size: int = 3) -> None:
        self.model = GroupModel()
        self.now_ns = 0
        self.beliefs = Beliefs(self.model, lambda: self.now_ns)
        names = tuple(f"n{number}" for number in range(size))
        self.nodes = [Node(name, names, 3) for name in names]
        for node in self.nodes:
            self.start(node)
        self.leader = self.nodes[0]

    def start(self, node: Node) -> None:
        """A process begins with the log that the node has."""
        raft: Any = node
        self.beliefs.started(node.name, raft)

    def look(self, node: Node) -> None:
        """A turn of the node is over."""
        raft: Any = node
        self.beliefs.turned(node.name, raft, _CATCH_UP)

    def vote(self, *voters: str, term: int = 1, recovering: bool = False, pre_vote: bool = False) -> None:
        """Votes come to n0."""
        for voter in voters:
            self.beliefs.heard(VoteResponse(voter, "n0", term, term, True, pre_vote, recovering))

    def elect(self) -> None:
        """n0 leads."""
        self.leader.role = Role.LEADER
        self.beliefs.elected("n0", 1)

    def lead(self) -> None:
        """n0 leads by the votes of n1 and n2."""
        self.vote("n1", "n2")
        self.elect()

    def answer(self, source: str, match_index: int, *, term: int = 1, round_number: int = 1) -> None:
        """An acknowledgement comes to n0."""
        self.beliefs.heard(AppendResponse(source, "n0", term, True, match_index, match_index, round_number))

    def believe(self, node: str, match_index: int, *, round_number: int = 0) -> None:
        """n0 takes so much for durable there, and this round for answered."""
        peer = stand_ins.peer(node, match_index=match_index, acknowledged_round=round_number)
        self.leader.peers = {node: peer}
        self.answer("n1", -1)
        self.look(self.leader)

    def commit(self, index: int) -> None:
        """n0 commits entries up to there."""
        for at in range(self.model.last_index + 1, index + 1):
            self.model.positions.append(len(self.model.image))
            self.model.image += HEADER.pack(ENTRY_MAGIC, HEADER.size, at, 1, 0, 0, 0, 0, 0)
        self.model.last_index = index
        self.beliefs.committed("n0", index)


@pytest.fixture
def group() -> Group:
    return Group()


def test_a_majority_of_its_terms_votes_makes_a_leader(group: Group) -> None:
    group.vote("n1")
    group.elect()


def test_a_vote_of_another_term_makes_no_leader(group: Group) -> None:
    group.vote("n1", "n2", term=2)
    with pytest.raises(Violation, match=VOTED_FOR):
        group.elect()


def test_a_candidate_counts_votes_of_its_term_and_its_own(group: Group) -> None:
    group.leader.role = Role.CANDIDATE
    group.vote("n1")
    group.leader.counted_votes = ("n0", "n1")
    group.look(group.leader)
    group.vote("n2", term=2)
    group.leader.counted_votes = ("n0", "n1", "n2")
    with pytest.raises(Violation, match=VOTED_FOR):
        group.look(group.leader)


def test_a_promise_to_vote_makes_no_leader(group: Group) -> None:
    group.vote("n1", "n2", pre_vote=True)
    with pytest.raises(Violation, match=VOTED_FOR):
        group.elect()


def test_votes_of_recovering_nodes_make_a_leader_if_all_vote_for_it(group: Group) -> None:
    group.vote("n1", recovering=True)
    with pytest.raises(Violation, match=VOTED_FOR):
        group.elect()
    group.vote("n2")
    group.elect()


@pytest.mark.parametrize("agrees", [False, True])
def test_all_are_also_those_with_whom_they_may_have_committed_what_they_lack(
    group: Group, agrees: bool
) -> None:
    marked = VoteResponse("n1", "n0", 1, 1, True, False, recovering=True, lost_voters=("n0", "n1", "n3"))
    group.beliefs.heard(marked)
    group.vote("n2", recovering=True)
    if agrees:
        group.vote("n3")
        group.elect()
    else:
        with pytest.raises(Violation, match=VOTED_FOR):
            group.elect()


def test_a_candidate_that_recovers_names_them_itself(group: Group) -> None:
    group.leader.recovering, group.leader.lost_voters = Loss.ENTRIES, ("n0", "n3")
    group.vote("n1", recovering=True)
    group.vote("n2")
    with pytest.raises(Violation, match=VOTED_FOR):
        group.elect()
    group.vote("n1")  # with n2 a majority, which has all that it promised
    group.elect()


def test_what_was_acknowledged_in_the_term_is_a_match(group: Group) -> None:
    group.lead()
    group.answer("n1", 2)
    group.believe("n1", 2)
    with pytest.raises(Violation, match=ACKNOWLEDGED):
        group.believe("n2", 0)


def test_what_was_acknowledged_in_another_term_is_none(group: Group) -> None:
    group.lead()
    group.answer("n1", 2, term=0)
    with pytest.raises(Violation, match=ACKNOWLEDGED):
        group.believe("n1", 2)


def test_what_was_acknowledged_before_a_loss_is_none(group: Group) -> None:
    group.lead()
    group.answer("n1", 2, round_number=4)
    group.beliefs.heard(RecoveryRequest("n1", "n0", 1, 7))
    group.answer("n1", 2, round_number=4)
    with pytest.raises(Violation, match=ACKNOWLEDGED):
        group.believe("n1", 2)
    group.answer("n1", 2, round_number=5)
    group.believe("n1", 2)


def test_what_a_member_acknowledged_before_it_left_is_none(group: Group) -> None:
    group.lead()
    group.answer("n2", 2)
    group.leader.configuration = Configuration(("n0", "n1"))
    group.look(group.leader)
    group.leader.configuration = Configuration(("n0", "n1"), ("n2",))
    with pytest.raises(Violation, match=ACKNOWLEDGED):
        group.believe("n2", 2)


def _promote(group: Group, *, acknowledged: int, entry: int) -> None:
    group.lead()
    newcomer = Node("n3", (), 3)
    group.start(newcomer)
    group.nodes.append(newcomer)
    group.leader.configuration = Configuration(("n0", "n1", "n2"), ("n3",))
    group.look(group.leader)
    group.answer("n3", acknowledged)
    group.leader.configuration = Configuration(("n0", "n1", "n2", "n3"))
    group.leader.configuration_index = entry


def test_a_learner_that_has_caught_up_is_promoted(group: Group) -> None:
    _promote(group, acknowledged=2, entry=3 + _CATCH_UP)
    group.look(group.leader)


def test_a_learner_that_lacks_more_is_not(group: Group) -> None:
    _promote(group, acknowledged=2, entry=4 + _CATCH_UP)
    with pytest.raises(Violation, match=PROMOTED):
        group.look(group.leader)


def test_a_learner_that_has_never_been_whole_is_not(group: Group) -> None:
    _promote(group, acknowledged=2, entry=3)
    group.nodes[3].recovering = Loss.VOTE
    with pytest.raises(Violation, match=PROMOTED):
        group.look(group.leader)


def test_a_disk_that_is_new_begins_to_be_whole_anew(group: Group) -> None:
    _promote(group, acknowledged=2, entry=3)
    group.look(group.nodes[3])
    group.beliefs.wiped("n3")
    group.nodes[3].recovering = Loss.VOTE
    with pytest.raises(Violation, match=PROMOTED):
        group.look(group.leader)


def _remove(group: Group, node: str) -> None:
    """n0 has that voter leave in entry 3."""
    group.leader.earlier = group.leader.configuration.voters
    group.leader.configuration = Configuration(tuple(one for one in group.leader.earlier if one != node))
    group.leader.configuration_index = 3


def _leads_over(group: Group, *, n1_recovers: bool) -> None:
    """n0 leads, and has heard of the others."""
    group.lead()
    group.leader.peers = {name: stand_ins.peer(name, recovering=name == "n1") for name in ("n1", "n2")}
    group.answer("n2", 2)
    group.beliefs.heard(AppendResponse("n1", "n0", 1, True, 2, 2, 1, recovering=n1_recovers))


@pytest.mark.parametrize("gone", ["n0", "n2"])
def test_who_is_removed_leaves_enough_who_can_vote(group: Group, gone: str) -> None:
    _leads_over(group, n1_recovers=True)
    _remove(group, gone)
    with pytest.raises(Violation, match=LEFT):
        group.look(group.leader)


def test_who_recovers_may_go_and_of_those_who_can_vote_one(group: Group) -> None:
    _leads_over(group, n1_recovers=True)
    _remove(group, "n1")
    group.look(group.leader)
    again = Group()
    _leads_over(again, n1_recovers=False)
    _remove(again, "n2")
    again.look(again.leader)


@pytest.mark.parametrize("why", ["it recovers", "its connection is broken", "it is silent"])
def test_of_two_that_stay_one_may_recover_if_who_goes_is_no_help(group: Group, why: str) -> None:
    _leads_over(group, n1_recovers=True)
    if why == "it recovers":
        group.beliefs.heard(RecoveryRequest("n2", "n0", 1, 7))
    elif why == "its connection is broken":
        group.leader.peers["n2"].recovering = True
    else:
        group.now_ns = SECOND
    _remove(group, "n2")
    group.look(group.leader)


def test_what_is_heard_behind_a_removal_was_not_known_before(group: Group) -> None:
    group.lead()
    group.leader.peers = {name: stand_ins.peer(name, recovering=False) for name in ("n1", "n2")}
    group.answer("n2", 2)
    _remove(group, "n2")
    group.leader.holds(4)
    group.beliefs.heard(RecoveryRequest("n1", "n0", 1, 7))
    group.look(group.leader)


def test_who_lacks_what_is_committed_has_no_majority(group: Group) -> None:
    group.lead()
    group.answer("n1", 2)
    group.nodes[2].holds(1)
    group.commit(2)
    group.look(group.nodes[2])  # n0 and n1 would not vote for it
    group.nodes[1].holds(1)
    group.beliefs.counted_on.clear()  # it is seen by more than one check
    with pytest.raises(Violation, match=ELECTABLE):
        group.look(group.nodes[1])


@pytest.mark.parametrize(("committed_in", "marked"), [(1, False), (1, True), (2, False)])
def test_a_vote_that_was_given_elects_whatever_its_voter_has_now(committed_in: int, marked: bool) -> None:
    """n3 voted for n4 in term 2, has another disk since, and what is committed in term 1 counts on that."""
    group = Group(5)
    group.lead()
    group.model.commit_terms = [(0, committed_in)]
    for name in ("n1", "n3"):
        group.answer(name, 2)
    group.commit(2)
    group.nodes[2].holds(1)
    candidate = group.nodes[4]
    candidate.holds(1)
    candidate.term, candidate.counted_votes = 2, ("n4",)
    group.look(candidate)  # only n2 would vote for it now
    group.beliefs.heard(VoteResponse("n3", "n4", 2, 2, granted=True, recovering=marked))
    candidate.counted_votes = ("n3", "n4")
    if committed_in == 1 and not marked:
        with pytest.raises(Violation, match=f"{ELECTABLE}.* n2 n3 n4 of"):
            group.look(candidate)
    else:
        group.look(candidate)


def test_who_recovers_is_in_no_majority_and_who_is_down_neither(group: Group) -> None:
    group.lead()
    group.answer("n1", 2)
    group.commit(2)
    group.nodes[2].holds(1)
    group.nodes[1].holds(1)
    group.nodes[1].recovering = Loss.ENTRIES
    group.look(group.nodes[1])
    group.beliefs.stopped("n1")
    group.nodes[1].recovering = None
    group.look(group.nodes[2])


def test_who_votes_holds_what_was_committed_by_its_acknowledgement(group: Group) -> None:
    group.lead()
    group.answer("n1", 2)
    group.commit(2)
    lost = group.nodes[1]
    lost.holds(1)
    lost.recovering = Loss.ENTRIES
    group.start(lost)
    lost.recovering = None
    with pytest.raises(Violation, match=COUNTED_ON):
        group.look(lost)
    with pytest.raises(Violation, match=COUNTED_ON):
        group.start(lost)


def test_nobody_counted_on_who_had_acknowledged_less(group: Group) -> None:
    group.lead()
    group.answer("n1", 2)
    group.answer("n2", 1)
    group.commit(2)
    group.nodes[2].holds(0)
    group.look(group.nodes[2])


def test_a_round_counts_where_it_was_answered(group: Group) -> None:
    group.lead()
    group.answer("n1", -1, round_number=3)
    group.believe("n1", -1, round_number=3)
    with pytest.raises(Violation, match=ANSWERED):
        group.believe("n1", -1, round_number=4)


def test_a_leader_commits_what_a_majority_has_acknowledged(group: Group) -> None:
    group.lead()
    group.answer("n1", 1)
    group.leader.commit_index = 1
    group.look(group.leader)
    group.leader.commit_index = 2
    with pytest.raises(Violation, match=HELD):
        group.look(group.leader)


def test_what_is_acknowledged_behind_a_commit_does_not_excuse_it(group: Group) -> None:
    group.lead()
    group.leader.commit_index = 1
    with pytest.raises(Violation, match=HELD):
        group.answer("n1", 1)


def test_neither_learners_count_for_a_commit_nor_a_leader_that_leaves(group: Group) -> None:
    group.lead()
    group.leader.configuration = Configuration(("n1", "n2"), ("n3",))
    for member in ("n1", "n3"):
        group.answer(member, 2)
    group.leader.commit_index = 2
    with pytest.raises(Violation, match=HELD):
        group.look(group.leader)


def test_before_a_change_is_committed_the_majority_may_be_of_those_before_it(group: Group) -> None:
    group.lead()
    group.leader.earlier = group.leader.configuration.voters
    group.leader.configuration = Configuration(("n0", "n2"))
    group.leader.configuration_index = 2
    group.answer("n1", 2)
    group.leader.commit_index = 1
    group.look(group.leader)
    group.leader.commit_index = 2
    with pytest.raises(Violation, match=HELD):
        group.look(group.leader)


@pytest.mark.parametrize("flushed", [2, 3])
def test_a_change_that_its_own_disk_lacks_takes_a_majority_of_those_before_it(
    group: Group, flushed: int
) -> None:
    """n2 joins n0 and n1: without what n0 has not flushed yet its own disk counts in neither majority."""
    group.lead()
    leader = group.leader
    leader.peers = {name: stand_ins.peer(name) for name in ("n1", "n2")}
    leader.earlier, leader.configuration_index, leader.persisted_index = ("n0", "n1"), 3, flushed
    for name in ("n1", "n2"):
        group.answer(name, 3)
    leader.commit_index = 3
    if flushed == 3:
        group.look(leader)
    else:
        with pytest.raises(Violation, match=HELD):
            group.look(leader)


def test_nor_when_its_own_removal_ends_its_leadership(group: Group) -> None:
    group.lead()
    group.leader.configuration = Configuration(("n1", "n2"))
    group.answer("n1", 2)
    group.leader.commit_index = 2
    group.leader.role = Role.FOLLOWER
    with pytest.raises(Violation, match=HELD):
        group.look(group.leader)
