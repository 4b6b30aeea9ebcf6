"""Transactions across changes of the leader, restarts, full disks and stores of other origin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.replica.inner_limits import InnerLimits
from broker.replica.leadership import Leadership
from broker.replica.proposals import NewMessage
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC
from log.errors import DiskFullError
from raft.messages import AppendRequest
from tests.broker.harness import Client, Group
from tests.broker.transactions.halves import (
    COMMIT,
    INTERVAL_S,
    ROLLBACK,
    TIMEOUT_S,
    bodies,
    end,
    listed,
    open_ones,
    prepared,
    questions,
    records,
    resume,
    send_half,
    start_end,
    state,
)

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


def test_a_transaction_whose_decision_was_lost_is_asked_about_and_decided_anew_by_the_same_leader(
    group: Group,
) -> None:
    old, other = group.leader, group.follower
    producer = group.connect(other)
    producer.heartbeat(producer_group="P")
    half = send_half(producer, b"x")
    group.converge()
    group.partition(old)
    start_end(group.connect(old), half, COMMIT)
    group.run_until(lambda: not group.node(old).replica.serving, "the old leader to step down")
    group.heal()
    group.elect()
    group.converge()
    group.transfer_leadership(old)
    asked = len(questions(producer))
    group.advance(INTERVAL_S + TIMEOUT_S)
    assert len(questions(producer)) > asked
    assert end(producer, half, ROLLBACK) == ResponseCode.SUCCESS
    assert bodies(producer) == []


def test_an_order_of_an_earlier_term_that_is_told_late_does_not_end_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of thousands who wait when a leadership ends the last are told turns later: the node may lead again by then."""
    monkeypatch.setattr(Group, "limits", InnerLimits(append_bytes_max=1))
    group = prepared(transaction_check_max=1)
    old = group.leader
    producer = group.connect(group.follower)
    producer.heartbeat(producer_group="P")
    send_half(producer, b"x")
    group.advance(3 * INTERVAL_S)
    (given_up,) = records(producer, CHECK_EXHAUSTED_TOPIC)
    order = {"msgId": f"7F00000100002710{given_up.physical_offset:016X}"}
    group.converge()
    leadership, untold = group.node(old).replica.leadership, list[Callable[[], None]]()

    def start() -> tuple[Client, int]:
        """Has the leader append the new half message, which reaches nobody else."""
        end = leadership.store.log.last_index

        def lost(source: str, target: str, frame: Frame) -> bool:
            message = frame.message if isinstance(frame, RaftFrame) else None
            return isinstance(message, AppendRequest) and bool(message.spans)

        group.lose = lost
        client = group.connect(old)
        opaque = client.start_call(RequestCode.RESUME_CHECK_HALF_MESSAGE, order)
        group.run_until(lambda: leadership.store.log.last_index > end, "the order to be appended")
        return client, opaque

    def stop(stops: Callable[[Leadership], None] = Leadership.stop) -> None:
        stops(leadership)
        untold.extend(leadership.untold)
        leadership.untold.clear()

    monkeypatch.setattr(leadership, "stop", stop)
    start()
    group.partition(old)
    group.run_until(lambda: not leadership.serving, "the old leader to step down")
    assert untold, "the order waited"
    group.lose = lambda source, target, frame: False
    group.heal()
    group.elect()
    group.converge()
    group.transfer_leadership(old)
    group.converge()
    again, _ = start()
    for tell in untold:
        tell()
    assert resume(again, order["msgId"]) == ResponseCode.SYSTEM_BUSY
    group.lose = lambda source, target, frame: False
    group.advance(1)
    assert resume(producer, order["msgId"]) == ResponseCode.SUCCESS
    assert len(open_ones(group)) == 1


def test_who_wants_another_outcome_hears_nothing_of_a_decision_that_may_be_lost(group: Group) -> None:
    """The first decision is on its leader's own disk only; it is lost, and the second one succeeds."""
    old, other = group.leader, group.follower
    half = send_half(group.connect(other), b"x")
    group.converge()
    group.partition(old)
    client = group.connect(old)
    first, second = start_end(client, half, COMMIT), start_end(client, half, ROLLBACK)
    group.run_until(lambda: not group.node(old).replica.serving, "the old leader to step down")
    assert ResponseCode.TRANSACTION_FAILED not in {answer.code for answer in client.answers.values()}
    group.heal()
    group.elect()
    group.converge()
    for opaque in (first, second):
        assert opaque not in client.answers or client.answers[opaque].code == ResponseCode.SYSTEM_ERROR
    client = group.connect(other)
    assert end(client, half, ROLLBACK) == ResponseCode.SUCCESS
    assert bodies(client) == []


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
        group.node(node).replica.applied.save()
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
