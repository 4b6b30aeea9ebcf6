"""Pulls that wait, and pulls at nodes that know or may do less than the leader."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.node.node import Node
from broker.node.relayed_clients import RELAYED_BYTES_MAX
from broker.peers.protocol import Forward, Frame
from broker.reading import held_pulls
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.frame import whole_commands
from broker.replica.inner_limits import InnerLimits
from tests.broker.fields import MAY_BE_HELD, pull_fields
from tests.broker.harness import Client, Group, Pulled
from tests.broker.lost_leader import LostLeader
from tests.broker.node.test_held_requests import begin_transfer, step_until
from tests.broker.node.test_longest_turns import LINES_MAX, Lines, lines
from tests.broker.reading.test_changed_subscriptions import start

__all__ = ["lines"]


def make_group(size: int = 1, **settings: object) -> tuple[Group, Client]:
    group = Group.elected(size, broker=settings)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    return group, client


def test_without_long_polling_a_pull_waits_for_a_second_and_not_at_all_for_what_comes() -> None:
    """Answered at once, a consumer of an idle queue would ask again at once, for ever."""
    group, client = make_group(long_polling=False)
    pull = client.start_pull("T", "g", 0, suspend_ms=20_000)
    group.advance(0.9)
    assert pull not in client.answers
    group.advance(0.2)
    assert client.answers.pop(pull).code == ResponseCode.PULL_NOT_FOUND
    pull = client.start_pull("T", "g", 0, suspend_ms=20_000)
    client.send("T", b"x")
    group.settle()
    assert Pulled.of(client.answers[pull]).bodies == [b"x"]


def test_one_arrival_does_not_fill_the_link_to_the_node_of_all_who_waited() -> None:
    """Each gets a copy there: of thousands, a broker's memory would not hold them."""
    group, client = make_group(3)
    reader = group.connect(group.follower)
    body = bytes(260_000)
    waiting = [
        reader.start_pull("T", "g", 0, suspend_ms=20_000) for _ in range(3 * RELAYED_BYTES_MAX // len(body))
    ]
    group.settle()
    client.send("T", body)
    group.settle()
    answers = [reader.answers[opaque] for opaque in waiting]
    given = [answer for answer in answers if answer.code == ResponseCode.SUCCESS]
    assert 0 < sum(len(answer.body) for answer in given) <= RELAYED_BYTES_MAX + 2 * len(body)
    refused = [answer for answer in answers if answer.code != ResponseCode.SUCCESS]
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_long_pulls_of_one_address_are_held_only_while_they_leave_room(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull may be as long as any request: a client's that waited could take all memory of a leader."""
    monkeypatch.setattr(held_pulls, "HELD_BYTES_MAX", 4 << 20, raising=False)
    group, client = make_group(3)
    greedy = group.connect(getattr(group, place), host="10.0.0.1")
    fields = {
        **pull_fields(consumerGroup="g", topic="T", suspendTimeoutMillis=20_000),
        "sysFlag": MAY_BE_HELD,
    }
    for _ in range(8):
        greedy.start_call(RequestCode.PULL_MESSAGE, fields, bytes(1 << 20))
    group.settle()
    held = group.node(group.leader).stats.pulls_held
    assert held() == 2
    assert [answer.code for answer in greedy.answers.values()] == 6 * [ResponseCode.PULL_NOT_FOUND]
    waits = client.start_pull("T", "g", 0, suspend_ms=20_000)
    group.settle()
    assert (held(), waits in client.answers) == (3, False)
    greedy.close()
    group.settle()
    client.send("T", b"x")
    assert Pulled.of(client.wait(waits)).bodies == [b"x"]
    assert held() == 0


def test_a_follower_that_does_not_know_a_subscription_asks_the_leader() -> None:
    """A consumer's heartbeat reaches one node before the other."""
    group, client = make_group(3, follower_reads=True)
    client.send("T", b"x")
    group.converge()
    reader = group.connect(group.follower)
    fields = pull_fields(sysFlag=0, subscription=None)
    asked: list[tuple[str, str]] = []

    def noted(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward):
            asked.append((source, target))
        return False

    group.lose = noted
    assert group.node(group.follower).registry.subscription("g", "T") is None
    assert Pulled.of(reader.call(RequestCode.PULL_MESSAGE, fields)).bodies == [b"x"]
    assert asked == [(group.follower, group.leader)]


@pytest.mark.slow
def test_a_leader_that_is_deposed_hands_its_held_pulls_on_in_turns(lines: Lines) -> None:
    """10,000 of them took 79 ms in the call that ended the leadership."""
    group, client = make_group(3)
    clients = [group.connect(host=f"10.0.0.{number}") for number in range(20)]
    waiting = [(one, one.start_pull("T", "g", 0, suspend_ms=20_000)) for _ in range(150) for one in clients]
    group.settle()
    old = group.node(group.leader)
    assert old.stats.pulls_held() == 3_000
    lines.most = 0
    group.transfer_leadership(group.follower)
    group.settle()
    assert lines.most <= LINES_MAX
    assert (old.stats.pulls_held(), group.node(group.leader).stats.pulls_held()) == (0, 3_000)
    client.send("T", b"x")
    assert {one.wait(opaque).code for one, opaque in waiting} == {ResponseCode.SUCCESS}


def test_an_address_with_one_pull_is_answered_in_the_first_turn_though_another_has_hundreds() -> None:
    group, client = make_group()
    many, one = group.connect(host="10.0.0.1"), group.connect(host="10.0.0.2")
    for _ in range(500):
        many.start_pull("T", "g", 0, suspend_ms=20_000)
    last = one.start_pull("T", "g", 0, suspend_ms=20_000)
    group.settle()
    assert group.node(group.leader).stats.pulls_held() == 501
    client.start_send("T", b"x")
    step_until(group, random.Random(1), lambda: bool(many.answers))
    assert len(many.answers) < InnerLimits().held_at_once, "it was one turn"
    assert Pulled.of(one.answers[last]).bodies == [b"x"]


def arrive(group: Group, clients: list[Client]) -> None:
    group.connect().send("T", b"x")


def subscribe_otherwise(group: Group, clients: list[Client]) -> None:
    clients[0].heartbeat("g", expression="blue", version=2)


def send_elsewhere(group: Group, clients: list[Client]) -> None:
    fields = {"topic": "T", "group": "g", "timestamp": -1, "isForce": True}
    group.connect().ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def outlast(group: Group, clients: list[Client]) -> None:
    group.advance(20)


def disconnect(group: Group, clients: list[Client]) -> None:
    clients[0].close()


@pytest.mark.slow
@pytest.mark.parametrize("happens", [arrive, subscribe_otherwise, send_elsewhere, outlast, disconnect])
def test_what_ends_thousands_of_pulls_ends_some_in_each_turn(
    lines: Lines, happens: Callable[[Group, list[Client]], None]
) -> None:
    """They ended in one call: 50,000 of one address, which may be held, took seconds."""
    group, _ = make_group()
    clients = [group.connect(host=f"10.0.0.{number}") for number in range(1 if happens is disconnect else 20)]
    for client in clients:
        client.heartbeat("g")
    count = 12_000 // len(clients)
    waiting = [(one, start(one, 0, 1)) for _ in range(count) for one in clients]
    group.settle()
    held = group.node(group.leader).stats.pulls_held
    assert held() == 12_000
    lines.most = 0
    happens(group, clients)
    group.settle()
    assert lines.most <= LINES_MAX
    assert held() == 0
    if happens is not disconnect:
        assert all(opaque in one.answers for one, opaque in waiting)


@pytest.mark.slow
def test_pulls_that_another_node_is_asked_are_taken_back_in_turns(lines: Lines) -> None:
    """9,000 of one client took 51 ms."""
    group, _ = make_group(3)
    client = group.connect(group.follower)
    client.heartbeat("g")
    group.settle()
    waiting = [start(client, 0, 1) for _ in range(4_000)]
    group.settle()
    lines.most = 0
    client.heartbeat("g", expression="blue", version=2)
    group.settle()
    assert lines.most <= LINES_MAX
    assert {client.answers[opaque].code for opaque in waiting} == {ResponseCode.PULL_NOT_FOUND}


@pytest.mark.slow
def test_the_deadlines_of_pulls_that_are_over_go_in_turns(lines: Lines) -> None:
    """One that came first, and waits still, keeps those of tens of thousands."""
    group, client = make_group()
    client.create_topic("Other")
    first = start(client, 0, 1, consumer_group="h", topic="Other", sysFlag=MAY_BE_HELD, subscription="*")
    group.advance(1)
    for offset in range(9):
        for _ in range(3_000):
            client.start_pull("T", "g", offset, suspend_ms=30_000)
        group.settle()
        client.send("T", b"x")
        group.settle()
    lines.most = 0
    client.send("Other", b"x")
    assert Pulled.of(client.wait(first)).bodies == [b"x"]
    assert lines.most <= LINES_MAX


def deposed_with_pulls(group: Group, count: int = 8) -> tuple[Node, str, list[Client], list[list[int]]]:
    """A leader that was, and its heir; it has begun to hand on what three clients have pulled."""
    group.limits = InnerLimits(held_at_once=1)
    for name in group.members:
        group.start(name)
    group.elect()
    setup = group.connect()
    setup.create_topic("T", 4)
    group.converge()
    old = group.leader
    clients = [group.connect() for _ in range(3)]
    for client in clients:
        client.heartbeat("g")
    pulls = [
        [
            client.start_pull("T", "g", 0, queue_id=(7 - number) % 4, suspend_ms=20_000)
            for number in range(count)
        ]
        for client in clients
    ]
    group.settle()
    begin_transfer(group, heir := group.follower, elects=False)
    held = group.node(old).stats.pulls_held
    step_until(group, random.Random(1), lambda: held() == 3 * count - 4)
    return group.node(old), heir, clients, pulls


def test_pulls_that_are_handed_on_keep_the_order_of_their_client() -> None:
    """They went by queue."""
    group, asked = Group(3, start=False), list[tuple[int, int]]()

    def see(source: str, target: str, frame: Frame) -> bool:
        if isinstance(frame, Forward):
            for command in whole_commands(bytes(frame.body)):
                if command.code == RequestCode.PULL_MESSAGE:
                    asked.append((frame.connection, command.opaque))
        return False

    group.lose = see
    _, _, clients, pulls = deposed_with_pulls(group)
    group.settle()
    by_client = {
        number: [opaque for of, opaque in asked if of == number] for number in {number for number, _ in asked}
    }
    assert sorted(by_client.values()) == sorted(pulls)
    for client in clients:
        assert not client.answers


def test_who_disconnects_while_pulls_are_handed_on_leaves_no_place_taken() -> None:
    group = Group(3, start=False)
    old, _, clients, pulls = deposed_with_pulls(group)
    clients[0].close()
    clients[1].close()
    group.settle()
    assert (old.stats.pulls_held(), group.node(group.leader).stats.pulls_held()) == (0, 8)
    for queue_id in range(4):
        clients[2].send("T", b"x", queue_id)
    assert {clients[2].wait(opaque).code for opaque in pulls[2]} == {ResponseCode.SUCCESS}


def test_who_leads_again_while_pulls_are_handed_on_answers_those_that_are_left() -> None:
    """They had missed what was committed meanwhile."""
    group, chosen = Group(3, start=False), random.Random(2)
    old, heir, clients, pulls = deposed_with_pulls(group, count=100)
    step_until(group, chosen, lambda: group.node(heir).replica.serving)
    group.connect(heir).start_send("T", b"x")
    step_until(group, chosen, lambda: group.node(heir).replica.applied_index > old.replica.applied_index)
    begin_transfer(group, old.replica.node_id, elects=False)
    step_until(group, chosen, lambda: old.replica.serving)
    assert old.stats.pulls_held() > 100, "many are left"
    group.settle()
    for queue_id in range(1, 4):
        clients[0].send("T", b"x", queue_id)
    for client, opaques in zip(clients, pulls, strict=True):
        assert {client.wait(opaque).code for opaque in opaques} == {ResponseCode.SUCCESS}
    assert old.stats.pulls_held() == 0


def test_those_that_a_lost_leader_had_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """They waited for their consumer group. Some of them are held still when the others are told."""
    there = LostLeader(monkeypatch)
    asked = [there.client.start_pull("T", "new", 0) for _ in range(20)]
    there.lose()
    assert {answer.code for answer in there.answers(asked)} == {ResponseCode.PULL_NOT_FOUND}
    assert there.order_of(asked) == asked


def stored_offset(client: Client, group: str) -> int:
    fields = {"consumerGroup": group, "topic": "T", "queueId": 0}
    return int(client.ok(RequestCode.QUERY_CONSUMER_OFFSET, fields).fields["offset"])


def offset_fields(group: str, offset: int) -> dict[str, object]:
    return {"consumerGroup": group, "topic": "T", "queueId": 0, "commitOffset": offset}


def test_an_offset_that_came_while_a_pull_waited_for_its_group_stays() -> None:
    """The pull brings an older one."""
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T")
    group.converge()
    group.lose = lambda source, target, frame: True
    pull = client.start_pull("T", "new", 0, commit_offset=5)
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields("new", 10))
    group.settle()
    group.lose = lambda source, target, frame: False
    client.wait(pull)
    group.advance(1)
    assert stored_offset(client, "new") == 10
