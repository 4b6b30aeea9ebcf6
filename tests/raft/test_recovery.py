"""The recovering mode (raft/recovery.py): what a node that lost something says, and what it counts for."""

from raft import (
    AddLearner,
    Configuration,
    Loss,
    PromoteLearner,
    Raft,
    RemoveMember,
    Role,
)
from raft.effects import (
    Effect,
    RecoveryChanged,
    RoleChanged,
    SaveHardState,
)
from raft.messages import (
    AppendResponse,
    RecoveryRequest,
    RecoveryResponse,
    TimeoutNow,
    VoteResponse,
)
from tests.raft.cluster import Cluster
from tests.raft.one_node import (
    OPTIONS,
    agrees,
    append,
    become_leader,
    node,
    role_of,
    sent,
    step,
    vote_request,
)

# raft/recovery.py ------------------------------------------------------------------------------------------------


SECOND = 1_000_000_000


def recovering_node(
    loss: Loss, terms: list[int], *, term: int, voters: str = "abc", lost_voters: str = ""
) -> Raft:
    configuration = Configuration(tuple(voters))
    return node(terms, term=term, configuration=configuration, loss=loss, lost_voters=tuple(lost_voters))


def asked(effects: list[Effect]) -> dict[str, RecoveryRequest]:
    return {m.target: m for m in sent(effects) if isinstance(m, RecoveryRequest)}


def test_a_new_disk_says_nothing_until_more_than_half_of_the_others_told_their_term() -> None:
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


def test_a_new_disk_recovers_with_an_entry_that_its_leader_has_appended_for_it() -> None:
    """Whoever has a vote of its former self cannot have that entry, and is not elected any more."""
    raft = recovering_node(Loss.VOTE, [], term=3, voters="abcde")
    step(raft, append((-1, 0), (3, 1), term=3, commit=0))
    raft.tick(0)
    requests = asked(raft.take_effects())
    assert list(requests) == ["b", "c", "d", "e"]
    assert requests["b"].lost_votes
    nonce = requests["b"].nonce
    named = ((-1, tuple("abcde")),)
    step(raft, RecoveryResponse("b", "a", 3, nonce, True, True, 1, named))
    for node_id in "cd":
        step(raft, RecoveryResponse(node_id, "a", 3, nonce, True))
    assert raft.recovering is Loss.VOTE
    refusal = sent(step(raft, vote_request(3, (9, 3), source="c")))
    assert refusal == [VoteResponse("a", "c", 3, 3, False, False, True)], "e may know of a later term"
    effects = step(raft, append((0, 3), (3, 1), term=3, commit=1))
    changes = [effect for effect in effects if isinstance(effect, SaveHardState | RecoveryChanged)]
    assert changes == [SaveHardState(3, "b"), RecoveryChanged(None)], "its vote in this term is taken"


def test_a_leader_s_answer_from_before_it_was_told_of_the_loss_does_not_count() -> None:
    raft = recovering_node(Loss.ALL, [], term=0, voters="abc")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    step(raft, RecoveryResponse("c", "a", 3, nonce, True))
    named = ((-1, tuple("abc")),)
    step(raft, RecoveryResponse("b", "a", 3, nonce, True, True, 0, named))
    assert raft.recovering is Loss.VOTE
    step(raft, append((-1, 0), (3, 1), term=3, commit=0))
    assert raft.recovering is Loss.VOTE
    raft.tick(1)
    request = asked(raft.take_effects())["b"]
    assert request.lost_votes
    step(raft, RecoveryResponse("b", "a", 3, request.nonce, True, True, 0))
    assert raft.recovering is Loss.VOTE, "b is of a release that appends nothing for it, and names nobody"
    step(raft, RecoveryResponse("b", "a", 3, request.nonce, True, True, 1, named))
    step(raft, append((0, 3), (3, 1), term=3, commit=1))
    assert raft.recovering is None


def test_a_leader_appends_an_entry_for_a_member_that_has_lost_its_votes_where_it_may() -> None:
    raft = node()
    become_leader(raft)
    answer = step_answer(raft, RecoveryRequest("c", "a", 2, 5, True))
    assert (answer.leads, answer.commit_index) == (True, raft.log_terms.last_index)
    assert not step_answer(raft, RecoveryRequest("z", "a", 2, 5, True)).leads, "it is no member"
    raft.lacks_room = True
    assert not step_answer(raft, RecoveryRequest("c", "a", 2, 6, True)).leads
    raft.lacks_room = False
    raft.transfer_leadership("b", 0)
    assert not step_answer(raft, RecoveryRequest("c", "a", 2, 7, True)).leads, "it asks again"


def step_answer(raft: Raft, request: RecoveryRequest) -> RecoveryResponse:
    [answer] = [message for message in sent(step(raft, request)) if isinstance(message, RecoveryResponse)]
    return answer


def test_a_new_disk_gives_marked_votes_once_all_others_have_told_their_terms() -> None:
    """Whatever its former self voted, that was in a term up to the greatest of them; in that one it votes no more."""
    raft = recovering_node(Loss.VOTE, [], term=3, voters="abc")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    step(raft, RecoveryResponse("b", "a", 3, nonce, True))
    effects = step(raft, RecoveryResponse("c", "a", 5, nonce, True))
    assert [effect for effect in effects if not isinstance(effect, RoleChanged)] == [
        SaveHardState(5, "a"),
    ]
    for term, granted in ((5, False), (6, True)):
        votes = sent(step(raft, vote_request(term, (9, 3), source="b")))
        assert votes == [VoteResponse("a", "b", term, term, granted, False, True)]


def leader_cut_off_that_removes_a_voter() -> Cluster:
    """a leads {a, b, c}, hears nobody any more, and appends to its log alone that c leaves."""
    cluster = Cluster("abc")
    cluster.elect("a").propose(3)
    cluster.settle()
    cluster.run_for(SECOND)
    cluster.partition("a", "bc")
    cluster["a"].up.propose_configuration(RemoveMember("c"), cluster.now)
    cluster["a"].turn()
    return cluster


def test_the_last_vote_of_all_elects_although_the_node_has_begun_to_ask_anew() -> None:
    """The PreVote that it has begun meanwhile is lost, as b, which has voted for it, cannot be reached any more."""
    raft = recovering_node(Loss.ENTRIES, [1, 1], term=1)
    now = 10 * SECOND
    raft.tick(now)
    step(raft, VoteResponse("b", "a", 1, 2, True, True), now)
    step(raft, VoteResponse("c", "a", 1, 2, True, True, recovering=True), now)
    assert role_of(raft) is Role.CANDIDATE
    step(raft, VoteResponse("b", "a", 2, 2, True), now)
    raft.peer_disconnected("b", now)
    while role_of(raft) is not Role.PRE_CANDIDATE:
        deadline = raft.deadline()
        assert deadline is not None
        now = max(now, deadline)
        raft.tick(now)
        raft.take_effects()
    step(raft, VoteResponse("c", "a", 2, 2, True, recovering=True), now)
    assert role_of(raft) is Role.LEADER


def test_unanimity_asks_whom_an_uncommitted_entry_removes() -> None:
    """c commits with b, which loses that: only c has it, and the voters of a's configuration do not know that."""
    cluster = leader_cut_off_that_removes_a_voter()
    cluster.elect("c")
    index = cluster["c"].propose(1)
    cluster.settle()
    assert cluster["c"].up.commit_index == index
    committed = cluster["c"].log[index]
    cluster.crash("b")
    cluster["b"].lose_entries(cluster["a"].log.last_index)
    cluster.partition("ab", "c")
    cluster.restart("b")
    cluster.run_for(30 * SECOND)
    assert cluster["b"].up.recovering is Loss.ENTRIES
    assert [host.node for host in cluster.leaders()] == []
    cluster.heal()
    cluster.run_for(30 * SECOND)
    [leader] = cluster.leaders()
    assert leader.log[index] == committed


def test_unanimity_asks_the_voters_of_configurations_that_a_voter_has_lost() -> None:
    """b makes c a voter, which a has not heard of, commits with c, and loses that: only c has it."""
    cluster = Cluster("ab", spare="c")
    leader = cluster.elect("b")
    leader.up.propose_configuration(AddLearner("c"), cluster.now)
    leader.turn()
    cluster.run_for(SECOND)
    first_lost = leader.log.last_index + 1
    cluster.partition("a", "bc")
    leader.up.propose_configuration(PromoteLearner("c"), cluster.now)
    leader.turn()
    cluster.settle()
    index = leader.propose(1)
    cluster.settle()
    assert leader.up.commit_index == index
    committed = leader.log[index]
    cluster.crash("b")
    leader.lose_entries(first_lost)
    cluster.partition("ab", "c")
    cluster.restart("b")
    cluster.run_for(30 * SECOND)
    assert cluster["b"].up.recovering is Loss.ENTRIES
    assert [host.node for host in cluster.leaders()] == []
    cluster.heal()
    cluster.run_for(30 * SECOND)
    [new] = cluster.leaders()
    assert new.log[index] == committed
    assert cluster["b"].up.lost_voters == ()


def test_a_new_disk_whose_vote_the_latest_configuration_needs_gives_it() -> None:
    """Nobody else can lead: c cannot have the vote of a, whose log is longer, and a needs that of b."""
    cluster = Cluster("abc")
    cluster.elect("a").propose(3)
    cluster.settle()
    cluster.run_for(SECOND)
    cluster.crash("b")
    cluster["b"].lose_disk()
    cluster.restart("b")
    cluster.tick(cluster["b"])
    while cluster["b"].up.recovering is Loss.ALL:
        cluster.deliver(cluster.packets[0])
    cluster.partition("a", "b", "c")
    cluster.now += OPTIONS.election_timeout_min_ns + 1
    cluster["a"].up.propose_configuration(RemoveMember("c"), cluster.now)
    cluster["a"].turn()
    cluster.run_for(10 * SECOND)
    assert not cluster.leaders()
    cluster.heal()
    cluster.run_for(30 * SECOND)
    [leader] = cluster.leaders()
    assert leader.up.configuration == Configuration(("a", "b"))
    assert cluster["b"].up.recovering is None


def test_a_log_from_a_backup_has_no_history_until_its_node_enters_a_term() -> None:
    """The term of its last entry is nobody's promise: a majority of such nodes begins the group."""
    raft = recovering_node(Loss.ALL, [1, 4, 4], term=4)
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    ask = RecoveryRequest("b", "a", 4, 9)
    assert RecoveryResponse("a", "b", 0, 9, False) in sent(step(raft, ask))
    assert step(raft, RecoveryResponse("b", "a", 0, nonce, False)) == [RecoveryChanged(None)]
    assert sent(step(raft, ask)) == [RecoveryResponse("a", "b", 0, 9, False)], "b has to begin, too"
    step(raft, append((2, 4), (5, 1), term=5, commit=-1))
    voters = ((-1, ("a", "b", "c")),)
    assert sent(step(raft, ask)) == [RecoveryResponse("a", "b", 5, 9, True, voters=voters)]


def test_a_log_from_a_backup_among_nodes_with_a_history_follows() -> None:
    for told, saved in ((7, 7), (4, 4)):
        raft = recovering_node(Loss.ALL, [1, 4, 4], term=4)
        raft.tick(0)
        nonce = asked(raft.take_effects())["b"].nonce
        step(raft, RecoveryResponse("b", "a", 3, nonce, True))
        effects = step(raft, RecoveryResponse("c", "a", told, nonce, True))
        assert effects[:2] == [RecoveryChanged(Loss.VOTE), SaveHardState(saved, "a")]


def test_ends_with_an_entry_of_the_leader_s_own_term_at_what_it_answered() -> None:
    raft = recovering_node(Loss.ENTRIES, [1], term=1)
    nonce = asked(step(raft, append((0, 1), (1, 1), term=2, commit=1)))["b"].nonce
    step(raft, RecoveryResponse("b", "a", 2, nonce, True, True, 2))
    assert raft.recovering is Loss.ENTRIES, "entry 1 is of an older term"
    step(raft, append((1, 1), (2, 2), term=2, commit=2))
    assert raft.recovering is None


def test_refuses_to_take_over() -> None:
    raft = recovering_node(Loss.ENTRIES, [1], term=1)
    assert step(raft, TimeoutNow("b", "a", 1)) == []


def test_what_a_peer_said_in_its_former_life_does_not_make_it_one_that_votes() -> None:
    raft = node()
    become_leader(raft)
    step(raft, agrees(raft, "c", 0))
    step(raft, RecoveryRequest("c", "a", raft.term, 5))
    step(raft, AppendResponse("c", "a", raft.term, False, 0, 0, 1, -1, 0))  # a refusal that was under way
    assert [peer.recovering for peer in raft.status(0).peers if peer.node == "c"] == [True]
    step(raft, AppendResponse("c", "a", raft.term, True, 0, 0, 2))
    assert [peer.recovering for peer in raft.status(0).peers if peer.node == "c"] == [False]
