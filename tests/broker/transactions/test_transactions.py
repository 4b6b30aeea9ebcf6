"""Transactions: decided once, unseen before, asked about while a producer lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from broker.node.node import Node
from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import (
    CheckTransactionStateHeader,
    OffsetResponseHeader,
    SendMessageResponseHeader,
)
from broker.replica.inner_limits import InnerLimits
from broker.replica.proposals import NewMessage
from broker.state.open_transactions import Transactions
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_OPERATIONS_TOPIC, HALF_TOPIC
from broker.transactions.checks import SLICE_MAX, TransactionChecks
from log.batch import BatchItem, encode_batch
from log.errors import DiskFullError
from log.message_id import parse_offset_message_id
from log.record import Record
from raft.messages import AppendRequest
from tests.broker.harness import Client, Group, peer_address, split_records

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
TIMEOUT_S, INTERVAL_S = 2, 10
SETTINGS = {"transaction_timeout_ms": TIMEOUT_S * 1000, "transaction_check_interval_ms": INTERVAL_S * 1000}
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


@pytest.fixture
def group() -> Group:
    return prepared()


def prepared(**settings: Any) -> Group:
    group = Group.elected(3, broker={**SETTINGS, **settings})
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.close()
    return group


def send_half(
    client: Client, body: bytes, queue_id: int = 0, properties: Mapping[str, str] | None = None, **header: Any
) -> SendMessageResponseHeader:
    return client.send("T", body, queue_id, {**HALF, **(properties or {})}, sysFlag=4, **header)


def end_fields(half: SendMessageResponseHeader, outcome: int, **changes: Any) -> dict[str, Any]:
    return {
        "producerGroup": "P",
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": parse_offset_message_id(half.message_id)[1],
        "commitOrRollback": outcome,
        "msgId": half.transaction_id,
        "transactionId": half.transaction_id,
        "fromTransactionCheck": False,
        **changes,
    }


def start_end(client: Client, half: SendMessageResponseHeader, outcome: int, **changes: Any) -> int:
    return client.start_call(RequestCode.END_TRANSACTION, end_fields(half, outcome, **changes))


def end(client: Client, half: SendMessageResponseHeader, outcome: int, **changes: Any) -> int:
    return client.wait(start_end(client, half, outcome, **changes)).code


def records(client: Client, topic: str = "T", queue_id: int = 0) -> list[Record]:
    found: list[Record] = []
    while True:
        pulled = client.pull(topic, "g", len(found), queue_id)
        if pulled.code != ResponseCode.SUCCESS:
            return found
        found += pulled.records


def bodies(client: Client, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in records(client, topic, queue_id)]


def listed(client: Client) -> list[int]:
    """The half offsets in all operation messages."""
    found: list[int] = []
    for record in records(client, HALF_OPERATIONS_TOPIC):
        assert record.properties_by_name()["TAGS"] == "d"
        found += [int(text) for text in record.body.decode().split(",") if text]
    return found


def state(group: Group) -> Transactions:
    return group.node(group.leader).replica.metadata.transactions


def open_ones(group: Group) -> list[int]:
    queue = group.node(group.leader).replica.store.queues.get(HALF_TOPIC, 0)
    assert queue is not None
    return list(state(group).open_before(queue.max_offset))


def questions(client: Client) -> list[tuple[CheckTransactionStateHeader, Record]]:
    found = []
    for notice in client.notices:
        if notice.code == RequestCode.CHECK_TRANSACTION_STATE:
            (record,) = split_records(notice.body)
            found.append((notice.decode_fields(CheckTransactionStateHeader), record))
    return found


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
        ({"DELAY": "3", **HALF}, {"sysFlag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "3", **HALF}, {"sysFlag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({}, {"sysFlag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        (HALF, {"sysFlag": 12}, ResponseCode.MESSAGE_ILLEGAL),
        ({}, {"sysFlag": 12}, ResponseCode.MESSAGE_ILLEGAL),
        ({"filler": "x" * 32_600, **HALF}, {"sysFlag": 4}, ResponseCode.MESSAGE_ILLEGAL),
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
    answer = client.wait(client.start_send("T", body, 0, HALF, batch=True, sysFlag=4))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bodies(client) == []


def test_broker_may_reject_transactions() -> None:
    client = prepared(reject_transactions=True).connect()
    answer = client.wait(client.start_send("T", b"x", 0, HALF, sysFlag=4))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert client.send("T", b"plain").queue_offset == 0


@pytest.mark.parametrize("topic", [HALF_TOPIC, HALF_OPERATIONS_TOPIC, CHECK_EXHAUSTED_TOPIC])
def test_nobody_sends_to_the_topics_of_transactions(topic: str, client: Client) -> None:
    answer = client.wait(client.start_send(topic, b"0", 0, {"TAGS": "d"}))
    assert answer.code in {ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST}


def test_group_left_out_is_the_requests(client: Client) -> None:
    half = client.send("T", b"x", 0, {"TRAN_MSG": "true"}, sysFlag=4, producerGroup="P")
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS


@pytest.mark.parametrize("sys_flag", [0, 4])
def test_message_given_back_by_an_old_consumer_is_no_half_message(
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


# ---------------------------------------------------------------------- questions


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_producer_is_asked_wherever_it_is_connected(group: Group, place: str) -> None:
    producer = group.connect(getattr(group, place))
    producer.heartbeat(producer_group="P")
    half = send_half(group.connect(), b"x", 1, {"KEYS": "k"})
    group.run_until(lambda: bool(questions(producer)), "a question")
    ((header, record),) = questions(producer)
    assert header.half_queue_offset == half.queue_offset
    assert header.commit_log_offset == parse_offset_message_id(half.message_id)[1]
    assert (header.message_id, header.transaction_id) == (half.transaction_id, half.transaction_id)
    assert (header.topic, header.broker_name) == (HALF_TOPIC, "broker-a")
    assert (record.topic, record.queue_id, record.body) == ("T", 1, b"x")
    assert record.properties_by_name()["TRANSACTION_CHECK_TIMES"] == "1"
    assert end(producer, half, COMMIT, fromTransactionCheck=True) == ResponseCode.SUCCESS
    group.advance(3 * INTERVAL_S)
    assert len(questions(producer)) == 1
    assert bodies(producer, queue_id=1) == [b"x"]


def test_nobody_is_asked_through_a_node_that_was_removed(group: Group) -> None:
    """Found by the simulator (seed 190): a removed node that still ran took questions to its clients and refused their
    answers, until transactions were given up whose producer had answered each time.
    """
    stays, goes = (node for node in group.members if node != group.leader)
    elsewhere = group.connect(stays, name="producer")
    elsewhere.heartbeat(producer_group="P")
    # The newer of its connections, on which it would be asked.
    producer = group.connect(goes, name="producer")
    producer.heartbeat(producer_group="P")
    group.converge()
    operator = group.connect()
    removal = operator.call(RequestCode.TRIVET_CHANGE_GROUP, {"operation": "remove", "node": goes})
    assert removal.code == ResponseCode.SUCCESS, removal.remark
    group.run_until(lambda: group.node(goes).is_outside, "the removed node to hear of it")
    half = send_half(operator, b"x")
    group.run_until(lambda: state(group).times(half.queue_offset) == 1, "a question")
    group.settle()
    assert questions(producer) == []
    assert len(questions(elsewhere)) == 1
    assert end(elsewhere, half, COMMIT, fromTransactionCheck=True) == ResponseCode.SUCCESS
    assert bodies(operator) == [b"x"]


def test_a_producer_known_to_a_removed_node_alone_is_not_asked_in_vain(group: Group) -> None:
    goes = group.follower
    producer = group.connect(goes)
    producer.heartbeat(producer_group="P")
    pull = producer.start_pull("T", "g", 0, suspend_ms=60_000)
    group.converge()
    operator = group.connect()
    removal = operator.call(RequestCode.TRIVET_CHANGE_GROUP, {"operation": "remove", "node": goes})
    assert removal.code == ResponseCode.SUCCESS, removal.remark
    assert producer.wait(pull).code == ResponseCode.SERVICE_NOT_AVAILABLE, "what it waited for at the leader"
    half = send_half(operator, b"x")
    group.advance(3 * INTERVAL_S)
    assert questions(producer) == []
    assert state(group).times(half.queue_offset) == 0
    done = operator.call(
        RequestCode.TRIVET_CHANGE_GROUP, {"operation": "add", "node": goes, "address": peer_address(goes)}
    )
    assert done.code == ResponseCode.SUCCESS, done.remark
    group.run_until(lambda: bool(questions(producer)), "a question, now that its node is back")
    assert end(producer, half, COMMIT, fromTransactionCheck=True) == ResponseCode.SUCCESS


def test_young_ones_are_not_asked_about(group: Group) -> None:
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    group.run_until(lambda: bool(group.now_ns), "time")
    # A new one every second: some are younger than the timeout.
    while group.now_ns < 1000 * 10**9 + 30 * 10**9:
        send_half(producer, b"%d" % (group.now_ns // 10**9))
        group.advance(1)
        for header, _ in questions(producer):
            half = producer.ok(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": header.commit_log_offset})
            (record,) = split_records(half.body)
            assert group.wall_ms - record.store_timestamp > TIMEOUT_S * 1000
        producer.notices.clear()
    assert state(group).times(0) >= 1


def test_immune_ones_are_not_asked_about_and_others_behind_them_are(group: Group) -> None:
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    send_half(producer, b"immune", 0, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "25"})
    send_half(producer, b"not", 0, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "-1"})
    group.advance(2 * INTERVAL_S + 3)
    assert {record.body for _, record in questions(producer)} == {b"not"}
    group.advance(INTERVAL_S)
    assert {record.body for _, record in questions(producer)} == {b"not", b"immune"}


def test_a_damaged_half_message_keeps_no_other_from_being_asked_about(group: Group) -> None:
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    for body in (b"damaged", b"whole"):
        send_half(producer, body)
    replica = group.node(group.leader).replica
    queue = replica.store.queues.get(HALF_TOPIC, 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    queue.correct(0, (1 << 40, *unit[1:]))
    replica.repairs.suspect = lambda now_ns: None  # it stays damaged
    group.run_until(lambda: bool(questions(producer)), "a question")
    assert {record.body for _, record in questions(producer)} == {b"whole"}
    assert open_ones(group) == [0, 1]
    queue.correct(0, unit)
    group.run_until(lambda: len(questions(producer)) >= 3, "the next pass")
    assert {record.body for _, record in questions(producer)} == {b"damaged", b"whole"}


def test_producers_of_a_group_are_asked_in_turn_and_no_others(group: Group) -> None:
    producers = [group.connect(node) for node in group.members]
    for producer in producers:
        producer.heartbeat(producer_group="P")
    stranger = group.connect()
    stranger.heartbeat(producer_group="Q")
    for number in range(6):
        send_half(stranger, b"%d" % number)
    group.advance(INTERVAL_S + TIMEOUT_S)
    assert [len(questions(producer)) for producer in producers] == [2, 2, 2]
    assert questions(stranger) == []
    producers[1].close()
    group.advance(INTERVAL_S)
    assert sum(len(questions(producer)) for producer in producers) == 12


def test_only_questions_that_were_sent_count(group: Group, client: Client) -> None:
    half = send_half(client, b"x")
    group.advance(20 * INTERVAL_S)
    assert state(group).times(half.queue_offset) == 0
    client.heartbeat(producer_group="P")
    group.advance(INTERVAL_S)
    assert len(questions(client)) == 1


def test_after_too_many_questions_it_is_given_up_once() -> None:
    group = prepared(transaction_check_max=3)
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    half = send_half(producer, b"x", 1, {"KEYS": "k"})
    group.advance(8 * INTERVAL_S)
    assert len(questions(producer)) == 3
    (given_up,) = records(producer, CHECK_EXHAUSTED_TOPIC)
    properties = given_up.properties_by_name()
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "1")
    assert properties["TRANSACTION_CHECK_TIMES"] == "3"
    answer = producer.call(RequestCode.END_TRANSACTION, end_fields(half, COMMIT))
    assert (answer.code, "given up" in str(answer.remark)) == (ResponseCode.TRANSACTION_FAILED, True)
    assert listed(producer) == [half.queue_offset]
    assert bodies(producer, queue_id=1) == []


def test_nobody_is_asked_while_nobody_may_commit(group: Group) -> None:
    """Else a disk that is full for a while would have transactions given up whose producers wanted them."""
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    half = send_half(producer, b"x")
    disk = group.members[group.leader].disk
    free_before, disk.free_bytes = disk.free_bytes, disk.total_bytes // 20
    group.node(group.leader).replica.disk_space.refuses_sends = True
    group.advance(3 * INTERVAL_S)
    assert end(producer, half, COMMIT) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert questions(producer) == []
    assert state(group).times(half.queue_offset) == 0
    disk.free_bytes = free_before
    group.advance(3 * INTERVAL_S)
    assert questions(producer)
    assert end(producer, half, COMMIT) == ResponseCode.SUCCESS


def test_older_than_the_log_is_kept_is_given_up(group: Group, client: Client) -> None:
    send_half(client, b"x")
    group.now_ns += 73 * 3600 * 10**9
    group.elect()
    group.advance(INTERVAL_S + 1)
    assert open_ones(group) == []
    assert bodies(group.connect(), CHECK_EXHAUSTED_TOPIC) == [b"x"]


def test_many_are_asked_about_in_slices(group: Group) -> None:
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    opaques = [producer.start_send("T", b"x", 0, HALF, sysFlag=4) for _ in range(600)]
    for opaque in opaques:
        producer.wait(opaque)
    group.advance(INTERVAL_S + TIMEOUT_S)
    asked = [header.half_queue_offset for header, _ in questions(producer)]
    assert sorted(asked[:600]) == list(range(600))


# ---------------------------------------------------------------------- resuming


def resume(client: Client, message_id: str) -> int:
    return client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}).code


def test_given_up_is_resumed_once() -> None:
    group = prepared(transaction_check_max=1)
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    send_half(producer, b"x", 1)
    group.advance(3 * INTERVAL_S)
    (given_up,) = records(producer, CHECK_EXHAUSTED_TOPIC)
    message_id = f"7F00000100002710{given_up.physical_offset:016X}"
    order = {"msgId": message_id}
    orders = [producer.start_call(RequestCode.RESUME_CHECK_HALF_MESSAGE, order) for _ in range(2)]
    codes = [producer.wait(opaque).code for opaque in orders]
    assert codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY]
    assert resume(producer, message_id) == ResponseCode.SUCCESS, "a repeated order does no harm"
    producer.notices.clear()
    group.advance(INTERVAL_S)
    ((header, _),) = questions(producer)
    assert header.half_queue_offset == 1
    fields = {
        "producerGroup": "P",
        "tranStateTableOffset": header.half_queue_offset,
        "commitLogOffset": header.commit_log_offset,
        "commitOrRollback": COMMIT,
        "fromTransactionCheck": True,
        "msgId": header.message_id,
    }
    producer.ok(RequestCode.END_TRANSACTION, fields)
    assert bodies(producer, queue_id=1) == [b"x"]
    assert resume(producer, message_id) == ResponseCode.SYSTEM_ERROR, "decided meanwhile"
    assert bodies(producer, queue_id=1) == [b"x"]


def test_open_one_is_counted_from_the_start(group: Group) -> None:
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    half = send_half(producer, b"x")
    group.advance(2 * INTERVAL_S)
    assert state(group).times(0) > 0
    assert resume(producer, half.message_id) == ResponseCode.SUCCESS
    assert state(group).times(0) == 0
    assert end(producer, half, ROLLBACK) == ResponseCode.SUCCESS
    assert resume(producer, half.message_id) == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("message_id", ["", "zz", "7F00000100002A9F00000000000003E8", "00" * 16])
def test_what_was_never_given_up_is_not_resumed(group: Group, message_id: str) -> None:
    assert resume(group.connect(), message_id) == ResponseCode.SYSTEM_ERROR


# ---------------------------------------------------------------------- failovers


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("reached", [0, 1])
def test_decision_that_may_have_reached_the_log_is_made_once(
    outcome: int, reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader dies with the deciding entry on its own disk only, or with a majority that has not said so."""
    monkeypatch.setattr(Group, "limits", InnerLimits(append_bytes_max=1))
    group = prepared()
    client = group.connect(group.follower)
    half = send_half(client, b"x")
    group.converge()
    old = group.leader
    last_to_pass = group.node(old).replica.store.log.last_index + reached

    def lost(source: str, target: str, frame: Frame) -> bool:
        if not isinstance(frame, RaftFrame):
            return False
        message = frame.message
        if isinstance(message, AppendRequest):
            return message.last_index > last_to_pass
        return target == old

    group.lose = lost
    opaque = start_end(client, half, outcome)
    group.advance(0.05)
    assert opaque not in client.answers
    group.kill(old)
    group.lose = lambda source, target, frame: False
    group.elect()
    if opaque in client.answers or client.closed:
        client = group.connect()
    assert end(client, half, outcome) == ResponseCode.SUCCESS
    assert bodies(client) == ([b"x"] if outcome == COMMIT else [])
    group.restart(old)
    group.elect()
    group.advance(5)
    group.converge()
    assert bodies(group.connect()) == ([b"x"] if outcome == COMMIT else [])
    assert listed(group.connect()) == [half.queue_offset]


def test_next_leader_goes_on_asking_with_the_count(group: Group) -> None:
    follower = group.follower
    producer = group.connect(follower)
    producer.heartbeat(producer_group="P")
    half = send_half(producer, b"x")
    group.advance(2 * INTERVAL_S + TIMEOUT_S)
    times = state(group).times(half.queue_offset)
    assert times == 2
    old = group.leader
    group.transfer_leadership(follower)
    assert state(group).times(half.queue_offset) == times
    group.kill(old)
    group.advance(INTERVAL_S + 1)
    assert state(group).times(half.queue_offset) == times + 1
    assert questions(producer)[-1][1].properties_by_name()["TRANSACTION_CHECK_TIMES"] == str(times + 1)


def test_next_leader_writes_the_operation_messages_that_are_owed(group: Group, client: Client) -> None:
    half = send_half(client, b"x")
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    group.kill(group.leader)
    group.elect()
    group.advance(4)
    assert listed(group.connect()) == [half.queue_offset]


def test_restart_of_all_from_a_snapshot_forgets_nothing(group: Group, client: Client) -> None:
    client.heartbeat(producer_group="P")
    halves = [send_half(client, b"%d" % number) for number in range(5)]
    assert end(client, halves[1], COMMIT) == end(client, halves[3], ROLLBACK) == ResponseCode.SUCCESS
    group.advance(INTERVAL_S + TIMEOUT_S)
    before = state(group)
    for node in list(group.members):
        group.node(node).replica.save_snapshot()
        group.kill(node)
    for node in list(group.members):
        group.restart(node)
    group.elect()
    assert state(group) == before
    assert open_ones(group) == [0, 2, 4]
    client = group.connect()
    assert end(client, halves[1], COMMIT) == ResponseCode.SUCCESS
    assert end(client, halves[0], COMMIT) == ResponseCode.SUCCESS
    assert sorted(bodies(client)) == [b"0", b"1"]


def test_full_disk_leaves_the_transaction_open(
    group: Group, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    half = send_half(client, b"x")
    replica = group.node(group.leader).replica

    def full(*arguments: object) -> tuple[int, int]:
        raise DiskFullError("data", "allocation", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(replica.leadership, "append_message", full)
        assert end(client, half, COMMIT) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert end(client, half, ROLLBACK) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert end(client, half, COMMIT) == ResponseCode.SUCCESS
    assert bodies(client) == [b"x"]


# ---------------------------------------------------------------------- stores of other origin


@pytest.mark.parametrize("sys_flag", [4, 12])
def test_store_with_prepared_records_in_any_topic_starts_and_goes_on(group: Group, sys_flag: int) -> None:
    """Such a record takes no place in its queue; one that was given a place leaves no hole that stops a node."""
    leader = group.node(group.leader)
    client = group.connect()
    client.send("T", b"0")
    for _ in range(2):
        leader.begin(group.now_ns, group.wall_ms)
        half = NewMessage("T", 0, 0, sys_flag, 0, b"\x7f\0\0\1\0\0\0\0", 0, b"half", b"")
        leader.replica.leadership.append_message(half, None)
    opaque = client.start_send("T", b"3")
    assert client.wait(opaque).code == ResponseCode.SUCCESS
    for node in list(group.members):
        group.kill(node)
    for node in list(group.members):
        group.restart(node)
    group.elect()
    client = group.connect()
    first, second = client.pull("T", "g", 0), client.pull("T", "g", 1)
    assert (first.bodies[0], second.bodies) == (b"0", [b"3"])
    assert client.send("T", b"4").queue_offset == 4
    fields = {"timestamp": group.wall_ms + 10**6}
    assert client.offset_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "T", **fields) == 5
    client.offset_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "T", timestamp=1)


def test_a_pass_over_many_whose_producers_are_gone_keeps_nobody_waiting(
    group: Group, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    for number in range(3 * SLICE_MAX):
        client.start_send("T", b"%d" % number, 0, HALF, sysFlag=4)
    group.advance(TIMEOUT_S)
    looked_at: list[int] = []
    look_at = TransactionChecks._if_to_be_asked

    def noted(self: TransactionChecks, half_offset: int) -> Record | None:
        looked_at.append(half_offset)
        return look_at(self, half_offset)

    monkeypatch.setattr(TransactionChecks, "_if_to_be_asked", noted)
    node = group.node(group.leader)
    turn = type(node).turn
    most = 0

    def counted(self: Node, now_ns: int, wall_ms: int, send: Callable[[], None]) -> None:
        nonlocal most
        before = len(looked_at)
        turn(self, now_ns, wall_ms, send)
        most = max(most, len(looked_at) - before)

    monkeypatch.setattr(Node, "turn", counted)
    group.advance(INTERVAL_S)
    assert sorted(looked_at) == list(range(3 * SLICE_MAX)), "all of them, once"
    assert most == SLICE_MAX


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
            answer = client.wait(client.start_send("T", b"probe", 0, properties, sysFlag=4))
            low, high = (middle, high) if answer.code == ResponseCode.SUCCESS else (low, middle)
        return send_half(client, b"longest", 0, {"X": "x" * low})

    half = longest()
    if given_up:
        group.advance(3 * INTERVAL_S)
        assert b"longest" in [record.body for record in records(group.connect(), CHECK_EXHAUSTED_TOPIC)]
    else:
        assert end(client, half, COMMIT) == ResponseCode.SUCCESS
        assert [record.body for record in records(client)] == [b"longest"]


def test_a_question_that_cannot_be_written_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A half message of an earlier version may leave no room for what a question adds."""
    monkeypatch.setattr("broker.transactions.incoming_halves.LATER_BYTES", 0)
    monkeypatch.setattr("broker.sending.properties.SENT_BYTES_MAX", 32_767)
    group = prepared(transaction_check_max=1)
    client = group.connect()
    client.heartbeat(producer_group="P")
    for length in range(32_300, 32_767, 8):
        properties = {**HALF, "X": "x" * length}
        client.wait(client.start_send("T", b"half", 0, properties, sysFlag=4))
    group.advance(3 * INTERVAL_S)
    assert len(group.alive()) == 3
    assert not group.node(group.leader).replica.metadata.transactions.times_checked


def test_of_producer_groups_that_come_and_go_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose turn it is to be asked is known of so many groups at most; of more, all are asked all the same."""
    monkeypatch.setattr("broker.transactions.checks.GROUPS_REMEMBERED_MAX", 2)
    checks: list[TransactionChecks] = []
    ask = TransactionChecks._ask

    def noted(self: TransactionChecks, halves: list[Record]) -> None:
        checks.append(self)
        ask(self, halves)

    monkeypatch.setattr(TransactionChecks, "_ask", noted)
    group = prepared()
    producers = []
    for number in range(5):
        client = group.connect()
        client.heartbeat(producer_group=f"P{number}")
        send_half(client, b"half", 0, {"PGROUP": f"P{number}"})
        producers.append(client)
    group.advance(TIMEOUT_S + 2 * INTERVAL_S)
    assert all(questions(client) for client in producers)
    assert checks
    assert len(checks[-1]._asked) <= 2
