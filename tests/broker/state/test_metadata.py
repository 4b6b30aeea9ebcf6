"""The replicated state: a function of its commands, equal after a snapshot, the same from every encoding."""

from random import Random

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.remoting.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig
from broker.remoting.steps import finished
from broker.requests.long_bodies import whole
from broker.state.commands import (
    BeginPortion,
    CheckTransactions,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DeliverDelayed,
    DeliverTimed,
    EndPortion,
    EndResets,
    ForgetOffsets,
    ForgetWriters,
    LockQueues,
    PutGroup,
    PutTopic,
    RaiseFormat,
    RaiseHead,
    ResetOffsets,
    ResumeTransaction,
    SettleDelayed,
    SettleTimed,
    Several,
    UnknownCommandError,
    UnlockQueues,
    decode_command,
    encode_command,
)
from broker.state.metadata import DelayProgress, Metadata, _Tables
from broker.state.order_locks import LockTable, OrderLock
from broker.state.stored_offsets import StoredOffsets
from broker.state.topic_rules import topic_config
from broker.state.writing import Written

topic = st.sampled_from(["T1", "T2"])
group = st.sampled_from(["g1", "g2"])
client = st.sampled_from(["c1", "c2"])
group_ms = st.integers(0, 10**13)
queue = st.integers(0, 3)
queues = st.lists(st.tuples(topic, queue), max_size=3).map(tuple)

offset = st.integers(0, 10**9)

step = st.tuples(offset, offset, st.just(10**9))
"""Limits never go down, as the timer queue only grows."""

single_commands = st.one_of(
    st.builds(PutTopic, st.builds(topic_config, topic, st.integers(1, 8)), group_ms, st.booleans()),
    st.builds(DeleteTopic, topic, group_ms),
    st.builds(
        PutGroup,
        st.builds(lambda name: SubscriptionGroupConfig(group_name=name), group),
        group_ms,
        st.booleans(),
    ),
    st.builds(DeleteGroup, group, st.booleans(), group_ms),
    st.builds(
        CommitOffsets,
        st.lists(st.tuples(group, topic, queue, st.integers(0, 10**9)), max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(
        ResetOffsets, st.lists(st.tuples(group, topic, queue, st.integers(0, 3)), max_size=3).map(tuple)
    ),
    st.builds(EndResets, st.lists(st.tuples(group, topic, queue, st.integers(0, 3)), max_size=3).map(tuple)),
    st.builds(
        ForgetOffsets, st.lists(st.tuples(group, topic, queue, st.integers(0, 3)), max_size=3).map(tuple)
    ),
    st.builds(LockQueues, group, client, queues, group_ms),
    st.builds(UnlockQueues, group, client, queues),
    st.builds(DeliverDelayed, st.integers(1, 3), offset, st.integers(1, 9), offset),
    st.builds(SettleDelayed, st.integers(1, 3), offset),
    st.builds(DeliverTimed, st.lists(offset, max_size=3).map(tuple), step, offset, offset),
    st.builds(SettleTimed, st.lists(step, max_size=2).map(tuple)),
    st.builds(CheckTransactions, st.lists(st.integers(0, 50), max_size=3).map(tuple)),
    st.builds(ResumeTransaction, st.integers(0, 50)),
    st.builds(BeginPortion, topic, client, st.integers(0, 3), offset, group_ms),
    st.builds(EndPortion, topic, client, st.integers(0, 3), group_ms),
    st.builds(ForgetWriters, st.lists(st.tuples(topic, client), max_size=3).map(tuple), group_ms),
    st.builds(RaiseFormat, st.integers(1, 3)),
)
commands = st.one_of(single_commands, st.builds(Several, st.lists(single_commands, max_size=3).map(tuple)))


@given(commands)
def test_commands_come_back_from_their_encoding(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


@given(st.lists(commands, max_size=20), st.lists(commands, max_size=20))
def test_a_snapshot_stands_for_the_commands_before_it(before: list[Command], after: list[Command]) -> None:
    metadata = Metadata()
    for command in before:
        metadata.apply(command)
    restored = Metadata.restore(metadata.snapshot())
    assert restored == metadata
    for command in after:
        assert restored.apply(command) == metadata.apply(command)
    assert restored == metadata
    assert restored.snapshot() == metadata.snapshot(), "replicas' snapshots are byte-identical"


@given(st.lists(commands, max_size=20), st.lists(commands, min_size=1, max_size=30), st.integers(1, 3))
def test_what_is_written_in_steps_is_the_state_of_one_place(
    before: list[Command], meanwhile: list[Command], rows_at_once: int
) -> None:
    """Two views, of two places, are written while commands are applied between any two steps."""
    metadata = Metadata()
    for name in ("T1", "T2"):
        metadata.apply(PutTopic(topic_config(name, 4), 0))
    for command in before:
        metadata.apply(command)
    writing: list[Written] = []
    expected: list[bytes] = []
    found: dict[int, bytes] = {}

    def step(number: int) -> None:
        try:
            next(writing[number])
        except StopIteration as end:
            found[number] = b"".join(end.value.all())

    for moment, command in enumerate(meanwhile):
        if moment in {0, len(meanwhile) // 3}:
            writing.append(metadata.view().written(rows_at_once))
            expected.append(metadata.snapshot())
        metadata.apply(command)
        for number in set(range(len(writing))) - found.keys():
            step(number)
    for number in range(len(writing)):
        while number not in found:
            step(number)
    assert [found[number] for number in range(len(writing))] == expected


@pytest.mark.parametrize("count", [0, 15, 16, 23, 24, 255, 256, pytest.param(70_000, marks=pytest.mark.slow)])
def test_what_is_written_in_steps_is_what_msgspec_writes(count: int) -> None:
    """As earlier releases did: the head of an array, a text or a map says how long it is, in six ways."""
    metadata = Metadata(
        topics={str(number): topic_config(str(number), 1) for number in range(count)},
        offsets=StoredOffsets((str(number), "T", {0: number}) for number in range(count)),
        nameless_groups=count,
        queue_count=count,
        locks=LockTable({("g", "T", number): OrderLock("c", number) for number in range(count)}),
    )
    metadata.transactions.times_checked = dict.fromkeys(range(count), 1)
    metadata.transactions.horizon = count
    metadata.writers.begin("T", "writer", 1, 2, 3)
    metadata.apply(RaiseFormat(2))
    data = whole(metadata.written(1_000))
    assert whole(metadata.written(15)) == data, "however many steps it takes"
    tables = cbor2.loads(data)["tables"]
    assert cbor2.dumps({"version": 2, "tables": tables}) == data
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(tables, type=_Tables)) == tables
    assert Metadata.restore(data) == metadata
    reading = Metadata.read(data, 1)
    for _ in range(3 * count):
        next(reading)  # not whole yet
    assert finished(reading) == metadata, "however many steps it takes"


def test_bytes_that_are_no_tables_are_refused() -> None:
    metadata = Metadata(
        topics={"T": topic_config("T", 1)},
        groups={"g": SubscriptionGroupConfig(group_name="g")},
        queue_count=1,
    )
    tables = cbor2.loads(metadata.snapshot())["tables"]
    no_tables = [tables[:end] for end in range(len(tables))]
    no_tables += [
        tables + b"\0",
        tables.replace(b"topics", b"tropic", 1),
        tables.replace(b"\x91", b"\x92", 1),
    ]
    no_tables += [b"\xdf\xff\xff\xff\xff", b"\x81\xa6topics\xdd\xff\xff\xff\xff\xc1", b"\xc1", b"\x81\xc1"]
    for some in no_tables:
        with pytest.raises(msgspec.DecodeError):
            Metadata.restore(cbor2.dumps({"version": 2, "tables": some}))


def test_a_snapshot_of_an_earlier_version_is_restored() -> None:
    config = {"topicName": "T", "readQueueNums": 3, "writeQueueNums": 4, "attributes": {"a": "b"}}
    version = {"counter": 5, "stateVersion": 0, "timestamp": 7}
    fields = {
        "version": 1,
        "topics": [config],
        "groups": [{"groupName": "g", "retryMaxTimes": 2}],
        "offsets": [["g", "T", {0: 5, 2: 6}]],
        "locks": [["g", "T", 0, "c", 1000]],
        "delays": [[1, 5, 2, 70]],
        "topics_version": version,
        "groups_version": version,
    }
    expected = Metadata(
        topics={
            "T": TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=4, attributes={"a": "b"})
        },
        groups={"g": SubscriptionGroupConfig(group_name="g", retry_max_times=2)},
        offsets=StoredOffsets([("g", "T", {0: 5, 2: 6})]),
        locks=LockTable({("g", "T", 0): OrderLock("c", 1000)}),
        delays={1: DelayProgress(5, 2, 70)},
        topics_version=DataVersion(5, 0, 7),
        groups_version=DataVersion(5, 0, 7),
    )
    assert Metadata.restore(cbor2.dumps(fields)) == expected


def test_a_snapshot_of_a_newer_version_stops_the_node() -> None:
    with pytest.raises(UnknownCommandError, match="version 99"):
        Metadata.restore(cbor2.dumps({"version": 99}))


def test_a_command_of_a_newer_version_stops_the_node() -> None:
    with pytest.raises(UnknownCommandError, match="paint_topic"):
        decode_command(cbor2.dumps(["paint_topic", "T1", "red"]))


def test_a_command_of_a_later_format_stops_an_older_release() -> None:
    body = encode_command(Several((DeleteTopic("T", 1), RaiseFormat(2))))
    assert decode_command(body, newest_format=2)
    with pytest.raises(
        UnknownCommandError, match="'several' is of format 2, this release reads formats up to 1"
    ):
        decode_command(body, newest_format=1)


def test_a_snapshot_of_the_first_format_has_no_field_that_the_first_release_does_not_know() -> None:
    """The first release refuses a field that it does not know: a group that it may be in must not write one."""
    metadata = Metadata()
    first = msgspec.msgpack.decode(cbor2.loads(metadata.snapshot())["tables"])
    assert not first.keys() & {"format", "writers", "head_position"}
    metadata.apply(RaiseFormat(2))
    assert msgspec.msgpack.decode(cbor2.loads(metadata.snapshot())["tables"])["format"] == 2


def test_the_format_never_falls() -> None:
    metadata = Metadata()
    metadata.apply(RaiseFormat(2))
    metadata.apply(RaiseFormat(1))
    assert metadata.format == 2


def test_the_head_never_falls_and_is_part_of_the_snapshot() -> None:
    metadata = Metadata()
    for position, expected in ((1 << 30, 1 << 30), (1 << 20, 1 << 30), (3 << 30, 3 << 30)):
        metadata.apply(RaiseHead(position))
        assert metadata.head_position == expected
    assert Metadata.restore(metadata.snapshot()) == metadata
    assert metadata.view() == metadata
    tables = msgspec.msgpack.decode(cbor2.loads(metadata.snapshot())["tables"])
    assert tables["head_position"] == 3 << 30


def test_the_entry_that_raises_the_head_has_these_bytes() -> None:
    """Of format 3: releases before that stop at it."""
    body = bytes.fromhex("826a" + b"raise_head".hex() + "1a40000000")
    assert encode_command(RaiseHead(1 << 30)) == body
    assert decode_command(body) == RaiseHead(1 << 30)
    with pytest.raises(UnknownCommandError, match="'raise_head' is of format 3"):
        decode_command(body, newest_format=2)


def test_order_locks_are_granted_refreshed_taken_over_and_released() -> None:
    metadata = Metadata()
    two = (("T1", 0), ("T1", 1))
    assert metadata.apply(LockQueues("g", "a", two, 1000)) == two
    assert metadata.apply(LockQueues("g", "b", two, 2000)) == ()
    assert metadata.apply(LockQueues("other group", "b", two, 2000)) == two
    assert metadata.apply(LockQueues("g", "a", two[:1], 50_000)) == two[:1]
    expired_ms = 1000 + LockQueues("g", "b", two, 0).ttl_ms + 1
    assert metadata.apply(LockQueues("g", "b", two, expired_ms)) == two[1:], "only what was not refreshed"
    metadata.apply(UnlockQueues("g", "b", two))
    assert metadata.apply(LockQueues("g", "c", two, expired_ms)) == two[1:], "b released only its own"


def test_deleting_a_topic_or_a_group_takes_its_offsets_along() -> None:
    metadata = Metadata()
    for topic in ("T1", "T2"):
        metadata.apply(PutTopic(topic_config(topic, 4), 0))
    metadata.apply(CommitOffsets((("g1", "T1", 0, 5), ("g1", "T2", 0, 6), ("g2", "T1", 0, 7))))
    assert metadata.offsets.count == 3
    metadata.apply(DeleteTopic("T1", 0))
    assert metadata.offsets == {("g1", "T2"): {0: 6}}
    metadata.apply(CommitOffsets((("g2", "T1", 0, 8),)))
    assert metadata.offsets == {("g1", "T2"): {0: 6}}, "of a topic that is gone"
    assert metadata.offsets.count == 1
    metadata.apply(DeleteGroup("g1", clean_offsets=False, group_ms=0))
    assert metadata.offsets == {("g1", "T2"): {0: 6}}
    metadata.apply(DeleteGroup("g1", clean_offsets=True, group_ms=0))
    assert metadata.offsets == {}
    assert metadata.offsets.count == 0


def test_only_offsets_that_have_not_changed_are_forgotten() -> None:
    metadata = Metadata()
    metadata.apply(PutTopic(topic_config("T1", 4), 0))
    metadata.apply(CommitOffsets((("g1", "T1", 0, 5), ("g1", "T1", 1, 6), ("g2", "T1", 0, 7))))
    metadata.apply(
        ForgetOffsets((("g1", "T1", 0, 5), ("g1", "T1", 1, 5), ("g2", "T1", 0, 7), ("g3", "T1", 0, 1)))
    )
    assert metadata.offsets == {("g1", "T1"): {1: 6}}
    assert metadata.offsets.count == 1


def test_what_is_created_by_use_does_not_replace_what_exists() -> None:
    metadata = Metadata()
    metadata.apply(PutTopic(topic_config("T", 4), 1))
    metadata.apply(PutTopic(topic_config("T", 8), 2, if_absent=True))
    assert metadata.topics["T"].read_queue_nums == 4
    assert (metadata.topics_version.counter, metadata.topics_version.timestamp) == (1, 1)
    metadata.apply(PutTopic(topic_config("T", 8), 3))
    assert metadata.topics["T"].read_queue_nums == 8
    metadata.apply(PutGroup(SubscriptionGroupConfig(group_name="g", retry_max_times=3), 4))
    metadata.apply(PutGroup(SubscriptionGroupConfig(group_name="g"), 5, if_absent=True))
    assert metadata.groups["g"].retry_max_times == 3


def test_order_locks_that_nobody_renews_are_forgotten() -> None:
    metadata = Metadata()
    for number in range(50):
        metadata.apply(LockQueues("g", f"client-{number}", (("T", number),), time_ms=number))
    metadata.apply(LockQueues("g", "client-49", (("T", 49),), time_ms=40_000))
    assert len(metadata.locks) == 50
    for number in range(30):
        metadata.apply(LockQueues("h", "client", (("T", number),), time_ms=99_000))
    assert next(iter(metadata.locks)) == ("g", "T", 49), "renewed, and so not expired"
    assert len(metadata.locks) == 31
    assert Metadata.restore(metadata.snapshot()).locks == metadata.locks


def test_locks_go_with_their_topic_and_their_group() -> None:
    metadata = Metadata()
    metadata.apply(LockQueues("g", "a", (("T", 0), ("U", 0)), 0))
    metadata.apply(LockQueues("h", "a", (("T", 0),), 0))
    metadata.apply(DeleteTopic("U", 1))
    assert list(metadata.locks) == [("g", "T", 0), ("h", "T", 0)]
    before = metadata.view()
    metadata.apply(DeleteGroup("g", False, 1))
    assert list(metadata.locks) == [("h", "T", 0)]
    assert list(before.locks) == [("g", "T", 0), ("h", "T", 0)]


def test_what_a_group_had_is_kept_to_be_let_go_in_steps() -> None:
    """A hundred thousand offsets and locks were freed within the command."""
    metadata = Metadata()
    metadata.apply(PutTopic(topic_config("T", 8), 1))
    metadata.apply(CommitOffsets((("g", "T", 0, 5), ("h", "T", 0, 6))))
    metadata.apply(LockQueues("g", "a", (("T", 0),), 0))
    metadata.apply(LockQueues("h", "a", (("T", 1),), 0))
    locks = dict(metadata.locks)
    metadata.apply(DeleteGroup("other", True, 1))
    assert metadata.gone == []
    metadata.apply(DeleteGroup("g", True, 1))
    assert metadata.gone == [{0: 5}, *locks, *locks.values()]
    assert (dict(metadata.offsets), metadata.offsets.count) == ({("h", "T"): {0: 6}}, 1)
    assert metadata.view().gone == []
    assert metadata == Metadata.restore(metadata.snapshot())


def test_what_is_kept_along_follows_the_tables() -> None:
    random = Random(7)
    metadata = Metadata()
    names, groups = [f"T{number}" for number in range(6)], [f"g{number}" for number in range(4)]
    for _ in range(2000):
        topic, group = random.choice(names), random.choice(groups)
        offset = (group, topic, random.randrange(3), random.randrange(2))
        commands: tuple[Command, ...] = (
            PutTopic(topic_config(topic, random.randrange(1, 5)), 0, if_absent=random.random() < 0.5),
            CommitOffsets((offset,)),
            CommitOffsets((offset,), is_order=True),
            ForgetOffsets((offset,)),
            LockQueues(group, "client", ((topic, 0),), 0),
            PutGroup(SubscriptionGroupConfig(group_name=group), 0),
            DeleteTopic(topic, 0),
            DeleteGroup(group, clean_offsets=random.random() < 0.5, group_ms=0),
        )
        metadata.apply(random.choices(commands, (4, 8, 4, 4, 2, 2, 1, 1))[0])
        assert metadata.offsets.count == sum(map(len, metadata.offsets.values()))
        assert all(metadata.offsets.by_group.values()), "a group without offsets is not there"
        assert metadata.queue_count == sum(config.read_queue_nums for config in metadata.topics.values())
        metadata.view().snapshot()  # which asserts the other counts
    restored = Metadata.restore(metadata.snapshot())
    assert restored.offsets.by_group == metadata.offsets.by_group
    assert restored.queue_count == metadata.queue_count
    restored.apply(CommitOffsets((("g0", names[0], 0, 99),)))
    restored.apply(PutTopic(topic_config(names[0], 1), 0))
    restored.apply(CommitOffsets((("g0", names[0], 0, 77),)))
    assert restored.offsets["g0", names[0]] is restored.offsets.by_group["g0"][names[0]]
