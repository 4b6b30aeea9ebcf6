"""Resets of offsets: consumers follow when they pull, whoever dies in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import cbor2
import msgspec
import pytest

from broker.offsets.commits import OffsetCommits
from broker.offsets.resets import TOLD_MAX, OffsetResets
from broker.remoting.admin_bodies import QueueOffsets
from broker.remoting.bodies import MessageModel, MessageQueue
from broker.remoting.codes import RequestCode, ResponseCode, Version
from broker.remoting.command import request
from broker.state.commands import CommitOffsets, DeleteGroup, DeleteTopic, PutTopic, ResetOffsets
from broker.state.metadata import Metadata
from broker.state.topic_rules import topic_config
from tests.broker.harness import Client, Group, Pulled

MOVED = ResponseCode.PULL_OFFSET_MOVED
KEY = {"consumerGroup": "g", "topic": "T", "queueId": 0}


@pytest.fixture
def group() -> Group:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    for number in range(10):
        client.send("T", b"%d" % number)
    report(client, 8)
    client.close()
    group.advance(1)
    return group


@pytest.fixture(params=["leader", "follower"])
def client(group: Group, request: pytest.FixtureRequest) -> Client:
    return group.connect(getattr(group, request.param))


def reset(client: Client, offset: int, group: str = "g") -> dict[int, int]:
    fields = {"topic": "T", "group": group, "timestamp": 0, "isForce": False, "queueId": 0, "offset": offset}
    body = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).body
    client.group.converge()  # a follower that lags behind gives what it has
    return {queue.queue_id: to for queue, to in QueueOffsets.decode(body).offsets.items()}


def report(client: Client, offset: int) -> None:
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": offset})


def stored(client: Client) -> int:
    return client.offset_of(RequestCode.QUERY_CONSUMER_OFFSET, "T", consumerGroup="g")


def is_parked(group: Group) -> bool:
    group.settle()
    return bool(group.node(group.leader).replica.metadata.parked.offsets)


def assert_told(answer: Pulled, offset: int) -> None:
    assert (answer.code, answer.status, answer.next_offset) == (MOVED, "OFFSET_RESET", offset)
    assert (answer.min_offset, answer.max_offset, answer.records) == (0, 10, [])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"offset": 11}, "offset 11 is not in queue 0 of topic[T], which has 0 to 10"),
        ({"queueId": 1, "offset": 1}, "offset 1 is not in queue 1 of topic[T], which has 0 to 0"),
        ({"queueId": 2, "offset": 0}, "queueId[2] is illegal, topic[T] has queues 0 to 1"),
    ],
)
def test_nobody_is_sent_to_where_nothing_is(client: Client, changes: dict[str, int], why: str) -> None:
    fields = {
        "topic": "T",
        "group": "g",
        "timestamp": 0,
        "isForce": True,
        "queueId": 0,
        "offset": 0,
        **changes,
    }
    answer = client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, why)
    assert stored(client) == 8


def test_a_group_that_is_away_begins_where_it_was_sent(client: Client) -> None:
    assert reset(client, 3) == {0: 3}
    assert stored(client) == 3
    assert client.pull("T", "g", 3).bodies[0] == b"3", "it has asked where it stands: no 21"
    assert not is_parked(client.group)
    report(client, 5)
    assert stored(client) == 5


def test_a_consumer_is_told_by_its_pulls_until_it_has_followed(client: Client) -> None:
    reset(client, 3)
    for offset in (8, 9, 10, 2):
        assert_told(client.pull("T", "g", offset), 3)
    assert client.pull("T", "g", 3).bodies[0] == b"3"
    assert client.pull("T", "g", 8).bodies == [b"8", b"9"]


def test_what_is_reported_meanwhile_does_not_count(client: Client) -> None:
    """The consumer's timer, its pulls, and another member that has not heard of it."""
    reset(client, 3)
    report(client, 9)
    assert_told(client.pull("T", "g", 9, commit_offset=9), 3)
    report(client, 10)
    client.group.advance(1)
    assert stored(client) == 3
    assert client.pull("T", "g", 3, commit_offset=3).code == ResponseCode.SUCCESS
    client.group.advance(1)
    report(client, 4)
    assert stored(client) == 4


def test_a_report_that_does_not_count_is_answered_with_why(client: Client) -> None:
    assert client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 9}).remark is None
    reset(client, 3)
    answer = client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 9})
    assert answer.remark == "not stored: the consumer group was sent to 3 and has yet to follow"
    client.pull("T", "g", 9)
    client.pull("T", "g", 3)
    assert client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 9}).remark is None


def test_a_report_is_answered_by_what_stood_before_it_in_the_log(client: Client) -> None:
    """The group follows, and that is committed with the report: it had not counted all the same."""
    reset(client, 3)
    assert_told(client.pull("T", "g", 9), 3)
    reported = client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 9})
    followed = client.start_pull("T", "g", 3)
    assert (
        client.wait(reported).remark == "not stored: the consumer group was sent to 3 and has yet to follow"
    )
    assert Pulled.of(client.wait(followed)).bodies[0] == b"3"
    assert not is_parked(client.group)
    assert stored(client) == 3


@pytest.mark.parametrize("brought_by", ["report", "pull"])
def test_what_was_reported_before_it_has_followed_does_not_come_after_that(
    client: Client, brought_by: str
) -> None:
    """Reports are coalesced: one that came while the order stood may still be on its way when that ends."""
    reset(client, 3)
    assert_told(client.pull("T", "g", 10), 3)
    if brought_by == "report":
        client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 10})
    followed = client.pull("T", "g", 3, commit_offset=10 if brought_by == "pull" else None)
    assert followed.bodies[0] == b"3"
    client.group.advance(1)
    assert not is_parked(client.group)
    assert stored(client) == 3


def test_a_follower_that_has_not_heard_of_it_gives_what_it_has_and_moves_nothing(group: Group) -> None:
    follower = group.follower
    client = group.connect(follower)
    group.partition(follower)
    fields = {"topic": "T", "group": "g", "timestamp": 0, "isForce": False, "queueId": 0, "offset": 3}
    group.connect().ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    given = client.pull("T", "g", 6)
    assert (given.code, given.bodies) == (ResponseCode.SUCCESS, [b"6", b"7", b"8", b"9"])
    group.heal()
    group.elect()
    report(client, 10)
    assert stored(client) == 3
    group.converge()
    assert_told(client.pull("T", "g", 10), 3)


def test_who_stands_there_by_chance_hears_of_it_all_the_same(client: Client) -> None:
    """It drops what it has fetched and not consumed: as with a reset to the end."""
    reset(client, 10)
    assert_told(client.pull("T", "g", 10), 10)
    assert client.pull("T", "g", 10).code == ResponseCode.PULL_NOT_FOUND
    assert not is_parked(client.group)


def test_a_pull_that_waits_is_answered_at_once(client: Client) -> None:
    client.heartbeat("other")
    waits = client.start_pull("T", "g", 10, suspend_ms=30_000)
    others = client.start_pull("T", "other", 10, suspend_ms=30_000)
    client.group.advance(1)
    begin_ns = client.group.now_ns
    reset(client, 3)
    assert_told(Pulled.of(client.wait(waits)), 3)
    assert client.group.now_ns - begin_ns < 1_000_000_000
    assert others not in client.answers


def test_an_order_outlives_leaders_and_consumers(group: Group) -> None:
    client = group.connect(group.follower)
    reset(client, 3)
    consumer = group.connect(group.follower, name="dies")
    consumer.heartbeat("g")
    assert_told(consumer.pull("T", "g", 10), 3)
    consumer.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 10}, one_way=True)
    consumer.close()
    group.kill(group.leader)
    group.elect()
    other = group.connect(group.leader)
    assert_told(other.pull("T", "g", 10), 3)
    assert stored(other) == 3
    assert other.pull("T", "g", 3).bodies[0] == b"3"
    group.settle()
    group.kill(group.leader)
    group.restart(next(node for node, member in group.members.items() if member.node is None))
    group.elect()
    assert group.connect(group.leader).pull("T", "g", 9).bodies == [b"9"], "it was followed"


def test_a_later_order_takes_the_place_of_an_earlier_one(client: Client) -> None:
    reset(client, 3)
    assert_told(client.pull("T", "g", 10), 3)
    reset(client, 5)
    assert_told(client.pull("T", "g", 3), 5)
    fields = {"srcGroup": "source", "destGroup": "g", "topic": "T", "offline": True}
    source = {**KEY, "consumerGroup": "source", "commitOffset": 7}
    client.ok(RequestCode.UPDATE_CONSUMER_OFFSET, source)
    client.ok(RequestCode.CLONE_GROUP_OFFSET, fields)
    assert stored(client) == 7
    assert client.pull("T", "g", 9).code == ResponseCode.SUCCESS, (
        "a clone is an order, too, and parks nothing"
    )


def test_a_later_order_to_the_same_place_is_followed_too(group: Group) -> None:
    """It is in the log, and not committed, when the consumer follows the earlier one (seed 60157)."""
    client = group.connect()
    reset(client, 3)
    assert_told(client.pull("T", "g", 8), 3)
    group.lose = lambda source, target, frame: bool(getattr(getattr(frame, "message", None), "spans", ()))
    fields = {"topic": "T", "group": "g", "timestamp": 0, "isForce": False, "queueId": 0, "offset": 3}
    again = client.start_call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    group.advance(0.1)
    client.start_pull("T", "g", 3)
    group.advance(0.1)
    group.lose = lambda source, target, frame: False
    assert client.wait(again).code == ResponseCode.SUCCESS
    group.converge()
    assert is_parked(group)
    assert_told(client.pull("T", "g", 5), 3)
    client.pull("T", "g", 3)
    group.converge()
    assert not is_parked(group)


def test_who_goes_on_elsewhere_is_let_go(client: Client) -> None:
    """One that keeps its positions by itself may not care for those that the broker has."""
    reset(client, 3)
    for _ in range(TOLD_MAX):
        assert stored(client) == 3
    for _ in range(TOLD_MAX):
        assert_told(client.pull("T", "g", 8), 3)
    assert client.pull("T", "g", 8).bodies == [b"8", b"9"]
    assert not is_parked(client.group)


@pytest.mark.parametrize("seed", range(4))
def test_an_acknowledged_order_stands_until_it_is_followed_whatever_happens(seed: int) -> None:
    """Reports, pulls from elsewhere, leaders that are transferred or die; the model is one number."""
    chosen = random.Random(seed)
    group = Group.elected(3, seed=seed)
    client = group.connect()
    client.create_topic("T")
    client.heartbeat("g")
    for number in range(10):
        client.send("T", b"%d" % number)
    client.close()
    position, parked = 0, False
    for _ in range(80):
        node = chosen.choice([member.id for member in group.alive()])
        client = group.connect(node)
        offset = chosen.randrange(10)
        match chosen.choice(["reset", "report", "report", "pull", "pull", "pull", "ask", "transfer", "die"]):
            case "reset":
                reset(client, offset)
                position, parked = offset, True
            case "report":
                report(client, offset)
                position = position if parked else offset
            case "pull":
                offset = chosen.choice([offset, position])
                answer = group.connect(group.leader).pull("T", "g", offset)
                if parked and answer.code == MOVED:
                    assert_told(answer, position)
                else:
                    assert answer.bodies[0] == b"%d" % offset
                    assert not parked or offset == position, "it went on elsewhere"
                    parked = False
            case "ask":
                assert stored(client) == position
            case "transfer":
                if node != group.leader:
                    group.transfer_leadership(node)
            case "die":
                dies = group.leader
                group.kill(dies)
                group.elect()
                group.restart(dies)
        group.advance(0.5)
        group.converge()
        assert stored(group.connect(group.leader)) == position
        assert is_parked(group) == parked


def heartbeat_of(client: Client, version: Version, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tests.broker.client_end.request", partial(request, version=int(version)))
        client.heartbeat("g", **more)
    client.group.settle()
    client.notices.clear()


def orders(client: Client) -> list[dict[MessageQueue, int]]:
    return [
        dict(QueueOffsets.decode(notice.body).offsets)
        for notice in client.notices
        if notice.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    ]


def test_clients_of_4_get_a_request_of_their_own(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = group.connect(name="older"), group.connect(name="newer")
    heartbeat_of(older, Version.V4_9_8, monkeypatch)
    heartbeat_of(newer, Version.V5_0_0, monkeypatch)
    reset(newer, 3)
    assert orders(older) == [{MessageQueue("broker-a", 0, "T"): 3}]
    assert orders(newer) == [], "it follows the answer to its pull"
    assert_told(newer.pull("T", "g", 10), 3)


def test_broadcasting_members_are_told_and_nothing_is_stored(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = group.connect(name="me")
    heartbeat_of(client, Version.V5_0_0, monkeypatch, model=MessageModel.BROADCASTING)
    before = stored(client)
    reset(client, 3)
    assert orders(client) == [{MessageQueue("broker-a", 0, "T"): 3}]
    assert stored(client) == before
    assert client.pull("T", "g", 9).bodies == [b"9"]


def test_by_time_all_queues_that_may_be_read(client: Client) -> None:
    fields = {"topic": "T", "group": "g", "timestamp": -1, "isForce": True}
    body = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).body
    assert {queue.queue_id: to for queue, to in QueueOffsets.decode(body).offsets.items()} == {0: 10, 1: 0}
    assert stored(client) == 10
    for wrong, code in (
        ({"topic": "U"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, ResponseCode.CONSUMER_NOT_ONLINE),
    ):
        assert client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields | wrong).code == code


def test_without_force_nobody_goes_forward_from_a_report_that_is_on_its_way(client: Client) -> None:
    """It stands before the order in the log. Found by the simulator: the order was to the position before it."""
    client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 5}, one_way=True)
    fields = {"topic": "T", "group": "g", "timestamp": -1, "isForce": False, "queueId": 0}
    body = client.ok(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).body
    assert list(QueueOffsets.decode(body).offsets.values()) == [5]
    assert stored(client) == 5


def reset_to_end(client: Client) -> Callable[[], list[int]]:
    """Asks for a reset to the end without force; returns what waits for the offset that it leads to."""
    fields = {"topic": "T", "group": "g", "timestamp": -1, "isForce": False, "queueId": 0}
    asked = client.start_call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    return lambda: list(QueueOffsets.decode(client.wait(asked).body).offsets.values())


def test_without_force_a_report_that_does_not_count_sends_nobody_back(client: Client) -> None:
    """An order stands. Seed 9973093: the report was on its way, and the next order led to it."""
    reset(client, 5)
    client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 2}, one_way=True)
    assert reset_to_end(client)() == [5]
    assert stored(client) == 5


@contextmanager
def nothing_is_committed(group: Group) -> Iterator[None]:
    """Withholds the leader's entries from its followers; it goes on to lead."""
    group.lose = lambda source, target, frame: bool(getattr(getattr(frame, "message", None), "spans", ()))
    yield
    group.advance(0.1)
    group.lose = lambda source, target, frame: False


def test_nor_does_one_that_stands_behind_an_order_in_the_log(group: Group) -> None:
    client = group.connect()
    with nothing_is_committed(group):
        fields = {"topic": "T", "group": "g", "timestamp": 0, "isForce": False, "queueId": 0, "offset": 5}
        ordered = client.start_call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        group.advance(0.1)
        client.start_call(RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": 2}, one_way=True)
        leads_to = reset_to_end(client)
    assert client.wait(ordered).code == ResponseCode.SUCCESS
    assert leads_to() == [5]
    assert stored(client) == 5


@pytest.mark.parametrize(("before", "behind", "led_to"), [(None, 2, 2), (2, None, 5), (1, 4, 4)])
def test_without_force_reports_count_from_the_end_of_an_order_on(
    group: Group, before: int | None, behind: int | None, led_to: int
) -> None:
    """The end is in the log, and not committed."""
    client = group.connect()
    reset(client, 5)
    assert_told(client.pull("T", "g", 8), 5)

    def tell(offset: int | None) -> None:
        if offset is not None:
            client.start_call(
                RequestCode.UPDATE_CONSUMER_OFFSET, {**KEY, "commitOffset": offset}, one_way=True
            )

    with nothing_is_committed(group):
        tell(before)
        client.start_pull("T", "g", 5)
        group.advance(0.1)
        tell(behind)
        leads_to = reset_to_end(client)
    assert leads_to() == [led_to]
    assert stored(client) == led_to


def test_without_force_a_leader_does_not_go_by_what_it_had_under_way_before(group: Group) -> None:
    """Who waits is told in turns that this is lost, perhaps in a later term: then an order among it does not stand."""
    leader = group.leader
    client = group.connect(leader)
    commits = next(
        part
        for listener in group.node(leader).listeners.role_changes
        if isinstance(part := getattr(listener, "__self__", None), OffsetCommits)
    )
    with nothing_is_committed(group):
        fields = {"topic": "T", "group": "g", "timestamp": 0, "isForce": False, "queueId": 0, "offset": 5}
        client.start_call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        group.advance(0.1)
        under_way = list(commits._under_way)
        assert [one.keys for one in under_way] == [{("g", "T", 0): 5}]
        assert commits.lowest(("g", "T", 0), 8) == 5
        group.partition(leader)
        group.elect()
    group.heal()
    group.converge()
    assert not commits._under_way
    commits._under_way += under_way  # as if nobody had been told yet
    assert commits.lowest(("g", "T", 0), 8) == 8


def parked_state() -> Metadata:
    metadata = Metadata()
    for topic in ("T", "U"):
        metadata.apply(PutTopic(topic_config(topic, 1), 0))
    metadata.apply(ResetOffsets((("g", "T", 0, 5), ("g", "U", 0, 6), ("h", "T", 0, 7))))
    return metadata


@pytest.mark.parametrize(
    ("gone", "left"),
    [
        (lambda: DeleteTopic("T", 1), {("g", "U"): {0: 6}}),
        (lambda: DeleteGroup("g", clean_offsets=False, group_ms=1), {("h", "T"): {0: 7}}),
    ],
)
def test_with_topic_or_group_their_orders_go(
    gone: Callable[[], Any], left: dict[tuple[str, str], dict[int, int]]
) -> None:
    metadata = parked_state()
    metadata.apply(gone())
    assert metadata.parked.offsets == left
    metadata.apply(ResetOffsets((("g", "T", 0, 5),)))
    assert (("g", "T") in metadata.parked.offsets) == ("T" in metadata.topics)


def test_snapshots_hold_them_and_those_without_are_read() -> None:
    metadata = parked_state()
    assert Metadata.restore(metadata.snapshot()) == metadata
    fields = cbor2.loads(metadata.snapshot())
    tables = msgspec.msgpack.decode(fields["tables"])
    assert tables.pop("parked")
    older = cbor2.dumps({**fields, "tables": msgspec.msgpack.encode(tables)})
    restored = Metadata.restore(older)
    assert restored.parked.offsets == {}
    assert restored.offsets == metadata.offsets
    restored.apply(CommitOffsets((("g", "T", 0, 9),)))
    assert restored.offsets["g", "T"] == {0: 9}


def test_a_former_leader_does_not_count_whom_it_tells(group: Group, client: Client) -> None:
    """Dense seed 9300058: a read that was confirmed before the leadership ended is answered behind that."""
    reset(client, 3)
    resets = next(
        part
        for listener in group.node(group.follower).listeners.role_changes
        if isinstance(part := getattr(listener, "__self__", None), OffsetResets)
    )
    assert resets.target("g", "T", 0) == 3
    resets.told("g", "T", 0, by_pull=False)
    assert not resets._told
