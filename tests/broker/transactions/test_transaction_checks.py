"""Producers are asked what became of their half messages, and which of these are given up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from broker.node.node import Node
from broker.remoting.codes import RequestCode, ResponseCode
from broker.replica.inner_limits import InnerLimits
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, HALF_TOPIC
from broker.transactions import decisions
from broker.transactions.checks import TransactionChecks
from log.formats.message_id import parse_offset_message_id
from log.formats.record import SYS_FLAG_PREPARED, Record
from tests.broker.harness import Client, Group, peer_address, split_records
from tests.broker.node.test_held_requests import step_until
from tests.broker.transactions.halves import (
    COMMIT,
    HALF,
    INTERVAL_S,
    ROLLBACK,
    TIMEOUT_S,
    bodies,
    end,
    end_fields,
    listed,
    open_ones,
    prepared,
    questions,
    records,
    resume,
    send_half,
    state,
)

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


def test_one_that_is_decided_while_a_pass_goes_on_is_neither_asked_about_nor_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given up, it would have two ends: committed, and among those that nobody decides."""
    monkeypatch.setattr(Group, "limits", InnerLimits(transactions_at_once=1))
    group = prepared(transaction_check_max=1)
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    halves = [send_half(producer, b"%d" % number) for number in range(2)]
    group.run_until(lambda: len(questions(producer)) == 2, "the questions")
    looked_at: list[int] = []
    look_at = TransactionChecks._ask_or_give_up

    def noted(self: TransactionChecks, half_offset: int) -> Record | None:
        looked_at.append(half_offset)
        return look_at(self, half_offset)

    monkeypatch.setattr(TransactionChecks, "_ask_or_give_up", noted)
    step_until(group, random.Random(1), lambda: bool(looked_at))
    assert looked_at == [0], "the pass goes on with the other one"
    assert end(producer, halves[1], COMMIT, fromTransactionCheck=True) == ResponseCode.SUCCESS
    group.advance(2 * INTERVAL_S)
    assert looked_at == [0, 1]
    assert bodies(producer) == [b"1"]
    assert bodies(producer, CHECK_EXHAUSTED_TOPIC) == [b"0"]
    assert len(questions(producer)) == 2


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
    """Else disks that are full for a while would have transactions given up whose producers wanted them. All are: of
    one alone its leader would hand over.
    """
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    half = send_half(producer, b"x")
    disks = [member.disk for member in group.members.values()]
    free_before = disks[0].free_bytes
    for name, disk in zip(group.members, disks, strict=True):
        disk.free_bytes = disk.total_bytes // 20
        group.node(name).replica.disk_space.refuses_sends = True
    group.advance(3 * INTERVAL_S)
    assert end(producer, half, COMMIT) == ResponseCode.SERVICE_NOT_AVAILABLE
    assert questions(producer) == []
    assert state(group).times(half.queue_offset) == 0
    for disk in disks:
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
    opaques = [producer.start_send("T", b"x", 0, HALF, sysFlag=SYS_FLAG_PREPARED) for _ in range(600)]
    for opaque in opaques:
        producer.wait(opaque)
    group.advance(INTERVAL_S + TIMEOUT_S)
    asked = [header.half_queue_offset for header, _ in questions(producer)]
    assert sorted(asked[:600]) == list(range(600))


# ---------------------------------------------------------------------- resuming


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


def test_given_up_behind_more_keys_than_are_looked_at_is_not_resumed_a_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_CANDIDATES_MAX", 3)
    group = prepared(transaction_check_max=1)
    producer = group.connect()
    producer.heartbeat(producer_group="P")
    send_half(producer, b"x", 1)
    group.advance(3 * INTERVAL_S)
    (given_up,) = records(producer, CHECK_EXHAUSTED_TOPIC)
    message_id = f"7F00000100002710{given_up.physical_offset:016X}"
    assert resume(producer, message_id) == ResponseCode.SUCCESS
    for number in range(3):
        send_half(producer, b"%d" % number, 1, {"KEYS": given_up.properties_by_name()["UNIQ_KEY"]})
    assert resume(producer, message_id) == ResponseCode.SYSTEM_ERROR
    assert [record.body for record in records(producer, HALF_TOPIC)].count(b"x") == 2, (
        "the first, and the resumed"
    )


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


def test_a_pass_over_many_whose_producers_are_gone_keeps_nobody_waiting(
    group: Group, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    at_once = InnerLimits().transactions_at_once
    for number in range(3 * at_once):
        client.start_send("T", b"%d" % number, 0, HALF, sysFlag=SYS_FLAG_PREPARED)
    group.advance(TIMEOUT_S)
    looked_at: list[int] = []
    look_at = TransactionChecks._ask_or_give_up

    def noted(self: TransactionChecks, half_offset: int) -> Record | None:
        looked_at.append(half_offset)
        return look_at(self, half_offset)

    monkeypatch.setattr(TransactionChecks, "_ask_or_give_up", noted)
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
    assert sorted(looked_at) == list(range(3 * at_once)), "all of them, once"
    assert most == at_once


def test_a_question_that_cannot_be_written_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A half message of an earlier version may leave no room for what a question adds."""
    monkeypatch.setattr("broker.transactions.incoming_halves.LATER_BYTES", 0)
    monkeypatch.setattr("broker.sending.properties.SENT_BYTES_MAX", 32_767)
    group = prepared(transaction_check_max=1)
    client = group.connect()
    client.heartbeat(producer_group="P")
    for length in range(32_300, 32_767, 8):
        properties = {**HALF, "X": "x" * length}
        client.wait(client.start_send("T", b"half", 0, properties, sysFlag=SYS_FLAG_PREPARED))
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
