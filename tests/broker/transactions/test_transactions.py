"""Transactions: decided once, unseen before, and what may not be sent."""

from __future__ import annotations

from typing import Any

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import (
    OffsetResponseHeader,
    SendMessageResponseHeader,
)
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC
from broker.transactions import decisions
from log.formats.batch import BatchItem, encode_batch
from log.formats.message_id import parse_offset_message_id
from log.formats.record import SYS_FLAG_PREPARED, SYS_FLAG_ROLLBACK
from tests.broker.harness import Client, Group
from tests.broker.transactions.halves import (
    COMMIT,
    HALF,
    INTERVAL_S,
    ROLLBACK,
    bodies,
    end,
    end_fields,
    listed,
    open_ones,
    prepared,
    records,
    send_half,
    start_end,
    state,
)

UNKNOWN = 0


# ---------------------------------------------------------------------- the ordinary course


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_committed_message_is_the_half_message_in_its_place(group: Group, place: str) -> None:
    client = group.connect(getattr(group, place))
    half = send_half(client, b"b", 1, {"TAGS": "a", "KEYS": "k"}, flag=7)
    assert half.queue_id == 1
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    (record,) = records(client, queue_id=1)
    properties = record.properties_by_name()
    assert (record.topic, record.queue_id, record.body, record.flag) == ("T", 1, b"b", 7)
    assert record.sys_flag & 0xC == COMMIT
    assert record.prepared_transaction_offset == parse_offset_message_id(half.message_id)[1]
    assert not {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"} & set(properties)
    assert properties["__transactionId__"] == properties["UNIQ_KEY"] == half.transaction_id
    assert properties["PGROUP"] == "P"
    assert client.pull("T", "g", 0, 1, expression="a").bodies == [b"b"]
    assert client.pull("T", "g", 0, 1, expression="x").bodies == []


def test_half_message_is_nowhere_but_in_the_half_topic(group: Group, client: Client) -> None:
    half = send_half(client, b"secret", 0, {"KEYS": "k"})
    waiting = client.start_pull("T", "g", 0, suspend_ms=5000)
    group.advance(1)
    assert bodies(client) == []
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 0
    for key in ("k", half.transaction_id):
        query = {"topic": "T", "key": key, "maxNum": 32, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        assert client.call(RequestCode.QUERY_MESSAGE, query).code == ResponseCode.QUERY_NOT_FOUND
    assert waiting not in client.answers
    (stored,) = records(client, HALF_TOPIC)
    properties = stored.properties_by_name()
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], stored.sys_flag & 0xC) == ("T", "0", 0)
    assert properties["__transactionId__"] == half.transaction_id
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    client.wait(waiting)
    assert bodies(client) == [b"secret"]


def test_rolled_back_message_is_never_seen(group: Group, client: Client) -> None:
    half = send_half(client, b"no")
    assert end(client, half, ROLLBACK) == ResponseCode.SUCCESS
    client.send("T", b"yes")
    group.advance(3 * INTERVAL_S)
    assert bodies(client) == [b"yes"]
    assert listed(client) == [half.queue_offset]
    assert open_ones(group) == []


def test_operation_messages_name_each_decided_one_once(group: Group, client: Client) -> None:
    halves = [send_half(client, b"%d" % number) for number in range(1200)]
    decisions = [
        start_end(client, half, ROLLBACK if half.queue_offset % 3 == 0 else COMMIT) for half in halves
    ]
    for decision in decisions:
        assert client.wait(decision).code == ResponseCode.SUCCESS
    group.advance(4)
    assert sorted(listed(client)) == list(range(1200))
    assert all(len(record.body) <= 4096 for record in records(client, HALF_OPERATIONS_TOPIC))
    kept = state(group)
    assert (kept.horizon, kept.times_checked, kept.operations_owed) == (1200, {}, {}), (
        "finished ones cost nothing"
    )


def test_progress_is_what_a_tool_of_the_reference_expects(group: Group, client: Client) -> None:
    halves = [send_half(client, b"%d" % number) for number in range(3)]
    assert end(client, halves[0], COMMIT) == end(client, halves[2], ROLLBACK) == ResponseCode.SUCCESS
    group.advance(INTERVAL_S + 1)

    def offset(topic: str) -> int:
        fields = {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": topic, "queueId": 0}
        return client.ok(RequestCode.QUERY_CONSUMER_OFFSET, fields).decode_fields(OffsetResponseHeader).offset

    assert offset(HALF_TOPIC) == 1
    assert end(client, halves[1], ROLLBACK) == ResponseCode.SUCCESS
    group.advance(INTERVAL_S + 1)
    assert offset(HALF_TOPIC) == 3
    assert offset(HALF_OPERATIONS_TOPIC) == len(records(client, HALF_OPERATIONS_TOPIC))


# ---------------------------------------------------------------------- repeated and wrong decisions


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
def test_repeated_decision_succeeds_and_does_nothing(group: Group, outcome: int, client: Client) -> None:
    half = send_half(client, b"once")
    together = [start_end(client, half, outcome) for _ in range(3)]
    assert [client.wait(opaque).code for opaque in together] == [ResponseCode.SUCCESS] * 3
    group.advance(4)
    assert end(client, half, outcome, fromTransactionCheck=True) == ResponseCode.SUCCESS
    assert bodies(client) == ([b"once"] if outcome == COMMIT else [])
    assert listed(client) == [half.queue_offset]


def test_a_decision_behind_more_keys_than_are_looked_at_is_not_told_as_another_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may send to the topic chooses keys: 64 messages later a committed transaction was told as rolled back."""
    monkeypatch.setattr(decisions, "_CANDIDATES_MAX", 3)
    half = send_half(client, b"x")
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    for number in range(3):
        assert end(client, half, COMMIT) == ResponseCode.SUCCESS
        client.send("T", b"%d" % number, 0, {"KEYS": half.transaction_id or ""})
    answer = client.call(RequestCode.END_TRANSACTION, end_fields(half, COMMIT))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "nobody can tell" in (answer.remark or "")


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ROLLBACK), (ROLLBACK, COMMIT)])
@pytest.mark.parametrize("waits", [True, False])
def test_the_first_decision_stands(first: int, second: int, waits: bool, client: Client) -> None:
    half = send_half(client, b"x")
    opaque = start_end(client, half, first)
    if waits:
        assert client.wait(opaque).code == ResponseCode.SUCCESS
    answer = client.call(RequestCode.END_TRANSACTION, end_fields(half, second))
    assert answer.code == ResponseCode.TRANSACTION_FAILED
    assert "is decided" in str(answer.remark)
    assert bodies(client) == ([b"x"] if first == COMMIT else [])


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producerGroup": "Q"}, "producer group"),
        ({"tranStateTableOffset": 1}, "state table offset"),
        ({"commitLogOffset": 12345}, "Find prepared"),
        ({"commitLogOffset": -1}, "Find prepared"),
        ({"commitLogOffset": 1 << 62}, "Find prepared"),
        ({"commitOrRollback": 4}, "commitOrRollback is 4"),
        ({"commitLogOffset": "x"}, "commitLogOffset"),
        ({"commitLogOffset": None}, "commitLogOffset"),
    ],
)
def test_wrong_decision_is_refused(
    group: Group, changes: dict[str, Any], remark: str, client: Client
) -> None:
    half = send_half(client, b"x")
    answer = client.call(RequestCode.END_TRANSACTION, end_fields(half, COMMIT, **changes))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in str(answer.remark)
    assert bodies(client) == []
    assert open_ones(group) == [0]


def test_what_is_no_half_message_cannot_be_committed(client: Client) -> None:
    plain = client.send("T", b"plain", 0, {"PGROUP": "P"})
    assert end(client, plain, COMMIT) == ResponseCode.SYSTEM_ERROR
    assert bodies(client) == [b"plain"]


def test_undecided_decision_leaves_it_open(group: Group, client: Client) -> None:
    half = send_half(client, b"x")
    assert end(client, half, UNKNOWN) == ResponseCode.SUCCESS
    assert open_ones(group) == [0]
    client.tell(RequestCode.END_TRANSACTION, end_fields(half, COMMIT))
    group.settle()
    assert bodies(client) == [b"x"]


def test_commit_waits_for_a_topic_that_is_gone(client: Client) -> None:
    half = send_half(client, b"x")
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert end(client, half, COMMIT) == ResponseCode.TOPIC_NOT_EXIST
    client.create_topic("T")
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    assert bodies(client) == [b"x"]


def test_commit_waits_for_a_queue_that_is_gone(client: Client) -> None:
    half = send_half(client, b"x", 1)
    client.create_topic("T", 1)
    answer = client.call(RequestCode.END_TRANSACTION, end_fields(half, COMMIT))
    assert (answer.code, "topic T has fewer queues now" in str(answer.remark)) == (1, True)
    client.create_topic("T", 2)
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    assert bodies(client, queue_id=1) == [b"x"]


def test_immunity_ends_the_producers_time(group: Group, client: Client) -> None:
    late, checked = (send_half(client, b"x", 0, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "5"}) for _ in range(2))
    group.advance(5.1)
    assert end(client, late, COMMIT) == ResponseCode.ILLEGAL_OPERATION
    assert end(client, checked, COMMIT, fromTransactionCheck=True) == ResponseCode.SUCCESS
    assert len(bodies(client)) == 1


# ---------------------------------------------------------------------- what may not be sent


@pytest.mark.parametrize(
    ("properties", "header", "code"),
    [
        ({"DELAY": "3", **HALF}, {"sysFlag": SYS_FLAG_PREPARED}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "3", **HALF}, {"sysFlag": SYS_FLAG_PREPARED}, ResponseCode.MESSAGE_ILLEGAL),
        ({}, {"sysFlag": SYS_FLAG_PREPARED}, ResponseCode.MESSAGE_ILLEGAL),
        (HALF, {"sysFlag": SYS_FLAG_ROLLBACK}, ResponseCode.MESSAGE_ILLEGAL),
        ({}, {"sysFlag": SYS_FLAG_ROLLBACK}, ResponseCode.MESSAGE_ILLEGAL),
        ({"filler": "x" * 32_600, **HALF}, {"sysFlag": SYS_FLAG_PREPARED}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_impossible_half_message_is_refused(
    properties: dict[str, str], header: dict[str, int], code: ResponseCode, client: Client
) -> None:
    assert client.wait(client.start_send("T", b"x", 0, properties, **header)).code == code
    assert bodies(client) == []


def test_batch_of_half_messages_is_refused(client: Client) -> None:
    body = encode_batch([BatchItem(0, b"x", b"TRAN_MSG\x01true\x02")])
    assert client.wait(client.start_send("T", body, batch=True)).code == ResponseCode.MESSAGE_ILLEGAL
    body = encode_batch([BatchItem(0, b"x", b"")])
    answer = client.wait(client.start_send("T", body, 0, HALF, batch=True, sysFlag=SYS_FLAG_PREPARED))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bodies(client) == []


def test_broker_may_reject_transactions() -> None:
    client = prepared(reject_transactions=True).connect()
    answer = client.wait(client.start_send("T", b"x", 0, HALF, sysFlag=SYS_FLAG_PREPARED))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert client.send("T", b"plain").queue_offset == 0


@pytest.mark.parametrize("topic", [HALF_TOPIC, HALF_OPERATIONS_TOPIC, CHECK_EXHAUSTED_TOPIC])
def test_nobody_sends_to_the_topics_of_transactions(topic: str, client: Client) -> None:
    answer = client.wait(client.start_send(topic, b"0", 0, {"TAGS": "d"}))
    assert answer.code == ResponseCode.NO_PERMISSION


def test_group_left_out_is_the_requests(client: Client) -> None:
    half = client.send("T", b"x", 0, {"TRAN_MSG": "true"}, sysFlag=SYS_FLAG_PREPARED, producerGroup="P")
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    assert bodies(client) == [b"x"]


@pytest.mark.parametrize("sys_flag", [0, 4])
def test_message_sent_back_by_an_old_consumer_is_no_half_message(
    group: Group, sys_flag: int, client: Client
) -> None:
    """It says with its flags, too, that it was one: so a producer of those versions marks whatever has TRAN_MSG."""
    client.heartbeat("g")
    again = {"DELAY": "1", **HALF}
    client.send("%RETRY%g", b"again", 0, again, reconsumeTimes=1, sysFlag=sys_flag)
    client.send("%RETRY%g", b"dead", 0, again, reconsumeTimes=3, maxReconsumeTimes=2, sysFlag=sys_flag)
    group.advance(2)
    assert bodies(client, "%RETRY%g") == [b"again"]
    assert bodies(client, "%DLQ%g") == [b"dead"]


@pytest.mark.parametrize("given_up", [False, True])
def test_the_longest_properties_leave_room_for_the_decision(given_up: bool) -> None:
    group = prepared(transaction_check_max=1)
    client = group.connect()
    client.heartbeat(producer_group="P")

    def longest() -> SendMessageResponseHeader:
        low, high = 0, 32_767
        while high - low > 1:
            middle = (low + high) // 2
            properties = {**HALF, "X": "x" * middle}
            answer = client.wait(client.start_send("T", b"probe", 0, properties, sysFlag=SYS_FLAG_PREPARED))
            low, high = (middle, high) if answer.code == ResponseCode.SUCCESS else (low, middle)
        return send_half(client, b"longest", 0, {"X": "x" * low})

    half = longest()
    if given_up:
        group.advance(3 * INTERVAL_S)
        assert b"longest" in [record.body for record in records(group.connect(), CHECK_EXHAUSTED_TOPIC)]
    else:
        assert end(client, half, COMMIT) == ResponseCode.SUCCESS
        assert [record.body for record in records(client)] == [b"longest"]
