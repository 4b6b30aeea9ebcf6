"""Wherever requests wait: clients of one address take all places that they get, and a client of another finds one.

The one address is a network of IPv6, of which each client has an address of its own.

Nothing is refused to the latter, and as soon as what it waits for is there it is answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest

from broker.administration import connections_processor, queue_figures, statistics_processor
from broker.consumer_groups import heartbeats_processor
from broker.node import forwarding, held_requests, long_requests, long_responses, node
from broker.reading import held_pulls, pull_processor
from broker.remoting.bodies import CheckClientConfigBody, SubscriptionData
from broker.remoting.codes import PullSysFlag, RequestCode, ResponseCode
from broker.remoting.json_body import encode_body
from broker.requests import long_bodies
from broker.requests.budget import Budget
from broker.requests.connection import Buffer, Connection
from broker.sending import repeated_sends
from broker.topics import first_messages
from log.formats.batch import BatchItem, encode_batch
from tests.broker.fields import MAY_BE_HELD, pull_fields
from tests.broker.harness import SMALL_STORE, Client, Group

PLACES = 20
CROWD = 3
OF_EACH = 10
LONG = 2 * CROWD * OF_EACH
"""The number of steps that an answer takes at least."""
CROWDED, ELSEWHERE = "2001:db8:0:1::%x", "2001:db8:0:2::1"


def made(monkeypatch: pytest.MonkeyPatch, *crowded: ModuleType, size: int = 3, **settings: object) -> Group:
    """A group in which few requests may wait, where they do by these modules."""
    for module in crowded:
        monkeypatch.setattr(module, "Budget", lambda what, *_: Budget(what, PLACES))
    group = Group.elected(size, **settings)
    setup = group.connect()
    setup.create_topic("T")
    setup.heartbeat("g")
    setup.close()
    group.converge()
    return group


class Crowd:
    """Clients of one address that ask more than may wait, at one node, and one of another address that asks once."""

    def __init__(self, group: Group, place: str) -> None:
        self._group = group
        self.crowd = [group.connect(place, host=CROWDED % number) for number in range(CROWD)]
        self.other = group.connect(place, host=ELSEWHERE)
        self.asked: list[tuple[Client, int]] = []
        self.one = -1

    def askers(self) -> Iterator[tuple[int, Client]]:
        """A number for each question, and who asks it; the one from elsewhere is the last."""
        for number in range(CROWD * OF_EACH):
            client = self.crowd[number % CROWD]
            yield number, client
            self.asked.append((client, client._next_opaque))
        yield CROWD * OF_EACH, self.other
        self.one = self.other._next_opaque

    def check(self, *, is_last: bool = True) -> None:
        """Some of the crowd are refused, and the other client is not; unless it `is_last` it has come in turn, and has
        one of the places that the crowd had else.
        """
        self._group.settle()
        assert self.one not in self.other.answers or not self.other.answers[self.one].code
        refused = [client.answers[opaque] for client, opaque in self.asked if opaque in client.answers]
        busy = [answer for answer in refused if answer.code == ResponseCode.SYSTEM_BUSY]
        had = PLACES // 2 if is_last else PLACES // 2 - 1
        assert len(busy) == len(self.asked) - had, "an address has half of the places"

    def answered(self) -> int:
        """The code that the other client's question is answered with."""
        return self.other.wait(self.one).code


def test_requests_that_wait_for_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(monkeypatch, held_requests)
    follower = group.follower
    group.kill(group.leader)
    crowd = Crowd(group, follower)
    for _, client in crowd.askers():
        client.start_send("T", b"x")
    crowd.check()
    group.elect()
    assert crowd.answered() == ResponseCode.SUCCESS


def test_messages_that_wait_behind_a_long_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(monkeypatch, long_requests, size=1, options=replace(SMALL_STORE, batch_messages=1))
    items = [BatchItem(0, b"x", b"UNIQ_KEY\x01%d\x02" % number) for number in range(5)]
    group.connect().start_send("T", encode_batch(items), batch=True)
    crowd = Crowd(group, group.leader)
    batches = group.node(group.leader).replica.leadership.batches
    for _, client in crowd.askers():
        client.start_send("T", b"x")
    assert batches.under_way
    assert len(group.node(group.leader).long_requests.behind_batch) == PLACES // 2 + 1
    crowd.check()
    assert crowd.answered() == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "W"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "W"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
        (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "W", "compareGroup": "g"}),
    ],
)
def test_long_responses(monkeypatch: pytest.MonkeyPatch, code: int, fields: dict[str, object]) -> None:
    monkeypatch.setattr(long_bodies, "MEMBERS_AT_ONCE", 1)
    for module in (queue_figures, connections_processor, statistics_processor):
        monkeypatch.setattr(module, "QUEUES_AT_ONCE", 1)
    monkeypatch.setattr(statistics_processor, "OFFSETS_AT_ONCE", 1)
    group = made(monkeypatch, long_responses, size=1)
    first = group.connect()
    first.create_topic("W", LONG)
    for number in range(LONG):  # one answer is under way until all of the crowd have asked, a turn each
        first.create_topic(f"T{number}")
        committed = {"consumerGroup": "g", "topic": "W", "queueId": number, "commitOffset": 0}
        first.ok(RequestCode.UPDATE_CONSUMER_OFFSET, committed)
    first.start_call(code, fields)
    crowd = Crowd(group, group.leader)
    for _, client in crowd.askers():
        client.start_call(code, fields)
    crowd.check(is_last=False)  # behind the barrier addresses take turns
    assert crowd.answered() == ResponseCode.SUCCESS


def test_requests_that_are_handled_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(monkeypatch, long_requests, size=1)
    group.connect().send("T", b"x", 0, {"n": "1"})
    crowd = Crowd(group, group.leader)
    for _ in range(2):  # places are freed
        for _, client in crowd.askers():
            start_pull(client, "n = 1")
        crowd.check()
        assert crowd.answered() == ResponseCode.SUCCESS
        crowd.asked.clear()


def test_questions_that_wait_for_a_confirmed_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(monkeypatch, node)
    leader = group.leader
    group.partition(leader)
    crowd = Crowd(group, leader)
    for _, client in crowd.askers():
        client.start_call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
    crowd.check()
    group.heal()
    assert crowd.answered() == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", ["messages", "one message"])
def test_repeated_sends_that_wait_for_a_decision(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    group = made(monkeypatch, repeated_sends)
    leader = group.leader
    group.partition(leader)
    crowd = Crowd(group, leader)
    for number, client in crowd.askers():
        key = f"K{number}" if kind == "messages" else "K"
        client.start_send("T", b"x", 0, {"UNIQ_KEY": key}, once=0, again=True)
    crowd.check()
    group.heal()
    assert crowd.answered() == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", ["topics", "one topic"])
def test_sends_that_wait_for_their_topic(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    group = made(monkeypatch, first_messages)
    leader = group.leader
    group.partition(leader)
    crowd = Crowd(group, leader)
    for number, client in crowd.askers():
        client.start_send(f"New{number}" if kind == "topics" else "New", b"x")
    crowd.check()
    group.heal()
    assert crowd.answered() == ResponseCode.SUCCESS


def test_subscriptions_that_wait_to_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(monkeypatch, heartbeats_processor, size=1)
    subscription = SubscriptionData(topic="T", sub_string="n > 5", expression_type="SQL92")
    body = encode_body(CheckClientConfigBody("c", "g", subscription))
    crowd = Crowd(group, group.leader)
    for _, client in crowd.askers():
        client.start_call(RequestCode.CHECK_CLIENT_CONFIG, None, body)
    crowd.check()
    assert crowd.answered() == ResponseCode.SUCCESS


def start_pull(client: Client, condition: str, suspend_ms: int = 0) -> None:
    fields = pull_fields(
        consumerGroup="g", topic="T", sysFlag=MAY_BE_HELD if suspend_ms else PullSysFlag.SUBSCRIPTION
    )
    asked = {"suspendTimeoutMillis": suspend_ms, "subscription": condition, "expressionType": "SQL92"}
    client.start_call(RequestCode.PULL_MESSAGE, {**fields, **asked})


def test_pulls_with_conditions_that_wait_for_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    group = made(monkeypatch, pull_processor, size=1)
    group.connect().send("T", b"x", 0, {"n": "1"})
    crowd = Crowd(group, group.leader)
    for _, client in crowd.askers():
        start_pull(client, "n = 1")
    crowd.check()
    assert crowd.answered() == ResponseCode.SUCCESS


@pytest.mark.parametrize("place", ["leader", "follower"])
@pytest.mark.parametrize("bound", ["pulls", "conditions"])
def test_pulls_that_wait_for_messages(monkeypatch: pytest.MonkeyPatch, bound: str, place: str) -> None:
    """A client of a follower counts by its own address, not by that of the node that it is connected to."""
    if bound == "pulls":
        group = made(monkeypatch, limits={"max_held_pulls": PLACES})
    else:
        monkeypatch.setattr(held_pulls, "CONDITIONS_LENGTH_MAX", PLACES * len("n > 0"))
        group = made(monkeypatch)
    crowd = Crowd(group, getattr(group, place))
    for _, client in crowd.askers():
        start_pull(client, "n > 0", suspend_ms=20_000)
        group.settle()
    assert group.node(group.leader).stats.pulls_held() == PLACES // 2 + 1
    assert crowd.one not in crowd.other.answers
    group.connect().send("T", b"x", 0, {"n": "1"})
    assert crowd.answered() == ResponseCode.SUCCESS
    group.settle()
    assert group.node(group.leader).stats.pulls_held() == 0


def test_bytes_for_a_link_that_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of one address filled the link to the leader, and a follower forwarded nothing for anybody."""
    monkeypatch.setattr(forwarding, "FORWARDED_BYTES_MAX", 1_000_000)
    group = made(monkeypatch)
    leader, follower = group.leader, group.follower
    crowd = Crowd(group, follower)
    link = group.node(follower).replica.links[leader]
    group.stop(leader)
    body = bytes(100_000)
    for _, client in crowd.askers():
        opaque = client.start_send("T", body)
        group.settle()
        if opaque not in client.answers:
            link.unsent_bytes += len(body)  # the socket takes nothing
    refused = [client.answers[opaque].code for client, opaque in crowd.asked if opaque in client.answers]
    assert refused == (len(crowd.asked) - 5) * [ResponseCode.SYSTEM_BUSY]
    assert crowd.one not in crowd.other.answers
    for client in crowd.crowd:
        client.close()
    late = group.connect(follower, host=CROWDED % 1)
    opaque = late.start_send("T", body)
    group.settle()
    assert opaque in late.answers, "what those have left behind is still to be sent"
    link.unsent_bytes = 0
    opaque = late.start_send("T", body)
    group.settle()
    assert opaque not in late.answers
    group.go_on(leader)
    assert crowd.answered() == late.wait(opaque).code == ResponseCode.SUCCESS


def test_heartbeats_leave_room_on_a_link_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the leader is told of went on the link whatever waited for it."""
    monkeypatch.setattr(forwarding, "FORWARDED_BYTES_MAX", 200_000)
    group = made(monkeypatch)
    leader, follower = group.leader, group.follower
    greedy, other = group.connect(follower, host=CROWDED % 1), group.connect(follower, host=ELSEWHERE)
    link = group.node(follower).replica.links[leader]
    group.stop(leader)
    send = Connection.send

    def kept(connection: Connection, *buffers: Buffer) -> None:
        send(connection, *buffers)
        link.unsent_bytes += sum(map(len, buffers)) * (connection is link)

    monkeypatch.setattr(Connection, "send", kept)
    for _ in range(20):
        assert greedy.heartbeat("g", [f"{number:0100}" for number in range(100)]).code == ResponseCode.SUCCESS
    assert 50_000 < link.unsent_bytes < 150_000
    opaque = other.start_send("T", b"x")
    group.settle()
    assert opaque not in other.answers
    group.go_on(leader)
    assert other.wait(opaque).code == ResponseCode.SUCCESS
