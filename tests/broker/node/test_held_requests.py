"""What was held while there was no leader goes on in slices: in order, fairly, and once, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.node import long_requests
from broker.node.forwarding import Forwarding
from broker.node.node import Node
from broker.node.request_states import HELD_NS_MAX, State
from broker.peers.protocol import Forward, Frame, NotDone, RaftFrame
from broker.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.frame import whole_commands
from broker.remoting.json_body import encode_body
from broker.replica import leadership, read_barriers
from broker.replica.inner_limits import InnerLimits
from broker.replica.members import Members
from broker.requests.connection import Connection, RelayedConnection
from broker.requests.errors import BatchUnderWayError
from broker.requests.processing import HandledOn
from broker.requests.responses import reply
from log.formats.batch import BatchItem, encode_batch
from raft.messages import VoteRequest
from tests.broker.harness import SMALL_STORE, Client, Group
from tests.broker.node.test_longest_turns import LINES_MAX, Lines, lines

__all__ = ["lines"]

PLACES = ["the next leader", "a follower"]


def leaderless(held_at_once: int = 1) -> tuple[Group, str, str]:
    """A group in which nobody leads, the node that may lead if time passes, and one of the others."""
    group = Group(3, start=False)
    group.limits = InnerLimits(held_at_once=held_at_once)
    for node in group.members:
        group.start(node)
    group.elect()
    setup = group.connect()
    setup.create_topic("T")
    setup.heartbeat("g")
    group.converge()
    old = group.leader
    only_elected(group, "")
    group.kill(old)
    group.run_until(lambda: all(member.alive.replica.leader is None for member in group.alive()))
    group.restart(old)
    group.settle()
    heir, other = (node for node in group.members if node != old)
    only_elected(group, heir)
    return group, heir, other


def only_elected(group: Group, heir: str) -> None:
    """Nobody else is voted for."""
    group.lose = lambda source, target, frame: (
        isinstance(frame, RaftFrame) and isinstance(frame.message, VoteRequest) and source != heir
    )


def step_until(group: Group, chosen: random.Random, condition: Callable[[], bool]) -> None:
    """Goes on step by step, and stops in the midst of what is under way."""
    for _ in range(20_000):
        if condition():
            return
        if not group._in_flight and group.next_due_ns() > group.now_ns:
            group.now_ns = group.next_due_ns()
        group.step_at_random(chosen)
    raise AssertionError(group.describe())


def begin_transfer(group: Group, heir: str, *, elects: bool = True) -> None:
    """The leader is asked to hand over, which nobody else gets if others are kept from it."""
    if elects:
        only_elected(group, heir)
    old = group.leader
    leader = group.node(old)
    leader.begin(group.now_ns, group.wall_ms)
    leader.replica.group_changes.transfer(heir)
    group.members[old].due_ns = group.now_ns


def bodies(group: Group) -> list[bytes]:
    """The messages of the queue."""
    group.elect()
    group.converge()
    client = group.connect()
    client.heartbeat("g")
    found: list[bytes] = []
    while more := client.pull("T", "g", len(found)).bodies:
        found += more
    return found


@pytest.mark.parametrize("place", PLACES)
def test_what_comes_while_held_requests_go_on_is_done_behind_them(place: str) -> None:
    (group, *nodes), chosen = leaderless(), random.Random(1)
    node = nodes[PLACES.index(place)]
    clients = [group.connect(node, host=f"10.0.0.{number % 2}") for number in range(4)]
    sent: Counter[Client] = Counter()
    asked: list[tuple[Client, int]] = []

    def send(client: Client) -> None:
        asked.append((client, client.start_send("T", b"%d %d" % (clients.index(client), sent[client]))))
        sent[client] += 1

    for _ in range(10):
        for client in clients:
            send(client)
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) < 40)
    behind = 0
    while held.waiting:
        client = chosen.choice(clients)
        behind += held.has_any_of(client.connection)
        send(client)
        for _ in range(chosen.randrange(4)):
            group.step_at_random(chosen)
    assert behind > 10, "they went on while others came"
    assert {client.wait(opaque).code for client, opaque in asked} == {ResponseCode.SUCCESS}
    found = [tuple(map(int, body.split())) for body in bodies(group)]
    for number, client in enumerate(clients):
        assert [count for of, count in found if of == number] == list(range(sent[client]))


@pytest.mark.parametrize("place", PLACES)
def test_addresses_take_turns_and_so_do_their_connections(place: str) -> None:
    group, *nodes = leaderless(held_at_once=2)
    node = nodes[PLACES.index(place)]
    crowd = [group.connect(node, host="10.0.0.1") for _ in range(2)]
    for number in range(50):
        crowd[0].start_send("T", b"crowd %d" % number)
    crowd[1].start_send("T", b"beside")
    other = group.connect(node, host="10.0.0.2")
    for number in range(2):
        other.start_send("T", b"other %d" % number)
    group.elect()
    group.run_until(lambda: len(crowd[0].answers) == 50, "all answers")
    found = bodies(group)
    assert {b"other 0", b"other 1", b"beside"} <= {*found[:6]}
    assert [body for body in found if body.startswith(b"crowd")] == [b"crowd %d" % n for n in range(50)]


@pytest.mark.parametrize("place", PLACES)
def test_a_client_that_asks_and_asks_is_not_kept_behind_what_was_held_of_it(place: str) -> None:
    """If no more were done than comes, some of its requests would be held for ever."""
    (group, *nodes), chosen = leaderless(), random.Random(1)
    node = nodes[PLACES.index(place)]
    client = group.connect(node)
    for _ in range(50):
        client.start_send("T", b"x")
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) < 50)
    asked = 50
    while held.waiting:
        for _ in range(3):
            client.start_send("T", b"x")
        asked += 3
        assert asked < 1000
        group.step_at_random(chosen)
    group.run_until(lambda: len(client.answers) == asked, "all answers")
    assert {answer.code for answer in client.answers.values()} == {ResponseCode.SUCCESS}


@pytest.mark.parametrize("seed", range(8))
def test_a_transfer_while_held_requests_go_on_keeps_their_order(seed: int) -> None:
    """What the first leader gives back goes on before what it was not asked, and what comes meanwhile behind that."""
    (group, old, node), chosen = leaderless(), random.Random(seed)
    heir = next(other for other in group.members if other not in (old, node))
    client = group.connect(node)
    asked = [client.start_send("T", b"%d" % number) for number in range(60)]
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) <= 40)
    begin_transfer(group, heir)
    step_until(group, chosen, lambda: group.node(node).replica.leader == heir)
    assert len(held) > 10, "not all of them had gone on"
    asked.append(client.start_send("T", b"60"))
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}
    assert bodies(group) == [b"%d" % number for number in range(61)]


def test_what_a_leader_gets_back_while_it_hands_over_keeps_its_place() -> None:
    group, chosen = Group.elected(3), random.Random(1)
    setup = group.connect()
    setup.create_topic("T")
    setup.heartbeat("g")
    group.converge()
    old, node = group.leader, group.follower
    client = group.connect(node)
    begin_transfer(group, node)
    asked = [client.start_send("T", b"%d" % number) for number in range(5)]
    step_until(group, chosen, lambda: group.node(node).replica.leader is None)
    group.stop(old)
    step_until(group, chosen, lambda: group.node(node).replica.serving)
    begin_transfer(group, old)
    group.go_on(old)
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) == 5)
    assert group.node(node).replica.raft.transferee == old, "nothing of it could be done"
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}
    assert bodies(group) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("seed", [2, 11, 21, 23, 27])
def test_two_former_leaders_that_give_back_at_the_same_time_keep_the_order_of_a_client(seed: int) -> None:
    group, chosen = Group(3, start=False), random.Random(seed)
    group.limits = InnerLimits(held_at_once=1, relayed_work_a_turn=1)
    for member in group.members:
        group.start(member)
    group.elect()
    setup = group.connect()
    setup.create_topic("T")
    setup.heartbeat("g")
    group.converge()
    first, node = group.leader, group.follower
    second = next(other for other in group.members if other not in (first, node))
    client = group.connect(node)
    begin_transfer(group, second)
    asked = [client.start_send("T", b"%d" % number) for number in range(20)]
    step_until(group, chosen, lambda: group.node(second).replica.serving)
    begin_transfer(group, node)
    step_until(group, chosen, lambda: group.node(node).replica.leader == node)
    doubted = {request.leader for request in group.node(node)._forwarding._doubted}
    assert doubted == {first, second}
    step_until(group, chosen, lambda: len(client.answers) == len(asked))
    assert {client.answers[opaque].code for opaque in asked} == {ResponseCode.SUCCESS}
    assert bodies(group) == [b"%d" % number for number in range(20)]


def test_what_is_left_when_a_leader_dies_goes_on_at_the_next() -> None:
    (group, old, node), chosen = leaderless(), random.Random(1)
    client = group.connect(node)
    asked = [client.start_send("T", b"%d" % number) for number in range(40)]
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) <= 20)
    group.kill(old)
    left = len(held)
    assert left > 10
    group.lose = lambda source, target, frame: False
    asked.append(client.start_send("T", b"40"))
    codes = [client.wait(opaque).code for opaque in asked]
    assert set(codes[: 40 - left]) <= {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}
    assert codes[40 - left :] == [ResponseCode.SUCCESS] * (left + 1)
    found = [int(body) for body in bodies(group)]
    assert found == sorted({*found})
    assert found[-left - 1 :] == list(range(40 - left, 41))


def test_who_disconnects_has_nothing_done_any_more() -> None:
    group, _, node = leaderless()
    client, other = group.connect(node), group.connect(node)
    for _ in range(3):
        client.start_send("T", b"gone")
    opaque = other.start_send("T", b"here")
    client.close()
    assert group.node(node).held_count == 1, "their places are free"
    assert other.wait(opaque).code == ResponseCode.SUCCESS
    assert bodies(group) == [b"here"]


def test_requests_whose_time_is_over_are_refused_in_slices_too() -> None:
    group, _, node = leaderless(held_at_once=3)
    group.lose = lambda source, target, frame: isinstance(frame, RaftFrame)
    client = group.connect(node)
    asked = [client.start_send("T", b"x") for _ in range(20)]
    group.settle()
    group.now_ns += HELD_NS_MAX
    refused = []
    while group.node(node).held_count:
        before = len(client.answers)
        group._turn(group.members[node])
        assert group.members[node].due_ns <= group.now_ns or not group.node(node).held_count
        refused.append(len(client.answers) - before)
    assert refused == [3] * 6 + [2]
    assert {client.answers[opaque].code for opaque in asked} == {ResponseCode.SERVICE_NOT_AVAILABLE}


class Course:
    """Clients of all nodes ask while leaders come and go; they ask at first, and while something is held of them."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen = chosen
        self.group, self.heir, _ = leaderless(chosen.choice((1, 2, 5)))
        self.clients = [
            self.group.connect(chosen.choice(list(self.group.members)), host=f"10.0.0.{number % 3}")
            for number in range(chosen.randrange(1, 7))
        ]
        self.asked: dict[Client, list[int]] = {client: [] for client in self.clients}
        for _ in range(chosen.randrange(1, 60)):
            self.send(chosen.choice(self.clients))

    def send(self, client: Client) -> None:
        body = b"%d %d" % (self.clients.index(client), len(self.asked[client]))
        self.asked[client].append(client.start_send("T", body))

    def is_behind(self, client: Client) -> bool:
        """What it sends now waits here behind what it has sent: neither leader nor a former one may be asked before."""
        node = self.group.node(client._member.id)
        waiting = node._forwarding._by_connection[client.connection].waiting
        in_doubt = any(request.state is State.DOUBTED for request in waiting.values())
        return node._held.has_any_of(client.connection) and not in_doubt

    def step(self) -> None:
        group, chosen = self.group, self.chosen
        dice = chosen.random()
        serving = [member for member in group.alive() if member.alive.replica.serving]
        if dice < 0.02 and serving:
            leader = group.leader
            if group.node(leader).replica.raft.transferee is None:
                begin_transfer(group, chosen.choice([node for node in group.members if node != leader]))
        elif dice < 0.025 and serving:
            leader = group.leader
            only_elected(group, chosen.choice([node for node in group.members if node != leader]))
            group.kill(leader)
            group.restart(leader)
        elif dice < 0.03:
            client = chosen.choice(self.clients)
            client.close()
        elif dice < 0.3:
            client = chosen.choice(self.clients)
            if not client.closed and self.is_behind(client):
                self.send(client)
        else:
            if not group._in_flight and group.next_due_ns() > group.now_ns:
                group.now_ns = group.next_due_ns()
            group.step_at_random(chosen)

    def check(self) -> int:
        """Returns the number of requests that are done."""
        group = self.group
        group.lose = lambda source, target, frame: False
        group.elect()
        group.advance(4)
        stored = Counter(bodies(group))
        assert set(stored.values()) <= {1}, "nothing is done twice"
        order = {number: [] for number in range(len(self.clients))}  # type: dict[int, list[int]]
        for body in stored:
            of, count = map(int, body.split())
            order[of].append(count)
        for number, client in enumerate(self.clients):
            assert order[number] == sorted(order[number])
            if client.closed:
                continue
            for count, opaque in enumerate(self.asked[client]):
                code = client.answers[opaque].code
                is_stored = count in order[number]
                if code != ResponseCode.SYSTEM_ERROR:
                    assert is_stored == (code == ResponseCode.SUCCESS), client.answers[opaque]
        return len(stored)


def test_more_than_half_of_the_requests_of_courses_are_done() -> None:
    asked = done = 0
    for seed in range(10):
        course = Course(random.Random(seed))
        for _ in range(200):
            course.step()
        done += course.check()
        asked += sum(map(len, course.asked.values()))
    assert done > asked / 2 > 100


@settings(max_examples=25)
@given(st.integers(0, 1 << 32))
def test_no_request_is_lost_or_done_twice_or_before_an_earlier_one(seed: int) -> None:
    course = Course(random.Random(seed))
    for _ in range(course.chosen.randrange(100, 600)):
        course.step()
    course.check()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["the next leader", "a follower", "without a majority"])
def test_requests_that_wait_for_a_leader_do_not_go_on_in_one_turn(place: str, lines: Lines) -> None:
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    old = group.leader
    heir, node = (other for other in group.members if other != old)

    def only_elected(elected: str) -> None:
        group.lose = lambda source, target, frame: (
            isinstance(frame, RaftFrame) and isinstance(frame.message, VoteRequest) and source != elected
        )

    only_elected("")
    group.kill(old)
    clients = [
        group.connect(heir if place == "the next leader" else node, host=f"10.0.0.{number}")
        for number in range(30)
    ]
    sent = [(client, client.start_send("T", b"x")) for _ in range(60) for client in clients]
    group.settle()
    lines.most = 0
    expected = ResponseCode.SERVICE_NOT_AVAILABLE
    if place != "without a majority":
        only_elected(heir)
        expected = ResponseCode.SUCCESS
    assert {client.wait(opaque).code for client, opaque in sent} == {expected}
    assert lines.most <= LINES_MAX


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sends", "pulls", "outside"])
def test_requests_that_were_forwarded_do_not_go_on_in_one_turn(
    what: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them were answered, or asked for again, in the call by which the leader's loss was heard of."""
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    old, node = group.leader, group.follower
    clients = [group.connect(node, host=f"10.0.0.{number}") for number in range(30)]
    group.lose = lambda source, target, frame: isinstance(frame, Forward)
    for _ in range(60):
        for client in clients:
            if what == "sends":
                client.start_send("T", b"x")
            else:
                client.start_pull("T", "g", 0, suspend_ms=30_000)
        group.settle()
    forwarding = group.node(node)._forwarding
    assert len(forwarding.all_asked()) == 1800
    monkeypatch.setattr(Node, "peer_lost", lines.counted(Node.peer_lost))
    lines.most = 0
    if what == "outside":
        members = group.node(node).replica.members
        monkeypatch.setattr(Members, "is_member", property(lambda self: self is not members))
        lines.counted(forwarding.look_at_membership)()
        assert forwarding.ended
        assert not any(client.answers for client in clients)
        group.members[node].due_ns = group.now_ns
        group.settle()
    else:
        group.kill(old)
        group.lose = lambda source, target, frame: False
        group.advance(0.1 if what == "sends" else 2)
    assert not forwarding.ended
    assert lines.most <= LINES_MAX
    if what == "pulls":
        return
    code = ResponseCode.SYSTEM_ERROR if what == "sends" else ResponseCode.SERVICE_NOT_AVAILABLE
    for client in clients:
        assert [answer.code for answer in client.answers.values()] == [code] * 60


@pytest.mark.slow
def test_a_leader_that_is_deposed_tells_its_senders_in_turns(lines: Lines) -> None:
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    old = group.leader
    clients = [group.connect(old, host=f"10.0.0.{number}") for number in range(30)]
    group.lose = lambda source, target, frame: isinstance(frame, RaftFrame)
    sent = [(client, client.start_send("T", b"x")) for _ in range(60) for client in clients]
    group.settle()
    lines.most = 0
    group.run_until(lambda: not group.node(old).replica.serving)
    assert {client.wait(opaque).code for client, opaque in sent} == {ResponseCode.SYSTEM_ERROR}
    assert not group.node(old).replica.leadership.owes_answers
    assert lines.most <= LINES_MAX


@pytest.mark.slow
def test_a_leader_that_is_deposed_hands_its_reads_on_in_turns(lines: Lines) -> None:
    """20,000 that waited for a majority took 134 ms in the call that ended the leadership."""
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    old = group.leader
    clients = [group.connect(old, host=f"10.0.0.{number}") for number in range(50)]
    group.lose = lambda source, target, frame: isinstance(frame, RaftFrame) and source != old
    asked: list[tuple[Client, int]] = []
    for _ in range(36):
        asked += [
            (client, client.start_call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}))
            for client in clients
        ]
        group.settle()
    lines.most = 0
    group.run_until(lambda: not group.node(old).replica.serving)
    assert lines.most <= LINES_MAX
    group.lose = lambda source, target, frame: False
    assert {client.wait(opaque).code for client, opaque in asked} == {ResponseCode.SUCCESS}
    assert not group.node(old)._behind_barrier.places.taken


def test_what_comes_while_forwarded_requests_go_on_stays_behind_them() -> None:
    group = Group(3, start=False)
    group.limits = InnerLimits(held_at_once=1)
    for node in group.members:
        group.start(node)
    group.elect()
    group.connect().create_topic("T")
    group.converge()
    old, node = group.leader, group.follower
    client = group.connect(node)
    group.lose = lambda source, target, frame: isinstance(frame, Forward)
    locks = [client.start_call(RequestCode.LOCK_BATCH_MQ, None, b"{}") for _ in range(10)]
    group.settle()
    forwarding = group.node(node)._forwarding
    group.kill(old)
    assert forwarding.ended
    behind = client.start_send("T", b"x")
    third = next(other for other in group.members if other not in (old, node))
    group.partition(third)
    group.settle()
    assert not forwarding.ended
    held = [
        request.command.opaque
        for request in forwarding._held._shares[client.connection.share][client.connection]
    ]
    assert held == [*locks, behind]


def test_what_is_behind_forwarded_requests_that_go_on_is_not_refused_for_want_of_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one, and they are about to go on there."""
    group = Group(3, start=False)
    group.limits = InnerLimits(held_at_once=1)
    for name in group.members:
        group.start(name)
    group.elect()
    old, node = group.leader, group.node(group.follower)
    client = group.connect(group.follower)
    group.lose = lambda source, target, frame: isinstance(frame, Forward)
    for _ in range(10):
        client.start_call(RequestCode.LOCK_BATCH_MQ, None, b"{}")
    group.settle()
    group.kill(old)
    assert node._forwarding.ended
    behind = client.start_send("T", b"x")
    node.begin(group.now_ns + HELD_NS_MAX, group.wall_ms)
    monkeypatch.setattr(Forwarding, "_finds_leader", True)
    node._forwarding.turn_held()
    assert behind not in client.answers
    assert [request.command.opaque for request in node._held.waiting] == [behind]


def test_what_is_given_back_while_forwarded_requests_go_on_keeps_its_place_among_them() -> None:
    """A send overtook what its client had asked before."""
    group, chosen = Group(3, start=False), random.Random(1)
    group.limits = InnerLimits(held_at_once=1)
    for name in group.members:
        group.start(name)
    group.elect()
    group.connect().create_topic("T")
    group.converge()
    old, node = group.leader, group.follower
    heir = next(other for other in group.members if other not in (old, node))
    client = group.connect(node)
    (number,) = group.node(node)._forwarding._by_number
    term = group.node(node).replica.term
    group.lose = lambda source, target, frame: isinstance(frame, Forward)

    def locks() -> list[int]:
        return [client.start_call(RequestCode.LOCK_BATCH_MQ, None, b"{}") for _ in range(5)]

    first = client.start_send("T", b"first")
    asked = [*locks(), last := client.start_send("T", b"last"), *locks()]
    group.settle()
    forwarded: list[int] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward):
            assert (source, target) == (node, heir)
            forwarded.extend(command.opaque for command in whole_commands(bytes(frame.body)))
        # It hears of the next leader when it hears that leader, and holds nothing.
        return target == node and isinstance(frame, RaftFrame) and isinstance(frame.message, VoteRequest)

    group.lose = see
    begin_transfer(group, heir, elects=False)
    there = group.node(node)
    step_until(group, chosen, lambda: there.replica.leader == heir)
    gone_on = 10 - len(there._forwarding.ended)
    assert gone_on < 3
    for opaque in (last, first):
        there.begin(group.now_ns, group.wall_ms)
        there.peer_received(old, NotDone(number, opaque, term))
    group.settle()
    assert forwarded == [*asked[:gone_on], first, *asked[gone_on:]]


def test_a_node_that_leads_by_then_does_first_what_it_has_held_of_a_client() -> None:
    """What went on before it led was held, for want of a leader; the rest went on behind that, and was done at once."""
    group, chosen = Group(3, start=False), random.Random(1)
    group.limits = InnerLimits(held_at_once=1)
    for name in group.members:
        group.start(name)
    group.elect()
    old, node = group.leader, group.follower
    client = group.connect(node)
    group.lose = lambda source, target, frame: isinstance(frame, Forward)
    asked = [client.start_call(RequestCode.LOCK_BATCH_MQ, None, b"{}") for _ in range(20)]
    group.settle()
    only_elected(group, node)
    group.kill(old)
    there = group.node(node)
    step_until(group, chosen, lambda: there.replica.serving)
    assert len(there._held) > 2
    assert len(there._forwarding.ended) > 2
    group.settle()
    assert [*client.answers] == asked


def test_what_is_forwarded_while_another_request_goes_on_does_not_take_its_number() -> None:
    group, heir, _ = leaderless()
    there, client = group.node(heir), group.connect(heir)
    for _ in range(3):
        client.start_call(RequestCode.LOCK_BATCH_MQ, None, b"{}")
    first = there.first_held
    assert first is not None
    besides = RemotingCommand(RequestCode.LOCK_BATCH_MQ, opaque=4711)

    def forwards_both(connection: Connection, command: RemotingCommand) -> None:
        there.forward(connection, besides)
        there.forward(connection, command)

    there._routes[RequestCode.LOCK_BATCH_MQ] = forwards_both, HandledOn.ANY
    step_until(group, random.Random(1), lambda: first not in there._held.waiting)
    held = {request.number: request.command.opaque for request in there._held.of(client.connection)}
    assert len(held) == 4
    assert held[first.number] == first.command.opaque
    assert held[max(held)] == besides.opaque


def test_a_leader_that_was_is_waited_for_while_it_gives_back() -> None:
    """It may have thousands of requests: those that it came to after 300 ms had been answered as unknown by then."""
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    old, node = group.leader, group.follower
    client = group.connect(node)
    (number,) = group.node(node)._forwarding._by_number
    term = group.node(node).replica.term
    group.lose = lambda source, target, frame: isinstance(frame, Forward)
    asked = [client.start_send("T", b"%d" % count) for count in range(12)]
    lost = client.start_send("T", b"lost")
    group.settle()
    heir = next(other for other in group.members if other not in (old, node))
    group.lose = lambda source, target, frame: False
    group.transfer_leadership(heir)
    group.run_until(lambda: group.node(node).replica.leader == heir)
    for opaque in asked:
        group.advance(0.08)
        there = group.node(node)
        there.begin(group.now_ns, group.wall_ms)
        there.peer_received(old, NotDone(number, opaque, term))
        group.members[node].due_ns = group.now_ns
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}
    assert client.wait(lost).code == ResponseCode.SYSTEM_ERROR
    assert bodies(group) == [b"%d" % count for count in range(12)]


@pytest.mark.parametrize("behind", ["a barrier", "a batch"])
def test_no_leader_does_what_was_asked_of_it_in_an_earlier_term(
    behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had waited here through the leadership in between; its node may have answered it as unknown by then."""
    group, chosen = Group.elected(3), random.Random(1)
    group.connect().create_topic("T")
    group.converge()
    done: list[tuple[int, int]] = []

    def does(node: Node, connection: Connection, command: RemotingCommand) -> None:
        assert isinstance(connection, RelayedConnection)
        done.append((connection.term, node.replica.term))
        reply(connection, command, ResponseCode.SUCCESS)

    place = HandledOn.LEADER_READ if behind == "a barrier" else HandledOn.LEADER
    for member in group.alive():
        member.alive._routes[RequestCode.CLONE_GROUP_OFFSET] = (partial(does, member.alive), place)
    old, node = group.leader, group.follower
    heir = next(other for other in group.members if other not in (old, node))
    leader = group.node(old)
    client = group.connect(node)
    monkeypatch.setattr(long_requests, "_RESUMED_IN_A_TURN", 1)
    monkeypatch.setattr(leadership, "_TOLD_A_TURN", 1)
    if behind == "a batch":
        # It is over before any of those that wait for it goes on.
        monkeypatch.setattr(leader, "_routes", routes := dict(leader._routes))

        def waits(connection: Connection, command: RemotingCommand) -> None:
            if len(leader.long_requests.behind_batch) == 199:
                routes[RequestCode.CLONE_GROUP_OFFSET] = (partial(does, leader), place)
            raise BatchUnderWayError("one is")

        routes[RequestCode.CLONE_GROUP_OFFSET] = (waits, place)
    asked = [client.start_call(RequestCode.CLONE_GROUP_OFFSET) for _ in range(200)]
    step_until(group, chosen, lambda: bool(done))
    for target in (heir, old):
        source = group.node(group.leader)
        source.begin(group.now_ns, group.wall_ms)
        source.replica.group_changes.transfer(target)
        group.members[group.leader].due_ns = group.now_ns
        step_until(group, chosen, lambda target=target: group.node(target).replica.serving)  # type: ignore[misc]
    assert len(done) < 150, "many are left"
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}
    assert len(done) == 200
    assert all(of == now for of, now in done)
    assert len(set(done)) > 1


def test_what_any_node_does_is_done_at_once_behind_what_is_held() -> None:
    """It went to the leader, and a client's own node did not know it for 30 s."""
    (group, _, node), chosen = leaderless(), random.Random(1)
    client = group.connect(node)
    for _ in range(20):
        client.start_send("T", b"x")
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) < 20)
    status = client.start_call(RequestCode.TRIVET_NODE_STATUS)
    step_until(group, chosen, lambda: status in client.answers)
    assert client.answers[status].code == ResponseCode.SUCCESS
    assert len(held) > 10, "they are held still"


def test_a_pull_that_cannot_be_read_hurts_nobody_else() -> None:
    """It was held behind another request, unread, and ended the node when its turn came."""
    (group, _, node), chosen = leaderless(), random.Random(1)
    client = group.connect(node)
    for _ in range(10):
        client.start_send("T", b"x")
    held = group.node(node)._held
    step_until(group, chosen, lambda: len(held) < 10)
    opaque = client.start_call(RequestCode.PULL_MESSAGE, {"topic": "T", "queueId": "x"})
    group.run_until(lambda: len(client.answers) == 11, "all answers")
    assert client.answers[opaque].code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("place", PLACES)
def test_who_left_its_consumer_group_while_its_heartbeat_was_held_is_no_member(place: str) -> None:
    """The heartbeat went on behind what was told at once, and the leader gave queues to a client that reads none."""
    group, heir, other = leaderless()
    client = group.connect(heir if place == "the next leader" else other)
    consumer = ConsumerData(
        group_name="new", subscription_data_set=[SubscriptionData(topic="T", sub_string="*")]
    )
    data = HeartbeatData(client_id=client.client_id, consumer_data_set=[consumer])
    heartbeat = client.start_call(RequestCode.HEART_BEAT, None, encode_body(data))
    assert heartbeat not in client.answers
    left = client.start_call(
        RequestCode.UNREGISTER_CLIENT, {"clientID": client.client_id, "consumerGroup": "new"}
    )
    group.elect()
    for opaque in (heartbeat, left):
        assert client.wait(opaque).code == ResponseCode.SUCCESS
    group.settle()
    for node in group.members:
        assert group.node(node).registry.members("new") == []


def test_what_comes_while_a_lost_leader_is_yet_to_tell_others_of_its_client_stays_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that waited for a majority was asked of the next leader behind a send of its client that came later."""
    monkeypatch.setattr(read_barriers, "_TOLD_A_TURN", 1)
    group = Group.elected(3)
    group.connect().create_topic("T")
    group.converge()
    old = group.leader
    client, there = group.connect(old), group.node(old)
    forwarded: list[int] = []

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward) and source == old:
            forwarded.extend(command.opaque for command in whole_commands(bytes(frame.body)))
        return False

    group.lose = lambda source, target, frame: isinstance(frame, RaftFrame) and target == old
    asked = [client.start_call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}) for _ in range(10)]
    group.settle()
    assert not forwarded
    # It stands still while the others elect another, and hears of that one first.
    group.stop(old)
    group.advance(5)
    group.lose = see
    group._in_flight.extend(group._stopped.pop(old))
    leadership = there.replica.leadership
    while there.replica.leader == old:
        group._deliver(group._in_flight.popleft())
    assert len(leadership.reads.lost_reads) == 10
    group._turn(group.members[old])
    assert len(leadership.reads.lost_reads) == 9
    assert not there.held_count
    asked.append(client.start_send("T", b"x"))
    group.settle()
    assert forwarded == asked


def test_what_waits_behind_a_long_batch_of_a_lost_leader_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sends that came later were asked of the next leader before it, as it went on in slices."""
    monkeypatch.setattr(long_requests, "_RESUMED_IN_A_TURN", 1)
    monkeypatch.setattr(leadership, "_TOLD_A_TURN", 1)
    group = Group.elected(3, options=replace(SMALL_STORE, batch_messages=1))
    setup = group.connect()
    setup.create_topic("T")
    setup.heartbeat("g")
    group.converge()
    old = group.leader
    there, client = group.node(old), group.connect(old)
    items = [BatchItem(0, b"item", b"UNIQ_KEY\x01%d\x02" % number) for number in range(100)]
    group.connect(old).start_send("T", encode_batch(items), batch=True)
    asked = [client.start_send("T", b"%d" % number) for number in range(5)]
    waiting = there.long_requests.behind_batch
    assert len(waiting) == 5
    # It stands still while the others elect another, and hears of that one first.
    group.stop(old)
    group.advance(5)
    group._in_flight.extend(group._stopped.pop(old))
    while there.replica.leader in (old, None):
        group._deliver(group._in_flight.popleft())
    for number in range(5, 10):
        asked.append(client.start_send("T", b"%d" % number))
        group._turn(group.members[old])
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}
    assert not waiting
    assert [body for body in bodies(group) if body != b"item"] == [b"%d" % number for number in range(10)]
