"""Delayed messages: due when they should be, delivered once, whatever happens to leaders."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from broker.delayed import delays, deliveries
from broker.delayed.delays import delivered_properties
from broker.node.node import Node
from broker.node.ports import State
from broker.peers.protocol import Frame, RaftFrame
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.json_body import parse_loose_json
from broker.replica.inner_limits import InnerLimits
from broker.replica.proposals import NewMessage
from broker.state.topic_rules import SCHEDULE_TOPIC
from broker.statistics.events import EventKind
from log.errors import DamagedLogError, DiskFullError
from log.formats.batch import BatchItem, encode_batch
from log.queues.consume_queue import ConsumeQueue
from raft.messages import AppendRequest
from tests.broker.harness import SECOND, Client, Group

LEVEL_1_S, LEVEL_2_S = 1, 5


@pytest.fixture
def group() -> Group:
    return prepared()


def prepared(size: int = 3, **settings: Any) -> Group:
    group = Group.elected(size, **settings)
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    client.close()
    return group


def bodies(client: Client, queue_id: int = 0, topic: str = "T") -> list[bytes]:
    found: list[bytes] = []
    while True:
        pulled = client.pull(topic, "g", len(found), queue_id)
        if pulled.code != ResponseCode.SUCCESS:
            return found
        found += pulled.bodies


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}], ids=["level", "timer"])
def test_more_falls_due_at_once_than_may_wait_for_a_majority(properties: dict[str, str]) -> None:
    group = Group.elected(3, limits={"max_pending_proposals": 4})
    client = group.connect()
    client.create_topic("T", 2)
    client.heartbeat("g")
    expected = [b"%d" % number for number in range(10)]
    for body in expected:
        client.send("T", body, 0, properties)
    group.advance(0.5)
    assert bodies(client) == []
    group.skip(5_000)
    group.advance(3)
    assert sorted(bodies(client)) == expected


@pytest.mark.parametrize("place", ["leader", "follower"])
def test_message_comes_when_it_is_due_and_not_before(group: Group, place: str) -> None:
    client = group.connect(getattr(group, place))
    pull = client.start_pull("T", "g", 0, 1, suspend_ms=30_000)
    sent_ns = group.now_ns
    receipt = client.send("T", b"late", 1, {"DELAY": "2", "TAGS": "a", "KEYS": "k"})
    assert receipt.queue_id == 1
    group.advance(LEVEL_2_S - 0.5)
    assert pull not in client.answers
    client.wait(pull)
    assert LEVEL_2_S * SECOND <= group.now_ns - sent_ns < LEVEL_2_S * SECOND + 10_000_000
    (record,) = client.pull("T", "g", 0, 1).records
    properties = record.properties_by_name()
    assert (record.topic, record.queue_id, record.body) == ("T", 1, b"late")
    assert properties["TAGS"] == "a"
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & set(properties)


def test_tags_filter_delivered_messages(group: Group, client: Client) -> None:
    client.send("T", b"a", 0, {"DELAY": "1", "TAGS": "a"})
    client.send("T", b"b", 0, {"DELAY": "1", "TAGS": "b"})
    group.advance(LEVEL_1_S + 1)
    assert client.pull("T", "g", 0, expression="b").bodies == [b"b"]


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("18", 18), ("99", 18), ("2147483648", 18)])
def test_levels_are_queues_of_the_schedule_topic(group: Group, asked: str, level: int) -> None:
    group.connect().send("T", b"x", 0, {"DELAY": asked})
    queue = group.node(group.leader).replica.store.queues.get(SCHEDULE_TOPIC, level - 1)
    assert queue is not None
    assert queue.max_offset == 1


@pytest.mark.parametrize("asked", ["0", "-1", ""])
def test_no_level_is_no_delay(asked: str, client: Client) -> None:
    client.send("T", b"now", 0, {"DELAY": asked})
    assert bodies(client) == [b"now"]


def test_order_within_a_level_is_kept_and_levels_overtake(group: Group, client: Client) -> None:
    for number in range(600):
        client.start_send("T", b"slow %d" % number, 0, {"DELAY": "2"})
    client.send("T", b"fast", 0, {"DELAY": "1"})
    group.advance(LEVEL_2_S + 1)
    assert bodies(client) == [b"fast", *(b"slow %d" % number for number in range(600))]
    offsets = parse_loose_json(client.ok(RequestCode.GET_ALL_DELAY_OFFSET).body)["offsetTable"]
    assert (offsets["1"], offsets["2"], offsets["3"]) == (1, 600, 0)


def test_message_whose_topic_is_gone_is_dropped_and_the_next_is_not(group: Group, client: Client) -> None:
    client.create_topic("U")
    client.send("U", b"lost", 0, {"DELAY": "1"})
    client.send("T", b"kept", 0, {"DELAY": "1"})
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"})
    group.advance(LEVEL_1_S + 1)
    assert bodies(client) == [b"kept"]


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
def test_much_that_is_due_at_once_takes_many_turns(
    is_gone: bool, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is delivered or dropped: others have their turn in between, and no turn takes the memory of all."""
    group = prepared(1)
    client = group.connect()
    body = bytes(200_000)
    for _ in range(12):
        client.send("T", body, 0, properties)
    if is_gone:
        client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    turn, looked_at = Node.turn, deliveries.delivery_of
    in_turn: list[int] = []

    def counted_turn(node: Node, *args: Any) -> None:
        in_turn.append(0)
        turn(node, *args)

    def counted(*args: Any) -> Any:
        in_turn[-1] += 1
        return looked_at(*args)

    monkeypatch.setattr(Node, "turn", counted_turn)
    for module in ("delays", "timers"):
        monkeypatch.setattr(f"broker.delayed.{module}.delivery_of", counted)
    group.advance(2)
    assert (sum(in_turn), max(in_turn)) == (12, 5)
    assert is_gone or len(bodies(client)) == 12


def test_new_leader_delivers_what_the_old_one_held(group: Group) -> None:
    client = group.connect(group.follower)
    client.send("T", b"0", 0, {"DELAY": "2"})
    client.send("T", b"1", 0, {"DELAY": "1"})
    group.kill(group.leader)
    group.advance(LEVEL_2_S + 5)
    reader = group.connect()
    assert bodies(reader) == [b"1", b"0"]
    group.kill(group.follower)
    for node in [m.id for m in group.members.values() if m.node is None]:
        group.restart(node)
    group.elect()
    group.advance(30)
    assert bodies(group.connect()) == [b"1", b"0"], "nothing is delivered again"


def test_restart_of_all_neither_loses_nor_repeats(group: Group, client: Client) -> None:
    client.send("T", b"early", 0, {"DELAY": "1"})
    client.send("T", b"late", 0, {"DELAY": "3"})
    group.advance(LEVEL_1_S + 1)
    for node in list(group.members):
        group.kill(node)
    group.advance(60)
    for node in list(group.members):
        group.restart(node)
    group.elect()
    group.advance(1)
    assert bodies(group.connect()) == [b"early", b"late"]


@pytest.mark.parametrize("is_same_leader", [True, False])
def test_a_clock_that_was_ahead_holds_nobody_up(group: Group, is_same_leader: bool, client: Client) -> None:
    """The simulator's seed 11: what a leader with another clock had stored kept its whole level waiting for an hour."""
    group.wall_offset_ms = 3_600_000
    client.send("T", b"ahead", 0, {"DELAY": "2"})
    group.wall_offset_ms = 0
    group.advance(1)
    if not is_same_leader:
        group.kill(group.leader)
        group.elect()
        client = group.connect()
    client.send("T", b"right", 0, {"DELAY": "2"})
    group.advance(LEVEL_2_S - 1.5)
    assert bodies(client) == [], "neither comes early"
    group.advance(LEVEL_2_S + 1)
    assert bodies(client) == [b"ahead", b"right"]


def test_a_clock_that_is_set_back_while_a_message_waits(group: Group, client: Client) -> None:
    client.send("T", b"x", 0, {"DELAY": "3"})
    group.advance(5)
    group.wall_offset_ms = -86_400_000
    client.send("T", b"y", 0, {"DELAY": "3"})
    group.advance(4.9)
    assert bodies(client) == []
    group.advance(10.1)
    assert bodies(client) == [b"x", b"y"], "each at most its delay after the clock was set"


@pytest.mark.parametrize("reached", range(8))
def test_batch_of_deliveries_that_reached_the_log_in_part_is_completed(
    reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement and `reached` of its 7 deliveries are with a majority when the leader dies."""
    monkeypatch.setattr(Group, "limits", InnerLimits(append_bytes_max=1))  # an entry an append
    group = prepared()
    client = group.connect()
    sent = [b"%d" % number for number in range(7)]
    for body in sent:
        client.start_send("T", body, 0, {"DELAY": "1"})
    group.converge()
    leader_dies_in_a_batch(group, reached, lambda: group.advance(LEVEL_1_S + 0.1), sent)


def leader_dies_in_a_batch(
    group: Group, reached: int, let_fall_due: Callable[[], object], sent: list[bytes]
) -> None:
    """Of the batch that falls due the announcement and `reached` deliveries are with a majority; each comes once."""
    old = group.leader
    last_to_pass = group.node(old).replica.store.log.last_index + 1 + reached

    def beyond(source: str, target: str, frame: Frame) -> bool:
        message = frame.message if isinstance(frame, RaftFrame) else None
        return isinstance(message, AppendRequest) and message.last_index > last_to_pass

    group.lose = beyond
    let_fall_due()
    assert group.node(old).replica.store.log.last_index == last_to_pass - reached + len(sent)
    group.kill(old)
    group.lose = lambda source, target, frame: False
    group.elect()
    group.advance(2)
    assert bodies(group.connect()) == sent
    group.restart(old)
    group.elect()
    group.advance(5)
    group.converge()
    assert bodies(group.connect()) == sent


def settle_a_full_disk(
    group: Group, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], due_s: float
) -> None:
    """Of five messages that are due together the third meets a full disk; each comes once, when there is room."""
    client = group.connect()
    for number in range(5):
        client.start_send("T", b"%d" % number, 0, properties)
    replica = group.node(group.leader).replica
    append = replica.leadership.append_message
    calls = 0

    def full(*arguments: Any, **options: Any) -> tuple[int, int]:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise DiskFullError("data", "allocation", "no space left")
        return append(*arguments, **options)

    monkeypatch.setattr(replica.leadership, "append_message", full)
    group.advance(due_s + 0.05)
    assert calls == 3, "no new attempt while the disk is full"
    events = group.node(group.leader).events
    assert events.counts[EventKind.DELIVERIES_WAIT, "append refused"] == 1
    client.send("T", b"between", 0)
    group.advance(1)
    assert bodies(client) == [b"0", b"1", b"between", b"2", b"3", b"4"]


def test_full_disk_in_the_middle_of_a_batch_is_settled(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_a_full_disk(group, monkeypatch, {"DELAY": "1"}, LEVEL_1_S)


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TRAN_MSG": "true", "DELAY": "1"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_what_the_broker_cannot_do_is_refused(
    properties: dict[str, str], code: ResponseCode, client: Client
) -> None:
    assert client.wait(client.start_send("T", b"x", 0, properties)).code == code
    assert bodies(client) == []


def test_batch_cannot_be_delayed(client: Client) -> None:
    body = encode_batch([BatchItem(0, b"x", b"DELAY\x011\x02")])
    assert client.wait(client.start_send("T", body, batch=True)).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
def test_a_message_whose_queue_is_gone_for_a_while_is_not_lost(properties: dict[str, str]) -> None:
    group = prepared()
    client = group.connect()
    client.send("T", b"kept", 1, properties)
    client.create_topic("T", 1)
    group.advance(3)
    client.create_topic("T", 2)
    assert client.pull("T", "g", 0, 1).bodies == [b"kept"]


def with_the_second_one_damaged(monkeypatch: pytest.MonkeyPatch, service: ModuleType) -> Callable[[], None]:
    """Has the second message that waits be damaged for a service; calling what is returned repairs it."""
    original = deliveries.delivery_of

    def delivery_of(state: State, queue: ConsumeQueue, offset: int, *rest: Any) -> NewMessage | None:
        if offset == 1:
            raise DamagedLogError("a file", 0, "damaged")
        return original(state, queue, offset, *rest)

    monkeypatch.setattr(service, "delivery_of", delivery_of)
    return lambda: monkeypatch.setattr(service, "delivery_of", original)


def test_a_damaged_message_keeps_none_waiting_that_is_due_before_it(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its level that were due with it waited for its repair."""
    for number in range(3):
        client.send("T", b"%d" % number, 0, {"DELAY": "1"})
    repair = with_the_second_one_damaged(monkeypatch, delays)
    group.advance(1.2)
    assert bodies(client) == [b"0"]
    assert group.node(group.leader).events.counts[EventKind.DELIVERIES_WAIT, "level 1"]
    repair()
    group.advance(2)
    assert bodies(client) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("position", [1 << 40, 77, 0])
def test_a_leader_that_takes_over_waits_until_a_damaged_unit_is_put_right(
    position: int, group: Group, client: Client
) -> None:
    """It leads nowhere: what the last leader delivered is counted when it leads to its message again."""
    client.send("T", b"x", 0, {"DELAY": "1"})
    group.advance(3)
    group.converge()
    replica = group.node(group.follower).replica
    progress = replica.metadata.delays[1]
    queue = replica.store.queues.get(SCHEDULE_TOPIC, 0)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    offsets = range(progress.offset, progress.offset + progress.count)

    def delivered() -> int:
        return deliveries.count_delivered(replica, queue, offsets, progress.index, delivered_properties)

    assert delivered() == 1
    queue.correct(0, (position, *unit[1:]))
    with pytest.raises(DamagedLogError, match="the unit does not lead to its message"):
        delivered()
    group.run_until(lambda: replica.repairs.repaired == 1, "the unit is put right")
    assert delivered() == 1
