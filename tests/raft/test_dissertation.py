"""The rules that only the dissertation has, or says in full, one test each, named by its section."""

import pytest

from raft import (
    AddLearner,
    Change,
    Configuration,
    PromoteLearner,
    Raft,
    RaftOptions,
    Reason,
    RemoveMember,
    Role,
)
from raft.effects import (
    Effect,
    ReadLost,
    ReadReady,
    RoleChanged,
    SaveHardState,
)
from raft.errors import (
    AlreadyMember,
    ConfigurationPending,
    LastVoter,
    LeadershipTransferring,
    LearnerBehind,
    NotLeader,
    UnknownMember,
    VotersRecovering,
)
from raft.messages import (
    AppendRequest,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from tests.raft.cluster import MILLISECOND, Cluster
from tests.raft.invariants import Invariants
from tests.raft.one_node import (
    OPTIONS,
    SECOND,
    agrees,
    append,
    become_leader,
    node,
    role_of,
    sent,
    step,
    vote_request,
)


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
        cluster = Cluster(["a", "b", "c"], spare=["d"], options=RaftOptions(catch_up_lag_entries=3))
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
        for voter in ("a", "c"):
            with pytest.raises(VotersRecovering) as refused:
                leader.up.propose_configuration(RemoveMember(voter), cluster.now)
            assert refused.value.recovering == ("b",)
            assert not leader.up.take_effects()
        cluster.crash("c")
        cluster.now += OPTIONS.election_timeout_min_ns + 1
        leader.up.propose_configuration(RemoveMember("c"), cluster.now)  # it is gone: nobody loses a vote

    def test_4_2_2_a_voter_stays_while_of_those_left_some_recover_and_some_are_silent(self) -> None:
        cluster = Cluster("abcde")
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        cluster.crash("d")
        cluster.crash("b")
        cluster["b"].lose_entries(0)
        cluster.partition("a", "bcde")
        cluster.now += OPTIONS.election_timeout_min_ns
        cluster.partition("abce", "d")
        cluster.restart("b")
        for host in (cluster["b"], leader):
            cluster.tick(host)
        while not leader.up.peers["b"].recovering or not all(
            leader.up.peers[node].last_contact == cluster.now for node in "bce"
        ):
            cluster.deliver(cluster.packets[0])
        with pytest.raises(VotersRecovering):
            leader.up.propose_configuration(RemoveMember("e"), cluster.now)
        cluster.settle()
        assert not any(peer.recovering for peer in leader.up.peers.values() if peer.node == "b")
        leader.up.propose_configuration(RemoveMember("e"), cluster.now)

    def test_4_2_2_a_silent_voter_stays_while_those_left_cannot_commit_without_new_disks(self) -> None:
        """Four voters commit with three of them. If two withhold what they have, only the silent one helps.

        Seed 9860303 of the simulator: a leader that was cut off noted the removal, was elected again by its longer log,
        and could never commit it, though all nodes were whole and connected.
        """
        cluster = Cluster("abcde")
        leader = cluster.elect("a")
        cluster.run_for(SECOND)
        for name in "de":
            cluster.crash(name)
            cluster[name].lose_disk()
            cluster.restart(name)
            cluster.tick(cluster[name])
        peers = leader.up.peers
        while not (peers["d"].last_contact == peers["e"].last_contact == cluster.now):
            cluster.deliver(cluster.packets[0])
        assert peers["d"].recovering
        assert peers["e"].recovering
        cluster.partition("a", "bcde")
        cluster.now += OPTIONS.election_timeout_min_ns + 1
        assert leader.up.role is Role.LEADER
        with pytest.raises(VotersRecovering) as refused:
            leader.up.propose_configuration(RemoveMember("b"), cluster.now)
        assert refused.value.recovering == ("d", "e")
        assert not leader.up.take_effects()
        cluster.partition("abcde")
        cluster.settle()
        cluster.run_for(SECOND)
        leader.up.propose_configuration(RemoveMember("b"), cluster.now)

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
                    OPTIONS.election_timeout_min_ns - 1,
                )
            )
            assert isinstance(vote, VoteResponse)
            assert not vote.granted
        assert raft.term == 1
        [vote] = sent(step(raft, vote_request(5, (9, 4)), OPTIONS.election_timeout_min_ns))
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
            raft.propose(1)
        assert TimeoutNow("a", "b", 2) in sent(step(raft, agrees(raft, "b", 0)))

    def test_3_10_what_was_granted_belongs_to_the_log_that_the_target_gets(self) -> None:
        raft = node(options=RaftOptions(max_uncommitted_entries=2))
        become_leader(raft)
        step(raft, agrees(raft, "b", 0))
        raft.grant(3)
        assert raft.propose(1, granted=True) == 1
        step(raft, agrees(raft, "b", 1))
        raft.transfer_leadership("b", 2 * SECOND)
        assert sent(raft.take_effects()) == [], "it has all that there is, but not all that will be"
        with pytest.raises(LeadershipTransferring):
            raft.propose(1)
        assert raft.propose(2, granted=True) == 2
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

    def test_3_10_who_stands_by_its_leader_s_order_needs_the_log_that_others_need(self) -> None:
        """The order may be late: its leader has given up meanwhile, and committed more."""
        [vote] = sent(step(node([1, 1]), VoteRequest("c", "a", 2, 0, 1, leadership_transfer=True)))
        assert isinstance(vote, VoteResponse)
        assert not vote.granted

    def test_3_10_a_transfer_is_given_up_after_an_election_timeout(self) -> None:
        raft = node()
        become_leader(raft)
        raft.transfer_leadership("b", 2 * SECOND)
        raft.tick(2 * SECOND + OPTIONS.election_timeout_min_ns)
        assert raft.status(0).transferee is None
        assert raft.propose(1) == 1

    def test_3_10_a_leader_hands_over_to_a_preferred_one(self) -> None:
        cluster = Cluster(["a", "b", "c"], options=RaftOptions(preferred_leaders=("c",)))
        cluster.elect("a")
        cluster.run_for(3 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["c"]
        term = cluster["c"].up.term
        cluster.run_for(10 * SECOND)
        assert cluster["c"].up.term == term

    def test_3_10_a_dead_preferred_leader_is_waited_for(self) -> None:
        cluster = Cluster(["a", "b", "c"], options=RaftOptions(preferred_leaders=("c",)))
        cluster.crash("c")
        cluster.elect("a")
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["a"]
        assert cluster["a"].propose(1)
        cluster.restart("c")
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["c"]

    def test_3_10_a_preferred_leader_without_room_is_waited_for(self) -> None:
        cluster = Cluster(["a", "b", "c"], options=RaftOptions(preferred_leaders=("c",)))
        leader = cluster.elect("a").up
        leader.peer_lacks_room("c", True)
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["a"]
        leader.peer_lacks_room("c", False)
        cluster.run_for(5 * SECOND)
        assert [host.node for host in cluster.leaders()] == ["c"]


class TestReads:
    """Dissertation 6.4, and 6.2 for the leader that has lost its majority."""

    def test_6_4_a_read_waits_for_a_commit_in_the_term_and_for_a_round_begun_after_it(self) -> None:
        raft = node()
        become_leader(raft)
        raft.read_index("r")
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
            leader.up.read_index(token)
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
        leader.turn(lambda raft: raft.read_index("r"))
        leader.turn(lambda raft: raft.propose_configuration(RemoveMember("b"), cluster.now))
        assert ready == [ReadReady("r", 0)], "b's answer comes when the leader does not know it any more"

    def test_6_4_only_a_leader_serves_reads_and_losing_the_lead_loses_them(self) -> None:
        raft = node()
        with pytest.raises(NotLeader):
            raft.read_index("early")
        become_leader(raft)
        raft.read_index("late")
        assert ReadLost("late") in step(raft, append((-1, 0), term=9), 2 * SECOND)

    def test_6_2_a_leader_without_a_majority_steps_down_after_an_election_timeout(self) -> None:
        cluster = Cluster(["a", "b", "c", "d", "e"])
        leader = cluster.elect("a")
        cluster.partition(["a", "b", "c"], ["d", "e"])
        cluster.run_for(5 * SECOND)
        assert role_of(leader.up) is Role.LEADER
        cluster.partition(["a", "b"], ["c", "d", "e"])
        cluster.run_for(OPTIONS.election_timeout_max_ns + 2 * OPTIONS.heartbeat_interval_ns)
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
        cluster = Cluster(["a", "b", "c"], options=RaftOptions(preferred_leaders=("a", "c")))
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
        turn = OPTIONS.campaign_round_ns
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
        longest = OPTIONS.election_timeout_min_ns
        for attempts, length in enumerate(rounds):
            span = min(OPTIONS.campaign_round_ns << attempts, longest)
            assert span <= length < 1.5 * span

    def test_9_6_a_voter_that_can_be_reached_again_is_asked_again(self) -> None:
        raft = node()
        raft.peer_disconnected("c", 0)
        raft.tick(2 * SECOND)
        assert [message.target for message in sent(raft.take_effects())] == ["b"]
        raft.peer_connected("c")
        assert [message.target for message in sent(raft.take_effects())] == ["c"]
        step(raft, VoteResponse("c", "a", 1, 2, True, pre_vote=True), 2 * SECOND)
        assert role_of(raft) is Role.CANDIDATE

    def test_9_6_a_voter_that_came_back_to_a_leader_is_asked_by_it_and_led_by_it_later(self) -> None:
        raft = node()
        become_leader(raft)
        raft.peer_disconnected("c", 2 * SECOND)
        raft.peer_connected("c")
        step(raft, append((-1, 0), term=raft.term + 1), 2 * SECOND)
        assert role_of(raft) is Role.FOLLOWER
        raft.tick(4 * SECOND)
        assert {message.target for message in sent(raft.take_effects())} == {"b", "c"}
        effects = become_leader(raft, 4 * SECOND)
        assert {m.target for m in sent(effects) if isinstance(m, AppendRequest)} == {"b", "c"}

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
        pause = 4 * OPTIONS.campaign_round_ns

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
        while now < 2 * SECOND + OPTIONS.election_timeout_max_ns:
            leader.tick(now)
            assert role_of(leader) is Role.LEADER
            now += OPTIONS.heartbeat_interval_ns
        leader.tick(now + OPTIONS.heartbeat_interval_ns)
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
        assert deadline >= 4 * SECOND + OPTIONS.heartbeat_interval_ns
        assert (role_of(follower), follower.leader) == (Role.FOLLOWER, "b")
        [answer] = sent(step(follower, vote_request(2, (9, 1), pre_vote=True, source="c"), 4 * SECOND))
        assert isinstance(answer, VoteResponse)
        assert not answer.granted  # the heartbeats wait to be read
        follower.tick(6 * SECOND)
        assert role_of(follower) is Role.PRE_CANDIDATE
