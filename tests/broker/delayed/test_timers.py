"""Messages for a time of their own: on time, once, whatever happens to leaders and clocks."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import log.queues.timer_index as timer_index
from broker.delayed import timers
from broker.delayed.timers import due_ms_of
from broker.remoting.codes import RequestCode, ResponseCode
from broker.replica.inner_limits import InnerLimits
from broker.replica.replica import Replica
from broker.requests.errors import RequestError
from broker.retention.waited_for import first_waiting_position
from broker.state.commands import FORMAT_OF_COMMANDS, RaiseHead
from broker.state.topic_rules import TIMER_TOPIC
from log.entries.expired_files import HeadLook, RetentionPolicy
from log.formats.batch import BatchItem, encode_batch
from log.formats.record import Record
from tests.broker.delayed.test_delays import (
    bodies,
    leader_dies_in_a_batch,
    prepared,
    settle_a_full_disk,
    with_the_second_one_damaged,
)
from tests.broker.harness import SMALL_STORE, Client, Group
from tests.examples import examples

DAY_MS = 86_400_000


@pytest.fixture
def group() -> Group:
    return prepared()


def deleted(replica: Replica, policy: RetentionPolicy) -> int:
    """Deletes what may go with a snapshot of the state as it is now; returns how many files went."""
    replica.applied.save()
    replica.upkeep.write_waiting_snapshot(replica.time.now_ns)
    removed = replica.store.delete_head(
        HeadLook(
            policy,
            now_ms=replica.time.group_ms,
            is_delete_hour=True,
            find_waiting=partial(first_waiting_position, replica.store, replica.metadata),
        )
    )
    replica.head.deleted()
    return removed


def at(group: Group, delay_ms: int) -> dict[str, str]:
    return {"TIMER_DELIVER_MS": str(group.wall_ms + delay_ms)}


@pytest.mark.parametrize("place", ["leader", "follower"])
@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [({"TIMER_DELAY_MS": "1234"}, 1234), ({"TIMER_DELAY_SEC": "3"}, 3000), (None, 2345)],
)
def test_a_message_comes_in_its_millisecond(
    group: Group, place: str, properties: dict[str, str] | None, delay_ms: int
) -> None:
    client = group.connect(getattr(group, place))
    pull = client.start_pull("T", "g", 0, 1, suspend_ms=30_000)
    sent_ns = group.now_ns
    client.send("T", b"timed", 1, {"TAGS": "a", "KEYS": "k", **(properties or at(group, delay_ms))})
    group.advance((delay_ms - 2) / 1000)
    assert pull not in client.answers
    client.wait(pull)
    assert delay_ms * 1_000_000 <= group.now_ns - sent_ns < (delay_ms + 5) * 1_000_000
    (record,) = client.pull("T", "g", 0, 1).records
    found = record.properties_by_name()
    assert (record.topic, record.queue_id, record.body, found["TAGS"]) == ("T", 1, b"timed", "a")
    assert record.store_timestamp >= int(found["TIMER_OUT_MS"])
    assert not {"REAL_TOPIC", "REAL_QID"} & set(found)


@pytest.mark.parametrize(
    "properties", [{"TIMER_DELAY_SEC": "0"}, {"TIMER_DELIVER_MS": "1"}, {"TIMER_DELAY_MS": "-5"}]
)
def test_what_is_due_already_is_stored_at_once(properties: dict[str, str], client: Client) -> None:
    client.send("T", b"now", 0, properties)
    assert bodies(client) == [b"now"]


def test_order_is_that_of_the_times_and_then_of_sending(group: Group, client: Client) -> None:
    for number, delay_ms in enumerate((700, 300, 700, 300, 500)):
        client.send("T", b"%d" % number, 0, at(group, delay_ms))
    for number in range(600):
        client.start_send("T", b"many %d" % number, 0, at(group, 2000))
    group.advance(4)
    assert bodies(client) == [b"1", b"3", b"4", b"0", b"2", *(b"many %d" % n for n in range(600))]


def test_a_delay_level_outdoes_a_time(group: Group, client: Client) -> None:
    client.send("T", b"level", 0, {"DELAY": "1", "TIMER_DELAY_MS": "60000"})
    group.advance(1.5)
    (record,) = client.pull("T", "g", 0).records
    assert "TIMER_DELAY_MS" not in record.properties_by_name()


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"TIMER_DELIVER_MS": "soon"}, "no number"),
        ({"TIMER_DELAY_SEC": "1.5"}, "no number"),
        ({"TIMER_DELAY_MS": "9" * 30}, "no number"),
        ({"TIMER_DELAY_SEC": str(3 * 86_400 + 1)}, "max delay 259200000ms"),
        ({"TIMER_DELAY_MS": "5000", "TIMER_DEL_UNIQKEY": "x"}, "cannot be cancelled"),
    ],
)
def test_what_cannot_be_done_is_refused(properties: dict[str, str], text: str, client: Client) -> None:
    answer = client.wait(client.start_send("T", b"x", 0, properties))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert text in (answer.remark or "")
    assert bodies(client) == []


def test_the_furthest_time_is_configured() -> None:
    group = Group.elected(1, broker={"timer_max_delay_s": 10})
    client = group.connect()
    client.create_topic("T")
    assert (
        client.wait(client.start_send("T", b"x", 0, at(group, 10_001))).code == ResponseCode.MESSAGE_ILLEGAL
    )
    client.send("T", b"x", 0, at(group, 9_999))


def test_of_several_properties_the_first_of_the_references_order_counts() -> None:
    both = {b"TIMER_DELIVER_MS": b"9000", b"TIMER_DELAY_MS": b"50", b"TIMER_DELAY_SEC": b"2"}
    assert due_ms_of(both, 1000, DAY_MS) == 3000
    assert due_ms_of({b"TIMER_DELIVER_MS": b"9000"}, 1000, DAY_MS) == 9000
    assert due_ms_of({b"TIMER_OUT_MS": b"7", b"TIMER_DELAY_MS": b"50"}, 1000, DAY_MS) is None
    assert due_ms_of({}, 1000, DAY_MS) is None
    with pytest.raises(RequestError):
        due_ms_of({b"TIMER_DELAY_MS": b"-"}, 1000, DAY_MS)


def test_batches_and_the_topic_itself_are_refused(client: Client) -> None:
    batch = encode_batch([BatchItem(0, b"x", b"TIMER_DELAY_SEC\x015\x02")])
    assert client.wait(client.start_send("T", batch, batch=True)).code == ResponseCode.MESSAGE_ILLEGAL
    assert client.wait(client.start_send(TIMER_TOPIC, b"x")).code == ResponseCode.NO_PERMISSION


def test_message_whose_topic_is_gone_is_dropped_and_the_next_is_not(group: Group, client: Client) -> None:
    client.create_topic("U")
    client.send("U", b"lost", 0, at(group, 500))
    client.send("T", b"kept", 0, at(group, 500))
    client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"})
    group.advance(1)
    assert bodies(client) == [b"kept"]
    client.send("T", b"later", 0, at(group, 500))
    group.advance(1)
    assert bodies(client) == [b"kept", b"later"]


def test_a_damaged_message_keeps_none_waiting_that_is_due_before_it(
    group: Group, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that were due with it waited for its repair."""
    for number in range(3):
        client.send("T", b"%d" % number, 0, at(group, 500 + number))
    repair = with_the_second_one_damaged(monkeypatch, timers)
    group.skip(600)
    group.advance(0.6)
    assert bodies(client) == [b"0"]
    repair()
    group.advance(2)
    assert bodies(client) == [b"0", b"1", b"2"]


def test_new_leaders_deliver_what_old_ones_held_and_nothing_again(group: Group) -> None:
    client = group.connect(group.follower)
    client.send("T", b"1", 0, at(group, 5000))
    client.send("T", b"0", 0, at(group, 200))
    group.advance(0.5)
    group.kill(group.leader)
    group.advance(9)
    assert bodies(group.connect()) == [b"0", b"1"]
    for node in list(group.members):
        if group.members[node].node is not None:
            group.kill(node)
    for node in list(group.members):
        group.restart(node)
    group.elect()
    group.advance(10)
    assert bodies(group.connect()) == [b"0", b"1"]


@pytest.mark.parametrize("reached", range(8))
def test_batch_of_deliveries_that_reached_the_log_in_part_is_completed(
    reached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement and `reached` of its 7 deliveries are with a majority when the leader dies."""
    monkeypatch.setattr(Group, "limits", InnerLimits(append_bytes_max=1))  # an entry an append
    group = prepared()
    client = group.connect()
    sent = [b"%d" % number for number in range(7)]
    for number in (3, 1, 5, 0, 2, 6, 4):
        client.start_send("T", sent[number], 0, at(group, 1000 + number // 2))
    group.converge()
    sent = [b"1", b"0", b"3", b"2", b"5", b"4", b"6"]  # by time, and then as sent

    def fall_due() -> None:
        group.skip(1100)
        group.advance(1.01)

    leader_dies_in_a_batch(group, reached, fall_due, sent)


def _set_clock(group: Group, to_ms: int) -> None:
    """Sets the brokers' wall clock, which goes on from there."""
    group.wall_offset_ms += to_ms - group.wall_ms


def test_full_disk_in_the_middle_of_a_batch_is_settled(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_a_full_disk(group, monkeypatch, at(group, 1000), 1)


def test_age_does_not_delete_what_waits_and_a_full_disk_does(group: Group, client: Client) -> None:
    client.send("T", b"waits", 0, at(group, DAY_MS))
    for _ in range(30):
        client.send("T", bytes(100_000), 1)
    group.skip(3_600_000)
    group.advance(2)
    replica = group.node(group.leader).replica
    flush = replica.store.log.flushes.job()
    if flush is not None:
        flush.run()
        replica.store.log.flushes.done(flush)
    old = RetentionPolicy(reserved_ms=1000, delete_ratio=1.0, force_ratio=1.0)
    assert deleted(replica, old) == 0
    group.skip(DAY_MS)
    group.advance(2)
    assert bodies(client) == [b"waits"]
    group.advance(60)
    assert replica.metadata.timers.batch is None, "it is settled, so that retention knows"
    assert deleted(replica, old) >= 2
    client.send("T", b"waits, too", 0, at(group, DAY_MS))
    for _ in range(30):
        client.send("T", bytes(100_000), 1)
    group.advance(10)
    waiting = first_waiting_position(replica.store, replica.metadata)
    assert waiting is not None
    full = RetentionPolicy(reserved_ms=1 << 60, force_ratio=-1.0)
    flush = replica.store.log.flushes.job()
    if flush is not None:
        flush.run()
        replica.store.log.flushes.done(flush)
    assert deleted(replica, full) >= 2
    assert replica.store.log.first_position > waiting
    group.skip(DAY_MS)
    group.advance(2)
    client.send("T", b"after", 0, at(group, 100))
    group.advance(1)
    last = client.pull("T", "g", replica.store.queues.get("T", 0).max_offset - 1)  # type: ignore[union-attr]
    assert last.bodies == [b"after"]


def test_a_leader_drops_what_retention_took_before_its_index_knew_all(group: Group, client: Client) -> None:
    """Found by the simulator: the leader that had delivered before knew more units than this one, and it fell."""
    for _ in range(3):
        client.send("T", b"waits", 0, at(group, DAY_MS))
    first = group.leader
    group.advance(1)
    assert group.node(first).replica.store.timers.end == 3
    group.transfer_leadership(group.follower)
    group.advance(2)  # it looks at its clock a last time
    client = group.connect()
    client.send("T", b"soon", 0, at(group, 100))
    for _ in range(30):
        client.send("T", bytes(100_000), 1)
    group.advance(1)
    assert bodies(client) == [b"soon"]
    replica = group.node(first).replica
    assert replica.store.timers.end == 3
    flush = replica.store.log.flushes.job()
    if flush is not None:
        flush.run()
        replica.store.log.flushes.done(flush)
    full = RetentionPolicy(reserved_ms=1 << 60, force_ratio=-1.0)
    assert deleted(replica, full) >= 2
    queue = replica.store.timers.queue
    assert queue is not None
    assert queue.min_offset == queue.max_offset == 4
    group.transfer_leadership(first)
    group.skip(DAY_MS)
    group.advance(2)
    client = group.connect()
    client.send("T", b"after", 0, at(group, 100))
    group.advance(1)
    (last,) = group.node(first).replica.metadata.timers.batch.offsets  # type: ignore[union-attr]
    assert last == 4


def test_a_leader_delivers_once_what_an_earlier_one_passed_with_its_deleted_head() -> None:
    """Seed 234: the floor, which is replicated, lay behind a message that only another node had deleted.

    It may have, as long as the group does not agree on its head.
    """
    group = prepared(raft={"hold_format": FORMAT_OF_COMMANDS[RaiseHead] - 1})
    client = group.connect()
    client.send("T", b"waits", 0, at(group, DAY_MS))
    group.advance(1)
    keeper = group.leader
    assert group.node(keeper).replica.store.timers.end == 1, "it knows what waits"
    group.transfer_leadership(group.follower)
    client = group.connect()
    for _ in range(30):
        client.send("T", bytes(100_000), 1)
    group.advance(1)
    deleter = group.node(group.leader).replica
    flush = deleter.store.log.flushes.job()
    if flush is not None:
        flush.run()
        deleter.store.log.flushes.done(flush)
    full = RetentionPolicy(reserved_ms=1 << 60, force_ratio=-1.0)
    assert deleted(deleter, full) >= 2
    client.send("T", b"soon", 0, at(group, 100))
    group.advance(1)
    assert bodies(client) == [b"soon"]
    assert deleter.metadata.timers.floor == 1, "what it has deleted it cannot wait for"

    group.transfer_leadership(keeper)
    group.skip(DAY_MS)
    group.advance(2)
    assert bodies(group.connect()) == [b"soon", b"waits"]
    progress = group.node(keeper).replica.metadata.timers
    assert progress.batch is not None
    assert (progress.batch.offsets, progress.batch.floor) == ((0,), 2), "the floor never goes back"
    for _ in range(2):
        group.transfer_leadership(group.follower)
        group.advance(2)
        client = group.connect()
        assert bodies(client) == [b"soon", b"waits"], "no leader delivers it again"
        client.send("T", b"later", 1, at(group, 100))
        group.advance(1)
    assert bodies(client, 1).count(b"later") == 2


def test_a_clock_that_is_set_back_makes_nothing_early_and_nothing_late(group: Group, client: Client) -> None:
    client.send("T", b"first", 0, at(group, 100))
    before, due_s = at(group, 20_000), group.now_ns / 1e9 + 20
    client.send("T", b"pending", 0, before)
    group.advance(1)
    _set_clock(group, group.wall_ms - 10_000)
    group.advance(0.1)
    client.send("T", b"second", 0, {"TIMER_DELAY_MS": "300"})
    group.advance(1)
    assert bodies(client) == [b"first", b"second"], "the next is not kept until the clock has caught up"
    group.kill(group.leader)
    group.elect()
    group.advance(2)
    assert bodies(group.connect()) == [b"first", b"second"], "nothing comes again"
    group.advance(due_s - group.now_ns / 1e9 - 0.1)
    assert bodies(group.connect()) == [b"first", b"second"]
    group.advance(0.1 + 20 / 100 + 0.1)
    assert bodies(group.connect()) == [b"first", b"second", b"pending"], "later by a hundredth at most"


def test_a_clock_that_is_set_forward_makes_nothing_early(group: Group, client: Client) -> None:
    client.send("T", b"x", 0, at(group, 10_000))
    group.advance(1)
    _set_clock(group, group.wall_ms + DAY_MS)
    group.advance(8.8)
    assert bodies(client) == []
    group.advance(0.3)
    assert bodies(client) == [b"x"]


@settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1 << 32))
def test_each_is_delivered_once_in_order_of_time_whatever_is_killed(seed: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_index, "RUNS_MERGED", 2)
        patch.setattr(Group, "limits", InnerLimits(deliveries_max=5))
        group = prepared(options=replace(SMALL_STORE, timer_run_units=8))
        due: dict[bytes, int] = {}
        for _ in range(6):
            client = group.connect()
            for _ in range(rng.randrange(12)):
                body = b"%d" % len(due)
                due[body] = group.wall_ms + rng.randrange(1, 5000)
                client.send("T", body, 0, {"TIMER_DELIVER_MS": str(due[body])})
            group.advance(rng.random())
            victim = rng.choice(list(group.members))
            if rng.random() < 0.7:
                group.kill(victim)
                group.elect()
                group.advance(rng.random())
                group.restart(victim)
            group.elect()
        group.advance(12)
        records: list[Record] = []
        client = group.connect()
        while (pulled := client.pull("T", "g", len(records))).code == ResponseCode.SUCCESS:
            records += pulled.records
        assert sorted(record.body for record in records) == sorted(due)
        assert all(record.store_timestamp >= due[record.body] for record in records)
        steps = group.node(group.leader).replica.metadata.timers.steps
        assert len(steps) <= 2
