"""Members that come and go, and leadership on request: what is refused, what happens, and what a removed node says."""

from __future__ import annotations

import pytest

from broker.node.registration_request import registration
from broker.peers.protocol import Frame, NotAMember, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.name_server_headers import BrokerIdentityHeader, RegisterBrokerHeader
from broker.remoting.node_status import NodeStatus, decode_node_status
from broker.remoting.route import MASTER_ID
from broker.requests.errors import NotServingError
from raft.messages import RecoveryResponse, VoteRequest
from tests.broker.group_changes import add, change, done, promote
from tests.broker.harness import Client, Group, peer_address


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    group.connect().create_topic("T", 2)
    group.converge()
    return group


def transfer(client: Client, node: str) -> RemotingCommand:
    return client.call(RequestCode.TRIVET_TRANSFER_LEADERSHIP, {"node": node})


def status(group: Group, node: str) -> NodeStatus:
    return decode_node_status(group.connect(node).ok(RequestCode.TRIVET_NODE_STATUS).body)


def outside_answer(group: Group, node: str) -> RemotingCommand:
    client = group.connect(node)
    return client.wait(client.start_send("T", b"x"))


# ---------------------------------------------------------------------- members


@pytest.mark.parametrize("asked", ["leader", "follower"])
def test_a_node_joins_and_is_promoted(group: Group, asked: str) -> None:
    client = group.connect(getattr(group, asked))
    group.join("n3")
    group.advance(5)
    assert status(group, "n3").role == "outside"
    add(client, "n3")
    group.converge()
    assert status(group, "n3").role == "learner"
    assert status(group, group.leader).learners == ("n3",)
    promote(client, "n3")
    group.converge()
    for node in group.members:
        assert status(group, node).voters == ("n0", "n1", "n2", "n3")
    assert status(group, "n3").role == "follower"
    assert status(group, "n3").recovering is None
    receipt = group.connect("n3").send("T", b"through the new node")
    group.connect().heartbeat("g")
    group.converge()
    assert group.connect("n3").pull("T", "g", receipt.queue_offset).bodies == [b"through the new node"]


def test_a_node_that_is_added_before_it_starts_finds_the_group(group: Group) -> None:
    add(group.connect(), "n3")
    group.join("n3", "n0", "n1", "n2")
    group.converge()
    promote(group.connect(), "n3")
    group.converge()
    assert status(group, "n3").role == "follower"
    assert status(group, "n3").voters == ("n0", "n1", "n2", "n3")


def test_every_member_is_replaced_and_the_old_ones_can_go(group: Group) -> None:
    """The new nodes' files name nodes that are long gone when the last of them starts again."""
    sent = [group.connect().send("T", b"first").queue_offset]
    for number in range(3):
        newcomer, old = f"n{3 + number}", f"n{number}"
        group.join(newcomer)
        add(group.connect(), newcomer)
        promote(group.connect(), newcomer)
        done(change(group.connect(), "remove", old))
        group.run_until(lambda old=old: status(group, old).role == "outside", "the old node to hear of it")  # type: ignore[misc]
        group.kill(old)
        del group.members[old]
        group.elect()
        sent.append(group.connect().send("T", newcomer.encode()).queue_offset)
    for node in list(group.members):
        group.kill(node)
        group.restart(node)
        group.elect()
    group.converge()
    group.connect().heartbeat("g")
    bodies = [group.connect().pull("T", "g", offset).bodies[0] for offset in sent]
    assert bodies == [b"first", b"n3", b"n4", b"n5"]
    assert set(status(group, group.leader).peer_addresses) == {"n3", "n4", "n5"}


def test_a_leader_removes_itself(group: Group) -> None:
    leader = group.leader
    done(change(group.connect(), "remove", leader))
    group.run_until(lambda: status(group, leader).role == "outside", "the leader to go")
    assert outside_answer(group, leader).code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.run_until(
        lambda: any(group.node(node).replica.serving for node in group.members if node != leader), "another"
    )
    assert group.leader != leader
    group.connect().send("T", b"x")


def test_a_leader_that_was_not_told_yet_that_it_leads_no_more_does_not_serve(group: Group) -> None:
    """Found by the simulator: when a leader's own removal was committed, those who waited for the members were told
    before its end as a leader was; what it held was tried then, and answered with code 1, "outcome unknown".
    """
    leader = group.leader
    replica = group.node(leader).replica
    term = replica.term + 1
    vote = VoteRequest(group.follower, leader, term, 1 << 40, term, leadership_transfer=True)
    replica.raft.step(vote, group.now_ns)
    assert replica.serving
    with pytest.raises(NotServingError):
        replica.leadership.check_may_append()


def test_a_leader_is_removed_through_a_follower(group: Group) -> None:
    leader = group.leader
    done(change(group.connect(group.follower), "remove", leader))
    rest = tuple(node for node in group.members if node != leader)
    group.run_until(lambda: any(group.node(node).replica.serving for node in rest), "another one to serve")
    assert [status(group, node).voters for node in rest] == 2 * [rest]
    assert not group.node(leader).replica.serving


def test_a_removed_node_stops_serving_and_says_so(group: Group) -> None:
    removed = group.follower
    client = group.connect(removed)
    receipt = client.send("T", b"x")
    client.heartbeat("g")
    held = client.start_pull("T", "g", receipt.queue_offset + 1, suspend_ms=20_000)
    done(change(group.connect(), "remove", removed))
    assert client.wait(held).code == ResponseCode.SERVICE_NOT_AVAILABLE
    answer = client.wait(client.start_pull("T", "g", receipt.queue_offset))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == f"{removed} is no member of group broker-a; nothing was done, ask another node"
    assert status(group, removed).role == "outside"


def test_a_removed_node_leaves_the_name_servers(group: Group) -> None:
    removed = group.follower
    config = group.members[removed].config
    before = group.node(removed).registration_version
    done(change(group.connect(), "remove", removed))
    group.advance(1)
    assert group.node(removed).registration_version > before
    command = registration(group.node(removed), config, config.node.listen)
    assert command is not None
    assert command.code == RequestCode.UNREGISTER_BROKER
    assert command.decode_fields(BrokerIdentityHeader).broker_address == config.node.listen


def test_a_learner_registers_as_one_that_takes_no_writes(group: Group) -> None:
    group.join("n3")
    add(group.connect(), "n3")
    group.converge()
    command = registration(group.node("n3"), group.members["n3"].config, "127.0.0.1:10003")
    assert command is not None
    assert command.decode_fields(RegisterBrokerHeader).broker_id not in (MASTER_ID, 1, 2, 3)


def test_a_node_that_was_away_when_it_was_removed_is_told(group: Group) -> None:
    away = group.follower
    group.kill(away)
    group.advance(3)
    done(change(group.connect(), "remove", away))
    group.restart(away)
    group.run_until(lambda: status(group, away).role == "outside", "the removed node to be told")
    assert outside_answer(group, away).code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.kill(away)
    add(group.connect(), away)
    group.restart(away)
    group.run_until(lambda: status(group, away).role == "learner", "it to be a member again")
    promote(group.connect(), away)
    group.converge()


def test_a_node_that_missed_the_notice_of_its_removal_is_told(group: Group) -> None:
    away = group.follower
    group.partition(away)
    group.advance(3)
    done(change(group.connect(), "remove", away))
    group.advance(3)
    assert status(group, away).role != "outside"
    group.heal()
    group.run_until(lambda: status(group, away).role == "outside", "the removed node to be told")


def test_what_an_old_member_says_of_membership_is_not_believed(group: Group) -> None:
    """A follower that lags knows of fewer members than there are."""
    group.join("n3")
    add(group.connect(), "n3")
    promote(group.connect(), "n3")
    group.kill(group.follower)
    group.node("n3").replica.members.dismissed(group.node("n3").replica.raft.configuration_index - 1)
    assert status(group, "n3").role == "follower"


def test_an_empty_disk_in_a_group_that_has_grown(group: Group) -> None:
    """Its file names three members; the fourth, which leads, answers where it says that it listens."""
    group.join("n3")
    add(group.connect(), "n3")
    promote(group.connect(), "n3")
    done(transfer(group.connect(), "n3"))
    group.converge()
    group.kill("n0")
    group.replace_disk("n0")
    group.restart("n0")
    group.converge()
    group.run_until(lambda: status(group, "n0").recovering is None, "n0 to recover")
    assert status(group, "n0").voters == ("n0", "n1", "n2", "n3")


def test_a_dead_node_is_removed_and_another_takes_its_place(group: Group) -> None:
    dead = group.follower
    group.kill(dead)
    group.advance(3)
    done(change(group.connect(), "remove", dead))
    del group.members[dead]
    group.join("n3", "n0", "n1", "n2")
    add(group.connect(), "n3")
    promote(group.connect(), "n3")
    group.run_until(lambda: status(group, "n3").recovering is None, "n3 to be a full member")
    done(transfer(group.connect(), "n3"))
    assert group.leader == "n3"


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("operation", "node", "address", "code", "remark"),
    [
        ("add", "n1", "127.0.0.1:29999", ResponseCode.INVALID_PARAMETER, "n1 already is a member"),
        ("add", "x9", "127.0.0.1:29999", ResponseCode.INVALID_PARAMETER, "'x9' is no node id"),
        ("add", "n3", None, ResponseCode.INVALID_PARAMETER, "host:port"),
        ("add", "n3", "127.0.0.1", ResponseCode.INVALID_PARAMETER, "host:port"),
        ("add", "n3", "127.0.0.1:0", ResponseCode.INVALID_PARAMETER, "port is 0"),
        ("add", "n3", peer_address("n1"), ResponseCode.INVALID_PARAMETER, "n1 has the peer address"),
        ("promote", "n3", None, ResponseCode.INVALID_PARAMETER, "n3 is not a learner"),
        ("promote", "n1", None, ResponseCode.INVALID_PARAMETER, "n1 already is a member"),
        ("remove", "n3", None, ResponseCode.INVALID_PARAMETER, "n3 is not a member"),
        ("rename", "n1", None, ResponseCode.INVALID_PARAMETER, "one of add, promote, remove"),
    ],
)
def test_impossible_changes(
    group: Group, operation: str, node: str, address: str | None, code: int, remark: str
) -> None:
    before = group.node(group.leader).replica.store.log.last_index
    answer = change(group.connect(group.follower), operation, node, address)
    assert answer.code == code
    assert remark in (answer.remark or "")
    assert group.node(group.leader).replica.store.log.last_index == before


def test_the_last_voter_stays() -> None:
    group = Group.elected(1)
    answer = change(group.connect(), "remove", "n0")
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "n0 is the only voter" in (answer.remark or "")


def test_a_group_of_one_without_a_peer_address_cannot_grow() -> None:
    group = Group.elected(1)
    answer = change(group.connect(), "add", "n1", peer_address("n1"))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "raft.peers" in (answer.remark or "")


def test_a_removal_that_leaves_no_majority_is_refused(group: Group) -> None:
    """With one of three down, only the one that is down can go."""
    down = group.follower
    group.kill(down)
    group.advance(3)
    alive = group.follower
    answer = change(group.connect(), "remove", alive)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "no majority" in (answer.remark or "")
    done(change(group.connect(), "remove", down))


def test_a_new_leader_does_not_count_on_the_one_that_died(group: Group) -> None:
    group.kill(group.leader)
    leader = group.elect()
    answer = change(group.connect(leader), "remove", leader)
    assert answer.code == ResponseCode.ILLEGAL_OPERATION


def test_one_change_at_a_time(group: Group) -> None:
    def lose_appends(source: str, target: str, frame: Frame) -> bool:
        return isinstance(frame, RaftFrame) and bool(getattr(frame.message, "spans", ()))

    group.join("n3")
    group.lose = lose_appends
    client = group.connect()
    first = client.start_call(
        RequestCode.TRIVET_CHANGE_GROUP,
        {"operation": "add", "node": "n3", "address": peer_address("n3")},
    )
    group.settle()
    second = change(client, "remove", group.follower)
    assert second.code == ResponseCode.SYSTEM_BUSY
    assert "another membership change" in (second.remark or "")
    group.lose = lambda source, target, frame: False
    done(client.wait(first))


def test_a_learner_that_lags_is_not_promoted(group: Group) -> None:
    add(group.connect(), "n3")
    answer = change(group.connect(), "promote", "n3")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "learner n3 is" in (answer.remark or "")


def leaders_answers_to_n3(source: str, target: str, frame: Frame) -> bool:
    message = frame.message if isinstance(frame, RaftFrame) else None
    return target == "n3" and isinstance(message, RecoveryResponse) and message.leads


def test_a_learner_that_could_not_vote_yet_is_not_promoted(group: Group) -> None:
    """Found by chaos, seed 2: with two such voters of four, nobody could ever be elected again."""
    group.lose = leaders_answers_to_n3
    group.join("n3")
    add(group.connect(), "n3")
    group.converge()
    assert status(group, "n3").recovering == "vote", "it does not know what it must hold"
    answer = change(group.connect(), "promote", "n3")
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert (
        answer.remark
        == "learner n3 is recovering: nothing that it holds was committed since its disk was empty"
    )
    group.advance(10)
    assert change(group.connect(), "promote", "n3").code == ResponseCode.SYSTEM_BUSY
    group.lose = lambda source, target, frame: False
    promote(group.connect(), "n3")
    group.converge()
    assert status(group, "n3").recovering is None


def test_a_learner_whose_disk_is_lost_again_is_not_promoted(group: Group) -> None:
    group.join("n3")
    add(group.connect(), "n3")
    group.run_until(lambda: status(group, "n3").recovering is None, "n3 to know all")
    group.kill("n3")
    group.replace_disk("n3")
    group.lose = leaders_answers_to_n3
    group.restart("n3")
    group.converge()
    group.advance(2)
    answer = change(group.connect(), "promote", "n3")
    assert "recovering" in (answer.remark or "")


def test_a_change_whose_leader_is_lost_has_an_unknown_outcome(group: Group) -> None:
    leader = group.leader
    client = group.connect(group.follower)
    group.lose = lambda source, target, frame: not isinstance(frame, NotAMember) and source == leader
    opaque = client.start_call(
        RequestCode.TRIVET_CHANGE_GROUP,
        {"operation": "add", "node": "n3", "address": peer_address("n3")},
    )
    group.settle()
    group.kill(leader)
    group.lose = lambda source, target, frame: False
    answer = client.wait(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "unknown" in (answer.remark or "")


# ---------------------------------------------------------------------- leadership


@pytest.mark.parametrize("asked", ["leader", "follower", "target"])
def test_leadership_is_transferred(group: Group, asked: str) -> None:
    leader = group.leader
    target = [node for node in group.members if node != leader][-1]
    client = group.connect({"leader": leader, "follower": group.follower, "target": target}[asked])
    done(transfer(client, target))
    group.run_until(lambda: group.node(target).replica.serving, "the target to serve")
    assert group.leader == target


def test_a_transfer_to_the_leader_is_done_already(group: Group) -> None:
    leader, term = group.leader, status(group, group.leader).term
    done(transfer(group.connect(group.follower), leader))
    assert (group.leader, status(group, leader).term) == (leader, term)


def test_a_transfer_that_fails_is_refused_and_the_leader_leads_on(group: Group) -> None:
    leader = group.leader
    target = group.follower
    group.lose = lambda source, target_of_frame, frame: source == target
    client = group.connect(leader)
    answer = transfer(client, target)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "did not take over" in (answer.remark or "")
    group.lose = lambda source, target_of_frame, frame: False
    group.elect()


def test_a_transfer_to_who_cannot_lead(group: Group) -> None:
    down = group.follower
    group.kill(down)
    group.advance(3)
    answer = transfer(group.connect(), down)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "silent" in (answer.remark or "")
    assert transfer(group.connect(), "n7").code == ResponseCode.INVALID_PARAMETER
    add(group.connect(), "n3")
    assert transfer(group.connect(), "n3").code == ResponseCode.INVALID_PARAMETER
