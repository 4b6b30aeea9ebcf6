"""Figures for administrators: time spans, rates, progress of all groups, units of a queue, cleaning."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.administration import queue_figures, statistics_processor
from broker.remoting.codes import RequestCode, ResponseCode
from broker.statistics.windows import DAY, HOUR, MINUTE, Windows
from log.formats.message_id import parse_offset_message_id
from tests.broker.harness import Client, Group


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    client = group.connect(getattr(group, request.param), name="me")
    client.create_topic("T", 2)
    client.heartbeat("g")
    return client


def body_of(client: Client, code: int, fields: dict[str, Any]) -> Any:
    return json.loads(bytes(client.ok(code, fields).body))


def commit(client: Client, group: str, offset: int, queue_id: int = 0) -> None:
    fields = {"consumerGroup": group, "topic": "T", "queueId": queue_id, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def test_time_span_of_each_queue(client: Client) -> None:
    times = []
    for body in (b"0", b"1", b"2"):
        client.send("T", body)
        times.append(client.group.wall_ms)
        client.group.advance(10)
    commit(client, "g", 1)
    spans = body_of(client, RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})[
        "consumeTimeSpanSet"
    ]
    first, second = spans
    assert first["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    for field, expected in (("minTimeStamp", 0), ("maxTimeStamp", 2), ("consumeTimeStamp", 0)):
        assert abs(first[field] - times[expected]) < 1000
    assert abs(first["delayTime"] - (client.group.wall_ms - times[1])) < 1000
    assert (second["minTimeStamp"], second["maxTimeStamp"], second["delayTime"]) == (0, 0, 0)
    commit(client, "g", 3)
    spans = body_of(client, RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})[
        "consumeTimeSpanSet"
    ]
    assert spans[0]["delayTime"] == 0
    told = client.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "U", "group": "g"})
    assert told.code == ResponseCode.TOPIC_NOT_EXIST


def test_correction_offsets(client: Client) -> None:
    for number in range(6):
        client.send("T", b"%d" % number, queue_id=number % 2)
    for name, offset in (("g", 3), ("h", 2), ("left-out", 1)):
        commit(client, name, offset)
    commit(client, "h", 1, queue_id=1)
    fields = {"filterGroups": "left-out,other", "compareGroup": "g", "topic": "T"}
    code = RequestCode.QUERY_CORRECTION_OFFSET
    assert body_of(client, code, fields) == {"correctionOffsets": {"0": 2, "1": 1}}
    # A group that is behind all others is told that nothing needs correcting.
    fields = {"compareGroup": "left-out", "filterGroups": "left-out", "topic": "T"}
    assert body_of(client, code, fields)["correctionOffsets"]["0"] == (1 << 63) - 1


def test_progress_of_all_groups(client: Client) -> None:
    for number in range(5):
        client.send("T", b"%d" % number)
    commit(client, "g", 2)
    commit(client, "h", 5)
    answer = client.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    text = bytes(answer.body).decode()
    assert '"totalDiff":3' in text
    assert '{"g":[' in text
    assert '{"h":[' in text
    assert '{"brokerName":"broker-a","queueId":0,"topic":"T"}:{' in text
    ordered = bytes(client.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body).decode()
    assert '"consumeStatsList":[]' in ordered
    client.heartbeat("g", topics=["U"], version=2)
    text = bytes(client.ok(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body).decode()
    assert '{"g":[' not in text, "its members do not consume it any more"
    assert '{"h":[' in text


def test_units_of_a_queue(client: Client) -> None:
    receipts = [client.send("T", b"%d" % number, properties={"TAGS": "a"}) for number in range(4)]
    positions = [parse_offset_message_id(receipt.message_id)[1] for receipt in receipts]
    fields = {"topic": "T", "queueId": 0, "index": 1, "count": 2, "consumerGroup": "g"}
    body = body_of(client, RequestCode.QUERY_CONSUME_QUEUE, fields)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 4)
    assert [unit["physicOffset"] for unit in body["queueData"]] == positions[1:3]
    assert all(unit["physicSize"] > 0 for unit in body["queueData"])
    assert {unit["tagsCode"] for unit in body["queueData"]} == {97}
    assert body["subscriptionData"]["topic"] == "T"
    assert {unit["eval"] for unit in body["queueData"]} == {True}
    rest = body_of(client, RequestCode.QUERY_CONSUME_QUEUE, {**fields, "index": 3, "count": 100})
    assert len(rest["queueData"]) == 1
    for index in (-1, 4, 1 << 40):
        outside = client.ok(RequestCode.QUERY_CONSUME_QUEUE, {**fields, "index": index})
        assert outside.remark == f"Index {index} of 0@T is not exist!"
    assert client.call(RequestCode.QUERY_CONSUME_QUEUE, {**fields, "topic": "U"}).code == 1
    nobody = body_of(client, RequestCode.QUERY_CONSUME_QUEUE, {**fields, "consumerGroup": "h"})
    assert nobody["filterData"] == "h@T is not online!"
    assert {unit["eval"] for unit in nobody["queueData"]} == {False}


def test_a_response_tells_of_so_many_units_at_most(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics_processor, "UNITS_MAX", 2)
    for number in range(4):
        client.send("T", b"%d" % number)
    fields = {"topic": "T", "queueId": 0, "index": 1, "count": 1 << 30}
    body = body_of(client, RequestCode.QUERY_CONSUME_QUEUE, fields)
    assert (len(body["queueData"]), body["maxQueueIndex"]) == (2, 4)


def test_the_progress_in_more_queues_than_a_response_tells_of_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_figures, "QUEUES_TOLD_MAX", 3)
    client.create_topic("U", 2)
    client.heartbeat("g", topics=["T", "U"], version=2)
    asked: list[tuple[int, dict[str, str], str]] = [
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}, "name a topic"),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, "ask for one consumer group at a time"),
    ]
    commit(client, "g", 0)
    for code, fields, _ in asked:
        client.ok(code, fields)
    offset = {"consumerGroup": "g", "topic": "U", "queueId": 0, "commitOffset": 0}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    for code, fields, instead in asked:
        answer = client.call(code, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"these are 4 queues, a response tells of at most 3: {instead}" in (answer.remark or "")


def test_units_that_a_groups_tags_let_by(client: Client) -> None:
    for tag in ("a", "b", "c"):
        client.send("T", b"x", properties={"TAGS": tag})
    client.heartbeat("tagged", expression="a || c")
    fields = {"topic": "T", "queueId": 0, "index": 0, "count": 3, "consumerGroup": "tagged"}
    units = body_of(client, RequestCode.QUERY_CONSUME_QUEUE, fields)["queueData"]
    assert [unit["eval"] for unit in units] == [True, False, True]


def test_rates_of_a_topic_and_a_group(group: Group) -> None:
    client = group.connect(group.leader, name="me")
    client.create_topic("T")
    client.heartbeat("g")
    for _ in range(6):
        client.send("T", b"old")
    group.advance(100)
    for _ in range(12):
        client.send("T", b"new")
    assert len(client.pull("T", "g", 0).bodies) == 18
    group.advance(11)

    def stats(name: str, key: str) -> Any:
        return body_of(client, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})

    put = stats("TOPIC_PUT_NUMS", "T")
    assert put["statsMinute"] == {"avgpt": 1.0, "sum": 12, "tps": 0.2}
    assert put["statsHour"]["sum"] == put["statsDay"]["sum"] == 18
    assert stats("GROUP_GET_NUMS", "T@g")["statsMinute"]["sum"] == 18
    records_bytes = len(client.wait(client.start_pull("T", "g", 0)).body)
    size = stats("GROUP_GET_SIZE", "T@g")["statsMinute"]
    assert size["sum"] == 2 * records_bytes, "pulled twice"
    assert stats("GROUP_GET_NUMS", "T@g")["statsMinute"]["sum"] == 36
    assert stats("BROKER_PUT_NUMS", "DefaultCluster")["statsHour"]["sum"] == 18
    assert stats("BROKER_GET_NUMS", "DefaultCluster")["statsHour"]["sum"] == 18
    unknown = (
        ("TOPIC_PUT_NUMS", "U"),
        ("GROUP_GET_NUMS", "T@h"),
        ("GROUP_GET_SIZE", "T@h"),
        ("GROUP_GET_LATENCY", "T@h"),
        ("TOPIC_PUT_SIZE", "U"),
        ("SNDBCK_PUT_NUMS", "T@g"),
        ("NONE", "T"),
    )
    for name, key in unknown:
        told = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert (told.code, told.remark) == (1, f"The stats <{name}> <{key}> not exist")


def figure(client: Client, name: str, key: str) -> Any:
    fields = {"statsName": name, "statsKey": key}
    return body_of(client, RequestCode.VIEW_BROKER_STATS_DATA, fields)


def test_bytes_of_a_topic_on_every_node(group: Group) -> None:
    """From more units than a file of the queue holds; a second question counts nothing twice."""
    client = group.connect(group.leader)
    client.create_topic("T", 2)
    client.create_topic("Empty")
    client.heartbeat("g")
    for number in range(530):
        client.start_send("T", b"x" * (number % 7), 0)
    client.send("T", b"batch" * 100, 1)
    group.advance(1)
    record_bytes = 0
    for queue_id in (0, 1):
        offset = 0
        while (found := client.pull("T", "g", offset, queue_id, count=1024)).records:
            record_bytes += sum(len(record.encode()) for record in found.records)
            offset = found.next_offset
    for node in group.members:
        asked = group.connect(node)
        for _ in range(2):
            put = figure(asked, "TOPIC_PUT_SIZE", "T")
            assert put["statsMinute"]["sum"] == put["statsDay"]["sum"] == record_bytes
            assert put["statsMinute"]["avgpt"] == pytest.approx(record_bytes / 531)
        assert figure(asked, "TOPIC_PUT_SIZE", "Empty")["statsDay"]["sum"] == 0
    group.advance(70)
    client.send("T", b"later")
    group.advance(11)
    put = figure(client, "TOPIC_PUT_SIZE", "T")
    assert 0 < put["statsMinute"]["sum"] < 250
    assert put["statsDay"]["sum"] == record_bytes + put["statsMinute"]["sum"]


def test_messages_of_a_topic_on_every_node(group: Group) -> None:
    """Each counts once, wherever it is still kept; what a topic took ends with it."""
    client = group.connect(group.leader)
    client.create_topic("T", 4)
    for number in range(20):
        client.start_send("T", b"x", number % 3)
    group.advance(1)
    for node in group.members:
        put = figure(group.connect(node), "TOPIC_PUT_NUMS", "T")
        assert put["statsMinute"] == {"avgpt": 1.0, "sum": 20, "tps": 20 / 60}
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    client.create_topic("T", 4)
    assert figure(client, "TOPIC_PUT_NUMS", "T")["statsDay"] == {"avgpt": 0.0, "sum": 0, "tps": 0.0}
    client.send("T", b"x")
    assert figure(client, "TOPIC_PUT_NUMS", "T")["statsDay"]["sum"] == 1


def test_messages_of_a_topic_that_was_deleted_hide_none_of_a_new_one(group: Group) -> None:
    client = group.connect(group.leader)
    client.create_topic("T")
    for number in range(2):
        client.send("T", b"counted")
        assert figure(client, "TOPIC_PUT_NUMS", "T")["statsDay"]["sum"] == number + 1
    client.send("T", b"not counted yet")
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    client.create_topic("T")
    client.send("T", b"new")
    assert figure(client, "TOPIC_PUT_NUMS", "T")["statsDay"]["sum"] == 1


@pytest.mark.parametrize("is_topic", [True, False])
def test_what_a_group_got_of_a_topic_ends_with_either(group: Group, is_topic: bool) -> None:
    client = group.connect(group.leader)
    for topic in ("T", "U"):
        client.create_topic(topic)
        for name in ("g", "h"):
            client.heartbeat(name, topics=[topic])
            client.send(topic, b"x")
            assert client.pull(topic, name, 0).bodies
            offset = client.pull(topic, name, 0).records[0].physical_offset
            back = {"offset": offset, "group": name, "delayLevel": 0, "originTopic": topic}
            client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    if is_topic:
        client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        client.create_topic("T")
        gone = ["T@g", "T@h"]
    else:
        client.ok(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": True})
        gone = ["T@g", "U@g"]
    for key in ("T@g", "T@h", "U@g", "U@h"):
        for name in ("GROUP_GET_NUMS", "GROUP_GET_LATENCY", "SNDBCK_PUT_NUMS"):
            told = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
            assert told.code == (ResponseCode.SYSTEM_ERROR if key in gone else ResponseCode.SUCCESS), key


def test_a_node_counts_what_it_gave(group: Group) -> None:
    """A follower's answers are in its own figures; what it only passed on is in the leader's."""
    writer = group.connect(group.leader)
    writer.create_topic("T")
    writer.heartbeat("g")
    for _ in range(3):
        writer.send("T", b"x")
    group.converge()
    reader = group.connect(group.follower)
    records_bytes = len(reader.wait(reader.start_pull("T", "g", 0)).body)
    told = writer.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@g"})
    assert told.code == ResponseCode.SYSTEM_ERROR, "the leader gave nothing"
    assert figure(reader, "GROUP_GET_NUMS", "T@g")["statsMinute"] == {
        "avgpt": 3.0,
        "sum": 3,
        "tps": 3 / 60,
    }
    assert figure(reader, "GROUP_GET_SIZE", "T@g")["statsMinute"]["sum"] == records_bytes
    assert figure(reader, "GROUP_GET_LATENCY", "T@g")["statsMinute"]["sum"] == 0
    reader.wait(reader.start_pull("T", "g", 0, commit_offset=0))
    assert figure(writer, "GROUP_GET_NUMS", "T@g")["statsMinute"]["sum"] == 3
    assert figure(reader, "GROUP_GET_NUMS", "T@g")["statsMinute"]["sum"] == 3


def test_what_a_group_sent_back_counts_for_the_topic_it_came_from(group: Group) -> None:
    client = group.connect(group.leader, name="me")
    client.create_topic("T")
    client.heartbeat("g")
    client.send("T", b"x")
    fields = {"group": "g", "delayLevel": 1, "originMsgId": "id", "originTopic": "T"}
    for topic in ("T", "%RETRY%g"):
        (record,) = client.pull(topic, "g", 0).records
        client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, {**fields, "offset": record.physical_offset})
        group.advance(2)
    figure = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "T@g"}
    assert body_of(client, RequestCode.VIEW_BROKER_STATS_DATA, figure)["statsMinute"]["sum"] == 2


@pytest.mark.parametrize("code", [306, 316, 329])
def test_cleaning_is_answered(client: Client, code: int) -> None:
    client.send("T", b"kept")
    client.ok(code)
    assert client.pull("T", "g", 0).bodies == [b"kept"]


def test_windows_forget_what_is_old() -> None:
    windows = Windows()
    windows.add(1000, 5)
    windows.add(1009, 1)
    assert (windows.total(1009, MINUTE).count, windows.total(1009, MINUTE).per_second) == (6, 0.1)
    assert windows.total(1061, MINUTE).count == 0
    assert windows.total(1061, HOUR).count == windows.total(1061, DAY).count == 6
    windows.add(1000 + 3600, 2)
    assert (windows.total(4600, HOUR).count, windows.total(4600, DAY).count) == (2, 8)
    assert windows.total(1000 + 25 * 3600, DAY).count == 0
