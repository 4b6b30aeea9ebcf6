"""The recovering mode where members come and go: schedules in which a promise that is lost would be broken.

Each lost a committed entry, or elected two leaders of one term, with a rule less than raft/recovery.py has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from raft import AddLearner, Configuration, Loss, PromoteLearner, Raft, RemoveMember, Role
from raft.configuration import Change
from raft.effects import Effect
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
from tests.raft.cluster import Cluster, Host, Packet
from tests.raft.invariants import Invariants
from tests.raft.one_node import OPTIONS, append, sent, step
from tests.raft.test_recovery import asked, recovering_node

SECOND = 1_000_000_000


def change(host: Host, change: Change) -> None:
    host.up.propose_configuration(change, host.cluster.now)
    host.turn()


def change_and_settle(host: Host, wanted: Change) -> None:
    change(host, wanted)
    host.cluster.settle()
    host.cluster.run_for(SECOND)


def led_by(node: str, cluster: Cluster) -> Host:
    """Returns the leader, behind a few entries that all have."""
    leader = cluster.elect(node)
    leader.propose(3)
    cluster.settle()
    cluster.run_for(SECOND)
    return leader


def new_disk(cluster: Cluster, node: str, voters: Iterable[str]) -> None:
    cluster.crash(node)
    cluster[node].lose_disk(Configuration(tuple(voters)))


def deliver_until(cluster: Cluster, condition: Callable[[], bool], passes: Callable[[Message], bool]) -> None:
    """Delivers what passes, in order, and lets time pass where nothing is left; the rest is lost."""
    for _ in range(10_000):
        if condition():
            return
        cluster.packets = [packet for packet in cluster.packets if passes(packet.message)]
        if cluster.packets:
            cluster.deliver(cluster.packets[0])
            continue
        due = cluster.next_deadline()
        assert due is not None
        cluster.now = max(cluster.now, due)
        for host in cluster.hosts.values():
            deadline = None if host.raft is None else host.raft.deadline()
            if deadline is not None and deadline <= cluster.now:
                cluster.tick(host)
    raise AssertionError("it does not come to that")


def hand_over_with_slow_requests(leader: Host, heir: str, voter: str) -> dict[str, Packet]:
    """The heir asks for votes in the next term and has that of one voter; returns its requests to the others."""
    cluster = leader.cluster
    leader.up.transfer_leadership(heir, cluster.now)
    leader.turn()
    [order] = [packet for packet in cluster.packets if isinstance(packet.message, TimeoutNow)]
    cluster.deliver(order)
    requests = {
        packet.message.target: packet for packet in cluster.packets if isinstance(packet.message, VoteRequest)
    }
    cluster.deliver(requests.pop(voter))
    [vote] = [packet for packet in cluster.packets if isinstance(packet.message, VoteResponse)]
    assert isinstance(vote.message, VoteResponse)
    assert vote.message.granted
    cluster.deliver(vote)
    cluster.packets.clear()
    return requests


def acknowledged(effects: list[Effect]) -> int:
    """Returns the index up to which the only acknowledgement among the effects says that entries are durable."""
    [response] = [message for message in sent(effects) if isinstance(message, AppendResponse)]
    return response.match_index


def may_vote(raft: Raft) -> bool:
    """True if the recovering node may give a vote now; a function, lest type checkers take it for constant."""
    assert raft.recovery is not None
    return raft.recovery.may_vote


def may_vote_at(host: Host) -> bool:
    return host.up.recovery is not None and host.up.recovery.may_vote


def test_a_new_disk_does_not_lead_alone_while_its_log_is_that_of_a_group_of_one() -> None:
    cluster = Cluster("n", spare="yx", entries_per_append=1)
    invariants = Invariants(cluster)
    first = led_by("n", cluster)
    for node in "yx":
        change_and_settle(first, AddLearner(node))
        change_and_settle(first, PromoteLearner(node))
    first.propose(3)
    cluster.settle()
    new_disk(cluster, "n", "nyx")
    cluster.run_for(5 * SECOND)
    cluster.restart("n")
    deliver_until(
        cluster,
        lambda: (
            first.up.configuration.voters == ("n",) and first.up.commit_index >= first.up.configuration_index
        ),
        lambda message: True,
    )
    for _ in range(2):  # at another start neither
        cluster.partition("n", "yx")
        cluster.run_for(10 * SECOND)
        assert first.up.role is not Role.LEADER
        assert first.up.recovering is Loss.VOTE
        cluster.crash("n")
        cluster.restart("n")
    cluster.heal()
    cluster.run_for(10 * SECOND)
    assert first.up.recovering is None
    invariants.check()


def test_a_new_disk_names_the_voters_that_it_was_given_with_its_vote() -> None:
    """y has not heard that x votes; only x has what n committed with it."""
    cluster = Cluster("ny", spare="x")
    leader = led_by("n", cluster)
    change_and_settle(leader, AddLearner("x"))
    cluster.partition("y", "nx")
    change(leader, PromoteLearner("x"))
    cluster.settle()
    index = leader.propose(1)
    cluster.settle()
    assert leader.up.commit_index == index
    new_disk(cluster, "n", "nyx")
    cluster.heal()
    cluster.restart("n")
    cluster.tick(leader)
    deliver_until(
        cluster,
        lambda: may_vote_at(leader),
        lambda message: isinstance(message, RecoveryRequest | RecoveryResponse),
    )
    cluster.partition("ny", "x")
    cluster.run_for(30 * SECOND)
    assert not cluster.leaders()


def test_votes_are_not_known_by_the_voters_of_an_old_configuration() -> None:
    """Its log begins when a was the only voter; of the five that it was given nobody has told his term."""
    raft = recovering_node(Loss.VOTE, [], term=3, voters="abcde", lost_voters="abcde")
    entries = append((-1, 0), (3, 1), term=3, commit=0)
    step(raft, entries._replace(configurations=((0, Configuration(("a",), ("b",))),)))
    assert raft.configuration.voters == ("a",)
    assert raft.recovery is not None
    assert not raft.recovery.may_vote
    raft.persisted(0, raft.log_generation, 0)
    assert raft.recovering is Loss.VOTE


def test_a_new_disk_that_was_given_one_who_is_removed_learns_its_term_from_the_rest() -> None:
    cluster = Cluster("nabc")
    leader = led_by("b", cluster)
    change_and_settle(leader, RemoveMember("a"))
    cluster.crash("a")
    new_disk(cluster, "n", "nabc")
    cluster.restart("n")
    cluster.run_for(10 * SECOND)
    assert cluster["n"].up.recovering is None
    assert cluster["n"].up.configuration.voters == ("n", "b", "c")


@pytest.mark.parametrize(
    ("named", "is_enough"),
    [
        ({"c": [(5, "acd")], "d": [(5, "acd")]}, True),
        ({"c": [(5, "acd")]}, False),
        ({"c": [(5, "acd")], "d": []}, False),  # d recovers, and may have lost a later one
        ({"c": [(5, "acd")], "d": [(-1, "abcd")]}, True),  # of an earlier time, when b was there
        ({"c": [(-1, "abcd"), (5, "acd")], "d": [(-1, "abcd")]}, False),  # b may be there still
        ({"c": [(5, "acd"), (9, "ac")], "d": [(5, "acd")]}, False),  # of the later one c alone is no majority
        ({"c": [(5, "acd")], "d": [(5, "acd"), (9, "acde")]}, False),  # e would not be named with the vote
    ],
)
def test_a_new_disk_enters_a_term_by_the_word_of_those_who_are_left(
    named: dict[str, list[tuple[int, str]]], is_enough: bool
) -> None:
    raft = recovering_node(Loss.ALL, [], term=0, voters="abcd")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    for node, configurations in named.items():
        voters = tuple((index, tuple(each)) for index, each in configurations)
        step(raft, RecoveryResponse(node, "a", 3, nonce, True, voters=voters))
    assert raft.term == (3 if is_enough else 0)


@pytest.mark.parametrize(("committed", "is_new"), [(5, False), (-1, True)])
def test_the_empty_disk_of_who_was_removed_makes_no_group_new(committed: int, is_new: bool) -> None:
    """Seed 9860431 of the simulator: b was removed while a asked, and came back empty; with a that is most of three."""
    raft = recovering_node(Loss.ALL, [], term=0, voters="abc")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    voters = ((committed, tuple("acd" if committed == 5 else "abc")),)
    step(raft, RecoveryResponse("c", "a", 3, nonce, True, voters=voters))
    step(raft, RecoveryResponse("b", "a", 0, nonce, False))
    assert (raft.recovering is None) is is_new


def test_whoever_recovers_names_no_voters() -> None:
    raft = recovering_node(Loss.ENTRIES, [1], term=1)
    [answer] = sent(step(raft, RecoveryRequest("c", "a", 0, 5)))
    assert isinstance(answer, RecoveryResponse)
    assert answer.has_history
    assert answer.voters == ()


def test_a_new_disk_waits_again_where_its_log_shows_it_another_voter() -> None:
    """All that a was given have told their terms; d, which its log shows next, may lead a later one by a's vote."""
    raft = recovering_node(Loss.VOTE, [], term=3, voters="abc", lost_voters="abc")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    for node in "bc":
        step(raft, RecoveryResponse(node, "a", 3, nonce, True))
    assert may_vote(raft)
    assert acknowledged(step(raft, append((-1, 0), (3, 1), term=3, commit=-1))) == -1, "nothing is committed"
    entries = append((0, 3), (3, 2), term=3, commit=-1)
    step(raft, entries._replace(configurations=((2, Configuration(tuple("abcd"))),)))
    assert not may_vote(raft)
    raft.tick(10 * SECOND)
    assert "d" in asked(raft.take_effects())
    step(raft, RecoveryResponse("d", "a", 3, nonce + 1, True))
    assert may_vote(raft)
    assert acknowledged(step(raft, append((2, 3), term=3, commit=1))) == 1


def test_a_candidate_that_a_new_disk_was_not_told_of_gets_no_second_vote() -> None:
    """n's settings are a change behind: x, which has n's vote of the next term, is not among them."""
    cluster = Cluster("nabc", spare="x")
    leader = led_by("a", cluster)
    change_and_settle(leader, AddLearner("x"))
    change_and_settle(leader, PromoteLearner("x"))
    slow = hand_over_with_slow_requests(leader, "x", "n")
    new_disk(cluster, "n", "nabc")
    cluster.partition("nabc", "x")
    cluster.restart("n")
    cluster.tick(cluster["n"])
    deliver_until(
        cluster,
        lambda: may_vote_at(cluster["n"]),
        lambda message: isinstance(message, RecoveryRequest | RecoveryResponse),
    )
    cluster.partition("a", "nbc", "x")
    cluster.run_for(10 * SECOND)
    cluster.partition("ax", "nbc")
    cluster.packets.append(slow["a"])
    cluster.deliver(slow["a"])
    cluster.settle()
    terms = [host.up.term for host in cluster.leaders()]
    assert len(terms) == len(set(terms))


def test_a_new_disk_does_not_commit_in_a_term_before_that_of_its_vote() -> None:
    """x has n's vote for the next term, and does not tell: what n acknowledged meanwhile x would not have."""
    cluster = Cluster("nabcx")
    invariants = Invariants(cluster)
    leader = led_by("a", cluster)
    slow = hand_over_with_slow_requests(leader, "x", "n")
    new_disk(cluster, "n", "nabcx")
    cluster.partition("nabc", "x")
    cluster.run_for(SECOND)  # the hand-over is given up
    cluster.restart("n")
    cluster.tick(cluster["n"])
    deliver_until(
        cluster,
        lambda: cluster["n"].up.recovering is Loss.VOTE,
        lambda message: isinstance(message, RecoveryRequest | RecoveryResponse),
    )
    cluster.partition("nab", "c", "x")
    index = leader.propose(1)
    cluster.settle()
    assert leader.up.commit_index < index
    cluster.partition("nab", "cx")
    cluster.packets.append(slow["c"])
    cluster.deliver(slow["c"])
    cluster.settle()
    invariants.check()
    cluster.heal()
    cluster.run_for(30 * SECOND)
    invariants.check()
    assert cluster["n"].up.recovering is None


def test_a_new_disk_waits_for_the_configuration_that_its_leader_has_not_committed() -> None:
    """x, which has n's vote, is a voter by that alone."""
    cluster = Cluster("nabc", spare="x", entries_per_append=1)
    leader = led_by("a", cluster)
    change_and_settle(leader, AddLearner("x"))
    cluster.partition("ax", "n", "b", "c")
    change(leader, PromoteLearner("x"))
    cluster.settle()
    cluster.heal()
    hand_over_with_slow_requests(leader, "x", "n")
    new_disk(cluster, "n", "nabc")
    cluster.partition("na", "b", "c", "x")
    cluster.restart("n")
    cluster.tick(cluster["n"])
    cluster.settle()
    cluster.partition("nabc", "x")
    end = cluster.now + 2 * SECOND
    deliver_until(
        cluster,
        lambda: cluster.now >= end,
        lambda message: (
            not (
                isinstance(message, AppendRequest)
                and any("x" in configuration.voters for _, configuration in message.configurations)
            )
        ),
    )
    assert cluster["n"].up.recovering is Loss.VOTE


def test_a_configuration_that_the_leader_s_disk_may_lose_commits_nothing_alone() -> None:
    """y makes x a voter, and its slow disk has neither that nor the entry before it, which n and x have."""
    cluster = Cluster("ny", spare="x")
    leader = led_by("y", cluster)
    change_and_settle(leader, AddLearner("x"))
    cluster.auto_flush = False
    index = leader.propose(1)
    cluster.settle()
    for node in "xn":
        cluster[node].begin_flush()
        cluster[node].end_flush()
    change(leader, PromoteLearner("x"))
    cluster.settle()
    assert leader.up.commit_index < index, "of n and y only n has it"
    leader.begin_flush()
    leader.end_flush()
    cluster.settle()
    assert leader.up.commit_index >= index


def test_a_term_told_by_a_node_that_is_no_voter_is_entered() -> None:
    raft = recovering_node(Loss.ALL, [], term=0, voters="abc")
    raft.tick(0)
    nonce = asked(raft.take_effects())["b"].nonce
    raft.peer_connected("z")
    step(raft, RecoveryResponse("z", "a", 9, nonce, True))
    step(raft, RecoveryResponse("b", "a", 3, nonce, True))
    step(raft, RecoveryResponse("c", "a", 3, nonce, True))
    assert raft.term == 9


def test_whoever_is_being_removed_agrees_with_itself() -> None:
    """a alone has the entry that removes it, so that it alone can lead, by c and by b, which lost entries."""
    cluster = Cluster("abc")
    leader = led_by("a", cluster)
    cluster.partition("a", "b", "c")
    change(leader, RemoveMember("a"))
    for node in "abc":
        cluster.crash(node)
    cluster["b"].lose_entries(cluster["b"].durable_log.last_index)
    for node in "abc":
        cluster.restart(node)
    cluster.heal()
    cluster.run_for(60 * SECOND)
    [new] = cluster.leaders()
    assert new.up.configuration.voters == ("b", "c")


def cut_off_while_it_removes(given: str, *, early: bool) -> tuple[Cluster, Invariants, Packet]:
    """b leads {n, a, b, z} and removes z, which alone hears of that, and asks for votes once b is cut off.

    n gives it its vote, and gets a new disk and that configuration. z's request to a is slow, and comes back with the
    group; b leads a again. `early`: the removal is committed, of which z does not know, before n loses its disk.
    """
    cluster = Cluster("nabz")
    invariants = Invariants(cluster)
    leader = led_by("b", cluster)
    change(leader, RemoveMember("z"))
    deliver(cluster, lambda message: isinstance(message, AppendRequest) and message.target == "z")
    if early:
        deliver(cluster, lambda message: isinstance(message, AppendRequest) and message.target == "a")
        deliver(cluster, lambda message: isinstance(message, AppendResponse) and message.source == "a")
    cluster.partition("b", "naz")
    for node in "naz":
        cluster.disconnect(node, "b")
    cluster.packets.clear()
    heir = cluster["z"]
    deadline = heir.up.deadline()
    assert deadline is not None
    cluster.now = max(cluster.now + SECOND // 2, deadline)
    cluster.tick(heir)
    deliver(cluster, lambda message: isinstance(message, VoteRequest | VoteResponse) and message.pre_vote)
    requests = {
        packet.message.target: packet for packet in cluster.packets if isinstance(packet.message, VoteRequest)
    }
    cluster.packets = [requests["n"]]
    deliver(cluster, lambda message: True)
    assert heir.up.counted_votes == ("n",)
    new_disk(cluster, "n", given)
    cluster.packets.clear()
    cluster.partition("z", "nab")
    cluster.connect("a", "b")
    cluster.connect("b", "a")
    cluster.tick(leader)
    cluster.settle()
    cluster.restart("n")
    cluster.run_for(2 * SECOND)
    assert leader.up.role is Role.LEADER
    assert cluster["n"].up.recovering is None
    cluster.heal()
    for node in "ab":
        cluster.disconnect(node, "b" if node == "a" else "a")
    cluster.packets.clear()
    return cluster, invariants, requests["a"]


def deliver(cluster: Cluster, wanted: Callable[[Message], bool]) -> None:
    """Delivers what is wanted, and what that causes."""
    while found := [packet for packet in cluster.packets if wanted(packet.message)]:
        cluster.deliver(found[0])


@pytest.mark.parametrize(("given", "early"), [("nabz", False), ("nab", True)])
def test_a_vote_for_who_is_being_removed_is_worth_nothing_behind_a_recovery(given: str, early: bool) -> None:
    """z is no voter of the configuration that all have, and may be elected by its voters."""
    cluster, invariants, slow = cut_off_while_it_removes(given, early=early)
    leader = cluster["b"]
    leader.up.transfer_leadership("n", cluster.now)
    leader.turn()
    deliver(cluster, lambda message: isinstance(message, TimeoutNow))
    deliver(
        cluster,
        lambda message: (
            isinstance(message, VoteRequest | VoteResponse) and "b" in (message.source, message.target)
        ),
    )
    assert cluster["n"].up.role is Role.LEADER
    cluster.packets = [slow]
    deliver(cluster, lambda message: isinstance(message, VoteRequest | VoteResponse))
    assert cluster["z"].up.role is not Role.LEADER
    invariants.check()


@pytest.mark.parametrize(("given", "early"), [("nabz", False), ("nab", True)])
def test_what_is_committed_behind_a_recovery_is_not_lost_to_who_is_being_removed(
    given: str, early: bool
) -> None:
    cluster, invariants, slow = cut_off_while_it_removes(given, early=early)
    cluster.partition("a", "z", "nb")
    index = cluster["b"].propose(1)
    cluster.settle()
    assert cluster["b"].up.commit_index == index
    cluster.heal()
    cluster.packets = [slow]
    deliver(cluster, lambda message: isinstance(message, VoteRequest | VoteResponse))
    invariants.check()


def test_a_new_disk_that_withholds_is_sent_all_up_to_where_it_need_not() -> None:
    """Seed 9890703 of the simulator: the window was full before the configuration that makes two voters of b and a."""
    cluster = Cluster("abc", entries_per_append=1)
    leader = led_by("a", cluster)
    new_disk(cluster, "b", "abc")
    cluster.restart("b")
    cluster.tick(cluster["b"])
    deliver_until(
        cluster,
        lambda: cluster["b"].up.recovering is Loss.VOTE,
        lambda message: isinstance(message, RecoveryRequest | RecoveryResponse),
    )
    cluster.crash("c")
    for _ in range(3 * OPTIONS.max_inflight_appends):
        leader.propose(1)
    cluster.now += OPTIONS.election_timeout_min_ns + 1
    change(leader, RemoveMember("c"))
    cluster.run_for(10 * SECOND)
    assert cluster["b"].up.configuration.voters == ("a", "b")
    assert cluster["b"].up.commit_index == leader.up.log_terms.last_index == leader.up.commit_index
