"""The rules of the Raft paper and dissertation, one test each, named by section.

"Paper" is the extended version of In Search of an Understandable Consensus Algorithm, "dissertation" is Consensus:
Bridging Theory and Practice. A single node is driven by hand-made messages wherever its own behaviour is the rule.
"""

import random

import pytest

from raft import (
    AddLearner,
    Change,
    Configuration,
    HardState,
    LogTerms,
    Loss,
    PromoteLearner,
    Raft,
    RaftConfig,
    Reason,
    RemoveMember,
    Role,
)
from raft.effects import (
    AcceptEntries,
    AppendNoop,
    Committed,
    Effect,
    ReadLost,
    ReadReady,
    RecoveryChanged,
    RoleChanged,
    SaveHardState,
    Send,
    TruncateLog,
)
from raft.errors import (
    AlreadyMember,
    ConfigurationPending,
    LastVoter,
    LeadershipTransferring,
    LearnerBehind,
    NotLeader,
    ProposalLimit,
    UnknownMember,
    VotersRecovering,
)
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.raft.cluster import MILLISECOND, Cluster, Run
from tests.raft.invariants import Invariants

THREE = Configuration(("a", "b", "c"))
CONFIG = RaftConfig()
SECOND = 1000 * MILLISECOND


def node(
    terms: list[int] | None = None,
    *,
    term: int = 1,
    vote: str | None = None,
    configuration: Configuration = THREE,
    config: RaftConfig = CONFIG,
) -> Raft:
    """Node a with a log of entries of these terms, all of it on its disk, nothing known to be committed."""
    log = LogTerms()
    for entry_term in terms or []:
        log.append(entry_term, 1)
    bounds = [(-1, configuration)]
    return Raft(
        config,
        "a",
        HardState(term, vote),
        log,
        -1,
        bounds,
        random.Random(7),
        0,
        lambda first_index, last_index: Run(last_index),
    )


def step(raft: Raft, message: Message, now: int = 0) -> list[Effect]:
    """The effects of one turn with this message, its writes flushed at once."""
    raft.step(message, now)
    effects = raft.take_effects()
    raft.persisted(raft.log_terms.last_index, raft.log_generation, now)
    raft.replicate(now)
    return effects + raft.take_effects()


def role_of(raft: Raft) -> Role:
    """Its role now; a function, lest type checkers take it for constant."""
    return raft.role


def sent(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def append(prev: tuple[int, int], *spans: tuple[int, int], term: int = 1, commit: int = -1) -> AppendRequest:
    return AppendRequest("b", "a", term, prev[0], prev[1], spans, commit, 1)


def vote_request(
    term: int, last: tuple[int, int], *, pre_vote: bool = False, source: str = "b"
) -> VoteRequest:
    return VoteRequest(source, "a", term, last[0], last[1], pre_vote)


def become_leader(raft: Raft, now: int = 2 * SECOND) -> list[Effect]:
    """Wins an election; the no-op is written and flushed but not committed."""
    raft.tick(now)
    step(raft, VoteResponse("b", "a", raft.term, raft.term + 1, True, pre_vote=True), now)
    effects = step(raft, VoteResponse("b", "a", raft.term, raft.term, True), now)
    assert role_of(raft) is Role.LEADER
    return effects


def agrees(raft: Raft, source: str, index: int, *, round_number: int = 1) -> AppendResponse:
    return AppendResponse(source, "a", raft.term, True, index, index, round_number)


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
        span = CONFIG.election_timeout_max_ns - CONFIG.election_timeout_min_ns
        assert min(waits) >= CONFIG.election_timeout_min_ns
        assert max(waits) < CONFIG.election_timeout_max_ns
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
        assert deadline < 2 * SECOND + CONFIG.election_timeout_min_ns


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
        raft.propose(3, 2 * SECOND)
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
        config = RaftConfig(max_inflight_appends=4)
        cluster = Cluster(["a", "b", "c"], config=config, entries_per_append=1)
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


class TestMembership:
    """Paper 6 (its simpler form) and dissertation 4."""

    def test_4_1_one_change_at_a_time_and_only_after_a_commit_in_the_term(self) -> None:
        raft = node()
        become_leader(raft)
        with pytest.raises(ConfigurationPending):
            raft.propose_configuration(AddLearner("d"), 2 * SECOND)
        step(raft, agrees(raft, "b", 0))
        raft.propose_configuration(AddLearner("d"), 2 * SECOND)
        raft.take_effects()
        with pytest.raises(ConfigurationPending):
            raft.propose_configuration(AddLearner("e"), 2 * SECOND)

    def test_4_1_a_configuration_counts_when_it_is_appended(self) -> None:
        raft = node(configuration=Configuration(("a", "b")))
        become_leader(raft)
        step(raft, agrees(raft, "b", 0))
        raft.propose_configuration(RemoveMember("b"), 2 * SECOND)
        raft.take_effects()
        raft.persisted(1, raft.log_generation, 2 * SECOND)
        assert raft.commit_index == 1  # a alone is the majority of the new configuration

    def test_4_1_a_node_votes_for_a_candidate_that_it_does_not_know(self) -> None:
        [vote] = sent(step(node(), vote_request(2, (3, 1), source="newcomer")))
        assert isinstance(vote, VoteResponse)
        assert vote.granted

    def test_4_2_1_learners_neither_campaign_nor_count(self) -> None:
        learner = node(configuration=Configuration(("b", "c"), ("a",)))
        assert learner.deadline() is None
        learner.tick(100 * SECOND)
        assert learner.take_effects() == []
        leader = node(configuration=Configuration(("a", "b", "c"), ("d", "e")))
        become_leader(leader)
        for peer in ("d", "e"):
            step(leader, agrees(leader, peer, 0))
        assert leader.commit_index == -1

    def test_4_2_1_a_learner_is_promoted_when_it_has_caught_up(self) -> None:
        cluster = Cluster(["a", "b", "c"], spare=["d"], config=RaftConfig(catch_up_lag_entries=3))
        leader = cluster.elect("a")
        leader.propose(10)
        cluster.settle()
        leader.up.propose_configuration(AddLearner("d"), cluster.now)
        leader.turn()
        for packet in [p for p in cluster.packets if p.message.target != "d"]:
            cluster.deliver(packet)
        for packet in [p for p in cluster.packets if p.message.target == "a"]:
            cluster.deliver(packet)
        with pytest.raises(LearnerBehind):
            leader.up.propose_configuration(PromoteLearner("d"), cluster.now)
        cluster.settle()
        leader.up.propose_configuration(PromoteLearner("d"), cluster.now)
        leader.turn()
        cluster.settle()
        assert cluster["d"].up.configuration.voters == ("a", "b", "c", "d")

    def test_4_2_2_a_removed_leader_steps_down_after_the_commit_and_is_succeeded_at_once(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        leader = cluster.elect("a")
        began = cluster.now
        leader.up.propose_configuration(RemoveMember("a"), cluster.now)
        leader.turn()
        assert role_of(leader.up) is Role.LEADER
        cluster.settle()
        assert role_of(leader.up) is Role.FOLLOWER
        [successor] = cluster.leaders()
        assert successor.node in ("b", "c")
        assert cluster.now == began
        assert leader.up.deadline() is None

    def test_4_2_2_a_node_may_have_to_lead_once_more_to_be_removed(self) -> None:
        """Figure 4.6: only the removed node has the entry, and so nobody else can be elected."""
        cluster = Cluster(["a", "b"])
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        leader.up.propose_configuration(RemoveMember("a"), cluster.now)
        leader.turn()
        cluster.crash("a")
        cluster.packets.clear()
        cluster.restart("a")
        cluster.run_for(10 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["b"]
        assert cluster["b"].up.configuration == Configuration(("b",))
        assert cluster["a"].up.deadline() is None

    def test_4_2_2_a_voter_stays_while_those_that_would_be_left_cannot_vote(self) -> None:
        """Figure 4.6 with a recovering node: only the removed one has the entry, and whose vote it needs gives none."""
        cluster = Cluster(["a", "b", "c"])
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        cluster.crash("b")
        cluster["b"].lose_disk()
        cluster.restart("b")
        cluster.tick(cluster["b"])
        while not leader.up.status(cluster.now).peers[0].recovering:  # and b has not heard it yet
            cluster.deliver(cluster.packets[0])
        assert [peer.recovering for peer in leader.up.status(cluster.now).peers] == [True, False]
        for node in ("a", "c"):
            with pytest.raises(VotersRecovering) as refused:
                leader.up.propose_configuration(RemoveMember(node), cluster.now)
            assert refused.value.recovering == ("b",)
            assert not leader.up.take_effects()
        cluster.crash("c")
        cluster.now += CONFIG.election_timeout_min_ns + 1
        leader.up.propose_configuration(RemoveMember("c"), cluster.now)  # it is gone: nobody loses a vote

    def test_4_2_2_the_recovering_voter_itself_may_leave(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        cluster.crash("b")
        cluster["b"].lose_disk()
        leader.up.propose_configuration(RemoveMember("b"), cluster.now)
        leader.turn()
        cluster.settle()
        assert leader.up.configuration == Configuration(("a", "c"))
        assert leader.up.commit_index == leader.up.log_terms.last_index

    def test_4_2_3_whoever_hears_a_leader_does_not_vote(self) -> None:
        raft = node()
        step(raft, append((-1, 0)), now=0)
        for pre_vote in (True, False):
            [vote] = sent(
                step(
                    raft,
                    vote_request(5, (9, 4), pre_vote=pre_vote, source="c"),
                    CONFIG.election_timeout_min_ns - 1,
                )
            )
            assert isinstance(vote, VoteResponse)
            assert not vote.granted
        assert raft.term == 1
        [vote] = sent(step(raft, vote_request(5, (9, 4)), CONFIG.election_timeout_min_ns))
        assert isinstance(vote, VoteResponse)
        assert vote.granted

    def test_4_impossible_changes_are_refused(self) -> None:
        raft = node(configuration=Configuration(("a",), ("d",)))
        raft.tick(0)
        raft.take_effects()
        raft.persisted(0, raft.log_generation, 0)
        raft.take_effects()
        refused: list[tuple[Change, type[Exception]]] = [
            (AddLearner("a"), AlreadyMember),
            (AddLearner("d"), AlreadyMember),
            (PromoteLearner("a"), AlreadyMember),
            (PromoteLearner("x"), UnknownMember),
            (RemoveMember("x"), UnknownMember),
            (RemoveMember("a"), LastVoter),
        ]
        for change, error in refused:
            with pytest.raises(error):
                raft.propose_configuration(change, 0)
        assert raft.take_effects() == []
        assert raft.log_terms.last_index == 0


class TestTransfer:
    """Dissertation 3.10."""

    def test_3_10_the_target_gets_the_whole_log_before_it_is_told(self) -> None:
        raft = node()
        become_leader(raft)
        raft.transfer_leadership("b", 2 * SECOND)
        assert sent(raft.take_effects()) == []
        with pytest.raises(LeadershipTransferring):
            raft.propose(1, 2 * SECOND)
        assert TimeoutNow("a", "b", 2) in sent(step(raft, agrees(raft, "b", 0)))

    def test_3_10_what_was_granted_belongs_to_the_log_that_the_target_gets(self) -> None:
        raft = node(config=RaftConfig(max_uncommitted_entries=2))
        become_leader(raft)
        step(raft, agrees(raft, "b", 0))
        raft.grant(3)
        assert raft.propose(1, 2 * SECOND, granted=True) == 1
        step(raft, agrees(raft, "b", 1))
        raft.transfer_leadership("b", 2 * SECOND)
        assert sent(raft.take_effects()) == [], "it has all that there is, but not all that will be"
        with pytest.raises(LeadershipTransferring):
            raft.propose(1, 2 * SECOND)
        assert raft.propose(2, 2 * SECOND, granted=True) == 2
        assert TimeoutNow("a", "b", 2) in sent(step(raft, agrees(raft, "b", 3)))

    def test_3_10_a_grant_that_is_given_up_holds_nothing_back(self) -> None:
        raft = node()
        become_leader(raft)
        step(raft, agrees(raft, "b", 0))
        raft.grant(3)
        raft.transfer_leadership("b", 2 * SECOND)
        assert sent(raft.take_effects()) == []
        raft.end_grant()
        assert sent(raft.take_effects()) == [TimeoutNow("a", "b", 2)]

    def test_3_10_the_target_campaigns_at_once_without_a_pre_vote_and_against_stickiness(self) -> None:
        raft = node()
        step(raft, append((-1, 0)), now=0)
        requests = sent(step(raft, TimeoutNow("b", "a", 1), 1))
        assert role_of(raft) is Role.CANDIDATE
        assert all(isinstance(r, VoteRequest) and r.leadership_transfer and not r.pre_vote for r in requests)
        voter = node()
        step(voter, append((-1, 0)), now=0)
        [vote] = sent(step(voter, VoteRequest("c", "a", 2, -1, 0, leadership_transfer=True), 1))
        assert isinstance(vote, VoteResponse)
        assert vote.granted

    def test_3_10_a_transfer_is_given_up_after_an_election_timeout(self) -> None:
        raft = node()
        become_leader(raft)
        raft.transfer_leadership("b", 2 * SECOND)
        raft.tick(2 * SECOND + CONFIG.election_timeout_min_ns)
        assert raft.status(0).transferee is None
        assert raft.propose(1, 3 * SECOND) == 1

    def test_3_10_a_leader_hands_over_to_a_preferred_one(self) -> None:
        cluster = Cluster(["a", "b", "c"], config=RaftConfig(preferred_leaders=("c",)))
        cluster.elect("a")
        cluster.run_for(3 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["c"]
        term = cluster["c"].up.term
        cluster.run_for(10 * SECOND)
        assert cluster["c"].up.term == term

    def test_3_10_a_dead_preferred_leader_is_waited_for(self) -> None:
        cluster = Cluster(["a", "b", "c"], config=RaftConfig(preferred_leaders=("c",)))
        cluster.crash("c")
        cluster.elect("a")
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["a"]
        assert cluster["a"].propose(1)
        cluster.restart("c")
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["c"]


class TestReads:
    """Dissertation 6.4, and 6.2 for the leader that has lost its majority."""

    def test_6_4_a_read_waits_for_a_commit_in_the_term_and_for_a_round_begun_after_it(self) -> None:
        raft = node()
        become_leader(raft)
        raft.read_index("r", 2 * SECOND)
        effects = step(raft, agrees(raft, "b", 0, round_number=1))
        assert not any(isinstance(effect, ReadReady) for effect in effects)
        rounds = {m.round for m in sent(effects) if isinstance(m, AppendRequest)}
        assert rounds == {2}
        late = step(raft, agrees(raft, "c", 0, round_number=1))
        assert not any(isinstance(effect, ReadReady) for effect in late)
        assert ReadReady("r", 0) in step(raft, agrees(raft, "c", 0, round_number=2))

    def test_6_4_reads_of_one_turn_share_a_round(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        ready: list[Effect] = []
        cluster.observers.append(
            lambda _, effect: ready.append(effect) if isinstance(effect, ReadReady) else None
        )
        for token in range(100):
            leader.up.read_index(token, cluster.now)
        leader.turn()
        assert len(cluster.packets) == 2
        cluster.settle()
        assert [effect.token for effect in ready if isinstance(effect, ReadReady)] == list(range(100))

    def test_6_4_a_read_does_not_wait_for_a_voter_that_is_removed_and_leaves_the_leader_alone(self) -> None:
        cluster = Cluster(["a", "b"])
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        ready: list[Effect] = []
        cluster.observers.append(
            lambda _, effect: ready.append(effect) if isinstance(effect, ReadReady) else None
        )
        leader.turn(lambda raft: raft.read_index("r", cluster.now))
        leader.turn(lambda raft: raft.propose_configuration(RemoveMember("b"), cluster.now))
        assert ready == [ReadReady("r", 0)], "b's answer comes when the leader does not know it any more"

    def test_6_4_only_a_leader_serves_reads_and_losing_the_lead_loses_them(self) -> None:
        raft = node()
        with pytest.raises(NotLeader):
            raft.read_index("early", 0)
        become_leader(raft)
        raft.read_index("late", 2 * SECOND)
        assert ReadLost("late") in step(raft, append((-1, 0), term=9), 2 * SECOND)

    def test_6_2_a_leader_without_a_majority_steps_down_after_an_election_timeout(self) -> None:
        cluster = Cluster(["a", "b", "c", "d", "e"])
        leader = cluster.elect("a")
        cluster.partition(["a", "b", "c"], ["d", "e"])
        cluster.run_for(5 * SECOND)
        assert role_of(leader.up) is Role.LEADER
        cluster.partition(["a", "b"], ["c", "d", "e"])
        cluster.run_for(CONFIG.election_timeout_max_ns + 2 * CONFIG.heartbeat_interval_ns)
        assert role_of(leader.up) is not Role.LEADER


class TestPreVote:
    """Dissertation 9.6."""

    def test_9_6_a_pre_vote_changes_neither_term_nor_vote(self) -> None:
        raft = node([1], term=3)
        effects = step(raft, vote_request(9, (5, 8), pre_vote=True))
        assert not any(isinstance(effect, SaveHardState | RoleChanged) for effect in effects)
        assert (raft.term, raft.vote) == (3, None)
        assert sent(effects) == [VoteResponse("a", "b", 3, 9, True, pre_vote=True)]

    def test_9_6_an_isolated_node_keeps_its_term_and_deposes_nobody(self) -> None:
        cluster = Cluster(["a", "b", "c"])
        cluster.elect("a")
        cluster.partition(["a", "b"], ["c"])
        cluster.run_for(60 * SECOND)
        term = cluster["a"].up.term
        assert cluster["c"].up.term == term
        cluster.heal()
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["a"]
        assert cluster["a"].up.term == term
        assert cluster["c"].up.leader == "a"

    def test_9_6_the_heir_of_a_lost_leader_asks_at_once_and_nobody_meets_it(self) -> None:
        for seed in range(20):
            cluster = Cluster(["a", "b", "c", "d", "e"], seed=seed)
            cluster.elect("c")
            cluster.run_for(SECOND)
            cluster.crash("c", noticed=True)
            cluster.run_for(0)
            assert [host.node for host in cluster.leaders()] == ["d"]

    def test_9_6_a_preferred_leader_is_the_heir(self) -> None:
        cluster = Cluster(["a", "b", "c"], config=RaftConfig(preferred_leaders=("a", "c")))
        cluster.elect("a")
        cluster.run_for(SECOND)
        cluster.crash("a", noticed=True)
        cluster.run_for(0)
        assert [host.node for host in cluster.leaders()] == ["c"]

    def test_9_6_each_voter_waits_a_round_for_everyone_before_it_that_it_can_reach(self) -> None:
        def wait_of(raft: Raft, *lost: str) -> int:
            step(raft, append((-1, 0)))
            for peer in lost:
                raft.peer_disconnected(peer, SECOND)
            deadline = raft.deadline()
            assert deadline is not None
            return deadline - SECOND

        five = Configuration(("a", "c", "b", "d", "e"))
        turn = CONFIG.campaign_round_ns
        assert 2 * turn <= wait_of(node(configuration=five), "b") < 3 * turn
        assert turn <= wait_of(node(configuration=five), "b", "d") < 2 * turn
        assert turn <= wait_of(node(configuration=five), "d", "b") < 2 * turn
        assert wait_of(node(configuration=five), "b", "e", "d") == 0

    def test_9_6_whom_the_heir_cannot_win_without_takes_its_place(self) -> None:
        raft = node([1, 1], configuration=Configuration(("b", "c", "a")))
        step(raft, append((1, 1)))
        raft.peer_disconnected("b", SECOND)
        assert raft.deadline() != SECOND
        step(raft, vote_request(2, (0, 1), pre_vote=True, source="c"), SECOND)
        assert raft.deadline() == SECOND

    def test_9_6_rounds_without_a_result_are_repeated_in_the_same_term_each_twice_as_long(self) -> None:
        raft = node()
        step(raft, append((-1, 0)))
        raft.peer_disconnected("b", 0)
        rounds = []
        now = raft.deadline()
        for _ in range(9):
            assert now is not None
            raft.tick(now)
            assert [(m.target, m.term) for m in sent(raft.take_effects()) if isinstance(m, VoteRequest)] == [
                ("c", 2)
            ]
            after = raft.deadline()
            assert after is not None
            rounds.append(after - now)
            now = after
        assert (raft.role, raft.term) == (Role.PRE_CANDIDATE, 1)
        longest = CONFIG.election_timeout_min_ns
        for attempts, length in enumerate(rounds):
            span = min(CONFIG.campaign_round_ns << attempts, longest)
            assert span <= length < 1.5 * span

    def test_9_6_a_voter_that_can_be_reached_again_is_asked_again(self) -> None:
        raft = node()
        raft.peer_disconnected("c", 0)
        raft.tick(2 * SECOND)
        assert [message.target for message in sent(raft.take_effects())] == ["b"]
        raft.peer_connected("c", 2 * SECOND)
        assert [message.target for message in sent(raft.take_effects())] == ["c"]
        step(raft, VoteResponse("c", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        assert role_of(raft) is Role.CANDIDATE

    def test_5_2_votes_of_the_term_count_while_the_next_one_is_asked_about(self) -> None:
        raft = node()
        raft.tick(2 * SECOND)
        step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        deadline = raft.deadline()
        assert deadline is not None
        raft.tick(deadline)
        assert (role_of(raft), raft.term) == (Role.PRE_CANDIDATE, 2)
        step(raft, VoteResponse("b", "a", 1, 1, True), deadline)  # of an earlier term
        assert role_of(raft) is Role.PRE_CANDIDATE
        step(raft, VoteResponse("b", "a", 2, 2, True), deadline)
        assert (role_of(raft), raft.term) == (Role.LEADER, 2)

    def test_9_6_who_has_voted_helps_nobody_else_for_four_rounds(self) -> None:
        raft = node()
        step(raft, vote_request(2, (-1, 0)))
        pause = 4 * CONFIG.campaign_round_ns

        def would_vote(source: str, now: int) -> bool:
            question = vote_request(raft.term + 1, (-1, 0), pre_vote=True, source=source)
            [answer] = sent(step(raft, question, now))
            assert isinstance(answer, VoteResponse)
            return answer.granted

        assert not would_vote("c", pause - 1)
        assert would_vote("b", pause - 1)
        assert would_vote("c", pause)
        step(raft, vote_request(4, (-1, 0)))
        raft.peer_disconnected("b", 1)  # the candidate is gone
        assert would_vote("c", 1)
        deadline = raft.deadline()
        assert deadline is not None
        assert deadline < SECOND

    def test_9_6_for_three_rounds_whoever_asks_makes_way_only_for_those_before_it(self) -> None:
        raft = node([1, 1])  # a, b, c: without a leader a stands first
        raft.tick(2 * SECOND)

        def would_vote(last: tuple[int, int]) -> bool:
            [answer] = sent(step(raft, vote_request(2, last, pre_vote=True, source="c"), 2 * SECOND))
            assert isinstance(answer, VoteResponse)
            return answer.granted

        raft.take_effects()
        assert would_vote((2, 1))  # a could not have its vote
        for _ in range(3):
            assert not would_vote((1, 1))
            deadline = raft.deadline()
            assert deadline is not None
            raft.tick(deadline)
            raft.take_effects()
        assert would_vote((1, 1))
        # Its own round goes on.
        step(raft, VoteResponse("b", "a", 1, 2, True, pre_vote=True), 60 * SECOND)
        assert role_of(raft) is Role.CANDIDATE

    def test_9_6_nobody_waits_for_those_that_cannot_win(self) -> None:
        """One direction between the survivors is cut: the heir hears nobody, or nobody hears it."""
        for cut in [("b", "c"), ("b", "d"), ("c", "b"), ("d", "b")]:
            cluster = Cluster(["a", "b", "c", "d", "e"], seed=3)
            properties = Invariants(cluster)
            cluster.elect("a")
            cluster.run_for(SECOND)
            cluster.cut = {cut}
            cluster.crash("a", noticed=True)
            cluster.run_for(SECOND)
            assert len(cluster.leaders()) == 1
            properties.check()

    def test_6_2_a_leader_that_its_majority_answers_late_leads_on(self) -> None:
        """As long as a follower may not have given it up; then whoever asks for votes does not lead, says who asks."""
        leader = node()
        become_leader(leader)
        now = 2 * SECOND
        while now < 2 * SECOND + CONFIG.election_timeout_max_ns:
            leader.tick(now)
            assert role_of(leader) is Role.LEADER
            now += CONFIG.heartbeat_interval_ns
        leader.tick(now + CONFIG.heartbeat_interval_ns)
        assert role_of(leader) is Role.FOLLOWER
        deadline = leader.deadline()
        assert deadline is not None
        assert deadline < now + SECOND

        follower = node()
        step(follower, append((-1, 0)))
        for pre_vote in (True, False):
            for source, granted in (("c", False), ("b", True)):
                [answer] = sent(step(follower, vote_request(2, (9, 1), pre_vote=pre_vote, source=source)))
                assert isinstance(answer, VoteResponse)
                assert answer.granted is granted
            follower = node()
            step(follower, append((-1, 0)))

    def test_6_2_a_node_that_stood_still_blames_nobody_for_it(self) -> None:
        leader = node()
        become_leader(leader)
        heard = 2 * SECOND
        resumed = heard + 5 * SECOND
        leader.paused(Reason.LOOP_STALLED, 5 * SECOND - 10 * MILLISECOND, resumed)
        leader.tick(resumed)
        assert role_of(leader) is Role.LEADER
        leader.tick(resumed + 2 * SECOND)  # they are silent indeed
        assert role_of(leader) is Role.FOLLOWER

        follower = node()
        step(follower, append((-1, 0)))
        follower.paused(Reason.SLOW_FLUSH, 2 * SECOND, 4 * SECOND)  # and it was not awake before
        follower.tick(4 * SECOND)
        deadline = follower.deadline()
        assert deadline is not None
        assert deadline >= 4 * SECOND + CONFIG.heartbeat_interval_ns
        assert (role_of(follower), follower.leader) == (Role.FOLLOWER, "b")
        [answer] = sent(step(follower, vote_request(2, (9, 1), pre_vote=True, source="c"), 4 * SECOND))
        assert isinstance(answer, VoteResponse)
        assert not answer.granted  # the heartbeats wait to be read
        follower.tick(6 * SECOND)
        assert role_of(follower) is Role.PRE_CANDIDATE


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
        raft = node(config=RaftConfig(max_uncommitted_entries=5))
        become_leader(raft)
        raft.propose(4, 2 * SECOND)
        with pytest.raises(ProposalLimit):
            raft.check_proposal(1)
        with pytest.raises(ProposalLimit):
            raft.propose(1, 2 * SECOND)
        step(raft, agrees(raft, "b", 4))
        raft.propose(1, 2 * SECOND)

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
        cluster.now += CONFIG.commit_notice_delay_ns
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


# raft/recovery.py ------------------------------------------------------------------------------------------------


def recovering_node(loss: Loss, terms: list[int], *, term: int, voters: str = "abc") -> Raft:
    log = LogTerms()
    for entry_term in terms:
        log.append(entry_term, 1)
    return Raft(
        CONFIG,
        "a",
        HardState(term),
        log,
        -1,
        [(-1, Configuration(tuple(voters)))],
        random.Random(7),
        0,
        lambda first_index, last_index: Run(last_index),
        loss,
    )


def asked(effects: list[Effect]) -> dict[str, RecoveryRequest]:
    return {m.target: m for m in sent(effects) if isinstance(m, RecoveryRequest)}


def test_recovery_a_new_disk_says_nothing_until_more_than_half_of_the_others_told_their_term() -> None:
    raft = recovering_node(Loss.ALL, [], term=0, voters="abcde")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    assert step(raft, vote_request(4, (9, 3))) == []
    assert step(raft, append((-1, 0), (3, 1), term=3, commit=0)) == []
    assert step(raft, RecoveryResponse("b", "a", 3, nonce, True)) == []
    assert step(raft, RecoveryResponse("c", "a", 7, nonce - 2, True)) == [], "an answer to a former life"
    assert step(raft, RecoveryResponse("c", "a", 2, nonce, True)) == []
    effects = step(raft, RecoveryResponse("d", "a", 3, nonce, True))
    assert effects[:2] == [RecoveryChanged(Loss.VOTE), SaveHardState(3, None)]


def test_recovery_a_new_disk_votes_no_more_than_all_others_can_exclude() -> None:
    """Its former self may have voted in a term that only the one silent voter knows."""
    raft = recovering_node(Loss.VOTE, [], term=3, voters="abcde")
    step(raft, append((-1, 0), (3, 1), term=3, commit=0))
    raft.tick(0)
    requests = asked(raft.take_effects())
    assert list(requests) == ["b", "c", "d", "e"]
    nonce = requests["b"].nonce
    step(raft, RecoveryResponse("b", "a", 3, nonce, True, True, 0))
    for node_id in "cd":
        step(raft, RecoveryResponse(node_id, "a", 3, nonce, True))
    assert raft.recovering is Loss.VOTE
    refusal = sent(step(raft, vote_request(3, (9, 3), source="c")))
    assert refusal == [VoteResponse("a", "c", 3, 3, False, False, True)]
    effects = step(raft, RecoveryResponse("e", "a", 3, nonce, True))
    assert effects == [SaveHardState(3, "b"), RecoveryChanged(None)], "its vote in this term is taken"


def test_recovery_a_log_from_a_backup_has_no_history_until_its_node_enters_a_term() -> None:
    """The term of its last entry is nobody's promise: a majority of such nodes begins the group."""
    raft = recovering_node(Loss.ALL, [1, 4, 4], term=4)
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    ask = RecoveryRequest("b", "a", 4, 9)
    assert RecoveryResponse("a", "b", 0, 9, False) in sent(step(raft, ask))
    assert step(raft, RecoveryResponse("b", "a", 0, nonce, False)) == [RecoveryChanged(None)]
    assert sent(step(raft, ask)) == [RecoveryResponse("a", "b", 0, 9, False)], "b has to begin, too"
    step(raft, append((2, 4), (5, 1), term=5, commit=-1))
    assert sent(step(raft, ask)) == [RecoveryResponse("a", "b", 5, 9, True)]


def test_recovery_a_log_from_a_backup_among_nodes_with_a_history_follows() -> None:
    for told, saved in ((7, 7), (4, 4)):
        raft = recovering_node(Loss.ALL, [1, 4, 4], term=4)
        raft.tick(0)
        nonce = asked(raft.take_effects())["b"].nonce
        step(raft, RecoveryResponse("b", "a", 3, nonce, True))
        effects = step(raft, RecoveryResponse("c", "a", told, nonce, True))
        assert effects[:2] == [RecoveryChanged(Loss.VOTE), SaveHardState(saved, None)]


def test_recovery_ends_with_an_entry_of_the_leader_s_own_term_at_what_it_answered() -> None:
    raft = recovering_node(Loss.ENTRIES, [1], term=1)
    nonce = asked(step(raft, append((0, 1), (1, 1), term=2, commit=1)))["b"].nonce
    step(raft, RecoveryResponse("b", "a", 2, nonce, True, True, 2))
    assert raft.recovering is Loss.ENTRIES, "entry 1 is of an older term"
    step(raft, append((1, 1), (2, 2), term=2, commit=2))
    assert raft.recovering is None


def test_recovery_refuses_to_take_over() -> None:
    raft = recovering_node(Loss.ENTRIES, [1], term=1)
    assert step(raft, TimeoutNow("b", "a", 1)) == []


def test_recovery_what_a_peer_said_in_its_former_life_does_not_make_it_one_that_votes() -> None:
    raft = node()
    become_leader(raft)
    step(raft, agrees(raft, "c", 0))
    step(raft, RecoveryRequest("c", "a", raft.term, 5))
    step(raft, AppendResponse("c", "a", raft.term, False, 0, 0, 1, -1, 0))  # a refusal that was under way
    assert [peer.recovering for peer in raft.status(0).peers if peer.node == "c"] == [True]
    step(raft, AppendResponse("c", "a", raft.term, True, 0, 0, 2))
    assert [peer.recovering for peer in raft.status(0).peers if peer.node == "c"] == [False]
