"""Snapshots that take many turns: they are of one place all the same, and what overtakes one ends it."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from broker.peers import protocol as peer_protocol
from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.backup_description import BackupDescription
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.pieces import Pieces
from broker.replica.inner_limits import InnerLimits
from broker.replica.replica import Replica
from broker.requests.connection import Buffer
from broker.requests.deadline import NEVER
from broker.state.metadata import Metadata
from broker.state.snapshot import decode_state
from log.entries.expired_files import HeadLook, RetentionPolicy
from raft.messages import SnapshotRequest
from tests.broker.harness import Client, Group
from tests.broker.retention.test_retention import beginnings, fill, group_with, pass_time


@pytest.fixture(autouse=True)
def a_row_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "limits", InnerLimits(state_rows_at_once=1))


def filled(group: Group) -> Client:
    client = group.connect()
    for number in range(5):
        client.create_topic(f"T{number}")
        client.heartbeat(f"G{number}", (f"T{number}",))
        client.send(f"T{number}", b"x")
        store_offset(client, number, 1)
    group.advance(1)
    return client


def store_offset(client: Client, number: int, offset: int) -> None:
    fields = {"consumerGroup": f"G{number}", "topic": f"T{number}", "queueId": 0, "commitOffset": offset}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def saved(group: Group, node_id: str) -> tuple[int, Metadata]:
    snapshot = group.node(node_id).replica.store.snapshot.read()
    assert snapshot is not None
    return snapshot.applied_index, decode_state(snapshot.data).metadata


def test_commands_between_its_turns_are_not_in_a_snapshot() -> None:
    group = Group.elected(3)
    client = filled(group)
    replica = group.node(group.leader).replica
    expected, index = Metadata.restore(replica.metadata.snapshot()), replica.applied_index
    replica.applied.save()
    node = group.node(group.leader)
    assert node.turn(group.now_ns, group.wall_ms, lambda: None), "the next turn is wanted"
    assert node.expect_turn(NEVER) == group.now_ns, "at once"
    store_offset(client, 3, 7)
    client.create_topic("T9")
    assert replica.metadata.offsets["G3", "T3"] == {0: 7}
    group.advance(2)
    assert not replica.applied.writing.under_way
    assert saved(group, group.leader) == (index, expected)


def test_a_snapshot_is_begun_once_and_a_stop_writes_another_at_once() -> None:
    group = Group.elected(1)
    filled(group)
    replica = group.node("n0").replica
    for _ in range(3):
        replica.applied.save()
    assert len(replica.applied.writing.under_way) == 1
    replica.close(group.now_ns)
    index, state = saved(group, "n0")
    assert (index, state) == (replica.applied_index, replica.metadata)


def until_it_is_written(group: Group, replica: Replica) -> None:
    """Lets the group do one thing after the other, until the replica writes its state."""
    order = Random(1)
    for _ in range(10_000):
        if replica.applied.writing.under_way:
            return
        if not group._in_flight:
            group.now_ns = max(group.now_ns, group.next_due_ns())
        group.step_at_random(order)
    raise AssertionError("nobody wants a snapshot")


def test_what_a_peer_lacks_is_of_one_place_and_is_sent_though_much_happens_meanwhile() -> None:
    group = group_with()
    filled(group)
    away = group.follower
    group.kill(away)
    fill(group)
    pass_time(group, 1.1)
    assert all(first > 10 for first in beginnings(group))
    group.replace_disk(away)
    group.restart(away)
    replica = group.node(group.leader).replica
    until_it_is_written(group, replica)
    client = group.connect()
    for number in range(5):
        store_offset(client, number, 10 + number)
    group.converge()
    assert group.node(away).replica.metadata == replica.metadata
    assert group.node(away).replica.store.log.first_index > 10


def away_and_back() -> tuple[Group, str]:
    """A group that has begun to write its state for a follower without one."""
    group = group_with()
    filled(group)
    away = group.follower
    group.kill(away)
    fill(group)
    pass_time(group, 1.1)
    group.replace_disk(away)
    group.restart(away)
    return group, away


def until_it_is_read(group: Group, away: str) -> Replica:
    """Lets the group go on until the follower reads the leader's state; returns its replica."""
    order = Random(1)
    for _ in range(10_000):
        replica = group.node(away).replica
        if replica.applied.writing.under_way:
            return replica
        if not group._in_flight:
            group.now_ns = max(group.now_ns, group.next_due_ns())
        group.step_at_random(order)
    raise AssertionError("nobody sends a snapshot")


def test_a_peer_s_state_is_read_in_turns_between_which_heartbeats_are_answered() -> None:
    group, away = away_and_back()
    replica, order, turns = until_it_is_read(group, away), Random(2), 0
    before, leader, term = replica.metadata, group.leader, replica.term
    while replica.applied.writing.under_way:
        assert replica.metadata is before, "the state is replaced at once"
        assert replica.store.log.first_index == 0
        assert group.members[away].due_ns <= group.now_ns, "the next turn is wanted"
        group.now_ns += 20_000_000
        group.step_at_random(order)
        turns += 1
    assert turns > 50, "it takes longer than nodes wait for a heartbeat"
    group.converge()
    assert (group.leader, replica.term) == (leader, term)
    assert replica.metadata == group.node(leader).replica.metadata
    assert replica.store.log.first_index > 10


@pytest.mark.parametrize("what", ["it dies", "another leads"])
def test_a_snapshot_that_is_not_read_to_its_end_changes_nothing(what: str) -> None:
    group, away = away_and_back()
    replica = until_it_is_read(group, away)
    if what == "it dies":
        group.kill(away)
        group.restart(away)
        replica = group.node(away).replica
        assert (replica.store.log.first_index, replica.metadata) == (0, Metadata())
    else:
        group.transfer_leadership(next(node for node in group.members if node not in {group.leader, away}))
    group.converge()
    assert replica.metadata == group.node(group.leader).replica.metadata
    assert replica.store.log.first_index > 10


def test_a_snapshot_that_turns_out_to_be_none_ends_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    original = peer_protocol.encode_snapshot
    broken = [True]

    def encode_snapshot(frame: RaftFrame, state: Pieces) -> tuple[Buffer, ...]:
        buffers = original(frame, state)
        if not broken:
            return buffers
        broken.clear()
        return tuple(bytes(buffer).replace(b"T4", b"\xc1\xc1") for buffer in buffers)

    monkeypatch.setattr(peer_protocol, "encode_snapshot", encode_snapshot)
    group, away = away_and_back()
    replica = until_it_is_read(group, away)
    link = group.members[away].process.links.accepted[group.leader]
    group.converge()
    assert group.members[away].process.links.accepted[group.leader] is not link
    assert replica.metadata == group.node(group.leader).replica.metadata


def delete_one_file(replica: Replica) -> None:
    first_index = replica.store.log.first_index
    policy = RetentionPolicy(reserved_ms=0, files_per_pass=1)
    replica.store.delete_head(HeadLook(policy, now_ms=replica.time.group_ms, is_delete_hour=True))
    replica.head.deleted()
    assert replica.store.log.first_index > first_index


def fill_and_delete_one_file(group: Group) -> None:
    """Who is down now needs a snapshot: all others have written their state, and deleted their log's head."""
    fill(group)
    for member in group.alive():
        member.alive.replica.applied.save()
    group.advance(1)
    for member in group.alive():
        delete_one_file(member.alive.replica)


@pytest.mark.parametrize("what", ["link lost", "head deleted", "another leads"])
def test_a_snapshot_that_is_of_no_use_any_more_is_not_sent(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_with()
    filled(group)
    away = group.follower
    group.kill(away)
    fill_and_delete_one_file(group)
    group.replace_disk(away)
    group.restart(away)
    leader = group.leader
    replica = group.node(leader).replica
    until_it_is_written(group, replica)
    sent: list[tuple[str, int]] = []
    original = peer_protocol.encode_snapshot

    def encode_snapshot(frame: RaftFrame, state: Pieces) -> tuple[Buffer, ...]:
        assert isinstance(frame.message, SnapshotRequest)
        sent.append((frame.message.source, frame.message.first_index))
        return original(frame, state)

    monkeypatch.setattr(peer_protocol, "encode_snapshot", encode_snapshot)
    if what == "link lost":
        group.kill(away)
        group.advance(1)
        assert sent == []
        group.restart(away)
    elif what == "head deleted":
        delete_one_file(replica)
    else:
        group.transfer_leadership(next(node for node in group.members if node not in {leader, away}))
    group.converge()
    assert sent == [(group.leader, group.node(group.leader).replica.store.log.first_index)]
    assert group.node(away).replica.metadata == group.node(group.leader).replica.metadata


def test_a_snapshot_is_not_sent_again_while_the_link_has_not_taken_the_last_one() -> None:
    """A link of 10 MB/s got another one every few seconds: the node had them all in memory, and the peer nothing else
    for as long as they took."""
    group = group_with()
    filled(group)
    away = group.follower
    group.kill(away)
    fill_and_delete_one_file(group)
    group.replace_disk(away)
    sent: list[int] = []
    takes_it = False

    def lost(source: str, target: str, frame: Frame) -> bool:
        if not (isinstance(frame, RaftFrame) and isinstance(frame.message, SnapshotRequest)):
            return False
        sent.append(group.now_ns)
        return not takes_it

    group.lose = lost
    group.restart(away)
    group.run_until(lambda: bool(sent), "a snapshot")
    link = group.node(group.leader).replica.links[away]
    link.unsent_bytes = 64 * 1024 * 1024
    group.advance(30)
    assert len(sent) == 1
    link.unsent_bytes, takes_it = 0, True
    group.converge()
    assert len(sent) == 2
    assert group.node(away).replica.metadata == group.node(group.leader).replica.metadata


def test_a_backup_is_written_in_turns_and_ends_with_its_connection() -> None:
    group = Group.elected(3)
    client = filled(group)
    replica = group.node(group.leader).replica
    expected, index = replica.metadata.snapshot(), replica.applied_index
    first = group.connect(group.leader)
    began = first.start_call(RequestCode.TRIVET_BACKUP_BEGIN)
    refused = client.call(RequestCode.TRIVET_BACKUP_BEGIN)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    store_offset(client, 3, 7)
    described = msgspec.json.decode(bytes(first.wait(began).body), type=BackupDescription)
    data = b""
    while len(data) < described.snapshot_bytes:
        data += first.ok(RequestCode.TRIVET_BACKUP_SNAPSHOT, {"offset": len(data)}).body
    assert described.last_index == index
    assert decode_state(data).metadata.snapshot() == expected
    beyond = first.call(RequestCode.TRIVET_BACKUP_SNAPSHOT, {"offset": len(data)})
    assert beyond.code == ResponseCode.INVALID_PARAMETER
    first.start_call(RequestCode.TRIVET_BACKUP_BEGIN)
    first.close()
    group.advance(1)
    assert client.call(RequestCode.TRIVET_BACKUP_BEGIN).code == ResponseCode.SUCCESS


def test_a_backup_that_another_takes_the_place_of_is_not_written_to_its_end() -> None:
    group = Group.elected(1)
    client = filled(group)
    process = group.members[group.leader].process

    def turns_of(count: int) -> int:
        opaques = [client.start_call(RequestCode.TRIVET_BACKUP_BEGIN) for _ in range(count)]
        turns = 0
        while group.node(group.leader).long_requests.has_more:
            process.turn(group.now_ns, group.wall_ms)
            process.end_turn()
            turns += 1
        codes = [client.wait(opaque).code for opaque in opaques]
        assert codes == [ResponseCode.ILLEGAL_OPERATION] * (count - 1) + [ResponseCode.SUCCESS]
        return turns

    one = turns_of(1)
    assert one > 10
    assert turns_of(5) == 4 + one
