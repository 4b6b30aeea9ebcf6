"""The group's head: nobody is told of a lower first offset than anybody was before, whoever leads.

What depends on the order of things is in scenarios/head_*.txt; here is the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.remoting.codes import RequestCode, ResponseCode
from broker.replica.leadership import Leadership
from broker.replica.replica import Replica
from broker.state.commands import FORMAT_OF_COMMANDS, RaiseHead
from broker.state.release import THIS_RELEASE
from log import store as store_module
from log.entries.expired_files import RetentionPolicy
from log.errors import DiskFullError
from log.formats.layout import HEADER_BYTES
from log.formats.record import decode_record
from log.queues.consume_queue import ConsumeQueue
from raft import Role
from tests.broker.harness import SECOND, Client, Group
from tests.broker.retention.test_retention import INTERVAL_S, fill, group_with, pass_time

NEARLY_FULL = 0.88
RETENTION = {"interval_ms": INTERVAL_S * 1000, "reserved_hours": 1, "delete_hours": ()}
AGREED_FORMAT = FORMAT_OF_COMMANDS[RaiseHead]


def use_disk_of(group: Group, node: str, ratio: float) -> None:
    disk = group.members[node].disk
    disk.free_bytes = round(disk.total_bytes * (1 - ratio))


def first_offset(group: Group) -> int:
    return group.connect().offset_of(RequestCode.GET_MIN_OFFSET, "T")


def gone_messages_are_told_of(group: Group, client: Client, first: int) -> list[str]:
    """All ways to learn of a message before the first offset that a client of the leader has."""
    found = []
    store = group.node(group.leader).replica.store
    if client.offset_of(RequestCode.GET_MIN_OFFSET, "T") < first:
        found.append("the first offset")
    if client.pull("T", "g", 0).next_offset < first:
        found.append("a pull")
    by_time = {"topic": "T", "queueId": 0, "timestamp": 0}
    if int(client.ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, by_time).fields["offset"]) < first:
        found.append("a search by time")
    by_key = {"topic": "T", "key": "k0", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    if client.call(RequestCode.QUERY_MESSAGE, by_key).code == ResponseCode.SUCCESS:
        found.append("a search by key")
    entry = next(
        index
        for index in range(store.log.first_index, store.log.last_index)
        if decode_record(store.log.bytes_at(store.log.position_of(index) + HEADER_BYTES), 0).topic == "T"
    )
    physical_offset = store.log.position_of(entry) + HEADER_BYTES
    if client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": physical_offset}).code == ResponseCode.SUCCESS:
        found.append("a message by its id")
    earliest = client.ok(RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0})
    queue = store.queues.get("T", 0)
    assert queue is not None
    unit = queue.unit(first)
    assert unit is not None
    if int(earliest.fields["timestamp"]) != store.store_time_of(unit[0]):
        found.append("the earliest store time")
    return found


def test_what_is_before_the_head_is_as_deleted_while_it_is_still_there() -> None:
    group = group_with()
    client = fill(group)
    follower = group.follower
    use_disk_of(group, follower, NEARLY_FULL)
    group.advance(2 * INTERVAL_S)
    begin = group.node(follower).replica.store.log.first_index
    assert begin > 10
    assert gone_messages_are_told_of(group, client, 1), "the leader has all"
    keeper = group.leader
    group.transfer_leadership(follower)
    first = first_offset(group)
    assert first > 10
    use_disk_of(group, follower, 0.1)
    group.transfer_leadership(keeper)
    assert group.node(keeper).replica.store.log.first_index == 0, "it need not delete at once"
    assert gone_messages_are_told_of(group, group.connect(), first) == []


def test_a_follower_deletes_nothing_for_its_age_before_the_leader_says_so() -> None:
    group = group_with()
    fill(group)
    away = group.follower
    group.partition(away)
    pass_time(group, 1.1)
    alone = group.node(away).replica
    assert alone.store.log.first_index == 0
    assert group.node(group.leader).replica.store.log.first_index > 10
    group.heal()
    group.converge()
    group.advance(3 * INTERVAL_S)
    assert alone.store.log.first_index == group.node(group.leader).replica.store.log.first_index


def test_a_node_behind_a_snapshot_tells_of_nothing_before_the_head() -> None:
    """Its leader's log begins before the head, and is dispatched from there."""
    group = group_with()
    fill(group)
    away = group.follower
    group.kill(away)
    use_disk_of(group, group.follower, NEARLY_FULL)
    group.advance(2 * INTERVAL_S)
    keeper = group.leader
    group.transfer_leadership(group.follower)
    first = first_offset(group)
    group.transfer_leadership(keeper)
    assert group.node(keeper).replica.store.log.first_index == 0
    group.replace_disk(away)
    group.restart(away)
    group.converge()
    returned = group.node(away).replica
    assert returned.store.head_position == group.node(keeper).replica.metadata.head_position > 0
    queue = returned.store.queues.get("T", 0)
    assert queue is not None
    assert (returned.store.log.first_index, queue.min_offset) == (0, first)
    group.kill(away)
    group.start(away)
    group.converge()
    queue = group.node(away).replica.store.queues.get("T", 0)
    assert queue is not None
    assert queue.min_offset == first


def test_a_leader_that_cannot_say_where_its_log_begins_serves_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_with()
    fill(group)
    follower = group.follower
    use_disk_of(group, follower, NEARLY_FULL)
    group.advance(2 * INTERVAL_S)
    leadership = group.node(follower).replica.leadership
    original, refused = Leadership.append_internal, 0

    def append_internal(self: Leadership, tag: bytes, body: bytes) -> int:
        nonlocal refused
        if self is leadership and b"raise_head" in body and refused < 3:
            refused += 1
            raise DiskFullError("the log", "writing", "no space left on device")
        return original(self, tag, body)

    monkeypatch.setattr(Leadership, "append_internal", append_internal)
    group.transfer_leadership(follower)
    assert refused == 3
    assert not leadership.owes_head
    assert first_offset(group) > 10


def test_a_leader_that_can_never_say_where_its_log_begins_lets_another_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_with()
    fill(group)
    follower = group.follower
    use_disk_of(group, follower, NEARLY_FULL)
    group.advance(2 * INTERVAL_S)
    original = Leadership.append_internal
    leadership = group.node(follower).replica.leadership

    def append_internal(self: Leadership, tag: bytes, body: bytes) -> int:
        if self is leadership and b"raise_head" in body:
            raise DiskFullError("the log", "writing", "no space left on device")
        return original(self, tag, body)

    monkeypatch.setattr(Leadership, "append_internal", append_internal)
    leader = group.node(group.leader)
    leader.begin(group.now_ns, group.wall_ms)
    leader.replica.group_changes.transfer(follower)
    group.members[group.leader].due_ns = group.now_ns
    group.run_until(lambda: leadership.owes_head, "the transfer")
    group.run_until(lambda: not leadership.owes_head, "the next look")
    group.run_until(lambda: any(member.alive.replica.serving for member in group.alive()), "another leader")
    assert group.leader != follower
    assert first_offset(group) == 0


def test_a_leader_without_room_even_to_say_so_gives_up_its_leadership_and_makes_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else only an operator could help a group of one."""
    group = Group.elected(1, retention=RETENTION)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    fill(group)
    replica = group.node("n0").replica
    original = Leadership.append_internal

    def append_internal(self: Leadership, tag: bytes, body: bytes) -> int:
        if self.store.log.first_index == 0:
            raise DiskFullError("the log", "writing", "no space left on device")
        return original(self, tag, body)

    monkeypatch.setattr(Leadership, "append_internal", append_internal)
    use_disk_of(group, "n0", NEARLY_FULL)
    group.advance(INTERVAL_S)
    assert replica.raft.role is not Role.LEADER
    assert replica.store.log.first_index > 10
    group.elect()
    assert replica.metadata.head_position == replica.store.log.first_position
    assert first_offset(group) > 10


def test_a_leader_that_would_make_no_room_as_a_follower_goes_on_and_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk has room, and something else refuses the entry for a while."""
    group = group_with()
    fill(group)
    leader, original, refused = group.leader, Leadership.append_internal, 0

    def append_internal(self: Leadership, tag: bytes, body: bytes) -> int:
        nonlocal refused
        if b"raise_head" in body and refused < 2:
            refused += 1
            raise DiskFullError("the log", "writing", "quota exceeded")
        return original(self, tag, body)

    monkeypatch.setattr(Leadership, "append_internal", append_internal)
    term = group.node(leader).replica.term
    pass_time(group, 1.1)
    group.advance(2 * INTERVAL_S)
    assert (refused, group.leader, group.node(leader).replica.term) == (2, leader, term)
    assert first_offset(group) > 10


def test_a_leader_that_begins_to_serve_has_all_queues_begin_at_the_head(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have applied the entry just before, and an earlier leader may have told of all begins."""
    group = group_with()
    client = group.connect()
    client.create_topic("Wide", 8)
    for queue_id in range(8):
        client.send("Wide", b"gone", queue_id)
    heir = group.node(group.follower).replica
    group.slow_disks.add(heir.node_id)  # without a snapshot it deletes nothing
    fill(group)
    pass_time(group, 1.1)
    assert heir.store.head_position > heir.store.log.first_position
    wide = [queue for queue in heir.store.queues if queue.topic == "Wide"]
    original = Leadership.start_serving
    steps: list[int] = []

    def start_serving(self: Leadership) -> None:
        if self is heir.leadership and not steps:
            for queue in wide:
                queue.min_offset = 0
            self.store._begin_queues_at_head()
        original(self)
        steps.append(sum(queue.min_offset for queue in wide))
        assert self.serving == (steps[-1] == 8), "some of them in each turn, and then it serves"

    monkeypatch.setattr(store_module, "QUEUES_AT_ONCE", 3)
    monkeypatch.setattr(Leadership, "start_serving", start_serving)
    group.transfer_leadership(heir.node_id)
    assert len(steps) > 2
    assert steps == sorted(steps)
    assert heir.serving
    assert [(queue.min_offset, queue.max_offset) for queue in wide] == [(1, 1)] * 8


def test_queues_begin_at_the_head_in_turns_that_are_wanted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "QUEUES_AT_ONCE", 1)
    group = group_with()
    client = group.connect()
    client.create_topic("Wide", 4)
    for queue_id in range(4):
        client.send("Wide", b"gone", queue_id)
    fill(group)
    store = group.node(group.leader).replica.store
    calls: list[tuple[int, int]] = []
    original = ConsumeQueue.first_staying
    turns = 0

    def turn(self: Replica, *arguments: Any) -> bool:
        nonlocal turns
        turns += self.store is store
        return original_turn(self, *arguments)

    def first_staying(self: ConsumeQueue, *arguments: Any) -> int:
        if self in set(store.queues):
            calls.append((turns, group.now_ns))
        return original(self, *arguments)

    original_turn = Replica.turn
    monkeypatch.setattr(Replica, "turn", turn)
    monkeypatch.setattr(ConsumeQueue, "first_staying", first_staying)
    pass_time(group, 1.1)
    assert len(calls) == len(list(store.queues)) == 5
    assert len({turn for turn, _ in calls}) == 5
    assert len({now_ns for _, now_ns in calls}) == 1


def test_a_leader_deletes_at_each_look_as_many_files_as_it_may() -> None:
    """Else a disk that is nearly full fills under a load that such looks have room for."""
    group = group_with()
    fill(group, 310)
    log = group.node(group.leader).replica.store.log
    files = len(log.file_starts())
    use_disk_of(group, group.leader, NEARLY_FULL)
    group.advance(3 * INTERVAL_S)
    assert files - len(log.file_starts()) == 3 * RetentionPolicy().files_per_pass


def test_a_follower_with_very_many_queues_deletes_beyond_the_head_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "QUEUES_AT_ONCE", 1)
    group = group_with()
    client = group.connect()
    client.create_topic("Wide", 4)
    for queue_id in range(4):
        client.send("Wide", b"gone", queue_id)
    fill(group)
    follower = group.node(group.follower).replica
    store = follower.store
    asked: list[int] = []
    original = ConsumeQueue.first_staying
    original_turn = Replica.turn

    def turn(self: Replica, *arguments: Any) -> bool:
        if self is follower:
            asked.append(0)
        return original_turn(self, *arguments)

    def first_staying(self: ConsumeQueue, *arguments: Any) -> int:
        if self in set(store.queues):
            asked[-1] += 1
        return original(self, *arguments)

    monkeypatch.setattr(Replica, "turn", turn)
    monkeypatch.setattr(ConsumeQueue, "first_staying", first_staying)
    use_disk_of(group, follower.node_id, NEARLY_FULL)
    group.advance(INTERVAL_S)
    assert store.log.first_position > store.head_position
    assert (sum(asked), max(asked)) == (5, 1)
    assert all(queue.min_offset == 1 for queue in store.queues if queue.topic == "Wide")


def test_an_upgraded_group_says_at_once_where_its_leader_s_log_begins() -> None:
    """Before that each node deletes by itself, and has told where its own log begins."""
    group = Group(3, retention=RETENTION, start=False)
    group.members["n2"].release = replace(THIS_RELEASE, newest_format=AGREED_FORMAT - 1)
    for node in group.members:
        group.start(node)
    group.elect()
    group.connect().create_topic("T", 2)
    fill(group)
    use_disk_of(group, group.leader, NEARLY_FULL)
    group.advance(2 * INTERVAL_S)
    leader = group.node(group.leader).replica
    assert leader.node_id != "n2"
    assert leader.store.log.first_index > 10
    assert leader.metadata.head_position == 0
    told = first_offset(group)
    use_disk_of(group, group.leader, 0.1)
    group.kill("n2")
    group.members["n2"].release = THIS_RELEASE
    group.start("n2")
    group.run_until(lambda: leader.metadata.format == AGREED_FORMAT, "the format to be raised")
    raised_ns = group.now_ns
    group.run_until(lambda: leader.metadata.head_position > 0, "the head")
    assert group.now_ns - raised_ns < INTERVAL_S * SECOND // 10
    assert leader.metadata.head_position == leader.store.log.first_position
    group.transfer_leadership(group.follower)
    assert group.node(group.leader).replica.store.log.first_index == 0
    assert first_offset(group) == told
