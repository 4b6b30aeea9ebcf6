"""Pulls far behind the log's end: loaded by a worker before they are answered, and pointed at a follower."""

import json
from dataclasses import replace

import pytest

from broker.remoting.bodies import KeyValueTable, SubscriptionGroupConfig
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import decode_body, encode_body
from broker.replica.replica import Replica
from log.entries import cuts
from log.entries.cold_reads import LoadJob
from tests.broker.harness import SMALL_STORE, Group


@pytest.fixture
def group() -> Group:
    group = Group.elected(3, options=replace(SMALL_STORE, hot_bytes=20_000))
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    for number in range(40):
        client.send("T", b"%02d" % number + bytes(1000))
    group.converge()
    return group


def replica_of(group: Group, node: str) -> Replica:
    return group.node(node).replica


def test_a_reader_far_behind_is_pointed_at_a_follower_until_it_has_caught_up(group: Group) -> None:
    leader = group.connect().pull("T", "g", 0)
    follower = f"n{leader.suggested_broker_id - 1}"
    assert follower in group.members
    assert follower != group.leader
    reader = group.connect(follower)
    behind = reader.pull("T", "g", 1, count=1)
    assert behind.suggested_broker_id == leader.suggested_broker_id, "it stays while it is far behind"
    near = reader.pull("T", "g", 39)
    assert len(near.bodies) == 1
    assert near.suggested_broker_id == 0


def test_a_group_names_the_broker_that_it_is_pointed_at(group: Group) -> None:
    client = group.connect()

    def suggested(named: int) -> int:
        config = SubscriptionGroupConfig(group_name="g", which_broker_when_consume_slowly=named)
        client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))
        return group.connect(group.leader).pull("T", "g", 0).suggested_broker_id

    for node in group.members:
        broker_id = int(node[1:]) + 1
        if node != group.leader and broker_id != 1:
            assert suggested(broker_id) == broker_id
    assert suggested(0) == 0, "it stays with the leader"
    leader = int(group.leader[1:]) + 1
    assert suggested(9) not in {0, 9, leader}, "nobody has that id: any follower"


def test_a_group_that_is_not_behind_reads_from_whom_its_broker_id_names(group: Group) -> None:
    client = group.connect()
    leader = int(group.leader[1:]) + 1

    def put(named: int, slowly: int = 0) -> None:
        config = SubscriptionGroupConfig(
            group_name="g", broker_id=named, which_broker_when_consume_slowly=slowly
        )
        client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, encode_body(config))
        group.converge()

    def near(node: str) -> int:
        return group.connect(node).pull("T", "g", 39).suggested_broker_id

    assert near(group.leader) == 0, "as by default"
    followers = [node for node in group.members if node != group.leader]
    for node in followers:
        named = int(node[1:]) + 1
        put(named)
        if named != 1:
            assert near(group.leader) == named
            (other,) = (other for other in followers if other != node)
            assert near(other) == 0, "of whom to ask the leader decides"
        assert near(node) == named, "it stays"
    put(leader if leader != 1 else 9)
    assert near(group.leader) == 0, "nobody else has that id"
    put(1)
    assert near(group.leader) in {int(node[1:]) + 1 for node in followers}, "any, as for those far behind"
    far = group.connect(group.leader).pull("T", "g", 0).suggested_broker_id
    assert far == 0, "whichBrokerWhenConsumeSlowly decides for who is far behind"


def test_nobody_is_pointed_at_a_follower_that_cannot_be_reached(group: Group) -> None:
    leader = group.leader
    for node in list(group.members):
        if node != leader:
            group.kill(node)
    assert replica_of(group, leader).serving, "it has not noticed for long enough to step down"
    assert group.connect(leader).pull("T", "g", 0).suggested_broker_id == 0


def test_a_cold_answer_waits_for_the_worker_and_a_hot_one_does_not(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = replica_of(group, group.leader).loads
    loaded: list[LoadJob] = []
    loaded_ns: list[int] = []
    monkeypatch.setattr(loads, "job", lambda: None)
    client = group.connect(group.leader)
    asked_ns = group.now_ns
    cold = client.start_pull("T", "g", 0)
    assert len(client.pull("T", "g", 39).bodies) == 1, "the end of the log is answered at once"
    assert cold not in client.answers, "the other waits"
    monkeypatch.undo()
    original = loads.loaded

    def noted(job: LoadJob, now_ns: int) -> None:
        loaded.append(job)
        loaded_ns.append(now_ns)
        original(job, now_ns)

    monkeypatch.setattr(loads, "loaded", noted)
    group.advance(0.25)
    assert client.wait(cold).code == 0
    assert len(loaded) == 1
    fields = {"statsName": "GROUP_GET_LATENCY", "statsKey": "T@g"}
    latency = json.loads(bytes(client.ok(RequestCode.VIEW_BROKER_STATS_DATA, fields).body))["statsMinute"]
    took_ns = loaded_ns[0] - asked_ns
    assert latency["sum"] == took_ns // 1_000_000 > 0
    assert latency["avgpt"] == pytest.approx(took_ns / 2_000_000, abs=0.01), "of two answers one took so long"
    runtime = decode_body(client.ok(RequestCode.GET_BROKER_RUNTIME_INFO).body, KeyValueTable).table
    assert runtime["getMessageEntireTimeMax"] == str(latency["sum"])
    assert len(client.pull("T", "g", 0).bodies) > 0
    assert len(loaded) == 1, "the window stays loaded for a while"


def test_where_very_many_wait_for_the_worker_others_are_answered_without_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.replica.loads.WAITING_MAX", 3)
    loads = replica_of(group, group.leader).loads
    client = group.connect(group.leader)
    with monkeypatch.context() as patch:
        patch.setattr(loads, "job", lambda: None)
        asked = [client.start_pull("T", "g", 0) for _ in range(5)]
        group.settle()
        assert [opaque in client.answers for opaque in asked] == 3 * [False] + 2 * [True]
    group.advance(0.25)
    assert {client.wait(opaque).code for opaque in asked} == {ResponseCode.SUCCESS}


def test_messages_that_are_deleted_while_they_are_loaded_are_not_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(SMALL_STORE, hot_bytes=4_000, data_file_bytes=16 * 1024)
    group = Group.elected(3, options=small)
    client = group.connect(group.leader)
    client.create_topic("T")
    client.heartbeat("g")
    for number in range(60):
        client.send("T", b"%02d" % number + bytes(1000))
    group.converge()
    replica = replica_of(group, group.leader)
    monkeypatch.setattr(replica.loads, "job", lambda: None)
    cold = client.start_pull("T", "g", 0, count=2, commit_offset=1)
    client.pull("T", "g", 59, commit_offset=3)
    group.advance(0.1)
    log = replica.store.log
    assert cuts.delete_before(log, log.last_index) > 0
    for queue in replica.store.queues:
        queue.min_offset = queue.first_staying(log.first_position, lambda offset: True)
    replica.head.deleted()
    monkeypatch.undo()
    assert client.wait(cold).code == ResponseCode.PULL_OFFSET_MOVED
    assert replica.repairs.found == 0
    group.advance(0.3)
    stored = replica.metadata.offsets["g", "T"][0]
    assert stored == 3, (
        "the offset that the cold pull brought is older than the other one's, though it is handled anew"
    )


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_pull_whose_topic_goes_while_its_messages_are_loaded_hears_of_that(
    is_made_again: bool, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = group.connect(group.leader)
    loads = replica_of(group, group.leader).loads
    monkeypatch.setattr(loads, "job", lambda: None)
    cold = client.start_pull("T", "g", 0)
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    if is_made_again:
        client.create_topic("T")
    monkeypatch.undo()
    answer = client.wait(cold)
    assert answer.code == (ResponseCode.PULL_NOT_FOUND if is_made_again else ResponseCode.TOPIC_NOT_EXIST), (
        answer.remark
    )
