"""What tells of thousands takes steps, a turn each, and others are answered between two of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from broker.administration import queue_figures, statistics_processor
from broker.consumer_groups import heartbeats_processor
from broker.node import client_registry
from broker.offsets import offsets_processor, resets_processor
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.json_body import decode_body, parse_loose_json
from broker.requests import long_bodies
from tests.broker.harness import Client, Group

_C = RequestCode
TOPICS = 40
MEMBERS = 30
AT_ONCE = 5


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """Of a node with some topics, and a group of some members that has offsets in all of them; steps are small."""
    monkeypatch.setattr(long_bodies, "MEMBERS_AT_ONCE", AT_ONCE)
    for module in (queue_figures, statistics_processor):
        monkeypatch.setattr(module, "QUEUES_AT_ONCE", AT_ONCE, raising=False)
    monkeypatch.setattr("broker.administration.connections_processor.QUEUES_AT_ONCE", AT_ONCE)
    for module in (offsets_processor, statistics_processor):
        monkeypatch.setattr(module, "OFFSETS_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(resets_processor, "_MEMBERS_TOLD_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(heartbeats_processor, "NOTICES_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(client_registry, "EXPIRED_AT_ONCE", AT_ONCE)
    group = Group.elected(1)
    client = group.connect()
    names = [f"T{number}" for number in range(TOPICS)]
    for name in names:
        client.create_topic(name)
        fields = {"consumerGroup": "g", "topic": name, "queueId": 0, "commitOffset": 0}
        client.tell(_C.UPDATE_CONSUMER_OFFSET, fields)
        client.tell(_C.UPDATE_CONSUMER_OFFSET, fields | {"consumerGroup": f"of-{name}"})
    client.create_topic("W", queues=TOPICS)
    for queue in range(TOPICS):
        fields = {"consumerGroup": "w", "topic": "W", "queueId": queue, "commitOffset": 0}
        client.tell(_C.UPDATE_CONSUMER_OFFSET, fields)
    for number in range(TOPICS):
        client.send("W", b"%d" % number)
    for _ in range(MEMBERS):
        group.connect().heartbeat("g", names, producer_group="p")
    group.advance(3)
    return client


def turns_to_answer(client: Client, ask: Callable[[], int]) -> tuple[RemotingCommand, int]:
    """The answer to what `ask` asks, and the number of turns until then. A healthy client is answered in each."""
    group = client.group
    member = group.members[group.leader]
    other = group.connect()
    opaque = ask()
    turns = 0
    while opaque not in client.answers:
        assert turns < 1000, "it is never answered"
        healthy = other.start_call(_C.GET_BROKER_RUNTIME_INFO)
        member.process.turn(group.now_ns, group.wall_ms)
        member.process.end_turn()
        assert other.answers.pop(healthy).code == ResponseCode.SUCCESS
        turns += 1
    return client.answers.pop(opaque), turns


@pytest.mark.parametrize(
    ("code", "fields", "members"),
    [
        (_C.GET_ALL_TOPIC_CONFIG, {}, TOPICS),
        (_C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, 10),
        (_C.GET_ALL_CONSUMER_OFFSET, {}, 2 * TOPICS),
        (_C.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}, TOPICS),
        (_C.GET_CONSUME_STATS, {"consumerGroup": "g"}, TOPICS),
        (_C.GET_BROKER_CONSUME_STATS, {"isOrder": False}, TOPICS),
        (_C.GET_TOPIC_STATS_INFO, {"topic": "W"}, TOPICS),
        (_C.QUERY_CONSUME_TIME_SPAN, {"topic": "W", "group": "w"}, TOPICS),
        (_C.QUERY_CORRECTION_OFFSET, {"topic": "W", "compareGroup": "g"}, TOPICS),
        (_C.QUERY_CONSUME_QUEUE, {"topic": "W", "queueId": 0, "index": 0, "count": TOPICS}, TOPICS),
        (_C.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"}, MEMBERS),
        (_C.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"}, MEMBERS),
        (_C.GET_ALL_PRODUCER_INFO, {}, MEMBERS),
        (
            _C.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "T0", "group": "g", "timestamp": -1, "isForce": True},
            MEMBERS,
        ),
    ],
)
def test_long_answers_take_a_turn_for_each_step(
    client: Client, code: RequestCode, fields: dict[str, object], members: int
) -> None:
    answer, turns = turns_to_answer(client, lambda: client.start_call(code, fields))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert turns >= members // AT_ONCE, "a step has so many members at most"
    assert parse_loose_json(answer.body)


def test_what_is_asked_at_the_same_time_waits_for_the_end(client: Client) -> None:
    """Each body is memory until its end: one is written at a time."""
    group = client.group
    others = [group.connect() for _ in range(3)]
    told = [(other, other.start_call(_C.GET_ALL_TOPIC_CONFIG)) for other in (client, *others)]
    gone = group.connect()
    gone.start_call(_C.GET_ALL_TOPIC_CONFIG)
    gone.close()
    node = group.node(group.leader)
    while node.long_requests.has_more:
        assert sum(map(len, node.long_requests.in_steps.values())) <= 1, "one is written, the others wait"
        process = group.members[group.leader].process
        process.turn(group.now_ns, group.wall_ms)
        process.end_turn()
    bodies = [bytes(other.wait(opaque).body) for other, opaque in told]
    assert len(set(bodies)) == 1
    tables = msgspec.json.decode(bodies[0])
    assert {f"T{number}" for number in range(TOPICS)} < tables["topicConfigTable"].keys()


def test_members_are_told_of_a_change_in_turns(client: Client) -> None:
    group = client.group
    member = group.members[group.leader]
    members = [end for end in member.clients.values() if isinstance(end, Client) and end is not client]
    for end in members:
        end.notices.clear()
    joining = group.connect()
    joining.start_call(
        _C.HEART_BEAT,
        None,
        msgspec.json.encode({"clientID": "new", "consumerDataSet": [{"groupName": "g"}]}),
    )
    told = 0
    for _ in range(MEMBERS // AT_ONCE):
        member.process.turn(group.now_ns, group.wall_ms)
        member.process.end_turn()
        count = sum(len(end.notices) for end in members)
        assert 0 <= count - told <= AT_ONCE
        told = count
    group.settle()
    assert [len(end.notices) for end in members] == [1] * MEMBERS


def test_members_that_fell_silent_end_in_turns(client: Client) -> None:
    group = client.group
    node = group.node(group.leader)
    registry = node.registry
    group.now_ns += client_registry.EXPIRY_NS
    left = len(registry.members("g"))
    assert left == MEMBERS
    process = group.members[group.leader].process
    while left:
        process.turn(group.now_ns, group.wall_ms)
        now_left = len(registry.members("g"))
        assert left - AT_ONCE <= now_left < left
        left = now_left
        process.end_turn()


def test_an_answer_of_one_step_takes_no_turn_more(client: Client) -> None:
    """Short ones do not wait behind a long one either."""
    opaque = client.start_call(_C.GET_ALL_TOPIC_CONFIG)
    other = client.group.connect()
    fields = {"topic": "T0", "group": "g"}
    answer = decode_body(other.ok(_C.QUERY_CONSUME_TIME_SPAN, fields).body, dict)
    assert len(answer["consumeTimeSpanSet"]) == 1
    assert client.wait(opaque).code == ResponseCode.SUCCESS
