"""What grows by what clients do has a limit: topics, groups, queues, positions, transactions, what waits in a node."""

from __future__ import annotations

from typing import Any

import pytest

from broker.consumer_groups.heartbeats_processor import GROUPS_PER_CLIENT_MAX
from broker.remoting.bodies import ConsumerData, ProducerData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.requests.budget import REQUESTS_MAX
from log.formats.record import SYS_FLAG_PREPARED
from tests.broker.harness import Group
from tests.broker.node.limited import (
    heartbeat,
    prepared,
    pull,
    put_group,
    put_topic,
    send,
)

HALF = {"TRAN_MSG": "true", "PGROUP": "P"}
CODES = ResponseCode
ILLEGAL = CODES.MESSAGE_ILLEGAL
ERROR = CODES.SYSTEM_ERROR
FORBIDDEN = CODES.NO_PERMISSION
NO_TOPIC = CODES.TOPIC_NOT_EXIST


def test_topics_are_created_up_to_the_limit_however_fast_they_are_asked_for() -> None:
    group = Group.elected(1, limits={"max_topics": 20})
    there = len(group.node("n0").replica.metadata.topics)
    client = group.connect()
    opaques = [client.start_send(f"T{number}", b"x") for number in range(40)]
    answers = [client.wait(opaque) for opaque in opaques]
    assert [answer.code for answer in answers].count(CODES.SUCCESS) == 20 - there
    refused = next(answer for answer in answers if answer.code != CODES.SUCCESS)
    assert refused.code == NO_TOPIC
    assert "there are 20 topics, at most 20 are allowed (limits.max_topics)" in (refused.remark or "")
    assert len(group.node("n0").replica.metadata.topics) == 20
    asked = (put_topic(client, topic="Another"), client.heartbeat("g"), pull(topic="T0")(client))
    assert [answer.code for answer in asked] == [ERROR, CODES.SUCCESS, CODES.SUBSCRIPTION_GROUP_NOT_EXIST]
    assert all("max_topics" in (answer.remark or "") for answer in (asked[0], asked[2]))
    assert "%RETRY%g" not in group.node("n0").replica.metadata.topics
    assert put_topic(client, topic="T0").code == CODES.SUCCESS, "what is there can be changed"
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T1"})
    assert put_topic(client, topic="Another").code == CODES.SUCCESS


def test_groups_are_created_up_to_the_limit() -> None:
    group = prepared(limits={"max_groups": 15})
    client = group.connect()
    there = len(group.node("n0").replica.metadata.groups)
    opaques = [client.start_pull("T", f"G{number}", 0) for number in range(20)]
    answers = [client.wait(opaque) for opaque in opaques]
    created = [answer for answer in answers if answer.code == CODES.PULL_NOT_FOUND]
    assert len(created) == 15 - there
    refused = next(answer for answer in answers if answer.code != CODES.PULL_NOT_FOUND)
    assert refused.code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "there are 15 consumer groups, at most 15 are allowed (limits.max_groups)" in (
        refused.remark or ""
    )
    assert client.heartbeat("Another").code == CODES.SUCCESS, "it may be a client of another group as well"
    assert "max_groups" in (put_group(client, b'{"groupName": "Another"}').remark or "")
    assert put_group(client, b'{"groupName": "g", "retryMaxTimes": 3}').code == CODES.SUCCESS


def test_groups_that_only_have_positions_count_however_they_come() -> None:
    group = prepared(limits={"max_groups": 15})
    client = group.connect()
    metadata = group.node("n0").replica.metadata
    there = metadata.group_count

    def report(name: str) -> RemotingCommand:
        return client.wait(client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, position_of(name)))

    def position_of(name: str) -> dict[str, object]:
        return {"consumerGroup": name, "topic": "T", "queueId": 0, "commitOffset": 0}

    # All at once, so that what is under way has to be counted, and then one by one.
    opaques = [
        client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, position_of(f"P{number}"))
        for number in range(20)
    ]
    codes = [client.wait(opaque).code for opaque in opaques]
    assert codes.count(CODES.SUCCESS) == 15 - there
    assert metadata.group_count == 15
    refused = report("P19")
    assert refused.code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "there are 15 consumer groups, at most 15 are allowed (limits.max_groups)" in (
        refused.remark or ""
    )
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, position_of("Q"))
    group.advance(1)
    clone = {"srcGroup": "P0", "destGroup": "R", "topic": "T", "offline": True}
    assert "max_groups" in (client.call(RequestCode.CLONE_GROUP_OFFSET, clone).remark or "")
    assert "max_groups" in (put_group(client, b'{"groupName": "S"}').remark or "")
    assert client.wait(client.start_pull("T", "U", 0)).code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    assert metadata.group_count == 15

    # Who is there may go on, and become more than a name; who goes makes room.
    assert report("P0").code == CODES.SUCCESS
    assert put_group(client, b'{"groupName": "P0"}').code == CODES.SUCCESS
    assert metadata.group_count == 15
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "P0", "cleanOffset": True})
    assert report("P19").code == CODES.SUCCESS
    assert report("P0").code == CODES.SUBSCRIPTION_GROUP_NOT_EXIST
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert metadata.nameless_groups == 0
    metadata.snapshot()


@pytest.mark.parametrize("kind", ["consumer", "producer"])
def test_groups_that_have_clients(kind: str) -> None:
    group = prepared(limits={"max_groups": 15})
    client = group.connect()

    def announce(*names: str) -> RemotingCommand:
        if kind == "consumer":
            return heartbeat(consumers=[ConsumerData(group_name=name) for name in names])(client)
        return heartbeat(producers=[ProducerData(name) for name in names])(client)

    names = [f"N{number}" for number in range(14)]
    assert announce(*names).code == CODES.SUCCESS
    refused = announce("O1", "O2", "O3")
    assert refused.code == ERROR
    assert f" {kind} groups have clients, 3 more would be too many: at most 15" in (refused.remark or "")
    assert announce(*names).code == CODES.SUCCESS, "who is there may go on"


def test_a_heartbeat_of_very_many_groups_fits_into_the_log() -> None:
    group = prepared()
    client = group.connect()
    names = [f"{number:0240}" for number in range(GROUPS_PER_CLIENT_MAX)]
    assert (
        heartbeat(consumers=[ConsumerData(group_name=name) for name in names])(client).code == CODES.SUCCESS
    )
    assert all(name in group.node("n0").replica.metadata.groups for name in names)
    again = heartbeat(consumers=[ConsumerData(group_name="one-more")])(client)
    assert again.code == ERROR
    assert "the client would be in 1001 groups, of consumers and producers; at most 1000 are allowed" in (
        again.remark or ""
    )


def test_queues_of_all_topics_together() -> None:
    group = Group.elected(1, limits={"max_queues": 2000})
    client = group.connect()
    assert put_topic(client, topic="A", readQueueNums=500).code == CODES.SUCCESS
    refused = put_topic(client, topic="B", writeQueueNums=1000)
    assert refused.code == ERROR
    assert "1000 more would be too many: at most 2000 are allowed (limits.max_queues)" in (
        refused.remark or ""
    )
    assert "limits.max_queues" in (put_topic(client, topic="A", readQueueNums=1500).remark or "")
    assert put_topic(client, topic="A", readQueueNums=10).code == CODES.SUCCESS
    assert put_topic(client, topic="B", writeQueueNums=500).code == CODES.SUCCESS


def test_queues_that_one_answer_tells_of() -> None:
    """More would be no frame, after seconds in which nobody else is served."""
    group = prepared()
    client = group.connect()
    for topic in ("A", "B"):
        assert (
            put_topic(client, topic=topic, readQueueNums=60_000, writeQueueNums=60_000).code == CODES.SUCCESS
        )
        position = {"consumerGroup": "h", "topic": topic, "queueId": 0, "commitOffset": 0}
        client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, position)
    questions: list[tuple[int, dict[str, Any]]] = [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h", "topicList": "A;B;None"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
    ]
    for code, fields in questions:
        answer = client.call(code, fields)
        assert answer.code == ERROR
        assert "these are 120000 queues, a response tells of at most 100000" in (answer.remark or "")
    client.ok(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "h", "topicList": "T;T;T"})


def test_positions_of_groups() -> None:
    group = Group.elected(1, limits={"max_stored_offsets": 10})
    client = group.connect()
    client.create_topic("T", 4)

    def report(number: int, offset: int = 1) -> dict[str, Any]:
        return {"consumerGroup": f"G{number}", "topic": "T", "queueId": 0, "commitOffset": offset}

    opaques = [client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, report(number)) for number in range(15)]
    answers = [client.wait(opaque) for opaque in opaques]
    assert [answer.code for answer in answers] == [CODES.SUCCESS] * 10 + [ERROR] * 5
    assert "at most 10 offsets of consumer groups in queues are stored (limits.max_stored_offsets)" in str(
        answers[-1].remark
    )
    client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, report(20))
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, report(3, offset=2))
    clone = client.call(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G1", "destGroup": "G30"})
    assert (clone.code, "max_stored_offsets" in str(clone.remark)) == (ERROR, True)
    group.advance(1)
    metadata = group.node("n0").replica.metadata
    assert metadata.offsets.count == sum(map(len, metadata.offsets.values())) == 10
    client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G1", "cleanOffset": True})
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, report(20))


def test_a_late_report_does_not_bring_a_deleted_topic_s_positions_back() -> None:
    group = prepared()
    client = group.connect()
    client.tell(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 7},
    )
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    group.advance(1)
    client.create_topic("T", 2)
    position = {"consumerGroup": "g", "topic": "T", "queueId": 0, "setZeroIfNotFound": False}
    assert client.call(RequestCode.QUERY_CONSUMER_OFFSET, position).code == CODES.QUERY_NOT_FOUND


def test_undecided_transactions() -> None:
    group = prepared(limits={"max_open_transactions": 3})
    client = group.connect()
    half = send(properties=HALF, sysFlag=SYS_FLAG_PREPARED)
    assert [half(client).code for _ in range(4)] == [CODES.SUCCESS] * 3 + [CODES.SYSTEM_BUSY]
    assert "3 transactions are undecided, at most 3 may be" in (half(client).remark or "")
    assert send()(client).code == CODES.SUCCESS


def test_sends_that_wait_for_their_topic(group: Group) -> None:
    """While no majority answers, the topic is not created, and what waits for it is bounded."""
    leader = group.leader
    client = group.connect(leader)
    group.partition(leader)
    body = bytes(200_000)
    opaques = [client.start_send("New", body) for _ in range(300)]
    group.advance(0.1)
    refused = [client.answers[opaque] for opaque in opaques if opaque in client.answers]
    assert 50 < len(refused) < 200
    assert {answer.code for answer in refused} == {CODES.SYSTEM_BUSY}
    assert "wait for topics that are being created" in (refused[0].remark or "")
    group.heal()
    for opaque in opaques:
        if opaque not in client.answers:
            assert client.wait(opaque).code in {
                CODES.SUCCESS,
                ERROR,
                CODES.SERVICE_NOT_AVAILABLE,
            }
    assert client.send("New", body).queue_id >= 0, "the room is freed"


def test_questions_that_wait_for_a_confirmed_leader(group: Group) -> None:
    leader = group.leader
    client = group.connect(leader)
    client.create_topic("T")
    group.partition(leader)
    question = {"topic": "T", "queueId": 0}
    opaques = [
        client.start_call(RequestCode.GET_MAX_OFFSET, question, bytes(1000))
        for _ in range(REQUESTS_MAX // 2 + 10)
    ]
    group.settle()
    busy = [client.answers[opaque] for opaque in opaques if opaque in client.answers]
    assert busy
    assert {answer.code for answer in busy} == {CODES.SYSTEM_BUSY}
    assert "confirms this leader" in (busy[0].remark or "")
    group.heal()
    group.elect()
    assert group.connect().offset_of(RequestCode.GET_MAX_OFFSET, "T") == 0
