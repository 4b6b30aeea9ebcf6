"""Retention: the time at which the head of the log goes, all that goes with it, and all that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import structlog

from broker.peers import protocol as peer_protocol
from broker.remoting.bodies import LockBatchBody, LockBatchResponseBody, MessageQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import decode_body, encode_body
from broker.replica.members_file import Configurations
from broker.shell.machine import local_hour
from broker.state.topic_rules import CHECK_EXHAUSTED_TOPIC, SCHEDULE_TOPIC
from log.entries.entry_log import EntryLog
from log.errors import DiskFullError
from log.formats.batch import BatchItem, encode_batch
from log.formats.record import SYS_FLAG_PREPARED
from raft.configuration import Configuration
from tests.broker.harness import SECOND, Client, Group
from tests.log.memory_disk import MemoryDisk
from tests.log.messages import queue_ends

HOUR_NS = 3600 * SECOND
INTERVAL_S = 1
EVERY_HOUR = tuple(range(24))
MESSAGE_BYTES = 100_000
"""Ten messages fill a data file of the harness."""


def group_with(broker: dict[str, Any] | None = None, **retention: Any) -> Group:
    settings = {
        "interval_ms": INTERVAL_S * 1000,
        "reserved_hours": 1,
        "delete_hours": EVERY_HOUR,
        **retention,
    }
    group = Group.elected(3, retention=settings, broker=broker)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.close()
    return group


def fill(group: Group, count: int = 50) -> Client:
    client = group.connect()
    for number in range(count):
        client.send("T", bytes(MESSAGE_BYTES), 0, {"KEYS": f"k{number}"})
    group.converge()
    group.advance(INTERVAL_S + 4)  # flushed, noted, and looked at once at least
    return client


def pass_time(group: Group, hours: float) -> None:
    """Time that nobody has to live through: of a group without load."""
    group.now_ns += round(hours * HOUR_NS)
    group.elect()
    group.advance(4 * INTERVAL_S)  # the head is raised at one look, the files go at another


def use_disk(group: Group, ratio: float) -> None:
    for member in group.members.values():
        member.disk.free_bytes = round(member.disk.total_bytes * (1 - ratio))
    group.advance(4 * INTERVAL_S)


def beginnings(group: Group) -> list[int]:
    """The first index of each living node's log."""
    found = [member.alive.replica.store.log.first_index for member in group.alive()]
    assert len(found) > 1
    return found


def test_what_is_expired_goes_on_every_node_and_what_is_not_stays() -> None:
    group = group_with()
    fill(group)
    assert beginnings(group) == [0, 0, 0]
    pass_time(group, 0.9)
    assert beginnings(group) == [0, 0, 0]
    pass_time(group, 0.2)
    assert all(first > 10 for first in beginnings(group))


def test_no_age_counts_by_the_clock_of_a_node_that_does_not_know_the_group_s_time() -> None:
    """A machine that starts with a clock years ahead deleted what it had kept, while it reached nobody."""
    group = group_with()
    fill(group)
    for node in ("n0", "n1", "n2"):
        group.kill(node)
    group.wall_offset_ms = 1000 * 24 * 3_600_000
    group.restart("n0")
    group.advance(2 * INTERVAL_S)
    alone = group.node("n0").replica
    assert not alone.clock.is_agreed
    assert alone.store.log.first_index == 0
    use_disk(group, 0.9)
    assert alone.store.log.first_index > 10, "a disk that is nearly full looks at no age"


def test_a_node_that_was_away_gets_a_snapshot_longer_than_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_protocol, "WHOLE_BODY_BYTES_MAX", 5_000)
    monkeypatch.setattr(peer_protocol, "PIECE_BYTES", 1_000)
    group = group_with()
    client = group.connect()
    client.create_topic("Long")
    for number in range(5):
        client.ok(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=b'{"groupName": "g%d", "attributes": {"+a": "%b"}}' % (number, b"v" * 4000),
        )
    away = group.follower
    group.kill(away)
    monkeypatch.setattr(peer_protocol, "WHOLE_BODY_BYTES_MAX", 2 * MESSAGE_BYTES)
    fill(group)
    pass_time(group, 1.1)
    assert all(first > 10 for first in beginnings(group))
    state = group.node(group.leader).replica.metadata.snapshot()
    assert len(state) > 20_000
    monkeypatch.setattr(peer_protocol, "WHOLE_BODY_BYTES_MAX", 5_000)
    monkeypatch.setattr(peer_protocol, "FRAME_BYTES_MAX", 10_000)
    group.replace_disk(away)
    group.restart(away)
    group.converge()
    assert group.node(away).replica.metadata.snapshot() == state
    assert group.node(away).replica.store.log.first_index > 10


@pytest.mark.parametrize("noted", [False, True])
def test_a_crash_behind_a_reset_does_not_bring_back_the_members_of_before(
    monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """The log begins behind the entry that changed the members: only the file of members tells of it."""

    class CrashError(Exception):
        pass

    group = group_with()
    away = group.follower
    group.kill(away)
    added = group.connect().call(
        RequestCode.TRIVET_CHANGE_GROUP, {"operation": "add", "node": "n3", "address": "127.0.0.1:1"}
    )
    assert added.code == ResponseCode.SUCCESS
    fill(group)
    pass_time(group, 1.1)
    group.start(away)
    membership, log = group.node(away).replica.membership, group.node(away).replica.store.log
    save = membership.save

    def save_unless_reset(configurations: Configurations, lost_voters: Sequence[str] = ()) -> None:
        if noted or not log.epoch:
            save(configurations, lost_voters)
        if log.epoch:
            raise CrashError

    monkeypatch.setattr(membership, "save", save_unless_reset)
    with pytest.raises(CrashError):
        group.converge()
    group.kill(away)
    group.partition(away)
    group.start(away)
    replica = group.node(away).replica
    assert replica.store.log.first_index > 10
    assert replica.raft.configuration == Configuration(("n0", "n1", "n2"), ("n3",))
    group.heal()
    group.converge()
    assert replica.raft.configuration == Configuration(("n0", "n1", "n2"), ("n3",))


def test_only_in_the_hours_that_are_named() -> None:
    group = group_with(delete_hours=())
    later = local_hour(group.wall_ms + 3 * 3_600_000)
    group = group_with(delete_hours=(later,))
    fill(group)
    pass_time(group, 2)
    assert beginnings(group) == [0, 0, 0]
    pass_time(group, 1)
    assert all(first > 10 for first in beginnings(group))


def test_a_disk_that_fills_lets_expired_files_go_at_any_hour_and_no_others() -> None:
    group = group_with(delete_hours=())
    fill(group)
    use_disk(group, 0.8)
    assert beginnings(group) == [0, 0, 0], "above disk_clean_percent, but nothing is expired"
    use_disk(group, 0.7)
    pass_time(group, 2)
    assert beginnings(group) == [0, 0, 0], "expired, but neither hour nor need"
    use_disk(group, 0.8)
    assert all(first > 10 for first in beginnings(group))


def test_an_administrator_has_what_is_expired_deleted_at_once_and_no_more() -> None:
    """Request 329: whatever the hour, on all nodes, whichever is asked."""
    group = group_with(delete_hours=())
    fill(group)
    asked = group.connect(group.follower)
    asked.ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
    group.advance(2 * INTERVAL_S)
    assert beginnings(group) == [0, 0, 0], "nothing is expired"
    pass_time(group, 2)
    assert beginnings(group) == [0, 0, 0]
    group.connect(group.follower).ok(RequestCode.DELETE_EXPIRED_COMMITLOG)
    group.advance(2 * INTERVAL_S)
    assert all(first > 10 for first in beginnings(group))


@pytest.mark.parametrize("force_clean", [True, False])
def test_a_disk_that_is_nearly_full_lets_the_oldest_go_whatever_their_age(force_clean: bool) -> None:
    group = group_with(force_clean=force_clean)
    fill(group)
    use_disk(group, 0.88)
    assert all((first > 10) is force_clean for first in beginnings(group))
    group.connect().send("T", b"taken still")


def test_a_disk_without_any_space_stops_nobody_who_reads() -> None:
    """Others may have filled it. What only makes a start short, or lets the log's head go, waits for space."""
    group = group_with()
    client = fill(group, 15)
    for member in group.members.values():
        member.disk.free_pages = 0
    position = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 7}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, position)
    with structlog.testing.capture_logs() as logs:
        use_disk(group, 1.0)
        group.advance(30)
    assert {line["event"] for line in logs} >= {
        "the disk is full: sends are refused",
        "disk full",
        "no space even to note what is deleted: free some",
    }
    assert len(logs) < 30, "it is not said in every turn"
    assert beginnings(group) == [0, 0, 0]
    assert len(group.connect().pull("T", "g", 14, 0).bodies) == 1
    for member in group.members.values():
        member.disk.free_pages = None
    group.advance(15)
    assert all(first > 5 for first in beginnings(group))


def test_each_watermark_is_told_once_when_it_is_passed() -> None:
    group = group_with()
    told = []
    for ratio in (0.5, 0.76, 0.8, 0.86, 0.91, 0.95, 0.88, 0.7, 0.92):
        with structlog.testing.capture_logs() as logs:
            use_disk(group, ratio)
        lines = [line for line in logs if "disk_used" in line]
        assert len(lines) in {0, len(group.members)}
        told.append((lines[0]["event"], lines[0]["log_level"]) if lines else None)
    assert told == [
        None,
        ("the disk fills: what is expired is deleted at any hour", "warning"),
        None,
        ("the disk is nearly full: the oldest messages are deleted whatever their age", "warning"),
        ("the disk is full: sends are refused", "warning"),
        None,
        ("the disk is nearly full: the oldest messages are deleted whatever their age", "warning"),
        ("the disk has room again", "info"),
        ("the disk is full: sends are refused", "warning"),
    ]


def test_without_force_a_nearly_full_disk_is_told_as_one_that_fills() -> None:
    group = group_with(force_clean=False)
    with structlog.testing.capture_logs() as logs:
        use_disk(group, 0.87)
    assert {line["event"] for line in logs if "disk_used" in line} == {
        "the disk fills: what is expired is deleted at any hour"
    }


@pytest.mark.parametrize("asked", ["leader", "follower"])
def test_sends_are_refused_while_the_disk_is_full_and_reads_are_not(asked: str) -> None:
    group = group_with(force_clean=False)
    fill(group, 3)
    client = group.connect(getattr(group, asked))
    use_disk(group, 0.93)
    answer = client.wait(client.start_send("T", b"x"))
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "more of the disk is used than the settings allow" in str(answer.remark)
    assert len(client.pull("T", "g", 0).records) > 0
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == 3
    use_disk(group, 0.89)
    assert client.send("T", b"y").queue_offset == 3


def test_a_batch_is_stored_whole_or_refused_however_little_room_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = set()
    body = encode_batch([BatchItem(0, bytes(4000), b"") for _ in range(40)])  # more than is prepared ahead
    for free_pages in range(0, 60, 6):
        group = Group.elected(1)
        client = group.connect()
        client.create_topic("T")
        (member,) = group.members.values()
        monkeypatch.setattr(EntryLog, "prepare_job", lambda self: None)  # it would fail first
        member.disk.free_pages = free_pages
        answer = client.wait(client.start_send("T", body, batch=True))
        member.disk.free_pages = None
        outcomes.add(answer.code)
        expected = 40 if answer.code == ResponseCode.SUCCESS else 0
        assert client.send("T", b"next").queue_offset == expected, answer.remark
    assert outcomes == {ResponseCode.SUCCESS, ResponseCode.SERVICE_NOT_AVAILABLE}


def test_consumers_keep_their_positions_and_locks_while_the_disk_is_full() -> None:
    """Only messages take room worth speaking of; whoever consumes would otherwise stop, or begin anew later."""
    group = group_with(force_clean=False)
    fill(group, 3)
    use_disk(group, 0.93)
    client = group.connect()
    position = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 2}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, position)
    assert client.ok(RequestCode.QUERY_CONSUMER_OFFSET, position).fields["offset"] == "2"
    wanted = [MessageQueue("broker-a", 0, "T")]
    asked = encode_body(LockBatchBody(client_id="c", consumer_group="g", queues=wanted))
    granted = client.ok(RequestCode.LOCK_BATCH_MQ, None, asked)
    assert decode_body(granted.body, LockBatchResponseBody).queues == wanted
    assert client.heartbeat("another").code == ResponseCode.SUCCESS
    assert "another" in group.node(group.leader).replica.metadata.groups
    assert client.wait(client.start_send("T", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_queues_and_index_follow_the_log() -> None:
    group = group_with()
    client = fill(group)
    old = client.ok(
        RequestCode.QUERY_MESSAGE,
        {"topic": "T", "key": "k0", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60},
    )
    assert old.body
    client.create_topic("Quiet")
    client.send("Quiet", b"only one")
    fill(group)
    pass_time(group, 2)
    client = group.connect()
    replica = group.node(group.leader).replica
    begin = replica.store.log.first_position
    for topic in ("T", "Quiet"):
        least = client.offset_of(RequestCode.GET_MIN_OFFSET, topic)
        queue = replica.store.queues.get(topic, 0)
        assert queue is not None
        unit = queue.unit(least)
        assert unit is None or unit[0] > begin
        assert client.offset_of(RequestCode.GET_MAX_OFFSET, topic) == queue.max_offset > 0
    least = client.offset_of(RequestCode.GET_MIN_OFFSET, "T")
    below = client.pull("T", "g", 0)
    assert (below.code, below.status, below.next_offset) == (
        ResponseCode.PULL_OFFSET_MOVED,
        "OFFSET_TOO_SMALL",
        least,
    )
    assert client.pull("T", "g", least).records[0].queue_offset == least
    gone = client.call(
        RequestCode.QUERY_MESSAGE,
        {
            "topic": "T",
            "key": "k0",
            "maxNum": 1,
            "beginTimestamp": 0,
            "endTimestamp": group.wall_ms - HOUR_NS,
        },
    )
    assert gone.code == ResponseCode.QUERY_NOT_FOUND
    assert client.call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 48}).code == ResponseCode.SYSTEM_ERROR


def test_a_follower_that_was_away_longer_than_the_log_reaches_comes_back() -> None:
    group = group_with()
    client = fill(group, 5)
    client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 4},
    )
    away = group.follower
    last = group.node(away).replica.store.log.last_index
    group.kill(away)
    group.elect()
    fill(group)
    pass_time(group, 2)
    leader = group.node(group.leader).replica
    assert leader.store.log.first_index > last + 1, "the leader has nothing that would follow"
    group.restart(away)
    group.converge()
    returned = group.node(away).replica
    assert returned.store.log.first_index == leader.store.log.first_index
    assert returned.metadata == leader.metadata
    assert queue_ends(returned.store) == queue_ends(leader.store)
    group.kill(group.leader)
    group.elect()
    client = group.connect()
    end = client.offset_of(RequestCode.GET_MAX_OFFSET, "T")
    assert client.send("T", b"next").queue_offset == end == 55


# ---------------------------------------------------------------------- what waits


@pytest.mark.parametrize(
    ("properties", "hours"),
    [({"DELAY": "1"}, 3.0), ({"TIMER_DELAY_SEC": "10800"}, 3.0)],
    ids=["level", "timer"],
)
def test_age_does_not_take_what_waits_for_its_time(properties: dict[str, str], hours: float) -> None:
    group = group_with({"delay_levels": "3h"})
    group.connect().send("T", b"waits", 1, properties)
    fill(group)
    pass_time(group, 2)
    assert beginnings(group) == [0, 0, 0]
    pass_time(group, hours - 2 + 0.01)
    assert group.connect().pull("T", "g", 0, 1).bodies == [b"waits"]
    group.advance(62)  # what was delivered is written down when nothing else was for a minute
    assert all(first > 0 for first in beginnings(group))


@pytest.mark.parametrize("position", [1 << 40, 20_048, 3])
def test_a_damaged_unit_lets_no_message_go_that_waits(position: int) -> None:
    """It leads behind the log, into another message, or to the log's beginning."""
    group = group_with({"delay_levels": "3h"})
    client = group.connect()
    client.send("T", b"waits", 1, {"DELAY": "1"})
    fill(group)
    for member in group.alive():
        queue = member.alive.replica.store.queues.get(SCHEDULE_TOPIC, 0)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        queue.correct(0, (position, *unit[1:]))
    pass_time(group, 2)
    assert beginnings(group) == [0, 0, 0]
    pass_time(group, 1.01)
    assert group.connect().pull("T", "g", 0, 1).bodies == [b"waits"]


def test_a_transaction_is_given_up_before_age_takes_it() -> None:
    group = group_with({"transaction_check_interval_ms": 3 * 3_600_000})
    client = group.connect()
    client.send("T", b"undecided", 1, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=SYS_FLAG_PREPARED)
    fill(group)
    pass_time(group, 2)
    assert beginnings(group) == [0, 0, 0], "nobody has looked at the transaction since"
    pass_time(group, 1)
    assert group.connect().pull(CHECK_EXHAUSTED_TOPIC, "g", 0).bodies == [b"undecided"]
    group.advance(2 * INTERVAL_S)
    assert all(first > 0 for first in beginnings(group))


def test_a_disk_that_is_nearly_full_takes_what_waits_and_the_rest_goes_on() -> None:
    group = group_with({"delay_levels": "1m", "transaction_check_interval_ms": 10_000})
    client = group.connect()
    client.send("T", b"level", 1, {"DELAY": "1"})
    client.send("T", b"timer", 1, {"TIMER_DELAY_SEC": "60"})
    client.send("T", b"half", 1, {"TRAN_MSG": "true", "PGROUP": "P"}, sysFlag=SYS_FLAG_PREPARED)
    fill(group)
    use_disk(group, 0.88)
    assert all(first > 20 for first in beginnings(group))
    use_disk(group, 0.1)
    client = group.connect()
    client.send("T", b"level again", 1, {"DELAY": "1"})
    client.send("T", b"timer again", 1, {"TIMER_DELAY_SEC": "60"})
    group.advance(90)
    assert sorted(client.pull("T", "g", 0, 1).bodies) == [b"level again", b"timer again"]
    transactions = group.node(group.leader).replica.metadata.transactions
    assert transactions.first_open(1) == 1, "ended: there is nothing to commit"


def test_a_head_whose_files_cannot_be_removed_is_gone_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may refuse even the removal's note in the directory; the beginning has been noted by then."""
    group = group_with()
    client = fill(group)
    away = group.follower
    group.kill(away)
    failing = True
    sync_directory = MemoryDisk.sync_directory

    def sync(disk: MemoryDisk, directory: str) -> None:
        if failing and directory.endswith("/data"):
            raise DiskFullError(directory, "flush", "no space left on device")
        sync_directory(disk, directory)

    monkeypatch.setattr(MemoryDisk, "sync_directory", sync)
    pass_time(group, 2)
    for member in group.alive():
        replica = member.alive.replica
        log = replica.store.log
        assert log.first_index > 5
        assert replica.raft._state.log.first_index == log.first_index, (
            "a peer would be offered entries that are gone"
        )
        assert log.file_starts()[0] == log.first_position
    client.send("T", b"behind")
    failing = False
    group.restart(away)
    group.converge()
    fill(group, 30)
    pass_time(group, 2)
    for member in group.alive():
        names = sorted(path for path in member.disk.files if "/data/" in path)
        first = member.alive.replica.store.log.file_starts()[0]
        assert names[0].endswith(f"/{first:020}"), "what stood in the way goes later"
