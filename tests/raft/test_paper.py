"""The rules of the Raft paper and dissertation, one test each, named by section.

"Paper" is the extended version of In Search of an Understandable Consensus Algorithm, "dissertation" is Consensus:
Bridging Theory and Practice. A single node is driven by hand-made messages wherever its own behaviour is the rule.
"""

import pytest

from raft import (
    Configuration,
    LogTerms,
    RaftOptions,
    Role,
)
from raft.effects import (
    AcceptEntries,
    AppendNoop,
    Committed,
    ResetLog,
    SaveHardState,
    Send,
    TruncateLog,
)
from raft.errors import (
    ProposalLimit,
)
from raft.messages import (
    AppendRequest,
    AppendResponse,
    SnapshotRequest,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from tests.raft.cluster import Cluster
from tests.raft.invariants import Invariants
from tests.raft.one_node import (
    OPTIONS,
    SECOND,
    THREE,
    agrees,
    append,
    become_leader,
    node,
    role_of,
    sent,
    step,
    vote_request,
)


class TestTerms:
    """Paper 5.1."""

    @pytest.mark.parametrize("role", [Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER])
    def test_5_1_a_greater_term_makes_a_follower_in_every_role(self, role: Role) -> None:
        raft = node()
        if role is Role.LEADER:
            become_leader(raft)
        elif role is not Role.FOLLOWER:
            raft.tick(2 * SECOND)
            if role is Role.CANDIDATE:
                step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        assert role_of(raft) is role
        step(raft, append((-1, 0), term=9), 2 * SECOND)
        assert (raft.role, raft.term, raft.leader, raft.vote) == (Role.FOLLOWER, 9, "b", None)

    def test_5_1_the_term_is_saved_before_an_answer_in_it_is_sent(self) -> None:
        effects = step(node(), append((-1, 0), (4, 1), term=4))
        saved = effects.index(SaveHardState(4, None))
        answers = [position for position, e in enumerate(effects) if isinstance(e, Send | AcceptEntries)]
        assert len(answers) == 2
        assert saved < min(answers)

    def test_5_1_a_request_of_an_old_term_is_refused_with_the_current_one(self) -> None:
        raft = node([1], term=3)
        [answer] = sent(step(raft, append((0, 1), (2, 1), term=2)))
        assert isinstance(answer, AppendResponse)
        assert (answer.success, answer.term, raft.log_terms.last_index) == (False, 3, 0)
        [vote] = sent(step(raft, vote_request(2, (5, 2))))
        assert isinstance(vote, VoteResponse)
        assert (vote.granted, vote.term) == (False, 3)


class TestElection:
    """Paper 5.2."""

    def test_5_2_silence_makes_a_candidate_that_votes_for_itself_in_a_new_term(self) -> None:
        raft = node()
        deadline = raft.deadline()
        assert deadline is not None
        raft.tick(deadline - 1)
        assert raft.take_effects() == []
        raft.tick(deadline)
        step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), deadline)
        assert (raft.role, raft.term, raft.vote) == (Role.CANDIDATE, 2, "a")

    def test_5_2_the_own_vote_is_saved_before_votes_are_requested(self) -> None:
        raft = node()
        raft.tick(2 * SECOND)
        raft.take_effects()
        effects = step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        assert effects[0] == SaveHardState(2, "a")
        assert {m.target for m in sent(effects) if isinstance(m, VoteRequest)} == {"b", "c"}

    def test_5_2_a_vote_is_saved_with_its_term_before_it_is_sent(self) -> None:
        effects = step(node(), vote_request(5, (-1, 0)))
        assert effects[0] == SaveHardState(5, "b")
        [vote] = sent(effects)
        assert vote == VoteResponse("a", "b", 5, 5, True)

    def test_5_2_one_vote_in_a_term_first_come_first_served_also_after_a_restart(self) -> None:
        raft = node(term=5, vote="b")
        [other] = sent(step(raft, vote_request(5, (9, 5), source="c")))
        [again] = sent(step(raft, vote_request(5, (-1, 0))))
        assert isinstance(other, VoteResponse)
        assert isinstance(again, VoteResponse)
        assert (other.granted, again.granted) == (False, True)

    def test_5_2_a_majority_of_five_needs_three_different_voters(self) -> None:
        raft = node(configuration=Configuration(("a", "b", "c", "d", "e"), ("f",)))
        raft.tick(2 * SECOND)
        for voter in ("b", "c"):
            step(raft, VoteResponse(voter, "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        assert role_of(raft) is Role.CANDIDATE
        for voter in ("b", "b", "f", "stranger"):
            step(raft, VoteResponse(voter, "a", 2, 2, True), 2 * SECOND)
        assert role_of(raft) is Role.CANDIDATE
        step(raft, VoteResponse("c", "a", 2, 2, True), 2 * SECOND)
        assert role_of(raft) is Role.LEADER

    def test_5_2_a_candidate_that_hears_a_leader_of_its_term_follows_it(self) -> None:
        raft = node()
        raft.tick(2 * SECOND)
        step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        step(raft, append((-1, 0), term=2), 2 * SECOND)
        assert (raft.role, raft.leader) == (Role.FOLLOWER, "b")

    def test_5_2_timeouts_are_drawn_anew_and_from_the_whole_range(self) -> None:
        raft = node()
        waits = []
        for term in range(2, 202):
            step(raft, vote_request(term, (-1, 0)))
            assert raft.vote == "b"
            deadline = raft.deadline()
            assert deadline is not None
            waits.append(deadline)
        span = OPTIONS.election_timeout_max_ns - OPTIONS.election_timeout_min_ns
        assert min(waits) >= OPTIONS.election_timeout_min_ns
        assert max(waits) < OPTIONS.election_timeout_max_ns
        assert max(waits) - min(waits) > span * 0.9

    def test_5_2_a_leader_sends_heartbeats_and_they_keep_others_from_campaigning(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        cluster.elect("a")
        term = cluster["a"].up.term
        cluster.run_for(20 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["a"]
        assert cluster["a"].up.term == term

    def test_5_2_a_split_vote_is_followed_by_another_election_before_a_timeout(self) -> None:
        raft = node()
        raft.tick(2 * SECOND)
        step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        for voter in ("b", "c"):
            step(raft, VoteResponse(voter, "a", 2, 2, False), 2 * SECOND)
        assert role_of(raft) is Role.FOLLOWER
        deadline = raft.deadline()
        assert deadline is not None
        assert deadline < 2 * SECOND + OPTIONS.election_timeout_min_ns


class TestReplication:
    """Paper 5.3."""

    def test_5_3_entries_are_accepted_only_after_the_entry_they_follow(self) -> None:
        raft = node([1, 1, 2], term=3)
        for prev in [(3, 3), (2, 1), (1, 2)]:
            [refusal] = sent(step(raft, append(prev, (3, 1), term=3)))
            assert isinstance(refusal, AppendResponse)
            assert not refusal.success
        effects = step(raft, append((2, 2), (3, 2), term=3))
        assert any(isinstance(effect, AcceptEntries) for effect in effects)
        assert raft.log_terms.runs == ((0, 1), (2, 2), (3, 3))

    def test_5_3_a_conflicting_entry_is_removed_with_all_that_follow(self) -> None:
        raft = node([1, 1, 2, 2, 2], term=3)
        effects = step(raft, append((0, 1), (1, 1), (3, 1), term=3))
        assert TruncateLog(1) in effects
        assert [(e.first_index, e.skip) for e in effects if isinstance(e, AcceptEntries)] == [(2, 1)]
        assert raft.log_terms.runs == ((0, 1), (2, 3))

    def test_5_3_entries_that_are_there_stay_and_so_does_what_follows_them(self) -> None:
        raft = node([1, 1, 1, 1])
        effects = step(raft, append((-1, 0), (1, 2)))
        assert not any(isinstance(effect, TruncateLog | AcceptEntries) for effect in effects)
        assert raft.log_terms.last_index == 3

    def test_5_3_a_follower_commits_no_further_than_it_knows_to_agree(self) -> None:
        raft = node([1, 1, 2, 2], term=3)  # the last two may not be the leader's
        effects = step(raft, append((0, 1), (1, 1), term=3, commit=3))
        assert [effect.index for effect in effects if isinstance(effect, Committed)] == [1]

    def test_5_3_the_hint_skips_the_terms_that_cannot_agree(self) -> None:
        raft = node([1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3], term=7)  # f of figure 7
        [refusal] = sent(step(raft, append((9, 6), (8, 1), term=8)))
        assert isinstance(refusal, AppendResponse)
        assert (refusal.hint_index, refusal.hint_term) == (9, 3)
        leader = LogTerms()
        for term, count in [(1, 3), (4, 2), (5, 2), (6, 3), (8, 1)]:
            leader.append(term, count)
        assert leader.last_not_after(9, 3) == 2

    def test_5_3_an_entry_is_committed_by_a_majority_of_disks(self) -> None:
        raft = node()
        become_leader(raft)
        raft.propose(3)
        raft.step(agrees(raft, "b", 2), 2 * SECOND)
        assert raft.commit_index == 0  # the own disk holds no more
        raft.persisted(3, raft.log_generation, 2 * SECOND)
        assert raft.take_effects() == [Committed(0), Committed(2)]
        raft.step(agrees(raft, "c", 3), 2 * SECOND)
        assert raft.take_effects() == [Committed(3)]

    def test_5_3_the_leader_retries_until_everyone_has_everything(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        cluster.elect("a")
        cluster.partition(["a", "b"], ["c"])
        cluster["a"].propose(5)
        cluster.settle()
        cluster.heal()
        cluster.run_for(SECOND)
        assert cluster["c"].log.entries == cluster["a"].log.entries

    def test_5_3_a_window_bounds_what_is_unanswered(self) -> None:
        options = RaftOptions(max_inflight_appends=4)
        cluster = Cluster(["a", "b", "c"], options=options, entries_per_append=1)
        cluster.elect("a")
        cluster["a"].propose(20)
        assert len([p for p in cluster.packets if p.message.target == "b"]) == 4
        cluster.settle()
        assert cluster["b"].log.last_index == 20


class TestSafety:
    """Paper 5.4."""

    @pytest.mark.parametrize(
        ("last", "granted"),
        [
            ((1, 2), True),  # the same log end
            ((5, 2), True),  # longer
            ((0, 3), True),  # a later term counts before length
            ((0, 2), False),  # shorter
            ((9, 1), False),  # an earlier term counts before length
        ],
    )
    @pytest.mark.parametrize("pre_vote", [True, False])
    def test_5_4_1_only_an_up_to_date_candidate_gets_a_vote(
        self, last: tuple[int, int], granted: bool, pre_vote: bool
    ) -> None:
        [vote] = sent(step(node([1, 2], term=3), vote_request(4, last, pre_vote=pre_vote)))
        assert isinstance(vote, VoteResponse)
        assert vote.granted is granted

    def test_5_4_2_only_an_entry_of_the_own_term_is_committed_by_counting(self) -> None:
        raft = node([1, 2], term=3)
        effects = become_leader(raft)
        assert raft.term == 4
        assert AppendNoop(2, 4) in effects
        step(raft, agrees(raft, "b", 1))
        step(raft, agrees(raft, "c", 1))
        assert raft.commit_index == -1  # on all disks, but of term 2
        step(raft, agrees(raft, "c", 2))
        assert raft.commit_index == 2

    def test_5_4_2_figure_8_under_the_invariants(self) -> None:
        figure_8()


def figure_8() -> None:
    """Figure 8 (b) to (d) with three servers and its own observer; also used on a core without the rule."""
    cluster = Cluster(
        ["s1", "s2", "s3"],
        logs={"s1": [1, 2], "s2": [1], "s3": [1, 3]},
        terms=dict.fromkeys(["s1", "s2", "s3"], 3),
        entries_per_append=1,
    )
    Invariants(cluster)
    cluster.partition(["s1", "s2"], ["s3"])
    s1 = cluster["s1"]
    cluster.now = 2 * SECOND
    cluster.tick(s1)
    s2 = cluster["s2"]
    while s2.log.last_index < 1:
        cluster.deliver(cluster.packets[0])
    assert s2.log.entries == s1.log.entries[:2]
    cluster.deliver(cluster.packets[0])  # s1 hears that a majority has the entry of term 2
    cluster.crash("s1")
    cluster.packets.clear()  # its entry of term 4 reaches nobody
    cluster.heal()
    cluster.elect("s3")
    cluster.run_for(SECOND)
    assert [entry.term for entry in cluster["s2"].log.entries] == [1, 3, 5]


class TestSnapshots:
    """Paper 7, figure 13. Its node has the entries 0 to 4, and knows of none that it is committed."""

    @pytest.mark.parametrize("first_index", [1, 3, 5])
    def test_7_what_follows_the_snapshot_stays_where_the_log_has_its_last_entry(
        self, first_index: int
    ) -> None:
        raft = node([1, 1, 2, 2, 2], term=3)
        prev_term = raft.log_terms.term_at(first_index - 1)
        effects = step(raft, SnapshotRequest("b", "a", 3, first_index, prev_term, -1, THREE))
        assert not any(isinstance(effect, ResetLog) for effect in effects)
        assert raft.log_terms.runs == ((0, 1), (2, 2))
        assert sent(effects) == [SnapshotResponse("a", "b", 3, first_index - 1)]

    @pytest.mark.parametrize(("first_index", "prev_term"), [(3, 1), (3, 3), (6, 2)])
    def test_7_the_log_begins_anew_where_it_has_another_entry_or_none(
        self, first_index: int, prev_term: int
    ) -> None:
        raft = node([1, 1, 2, 2, 2], term=3)
        members = Configuration(("a", "b", "c", "d"))
        effects = step(raft, SnapshotRequest("b", "a", 3, first_index, prev_term, 2, members))
        assert ResetLog(first_index, prev_term, 2, members) in effects
        assert (raft.configuration, raft.configuration_index) == (members, 2), (
            "those of before are gone with the log"
        )
        assert (raft.log_terms.first_index, raft.log_terms.last_index) == (first_index, first_index - 1)
        assert sent(effects) == [SnapshotResponse("a", "b", 3, first_index - 1)]


class TestLimits:
    """Rules that are not in the paper."""

    def test_a_group_of_one_elects_itself_at_once_and_commits_on_its_own_disk(self) -> None:
        raft = node(configuration=Configuration(("a",)))
        assert raft.deadline() == 0
        raft.tick(0)
        assert AppendNoop(0, 2) in raft.take_effects()
        assert raft.commit_index == -1
        raft.persisted(0, raft.log_generation, 0)
        assert raft.commit_index == 0
        assert raft.deadline() is None

    def test_proposals_beyond_the_limit_are_refused(self) -> None:
        raft = node(options=RaftOptions(max_uncommitted_entries=5))
        become_leader(raft)
        raft.propose(4)
        with pytest.raises(ProposalLimit):
            raft.check_proposal(1)
        with pytest.raises(ProposalLimit):
            raft.propose(1)
        step(raft, agrees(raft, "b", 4))
        raft.propose(1)

    def test_an_idle_follower_hears_of_a_commit_once_and_soon(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        leader.propose(1)
        messages = 0
        while cluster.packets:
            messages += len([p for p in cluster.packets if isinstance(p.message, AppendRequest)])
            for packet in list(cluster.packets):
                cluster.deliver(packet)
        assert messages == 2
        assert cluster["b"].up.commit_index == leader.up.commit_index - 1
        cluster.now += OPTIONS.commit_notice_delay_ns
        leader.turn()
        assert len(cluster.packets) == 2
        cluster.settle()
        assert cluster["b"].up.commit_index == cluster["c"].up.commit_index == leader.up.commit_index

    def test_a_follower_that_lost_what_it_had_acknowledged_is_repaired(self) -> None:
        """The page-cache contract: a minority may lose acknowledged entries in a power failure."""
        cluster = Cluster(["a", "b", "c"])
        leader = cluster.elect("a")
        leader.propose(10)
        cluster.settle()
        cluster.run_for(SECOND)
        del cluster["b"].durable_log.entries[4:]
        cluster.crash("b")
        cluster.hosts["b"].start()  # so fast that no one saw the connection end
        cluster.run_for(SECOND)
        assert cluster["b"].log.entries == leader.log.entries

    def test_a_flush_begun_before_a_truncation_does_not_count_after_it(self) -> None:
        raft = node([1, 1, 1, 1], term=1)
        raft.step(append((3, 1), (1, 2)), 0)
        raft.take_effects()
        generation = raft.log_generation  # a flush of 0..5 begins
        raft.step(append((1, 1), (2, 5), term=2), 0)
        raft.take_effects()
        raft.persisted(5, generation, 0)
        assert raft.persisted_index == 1
        raft.persisted(6, raft.log_generation, 0)
        assert raft.persisted_index == 6
