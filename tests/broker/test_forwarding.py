"""Any node takes any request: forwarding, holding while there is no leader, and leaders lost in between."""

from __future__ import annotations

import pytest

from broker.node import OUTCOME_UNKNOWN
from broker.peer_protocol import Forward, Frame, RaftFrame, Relay
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import ROCKETMQ
from raft.messages import AppendResponse
from tests.broker.harness import Group


@pytest.fixture
def group() -> Group:
    group = Group(3)
    group.elect()
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.close()
    group.converge()
    return group


def test_follower_answers_as_the_leader_would(group: Group) -> None:
    for node in group.members:
        client = group.connect(node)
        receipt = client.send("T", node.encode())
        assert client.pull("T", "g", receipt.queue_offset).bodies == [node.encode()]
        assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == receipt.queue_offset + 1


def test_born_host_is_the_client_and_not_the_node_between(group: Group) -> None:
    client = group.connect(group.follower, host="10.1.2.3")
    client.send("T", b"x")
    assert client.pull("T", "g", 0).records[0].born_host[:4] == bytes((10, 1, 2, 3))


def test_binary_headers_pass_through(group: Group) -> None:
    client = group.connect(group.follower)
    client.serialization = ROCKETMQ
    client.send("T", b"x")
    assert client.pull("T", "g", 0).bodies == [b"x"]


def test_held_pull_through_a_follower_wakes(group: Group) -> None:
    reader = group.connect(group.follower)
    pull = reader.start_pull("T", "g", 0, suspend_ms=20_000)
    group.advance(5)
    assert pull not in reader.answers
    group.connect().send("T", b"x")
    group.settle()
    assert reader.answers[pull].code == ResponseCode.SUCCESS


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.GET_TOPIC_CONFIG])
def test_question_to_a_lost_leader_is_asked_of_the_next(group: Group, code: int) -> None:
    client = group.connect(group.follower)
    old = group.leader

    def lost(source: str, target: str, frame: Frame) -> bool:
        return isinstance(frame, Forward) and target == old

    group.lose = lost
    opaque = client.start_call(code, {"topic": "T", "queueId": "0"})
    group.settle()
    assert opaque not in client.answers
    group.kill(old)
    assert client.wait(opaque).code == ResponseCode.SUCCESS


def test_send_of_unknown_outcome_is_never_repeated_by_the_broker(group: Group) -> None:
    client = group.connect(group.follower)
    old = group.leader

    def answer_lost(source: str, target: str, frame: Frame) -> bool:
        return isinstance(frame, Relay)

    group.lose = answer_lost
    opaque = client.start_send("T", b"once")
    group.advance(0.05)
    assert opaque not in client.answers
    group.kill(old)
    group.lose = lambda source, target, frame: False
    answer = client.wait(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
    group.elect()
    assert client.pull("T", "g", 0).bodies == [b"once"]


def test_requests_wait_for_the_next_leader(group: Group) -> None:
    old = group.leader
    clients = [group.connect(node) for node in group.members if node != old]
    group.kill(old)
    opaques = [client.start_send("T", client.connection.name.encode()) for client in clients]
    for client, opaque in zip(clients, opaques, strict=True):
        assert client.wait(opaque, 3).code == ResponseCode.SUCCESS


def test_without_a_majority_requests_are_refused_before_a_client_gives_up(group: Group) -> None:
    survivor = next(node for node in group.members if node != group.leader)
    for node in group.members:
        if node != survivor:
            group.kill(node)
    client = group.connect(survivor)
    answer = client.wait(client.start_send("T", b"x"), 3)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "nothing was stored" in (answer.remark or "")


def test_leader_cut_off_from_its_group_promises_nothing(group: Group) -> None:
    old = group.leader
    client = group.connect(old)
    group.partition(old)
    send = client.start_send("T", b"lost perhaps")
    read = client.start_call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
    group.advance(1)
    assert not client.answers, "neither an acknowledgement nor an end that may be old"
    group.advance(4)
    assert client.answers.pop(send).remark == OUTCOME_UNKNOWN
    assert client.answers.pop(read).code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.heal()
    group.elect()
    group.converge()
    end = client.offset_of(RequestCode.GET_MAX_OFFSET, "T")
    group.connect(group.follower).send("T", b"after")
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == end + 1


def test_no_acknowledged_message_is_lost_while_leaders_die(group: Group) -> None:
    acknowledged: dict[int, bytes] = {}
    for number in range(12):
        sender = group.connect(group.follower)
        body = b"%d" % number
        opaque = sender.start_send("T", body)
        if number % 3 == 1:
            group.kill(group.leader)
        answer = sender.wait(opaque)
        if answer.code == ResponseCode.SUCCESS:
            acknowledged[int(answer.fields["queueOffset"])] = body
        group.elect()
        for member in list(group.members.values()):
            if member.node is None:
                group.restart(member.id)
        group.elect()
    group.converge()
    reader = group.connect()
    found = {record.queue_offset: record.body for record in reader.pull("T", "g", 0).records}
    assert acknowledged.items() <= found.items()
    logs = [member.alive.replica.store.log for member in group.alive()]
    assert len({bytes(log.slice(0, log.last_index)) for log in logs}) == 1, "byte-identical"


def test_follower_answers_from_its_own_log(group: Group) -> None:
    client = group.connect()
    client.send("T", b"x")
    group.converge()
    reader = group.connect(group.follower)
    group.lose = lambda source, target, frame: isinstance(frame, Forward)
    assert reader.pull("T", "g", 0).bodies == [b"x"]


def test_lagging_follower_does_not_send_a_consumer_back(group: Group) -> None:
    follower = group.follower

    def behind(source: str, target: str, frame: Frame) -> bool:
        return target == follower and isinstance(frame, RaftFrame) and bool(frame.body)

    group.lose = behind
    for _ in range(3):
        group.connect().send("T", b"x")
    reader = group.connect(follower)
    pulled = reader.pull("T", "g", 2)
    assert pulled.bodies == [b"x"]
    assert reader.pull("T", "g", 3).code == ResponseCode.PULL_NOT_FOUND


def test_an_answer_never_reaches_a_client_of_a_later_life_of_the_follower(group: Group) -> None:
    """A follower that starts again numbers clients anew, who choose the same opaques (simulator, seed 2052)."""
    leader = group.leader
    follower, other = (node for node in group.members if node != leader)
    group.kill(other)
    group.lose = lambda source, target, frame: (
        target == leader and isinstance(frame, RaftFrame) and isinstance(frame.message, AppendResponse)
    )
    earlier = group.connect(follower)
    opaque = earlier.start_send("T", b"earlier")
    group.settle()
    assert opaque not in earlier.answers, "the leader holds the entry, and nobody has acknowledged it"
    group.kill(follower)
    group.restart(follower)
    group.lose = lambda source, target, frame: False
    later = group.connect(follower)
    assert later.start_send("T", b"later") == opaque
    answer = later.wait(opaque)
    assert answer.code == ResponseCode.SUCCESS
    stored = later.pull("T", "g", int(answer.fields["queueOffset"]))
    assert stored.bodies[0] == b"later", "the acknowledgement is of this client's own message"


def _position(offset: int) -> dict[str, str | int]:
    return {"topic": "T", "queueId": 0, "consumerGroup": "g", "commitOffset": offset}


def test_what_a_deposed_leader_held_for_anothers_client_is_not_done_when_it_leads_again(group: Group) -> None:
    """A leader that was handing over held a forward: an old position came back (simulator, seeds 108 and 306).

    The faults: a transfer to the follower that has forwarded, whose client then goes on, and a transfer back.
    """
    old, heir = group.leader, group.follower
    client = group.connect(heir)
    client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, _position(85))
    group.transfer_leadership(heir)
    group.settle()
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, _position(86))
    group.transfer_leadership(old)
    group.converge()
    assert group.node(old).held_count == 0
    assert client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 86


def test_position_of_unknown_outcome_is_never_repeated_by_the_broker(group: Group) -> None:
    """It was stored, its answer is lost with the leader: done again, it would undo what another has stored since."""
    old = group.leader
    client = group.connect(group.follower)
    group.lose = lambda source, target, frame: isinstance(frame, Relay)
    opaque = client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, _position(5))
    group.advance(0.05)
    assert opaque not in client.answers
    group.connect(old).ok(RequestCode.UPDATE_CONSUMER_OFFSET, _position(9))
    group.kill(old)
    group.lose = lambda source, target, frame: False
    answer = client.wait(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
    group.elect()
    assert client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 9
