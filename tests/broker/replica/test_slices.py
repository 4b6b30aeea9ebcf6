"""Long work is done in slices: a turn dispatches so many entries, and between two of them others have their turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from broker.node.running import RunningNode
from broker.remoting.admin_bodies import QueueOffsets
from broker.remoting.codes import RequestCode, ResponseCode
from broker.replica import applied
from broker.replica.committed_entries import FOLLOWER_RESTS_NS
from broker.replica.inner_limits import InnerLimits
from broker.replica.leadership import Leadership
from broker.requests.errors import NotServingError
from broker.requests.processing import OUTCOME_UNKNOWN
from broker.state.commands import Command, CommitOffsets, DeleteGroup, DeleteTopic, PutTopic
from broker.state.metadata import Metadata
from broker.state.topic_rules import topic_config
from log.formats.batch import BatchItem, encode_batch
from log.index.index_files import IndexFiles
from tests.broker.harness import SMALL_STORE, Client, Group

SLICE = 10


def start_batch(client: Client, count: int) -> int:
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 0, "h": 0, "m": True}
    items = [BatchItem(0, b"%d" % number, b"") for number in range(count)]
    return client.start_call(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))


@pytest.mark.parametrize("size", [1, 3])
def test_a_large_run_is_dispatched_in_slices(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    group = Group.elected(size, options=replace(SMALL_STORE, dispatch_entries=SLICE))
    client, other = group.connect(), group.connect()
    client.create_topic("T")
    steps: dict[str, list[int]] = {node_id: [] for node_id in group.members}
    turn = RunningNode.turn
    answered_between = []

    def watched(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        replica = running.node.replica
        before = replica.applied_index
        turn(running, now_ns, wall_ms)
        steps[replica.node_id].append(replica.applied_index - before)
        if replica.committed.is_behind and replica.serving:
            other.tell(RequestCode.GET_BROKER_CONFIG)
            opaque = other.start_call(RequestCode.GET_BROKER_CONFIG)
            answered_between.append(opaque)

    monkeypatch.setattr(RunningNode, "turn", watched)
    opaque = start_batch(client, 95)
    answer = client.wait(opaque)
    group.converge()
    assert answer.code == 0
    for node_id, taken in steps.items():
        assert max(taken) <= SLICE, node_id
        assert sum(taken) >= 95
    assert len(answered_between) >= 9, "the leader was behind in so many turns"
    assert all(other.answers[asked].code == 0 for asked in answered_between)
    pulled = [body for at in range(0, 95, 32) for body in client.pull("T", "G", at).bodies]
    assert pulled == [b"%d" % number for number in range(95)]


def test_a_new_leader_serves_when_the_last_slice_is_applied() -> None:
    """What it has not dispatched when it is elected counts for the ends of its queues."""
    group = Group(3, options=replace(SMALL_STORE, dispatch_entries=SLICE))
    first = group.elect()
    client = group.connect()
    client.create_topic("T")
    start_batch(client, 95)
    for _ in range(12):
        group.step_at_random(group.random)
    group.kill(first)
    group.elect()
    client = group.connect()
    receipt = client.send("T", b"behind them")
    assert client.offset_of(RequestCode.GET_MAX_OFFSET, "T") == receipt.queue_offset + 1
    assert client.pull("T", "G", receipt.queue_offset).bodies == [b"behind them"]


def report(client: Client, queues: int) -> None:
    """Tells an offset of each queue, as a client does that consumes them all: in one go, and waits for nothing."""
    for queue in range(queues):
        fields = {"consumerGroup": "g", "topic": "T", "queueId": queue, "commitOffset": queue}
        client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def test_a_report_of_many_offsets_is_proposed_one_command_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "limits", InnerLimits(queues_per_command=10))
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T", 95)
    proposed: list[int] = []
    in_turns: list[int] = []
    propose, turn = Leadership.propose_command, RunningNode.turn

    def watched(leadership: Leadership, command: Command, *told: object) -> None:
        assert isinstance(command, CommitOffsets)
        proposed.append(len(command.offsets))
        propose(leadership, command, *told)  # type: ignore[arg-type]

    def watched_turn(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        before = len(proposed)
        turn(running, now_ns, wall_ms)
        in_turns.append(len(proposed) - before)

    monkeypatch.setattr(Leadership, "propose_command", watched)
    monkeypatch.setattr(RunningNode, "turn", watched_turn)
    report(client, 95)
    assert proposed == [10] * 9, "what fills a command does not wait for the others"
    group.advance(1)
    assert proposed == [*[10] * 9, 5]
    assert max(in_turns) == 1
    assert group.node(group.leader).replica.metadata.offsets["g", "T"] == {
        queue: queue for queue in range(95)
    }


@pytest.mark.parametrize("size", [1, 3])
def test_a_turn_applies_so_many_bytes_of_commands(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that was away finds thousands of them in 4,096 entries, and each has hundreds of offsets."""
    monkeypatch.setattr(applied, "COMMAND_BYTES_AT_ONCE", 1)
    monkeypatch.setattr(Group, "limits", InnerLimits(queues_per_command=10))
    group = Group.elected(size, options=SMALL_STORE)
    client = group.connect()
    client.create_topic("T", 95)
    group.converge()
    counts: list[int] = []
    count = [0]
    apply, turn = Metadata.apply, RunningNode.turn

    def watched(metadata: Metadata, command: Command) -> object:
        count[0] += 1
        return apply(metadata, command)

    def watched_turn(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        count[0] = 0
        turn(running, now_ns, wall_ms)
        counts.append(count[0])

    monkeypatch.setattr(Metadata, "apply", watched)
    monkeypatch.setattr(RunningNode, "turn", watched_turn)
    report(client, 95)
    group.advance(1)
    group.converge()
    assert max(counts) == 1
    assert sum(counts) == 10 * size
    for member in group.alive():
        assert member.alive.replica.metadata.offsets["g", "T"] == {queue: queue for queue in range(95)}


def applied_there(group: Group) -> int:
    """How far the followers have applied the log, at least."""
    return min(member.alive.replica.applied_index for member in group.alive() if member.id != group.leader)


def test_a_follower_under_load_rests_until_it_is_asked_or_some_time_has_passed() -> None:
    group = Group.elected(3)
    client, other = group.connect(), group.connect(group.follower)
    client.create_topic("T")
    asked, log = group.node(group.follower).replica, group.node(group.leader).replica.store.log
    group.converge()
    first = log.last_index
    # What is sent next tells the followers that the one before is committed.
    for body in (b"second", b"third"):
        client.send("T", body)
    assert applied_there(group) == first
    other.call(RequestCode.GET_BROKER_CONFIG)
    assert asked.applied_index == first + 1
    group.advance(FOLLOWER_RESTS_NS / 1e9)
    assert applied_there(group) >= first + 1


def test_a_follower_does_not_rest_between_slices() -> None:
    group = Group.elected(3, options=replace(SMALL_STORE, dispatch_entries=SLICE))
    client = group.connect()
    client.create_topic("T")
    group.advance(1)
    client.wait(start_batch(client, 95))
    last = group.node(group.leader).replica.store.log.last_index
    client.send("T", b"tells that they are committed")
    assert applied_there(group) == last


def test_a_turn_maps_so_many_files_of_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may send to as many queues as it likes, and each that is new takes as long as a hundred messages."""
    group = Group.elected(3, options=replace(SMALL_STORE, dispatch_files=4, consume_queue_mappings=8))
    client = group.connect()
    client.create_topic("T", 50)
    group.converge()
    opened: list[int] = []
    turn = RunningNode.turn

    def watched(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        pool = running.node.replica.store.queues.pool
        before = pool.opened
        turn(running, now_ns, wall_ms)
        opened.append(pool.opened - before)

    monkeypatch.setattr(RunningNode, "turn", watched)
    for body in (b"first", b"second"):  # new queues, then such whose mappings were given up meanwhile
        for queue in range(50):
            opaque = client.start_send("T", body, queue_id=queue)
        assert client.wait(opaque).code == 0
        group.converge()
    assert max(opened) == 4
    for queue in range(50):
        assert client.pull("T", "G", 0, queue_id=queue).bodies == [b"first", b"second"]


def test_a_turn_indexes_so_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may have a thousand, and thousands of messages are dispatched in one turn."""
    group = Group.elected(3, options=replace(SMALL_STORE, dispatch_keys=50))
    client = group.connect()
    client.create_topic("T")
    group.converge()
    indexed: list[int] = []
    turn = RunningNode.turn
    count = 0

    def counted(index: IndexFiles, keys: Sequence[bytes], *told: Any) -> None:
        nonlocal count
        count += len(keys)
        put(index, keys, *told)

    def watched(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        nonlocal count
        count = 0
        turn(running, now_ns, wall_ms)
        indexed.append(count)

    put = IndexFiles.put
    monkeypatch.setattr(IndexFiles, "put", counted)
    monkeypatch.setattr(RunningNode, "turn", watched)
    for number in range(20):
        keys = " ".join(f"{number}-{key}" for key in range(20))
        opaque = client.start_send("T", b"x", properties={"KEYS": keys})
    assert client.wait(opaque).code == 0
    group.converge()
    assert sum(indexed) == 3 * 20 * 21, "on three nodes, the unique ones among them"
    assert max(indexed) == 63, "a message is indexed as a whole"


@pytest.mark.parametrize("code", [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET])
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_order_for_many_queues_is_proposed_one_command_a_turn(
    code: RequestCode, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group.elected(3)
    client = group.connect()
    client.create_topic("T", 1_300)
    client.heartbeat("h")
    client.heartbeat("g")
    report(client, 1_300)
    group.advance(1)
    in_turns: list[int] = []
    count = [0]
    propose, turn = Leadership.propose_command, RunningNode.turn

    def watched(leadership: Leadership, command: Command, *told: object) -> None:
        count[0] += 1
        if is_lost and sum(in_turns) + count[0] == 2:
            raise NotServingError(None)
        propose(leadership, command, *told)  # type: ignore[arg-type]

    def watched_turn(running: RunningNode, now_ns: int, wall_ms: int) -> None:
        turn(running, now_ns, wall_ms)
        in_turns.append(count[0])
        count[0] = 0

    monkeypatch.setattr(Leadership, "propose_command", watched)
    monkeypatch.setattr(RunningNode, "turn", watched_turn)
    fields = {"topic": "T", "group": "g", "timestamp": -1, "isForce": True}
    if code == RequestCode.CLONE_GROUP_OFFSET:
        fields = {"topic": "T", "srcGroup": "g", "destGroup": "h", "offline": True}
    answer = client.call(code, fields)
    assert max(in_turns) == 1
    if is_lost:
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
        return
    assert (answer.code, sum(in_turns)) == (0, 3)
    offsets = group.node(group.leader).replica.metadata.offsets
    if code == RequestCode.CLONE_GROUP_OFFSET:
        assert offsets["h", "T"] == offsets["g", "T"] == {queue: queue for queue in range(1_300)}
    else:
        to = {queue.queue_id: offset for queue, offset in QueueOffsets.decode(answer.body).offsets.items()}
        assert to == offsets["g", "T"] == dict.fromkeys(range(1_300), 0)


def start_order(monkeypatch: pytest.MonkeyPatch, code: int) -> tuple[Group, Client, int]:
    """An administrator's order for g in 1,300 queues, of 13 parts; some are in the log."""
    monkeypatch.setattr(Group, "limits", InnerLimits(queues_per_command=100))
    group = Group.elected(1)
    client = group.connect()
    client.create_topic("T", 1_300)
    client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
    for queue in range(1_300):
        fields = {"consumerGroup": "s", "topic": "T", "queueId": queue, "commitOffset": 7}
        client.tell(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    group.advance(1)
    orders = {
        RequestCode.CLONE_GROUP_OFFSET: {"topic": "T", "srcGroup": "s", "destGroup": "g", "offline": True},
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {
            "topic": "T",
            "group": "g",
            "timestamp": -1,
            "isForce": True,
        },
    }
    opaque = client.start_call(code, orders[RequestCode(code)])
    while not group.node(group.leader).long_requests.has_more:
        group.step_at_random(group.random)
    return group, client, opaque


def test_what_is_copied_of_a_topic_is_not_for_the_one_that_is_made_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy had been taken of the old one, and its rest had the group leave out messages of the new one."""
    group, client, opaque = start_order(monkeypatch, RequestCode.CLONE_GROUP_OFFSET)
    node = group.node(group.leader)
    node.replica.leadership.propose_command(DeleteTopic("T", 0))
    while "T" in node.replica.metadata.topics:
        group.step_at_random(group.random)
    node.replica.leadership.propose_command(PutTopic(topic_config("T", 1_300), 0))
    assert node.long_requests.has_more
    assert client.wait(opaque).code == 0
    assert node.replica.metadata.topics["T"]
    assert ("g", "T") not in node.replica.metadata.offsets


def test_a_group_that_is_deleted_is_sent_nowhere_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the order brought it back, by its name and with orders that nobody would follow."""
    group, client, opaque = start_order(monkeypatch, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    replica = group.node(group.leader).replica
    replica.leadership.propose_command(DeleteGroup("g", clean_offsets=True, group_ms=0))
    while "g" in replica.metadata.groups:
        group.step_at_random(group.random)
    behind_it = len(replica.metadata.offsets.get(("g", "T"), {}))
    answer = client.wait(opaque)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)
    assert len(replica.metadata.offsets.get(("g", "T"), {})) == behind_it <= 100
