"""Any node takes any request: forwarding, holding while there is no leader, and leaders lost in between."""

from __future__ import annotations

import random

import pytest

from broker.node.request_states import DOUBT_NS
from broker.peers.protocol import Forward, Frame, NotDone, RaftFrame, Relay
from broker.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    MessageQueue,
    SubscriptionData,
    TopicConfig,
)
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import ROCKETMQ, RemotingCommand
from broker.remoting.json_body import decode_body, encode_body
from broker.requests.connection import Connection
from broker.requests.processing import OUTCOME_UNKNOWN
from raft.messages import AppendResponse, TimeoutNow, VoteRequest
from tests.broker.harness import Client, Group, Pulled


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
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
    assert Pulled.of(reader.answers[pull]).bodies == [b"x"]


def test_a_second_request_of_an_opaque_is_refused_while_the_first_waits(group: Group) -> None:
    """It was never answered, and the answer to the first would have been taken for one to it."""
    client = group.connect(group.follower)
    pull = client.start_pull("T", "g", 0, suspend_ms=20_000)
    client.reuse_opaque(pull)
    answer = client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark == f"opaque {pull} is that of a request which is not answered yet; nothing was done"
    group.connect().send("T", b"x")
    assert Pulled.of(client.wait(pull)).bodies == [b"x"]


@pytest.mark.parametrize("code", [RequestCode.GET_MAX_OFFSET, RequestCode.GET_TOPIC_CONFIG])
def test_question_to_a_lost_leader_is_asked_of_the_next(group: Group, code: int) -> None:
    client = group.connect(group.follower)
    client.send("T", b"x", 0)
    old = group.leader

    def lost(source: str, target: str, frame: Frame) -> bool:
        return isinstance(frame, Forward) and target == old

    group.lose = lost
    opaque = client.start_call(code, {"topic": "T", "queueId": "0"})
    group.settle()
    assert opaque not in client.answers
    group.kill(old)
    answer = client.wait(opaque)
    assert answer.code == ResponseCode.SUCCESS
    if code == RequestCode.GET_MAX_OFFSET:
        assert answer.fields["offset"] == "1"
    else:
        assert decode_body(answer.body, TopicConfig).read_queue_nums == 2


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
    names = {client.connection.name.encode() for client in clients}
    assert set(clients[0].pull("T", "g", 0).bodies) == names
    assert clients[0].offset_of(RequestCode.GET_MAX_OFFSET, "T") == len(names) == 2


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
    assert len({bytes(log.run(0, log.last_index).body) for log in logs}) == 1, "byte-identical"


def test_follower_answers_from_its_own_log(group: Group, client: Client) -> None:
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


def test_a_leader_without_its_own_link_is_not_asked_until_it_is_up(group: Group) -> None:
    """What it answered would go nowhere, and the client would wait in vain (simulator, seed 8300012)."""
    client = group.connect(group.follower)
    group.break_link(group.leader, group.follower)
    request = client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, _position(0))
    group.settle()
    assert request not in client.answers
    group.advance(1)
    assert client.answers[request].code == ResponseCode.SUCCESS


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


@pytest.mark.parametrize("seed", range(3))
def test_transfers_of_leadership_leave_no_outcome_unknown(group: Group, seed: int) -> None:
    """The former leader answers or gives back what it was forwarded, after the others have heard of the next one."""
    chosen = random.Random(seed)
    clients = [group.connect(node) for node in group.members for _ in range(3)]
    sent: list[tuple[Client, int]] = []
    for _ in range(12):
        leader = group.leader
        heir = chosen.choice([node for node in group.members if node != leader])
        for step in range(chosen.randrange(25, 60)):
            client = chosen.choice(clients)
            sent.append((client, client.start_send("T", b"%d" % len(sent), chosen.randrange(2))))
            if step == 20:
                node = group.node(leader)
                node.begin(group.now_ns, group.wall_ms)
                node.replica.group_changes.transfer(heir)
                group.members[leader].due_ns = group.now_ns
            for _ in range(chosen.randrange(4)):
                group.step_at_random(chosen)
        group.advance(0.2)
        group.elect()
    for client, opaque in sent:
        assert client.wait(opaque).code == ResponseCode.SUCCESS
    queues = group.node(group.leader).replica.store.queues
    stored = [queue.max_offset for number in (0, 1) if (queue := queues.get("T", number)) is not None]
    assert sum(stored) == len(sent), "each is there once"


def test_a_former_leader_that_says_nothing_is_not_waited_for_long(group: Group) -> None:
    """It is cut off, and no connection has broken."""
    old = group.leader
    heir = next(node for node in group.members if node != old)
    client = group.connect(heir)
    group.lose = lambda source, target, frame: source == old and isinstance(frame, Relay)
    sends = [client.start_send("T", b"once") for _ in range(2)]
    group.settle()
    group.partition(old)
    group.elect()
    group.run_until(lambda: group.node(heir).replica.leader not in {None, old}, "another leader")
    known_ns = group.now_ns
    for send in sends:
        assert client.wait(send).remark == OUTCOME_UNKNOWN
    assert group.now_ns - known_ns <= DOUBT_NS
    assert client.send("T", b"next").queue_offset == 2


def test_a_leader_that_was_only_not_heard_for_a_while_is_waited_for_as_before(group: Group) -> None:
    """Nobody else was elected: it still has the request, and answers when a majority has the entry."""
    leader, follower = group.leader, group.follower
    replica = group.node(follower).replica
    term = replica.term
    client = group.connect(follower)
    is_deaf = True

    def lose(source: str, target: str, frame: Frame) -> bool:
        if not isinstance(frame, RaftFrame):
            return False
        return (is_deaf and target == follower) or (unanswered and isinstance(frame.message, AppendResponse))

    unanswered = False
    group.lose = lose
    election_ns = replica.raft.deadline()
    assert election_ns is not None
    group.advance((election_ns - group.now_ns) / 1e9 - 0.02)
    unanswered = True
    sent = client.start_send("T", b"once")
    group.run_until(lambda: replica.leader is None, "an election timeout")
    is_deaf = False
    group.run_until(lambda: replica.leader == leader, "a heartbeat")
    group.advance(DOUBT_NS / 1e9 + 0.1)
    unanswered = False
    assert client.wait(sent).code == ResponseCode.SUCCESS
    assert client.pull("T", "g", 0).bodies == [b"once"]
    assert replica.term == term


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


class Late:
    """A wire between the nodes on which what is forwarded to `target` is delayed."""

    def __init__(self, group: Group, target: str) -> None:
        self._group = group
        self._target = target
        self.frames: list[tuple[str, Forward]] = []
        group.lose = self._take

    def _take(self, source: str, target: str, frame: Frame) -> bool:
        if not isinstance(frame, Forward) or target != self._target:
            return False
        self.frames.append((source, frame))
        return True

    def arrive(self) -> None:
        """All of it comes now, and what is forwarded from now on comes at once."""
        self._group.lose = lambda source, target, frame: False
        node = self._group.node(self._target)
        node.begin(self._group.now_ns, self._group.wall_ms)
        for source, frame in self.frames:
            node.peer_received(source, frame)
        self._group.members[self._target].due_ns = self._group.now_ns
        self._group.settle()


@pytest.mark.parametrize("one_way", [False, True])
def test_position_that_comes_late_to_a_leader_of_a_later_term_is_not_stored(
    group: Group, one_way: bool
) -> None:
    old, heir = group.leader, group.follower
    client = group.connect(heir)
    late = Late(group, old)
    opaque = client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, _position(5), one_way=one_way)
    group.settle()
    assert len(late.frames) == 1
    group.transfer_leadership(heir)
    if not one_way:
        assert client.wait(opaque).remark == OUTCOME_UNKNOWN
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, _position(9))
    group.transfer_leadership(old)
    late.arrive()
    group.advance(1)
    assert client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 9
    assert not client.answers, "one answer to each request"


@pytest.mark.parametrize("answered", ["before it hears of the next leader", "after"])
def test_what_a_leader_of_the_past_gives_back_is_done_once_by_the_next(group: Group, answered: str) -> None:
    """Also a send: who gives it back says that it has done nothing."""
    old, heir = group.leader, group.follower
    third = next(node for node in group.members if node not in (old, heir))
    client = group.connect(third)
    late = Late(group, old)
    opaque = client.start_send("T", b"once")
    group.settle()
    take = group.lose

    def third_hears_nothing(source: str, target: str, frame: Frame) -> bool:
        return take(source, target, frame) or (target == third and isinstance(frame, RaftFrame))

    group.lose = third_hears_nothing
    group.transfer_leadership(heir)
    assert not client.answers, "its node still takes the old one for the leader"
    if answered == "after":
        group.lose = take
        answer = client.wait(opaque)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
        late.arrive()
        assert not client.answers
        bodies = []
    else:
        late.arrive()
        answer = client.wait(opaque)
        assert answer.code == ResponseCode.SUCCESS
        bodies = [b"once"]
    group.converge()
    assert group.connect().pull("T", "g", 0).bodies == bodies


def test_only_the_request_that_was_given_back_is_repeated(group: Group) -> None:
    """A message about an earlier term's request, which has the same number as one that the leader has."""
    client = group.connect(group.follower)
    group.lose = lambda source, target, frame: isinstance(frame, Relay)
    opaque = client.start_send("T", b"once")
    group.settle()
    node, leader = group.node(group.follower), group.leader
    (number,) = node._forwarding._by_number
    node.peer_received(leader, NotDone(number, opaque, node.replica.term - 1))
    node.peer_received(
        next(n for n in group.members if n != leader), NotDone(number, opaque, node.replica.term)
    )
    node.peer_received(leader, NotDone(number + 1, opaque, node.replica.term))
    assert node.held_count == 0
    group.advance(3)
    group.lose = lambda source, target, frame: False
    assert group.connect().pull("T", "g", 0).bodies == [b"once"]


@pytest.mark.parametrize("reader_is_at", ["leader", "follower"])
def test_held_pull_stores_its_position_once(group: Group, reader_is_at: str) -> None:
    """A pull waits for a message, its consumer stores a newer position, and the pull goes on to the next leader."""
    old, heir = group.leader, group.follower
    reader = group.connect(old if reader_is_at == "leader" else heir)
    for number in range(7):
        reader.send("T", b"%d" % number)
    pull = reader.start_pull("T", "g", 7, suspend_ms=50_000, commit_offset=5)
    group.advance(1)
    other = group.connect(heir)
    assert other.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 5
    other.ok(RequestCode.UPDATE_CONSUMER_OFFSET, _position(7))
    group.transfer_leadership(heir)
    group.advance(1)
    assert other.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 7
    assert pull not in reader.answers, "it waits at the next leader"
    other.send("T", b"new")
    assert Pulled.of(reader.wait(pull)).bodies == [b"new"]


@pytest.mark.parametrize("reader_is_at", ["leader", "follower"])
@pytest.mark.parametrize("change", ["transfer", "crash"])
def test_held_pull_is_held_no_longer_than_it_asks_for_however_often_the_leader_changes(
    group: Group, reader_is_at: str, change: str
) -> None:
    """Held anew for all of its time by each leader, it would outlast its client's patience."""
    place = group.leader if reader_is_at == "leader" else group.follower
    reader = group.connect(place)
    asked_ns = group.now_ns
    pull = reader.start_pull("T", "g", 0, suspend_ms=20_000)
    for _ in range(2):
        group.advance(8)
        old, heir = group.leader, group.follower
        if change == "transfer" or old == place:
            group.transfer_leadership(heir)
        else:
            group.kill(old)
            group.elect()
            group.restart(old)
    group.run_until(lambda: pull in reader.answers, "the answer")
    assert reader.answers[pull].code == ResponseCode.PULL_NOT_FOUND
    assert 19_990 <= (group.now_ns - asked_ns) // 1_000_000 <= 20_000


def test_waiting_for_a_leader_counts_for_how_long_a_pull_is_held(group: Group) -> None:
    alone = group.follower
    reader = group.connect(alone)
    group.partition(alone)
    group.run_until(lambda: group.node(alone).replica.leader is None)
    asked_ns = group.now_ns
    pull = reader.start_pull("T", "g", 0, suspend_ms=20_000)
    group.advance(2)
    group.heal()
    group.run_until(lambda: pull in reader.answers, "the answer")
    assert reader.answers[pull].code == ResponseCode.PULL_NOT_FOUND
    assert 19_990 <= (group.now_ns - asked_ns) // 1_000_000 <= 20_000


def test_pull_whose_answer_is_lost_stores_its_position_once(group: Group) -> None:
    old = group.leader
    reader = group.connect(group.follower)
    for number in range(7):
        reader.send("T", b"%d" % number)
    group.lose = lambda source, target, frame: isinstance(frame, Relay)
    pull = reader.start_pull("T", "g", 6, commit_offset=5)
    group.advance(1)
    group.connect(old).ok(RequestCode.UPDATE_CONSUMER_OFFSET, _position(7))
    group.kill(old)
    group.lose = lambda source, target, frame: False
    assert Pulled.of(reader.wait(pull)).bodies == [b"6"]
    group.advance(1)
    assert reader.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 7


def test_pull_that_has_waited_for_a_leader_stores_no_position(group: Group) -> None:
    """Its consumer may have found a leader through another node, and stored a newer one there."""
    leader, alone = group.leader, group.follower
    reader = group.connect(alone)
    for number in range(7):
        reader.send("T", b"%d" % number)
    group.converge()
    group.partition(alone)
    group.run_until(lambda: group.node(alone).replica.leader is None)
    pull = reader.start_pull("T", "g", 6, commit_offset=5)
    assert group.node(alone).held_count == 1
    group.connect(leader).ok(RequestCode.UPDATE_CONSUMER_OFFSET, _position(7))
    group.heal()
    assert Pulled.of(reader.wait(pull, 3)).bodies == [b"6"]
    group.advance(1)
    assert reader.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g") == 7


def test_unlock_of_unknown_outcome_is_never_repeated_by_the_broker(group: Group) -> None:
    """Its client may hold the lock again: freed a second time, another could take it from under its hands."""
    old, node = group.leader, group.follower
    body = encode_body(
        LockBatchBody(client_id="a", consumer_group="g", queues=[MessageQueue("broker-a", 0, "T")])
    )
    client = group.connect(node)
    client.ok(RequestCode.LOCK_BATCH_MQ, None, body)
    group.lose = lambda source, target, frame: isinstance(frame, Relay)
    unlock = client.start_call(RequestCode.UNLOCK_BATCH_MQ, None, body)
    group.advance(0.05)
    group.connect(old).ok(RequestCode.LOCK_BATCH_MQ, None, body)
    group.kill(old)
    group.lose = lambda source, target, frame: False
    assert client.wait(unlock).remark == OUTCOME_UNKNOWN
    group.elect()
    other = encode_body(
        LockBatchBody(client_id="b", consumer_group="g", queues=[MessageQueue("broker-a", 0, "T")])
    )
    assert b'"lockOKMQSet":[]' in bytes(client.ok(RequestCode.LOCK_BATCH_MQ, None, other).body)


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_requests_go_on_as_soon_as_a_transfer_is_given_up(group: Group, place: str) -> None:
    """They wait for the next leader, and the old one stays it."""
    old, heir = group.leader, group.follower
    client = group.connect(old if place == "leader" else heir)
    group.lose = lambda source, target, frame: (
        isinstance(frame, RaftFrame) and isinstance(frame.message, TimeoutNow)
    )
    leader = group.node(old)
    leader.begin(group.now_ns, group.wall_ms)
    leader.replica.group_changes.transfer(heir)
    group.members[old].due_ns = group.now_ns
    opaque = client.start_send("T", b"x")
    group.settle()
    assert leader.held_count == 1
    assert client.wait(opaque, 2).code == ResponseCode.SUCCESS
    assert client.pull("T", "g", 0).bodies == [b"x"]
    assert group.leader == old


@pytest.mark.parametrize("at", ["the leader", "a leader that was awaited"])
def test_what_a_handler_did_not_foresee_hurts_no_other_forwarded_request(group: Group, at: str) -> None:
    client = group.connect(group.follower)
    if at == "a leader that was awaited":
        group.kill(group.leader)

    def fails(connection: Connection, command: RemotingCommand) -> None:
        raise KeyError("nobody foresaw this")

    for member in group.alive():
        routes = member.alive._routes
        routes[RequestCode.GET_MIN_OFFSET] = fails, routes[RequestCode.GET_MIN_OFFSET][1]
        routes[RequestCode.UNLOCK_BATCH_MQ] = fails, routes[RequestCode.UNLOCK_BATCH_MQ][1]
    queue = {"topic": "T", "queueId": 0}
    codes = [
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.GET_MAX_OFFSET,
    ]
    answers = [client.wait(opaque) for opaque in [client.start_call(code, queue) for code in codes]]
    assert [answer.code for answer in answers] == [
        ResponseCode.SUCCESS,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SUCCESS,
    ]
    assert all("nobody foresaw this" in (answer.remark or "") for answer in answers[1:3])


def test_of_a_frame_for_a_client_what_nobody_waits_for_is_dropped_and_the_rest_is_not(group: Group) -> None:
    node, old = group.follower, group.leader
    client, there = group.connect(node), group.node(group.follower)
    relays: list[Relay] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Relay):
            relays.append(frame)
        return len(relays) == 2  # the second answer is lost

    group.lose = see
    queue = {"topic": "T", "queueId": 0}
    first, second = (client.start_call(RequestCode.GET_MAX_OFFSET, queue) for _ in range(2))
    group.settle()
    assert second not in client.answers
    assert client.answers.pop(first).code == ResponseCode.SUCCESS
    both = Relay(relays[0].connection, bytes(relays[0].body) + bytes(relays[1].body))
    there.begin(group.now_ns, group.wall_ms)
    there.peer_received(old, both)
    group.members[node].due_ns = group.now_ns
    group.settle()
    assert client.answers[second].code == ResponseCode.SUCCESS
    assert first not in client.answers, "a client gets one response"


def start_heartbeat(client: Client, *consumer_groups: str) -> int:
    """Registers a consumer of T in consumer groups, without waiting for the answer."""
    subscription = SubscriptionData(topic="T", sub_string="*")
    consumers = [
        ConsumerData(group_name=name, subscription_data_set=[subscription]) for name in consumer_groups
    ]
    data = HeartbeatData(client_id=client.client_id, consumer_data_set=consumers)
    return client.start_call(RequestCode.HEART_BEAT, None, encode_body(data))


def start_to_leave(client: Client, consumer_group: str) -> int:
    """Takes a consumer out of its consumer group, without waiting for the answer."""
    fields = {"clientID": client.client_id, "consumerGroup": consumer_group}
    return client.start_call(RequestCode.UNREGISTER_CLIENT, fields)


@pytest.mark.parametrize("heir_is", ["the client's node", "another node"])
@pytest.mark.parametrize("lost", ["the frames", "the creation"])
def test_who_left_its_consumer_group_while_its_heartbeat_was_forwarded_is_no_member(
    group: Group, heir_is: str, lost: str
) -> None:
    """The next leader was asked for the heartbeat behind what came after it."""
    old = group.leader
    node = group.follower
    third = next(member for member in group.members if member not in (old, node))
    heir = node if heir_is == "the client's node" else third
    client = group.connect(node)
    group.lose = lambda source, target, frame: (
        target == old and isinstance(frame, Forward if lost == "the frames" else RaftFrame)
    )
    heartbeat, left = start_heartbeat(client, "left", "kept"), start_to_leave(client, "left")
    group.settle()
    assert heartbeat not in client.answers
    assert client.wait(left).code == ResponseCode.SUCCESS
    group.kill(old)
    group.lose = lambda source, target, frame: (
        isinstance(frame, RaftFrame) and isinstance(frame.message, VoteRequest) and source != heir
    )
    assert client.wait(heartbeat).code == ResponseCode.SUCCESS
    assert group.elect() == heir
    group.settle()
    for member in group.alive():
        registry = member.alive.registry
        assert registry.members("left") == []
        if member.id in (node, heir):
            assert registry.members("kept") == [client.client_id]


def test_who_left_its_consumer_group_while_a_lost_leader_created_it_is_no_member(group: Group) -> None:
    """The leader had the next one do the heartbeat, and had not told it that its client was gone since."""
    old = group.leader
    client = group.connect(old)
    group.lose = lambda source, target, frame: isinstance(frame, RaftFrame) and target == old
    heartbeat, left = start_heartbeat(client, "left", "kept"), start_to_leave(client, "left")
    group.settle()
    assert heartbeat not in client.answers
    assert client.answers[left].code == ResponseCode.SUCCESS
    others = [node for node in group.members if node != old]
    group.run_until(lambda: any(group.node(node).replica.serving for node in others), "another leader")
    group.lose = lambda source, target, frame: False
    assert client.wait(heartbeat).code == ResponseCode.SUCCESS
    group.run_until(lambda: group.node(old).replica.leader == group.leader, "the old leader to follow")
    for node in (old, group.leader):
        registry = group.node(node).registry
        assert (registry.members("left"), registry.members("kept")) == ([], [client.client_id])
